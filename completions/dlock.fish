# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dlock_global_optspecs
    string join \n h/help V/version
end

function __fish_dlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dlock_using_subcommand
    set -l cmd (__fish_dlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dlock -n "__fish_dlock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_needs_command" -s V -l version -d 'Print version'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "run" -d 'Take the lock, run a command under it, give it back, exit as the command did'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "hold" -d 'Hold a lock for a process that dlock did not start, or for the program on stdin'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "status" -d 'Show the holders and waiters of locks, and for how long'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "history" -d 'Show how the last runs under a lock went'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "acquire" -d 'Take a lock for a script, which renews it and gives it back itself'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "renew" -d 'Extend the lease of an acquired lock'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "check" -d 'Say whether the lock that this process runs under is still held'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "wait" -d 'Wait until locks are free, without taking them'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "release" -d 'Give back a lock, ask its holder to stop, or take it away'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "pause" -d 'Block new holders of a lock for a while'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "resume" -d 'End a pause'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "forget" -d 'Let a job run again before its --once-per time is over'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "watch" -d 'Print what happens to locks, as it happens'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "metrics" -d 'Print metrics of locks, for Prometheus'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "doctor" -d 'Say whether the store is fit to hold locks'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "completions" -d 'Print a completion script for a shell'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s k -l key -d 'The lock\'s name: 1 to 512 bytes of UTF-8; several -k are taken together, all or none' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand run" -s n -l slots -d 'Up to N holders at a time, 1 to 1000, each with a slot number of its own' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s t -l ttl -d 'The length of the lease, 500ms to 24h [default: 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s w -l wait -d 'Wait for the lock, first come first served; without DUR for ever [default: do not wait]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s E -l busy-exit-code -d 'The exit status when the lock was not obtained, 0 to 255 [default: 75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l reason -d 'Why the lock is taken; `dlock status` shows it' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l label -d 'Show and store TEXT in place of the command line' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l pause-on-failure -d 'If this run fails, let nobody have the lock for DUR' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l grace -d 'The time between TERM and KILL when dlock must stop the job [default: 10s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l on-lost -d 'What to do with the job when the lock is lost [default: stop]' -r -f -a "stop\t'Stop it'
warn\t'Let it run on, warn, and exit 79 when it has ended'"
complete -c dlock -n "__fish_dlock_using_subcommand run" -l replicas -d 'Replicas that must acknowledge each grant, renewal and release [default: 0]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l min-hold -d 'Keep the lock at least this long after it was granted' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l once-per -d 'Skip CMD, and exit 0, if a run of this minute, hour, day or week, or of the last DUR, has succeeded' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l expect -d 'Report KEY as overdue if no run succeeds for minute, hour, day, week, or this long' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l max-run -d 'Stop CMD when it has run this long, and exit 124' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l max-lease -d 'The longest lease on redis+quorum:// masters; the same on every machine [default: 5m]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l report -d 'When done, write the outcome to FILE as JSON' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand run" -s c -l command -d 'Run STRING by $SHELL (or /bin/sh) in place of `-- CMD`' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand run" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand run" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand run" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand run" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand run" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand run" -s s -l shared -d 'Share the lock with others that share it'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s x -l exclusive -d 'One holder at a time [default]'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l replace -d 'The newest wins: ask the holder to end, and take the lock when the old job is dead; needs --wait'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l no-replace -d 'Once the lock is held, do not let a run with --replace end the hold'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l during-pause -d 'Run although the lock is paused; needs --reason'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l tree -d 'Keep the lock until every process of the job has ended, not CMD alone'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l nonblock -d 'flock\'s way to say that it does not wait'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s k -l key -d 'The lock\'s name: 1 to 512 bytes of UTF-8; several -k are taken together, all or none' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s n -l slots -d 'Up to N holders at a time, 1 to 1000, each with a slot number of its own' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s t -l ttl -d 'The length of the lease, 500ms to 24h [default: 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s w -l wait -d 'Wait for the lock, first come first served; without DUR for ever [default: do not wait]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s E -l busy-exit-code -d 'The exit status when the lock was not obtained, 0 to 255 [default: 75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l reason -d 'Why the lock is taken; `dlock status` shows it' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l label -d 'Show and store TEXT in place of the command line' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l pause-on-failure -d 'If this run fails, let nobody have the lock for DUR' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l grace -d 'The time between TERM and KILL when dlock must stop the job [default: 10s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l on-lost -d 'What to do with the job when the lock is lost [default: stop]' -r -f -a "stop\t'Stop it'
warn\t'Let it run on, warn, and exit 79 when it has ended'"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l replicas -d 'Replicas that must acknowledge each grant, renewal and release [default: 0]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l pid -d 'Hold the lock until this process ends, in place of the end of stdin' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l env-file -d 'Append the same variables to FILE, as NAME=value lines without quotes; needs --background' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l log -d 'Append messages to FILE once the lock is held, in place of stderr' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l report -d 'Write the outcome to FILE as JSON when the hold is over' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s s -l shared -d 'Share the lock with others that share it'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s x -l exclusive -d 'One holder at a time [default]'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l replace -d 'The newest wins: ask the holder to end, and take the lock when the old job is dead; needs --wait'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l no-replace -d 'Once the lock is held, do not let a run with --replace end the hold'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l tree -d 'Keep the lock until what the process has started has ended, too; needs --pid'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l background -d 'Return when the lock is granted, and go on in the background; needs --pid'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l export -d 'Print shell code that sets DLOCK_KEY, DLOCK_HELD and so on; needs --background'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l json -d 'Print what happens to the hold on stdout, one JSON object a line'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand status" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand status" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand status" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand status" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand status" -s a -l all -d 'Show every lock that the store knows, also those that are free, with the last run and the last success'
complete -c dlock -n "__fish_dlock_using_subcommand status" -l overdue -d 'Show only the locks whose last success is too old, with their last run; exit 75 if there are any'
complete -c dlock -n "__fish_dlock_using_subcommand status" -l json -d 'Print a JSON array, one object a lock'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand history" -s n -l lines -d 'Show the last N only' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l since -d 'Show only what ended within the last DUR, or since a moment such as 03:00 or yesterday' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand history" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand history" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand history" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand history" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand history" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand history" -l failed -d 'Show only runs that failed: a status other than 0, a signal, or an end that the job did not choose'
complete -c dlock -n "__fish_dlock_using_subcommand history" -l refused -d 'Also show runs that did not get the lock, and why'
complete -c dlock -n "__fish_dlock_using_subcommand history" -l json -d 'Print a JSON array, one object a run, the newest first'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s k -l key -d 'The lock\'s name: 1 to 512 bytes of UTF-8; several -k are taken together, all or none' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s n -l slots -d 'Up to N holders at a time, 1 to 1000, each with a slot number of its own' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s t -l ttl -d 'The length of the lease, 500ms to 24h [default: 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s w -l wait -d 'Wait for the lock, first come first served; without DUR for ever [default: do not wait]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s E -l busy-exit-code -d 'The exit status when the lock was not obtained, 0 to 255 [default: 75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l reason -d 'Why the lock is taken; `dlock status` shows it' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l label -d 'Show and store TEXT in place of the command line' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l min-hold -d 'Keep the lock at least this long after it was granted, also when it is given back earlier' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s s -l shared -d 'Share the lock with others that share it'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s x -l exclusive -d 'One holder at a time [default]'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l export -d 'Print shell code that sets DLOCK_KEY, DLOCK_TOKEN and so on, in place of the token'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l json -d 'Print a JSON array with one object, in place of the token'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s t -l ttl -d 'The length of the lease from now on, 500ms to 24h' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l token-file -d 'Renew the hold whose token is in FILE (`-`: standard input)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand check" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand check" -l token-file -d 'Ask about the hold whose token is in FILE (`-`: standard input)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand check" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand check" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand check" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand check" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand check" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand check" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand check" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand check" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand check" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand check" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand check" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand check" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand wait" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l done -d 'Wait until each key has succeeded in this minute, hour, day or week, or within the last DUR' -r
complete -c dlock -n "__fish_dlock_using_subcommand wait" -s w -l wait -d 'Wait at most this long; 0: only look [default: for ever]' -r
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand wait" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand wait" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand wait" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand wait" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand release" -l token-file -d 'Give back the hold whose token is in FILE (`-`: standard input)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l slot -d 'Ask only the holder of slot N to stop' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l timeout -d 'How long to wait for the job to end; the request to stop remains [default: for ever]' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l reason -d 'Why; shown in the message of the stopped job, in its --report and by \'dlock history\'' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand release" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand release" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand release" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand release" -l force -d 'Take the lock away: its renewals are refused from now on'
complete -c dlock -n "__fish_dlock_using_subcommand release" -l now -d 'With --force: grant it to the next at once; both jobs may then run'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s y -l yes -d 'Do not ask for confirmation'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand pause" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l for -d 'For how long, up to 40d [default: 1h, or as long as it is paused already]' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l until -d 'Until when, in place of --for: a moment such as 03:00 or \'2026-11-28 03:00\'' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l reason -d 'Why; shown by status, and to a run that is refused' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand pause" -l stop -d 'Also ask the holder to end, as \'dlock release\' does'
complete -c dlock -n "__fish_dlock_using_subcommand pause" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand pause" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand pause" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand resume" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand resume" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand resume" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand resume" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand resume" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l retire -d 'Expect no run of KEY any more, in place of forgetting its last success'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand watch" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand watch" -l json -d 'Print one JSON object a line'
complete -c dlock -n "__fish_dlock_using_subcommand watch" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand watch" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand watch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -s k -l key -d 'The same as KEY' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s t -l ttl -d 'The lease that the jobs use [default: that of the configuration files, else 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l strict -d 'Exit 1 if there is a warning'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l sql -d 'Print the SQL that creates the tables of this store, for an administrator; asks no server'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l json -d 'Print a JSON array, one object a line'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l store -d 'Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]' -r -f
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l prefix -d 'What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l config -d 'Read FILE in place of the configuration files (or DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l username -d 'The user to log in to the store as (or DLOCK_USERNAME)' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l password-file -d 'Read the store\'s password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l password-command -d 'Run COMMAND by /bin/sh for the store\'s password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)' -r -f -a "(__fish_complete_command)"
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l connect-timeout -d 'How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l op-timeout -d 'How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l log-format -d 'The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]' -r -f -a "text\t'Lines for people'
json\t'One JSON object a line'"
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l color -d 'When to use colours; NO_COLOR in the environment means never [default: auto]' -r -f -a "auto\t'On a terminal'
always\t'Also into a pipe'
never\t'Not at all'"
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s q -l quiet -d 'Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are still reported'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s v -l verbose -d 'Report more'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'

function __dlock_keys
    command dlock complete-keys fish (commandline -cp | string collect) 2>/dev/null </dev/null
end

complete -c dlock -n "__fish_dlock_using_subcommand run" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand status" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand status" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand history" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand history" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand check" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand check" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand wait" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand wait" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand release" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand release" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand pause" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand pause" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand resume" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand resume" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand watch" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand watch" -s k -l key -r -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -f -a "(__dlock_keys)"
complete -c dlock -n "__fish_dlock_using_subcommand metrics" -s k -l key -r -f -a "(__dlock_keys)"
