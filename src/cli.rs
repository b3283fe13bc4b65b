//! The command line: the structs that clap fills, with the help text, which is only written here
//! (man/ and completions/ are generated from it). Nothing is resolved here: a value that a variable
//! or a file may also give is passed to `config` as typed.

use crate::lock::Key;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;

pub mod acquire;
mod after;
pub mod check;
pub mod complete;
pub mod doctor;
pub mod duration;
pub mod forget;
pub mod history;
pub mod hold;
pub mod key;
mod leading;
pub mod metrics;
pub mod options;
pub mod pause;
pub mod point;
pub mod release;
pub mod renew;
pub mod run;
pub mod status;
pub mod usage;
pub mod wait;
pub mod watch;

pub use options::{Color, Common, LogFormat};
pub use release::Release;
pub use run::Run;
pub use status::Status;

/// The parser, except for the options that every command takes.
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    about = "Run a command under a lock that a whole fleet of machines respects",
    long_about = "Run a command under a lock that a whole fleet of machines respects.\n\n\
        dlock is flock(1) for more than one machine. The lock lives in a server that all of them reach, such as \
        Redis, PostgreSQL, MySQL, etcd or ZooKeeper, or, for one machine, in a directory. It is a lease: dlock \
        renews it while the command runs, gives it back when the command ends, and stops the command before the \
        lease ends if it cannot be renewed.",
    after_long_help = "Examples:\n  \
        # Crontab of every machine; one of them runs the job:\n  \
        @daily /usr/bin/dlock run -q -k rep --once-per day -w 4h -- /opt/rep\n\n  \
        # Who holds what, and who waits:\n  \
        dlock status\n\n\
        The store is redis://127.0.0.1:6379, a different one on each machine, unless\n\
        --store, DLOCK_STORE or a configuration file names another. The options\n\
        that every command takes may stand before the command:\n\
        dlock --store URL status.\n\
        'dlock run --help' explains the rest.\n\n\
        STORES\n  \
        redis://[USER@]HOST[:PORT][/DB]  one Redis server\n  \
        redis+unix:///SOCKET[?db=N]  the same, by its socket\n  \
        redis+sentinel://HOST,HOST/MASTER  the master that sentinels name\n  \
        redis+cluster://HOST,HOST  a Redis Cluster\n  \
        redis+quorum://HOST,HOST,HOST  a majority of independent masters\n  \
        postgres://USER@HOST[:PORT]/DATABASE  a PostgreSQL database;\n      \
        postgres+unix://USER@/SOCKET?db=DATABASE by a socket\n  \
        mysql://USER@HOST[:PORT]/DATABASE  a MySQL or MariaDB database; mysql+unix\n      \
        likewise; of several hosts (HOST,HOST) dlock uses the one that can write\n  \
        etcd://HOST,HOST[/PREFIX]  an etcd cluster\n  \
        zookeeper://HOST,HOST[/CHROOT]  a ZooKeeper ensemble\n  \
        file:/DIR  a directory, for the processes of this machine only\n  \
        rediss, etcds and zookeepers are TLS, and so are postgres and mysql to another\n  \
        machine: ?ca=FILE trusts FILE in place of the system's authorities,\n  \
        &cert=FILE&key=FILE shows a certificate.",
    disable_help_subcommand = true,
    args_override_self = true,
    max_term_width = 100
)]
struct Top {
    #[command(subcommand)]
    command: Command,
}

/// The command line.
#[derive(Debug)]
pub struct Cli {
    pub common: Common,
    /// What to do.
    pub command: Command,
}

/// The commands by what they are for, as the help lists them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Jobs", &["run", "hold"]),
    ("Look", &["status", "history", "watch", "doctor", "metrics"]),
    ("Act", &["release", "pause", "resume", "forget"]),
    ("Scripts", &["acquire", "renew", "check", "wait"]),
    ("Shell", &["completions"]),
];

impl Cli {
    /// The parser.
    pub fn command() -> clap::Command {
        let command = Top::command().mut_subcommands(Common::augment_args);
        let line = |name: &&str| {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            format!("  {name:<11}  {}\n", about.map(ToString::to_string).unwrap_or_default())
        };
        let groups = GROUPS
            .map(|(heading, names)| format!("{heading}:\n{}\n", names.iter().map(line).collect::<String>()));
        let commands = groups.concat();
        command.help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}Options:\n{{options}}{{after-help}}"
        ))
    }

    /// Parses a command line; the first argument is the program's name. A valid `run` is parsed by
    /// its parser alone, because building those of all commands takes a noticeable part of a short run.
    pub fn parse(arguments: &[OsString]) -> Result<Self, clap::Error> {
        if arguments.get(1).is_some_and(|word| word == "run") {
            let parser =
                Common::augment_args(Run::augment_args(clap::Command::new(""))).args_override_self(true);
            if let Ok(given) = parser.try_get_matches_from(&arguments[1..]) {
                let command = Command::Run(Box::new(Run::from_arg_matches(&given)?));
                return Ok(Self { common: Common::from_arg_matches(&given)?, command });
            }
        }
        let matches = Self::command().try_get_matches_from(arguments)?;
        let Top { command } = Top::from_arg_matches(&matches)?;
        let common = matches.subcommand().map(|(_, given)| Common::from_arg_matches(given)).transpose()?;
        Ok(Self { common: common.unwrap_or_default(), command })
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the lock, run a command under it, give it back, exit as the command did
    ///
    /// The lease is renewed while CMD runs. Without --wait dlock does not wait: if the lock is held it names the holder
    /// and exits 75. CMD gets stdin, stdout, stderr, directory and signals as if it had been started without dlock.
    Run(Box<Run>),
    /// Hold a lock for a process that dlock did not start, or for the program on stdin
    ///
    /// Takes the lock, renews it, and gives it back when the process ends, or at the end of stdin. If the lock is lost the
    /// process is stopped before the lease ends, as the command of 'dlock run' is.
    Hold(Box<hold::Hold>),
    /// Show the holders and waiters of locks, and for how long
    ///
    /// Without KEY: every lock under the prefix that is held, cooling, paused, overdue or waited for.
    Status(Status),
    /// Show how the last runs under a lock went
    ///
    /// The last 64 ends are kept, for 40 days. Runs whose dlock was killed are there, too: "crashed", or "expired" if the
    /// guard was gone as well.
    History(history::History),
    /// Take a lock for a script, which renews it and gives it back itself
    ///
    /// Prints the token that proves the hold, and says until when the lease lasts. For scripts that cannot be wrapped in
    /// 'dlock run'.
    Acquire(Box<acquire::Acquire>),
    /// Extend the lease of an acquired lock
    Renew(renew::Renew),
    /// Say whether the lock that this process runs under is still held
    Check(check::Check),
    /// Wait until locks are free, without taking them
    Wait(wait::Wait),
    /// Give back a lock, ask its holder to stop, or take it away
    ///
    /// What a script acquired is given back. If another holds the lock, dlock shows the holder and asks for confirmation.
    /// Then the holder's dlock stops its job and gives the lock back, and this command returns.
    Release(Release),
    /// Block new holders of a lock for a while
    ///
    /// The present holder goes on, and waiters go on waiting. A run that does not wait is refused; its message says who
    /// paused the lock, why, and until when.
    Pause(pause::Pause),
    /// End a pause
    Resume(pause::Resume),
    /// Let a job run again before its --once-per time is over
    ///
    /// The store forgets that a run under the lock has succeeded. Nothing else about the lock changes.
    Forget(forget::Forget),
    /// Print what happens to locks, as it happens
    ///
    /// From now on, one line an event, until ^C. Without KEY: every lock under the prefix.
    Watch(watch::Watch),
    /// Print metrics of locks, for Prometheus
    ///
    /// Grants, refusals, ends, and how long runs waited and held the lock. Without KEY: every lock under the prefix.
    Metrics(metrics::Metrics),
    /// Say whether the store is fit to hold locks
    ///
    /// Checks every server of the store, and the settings that name it.
    Doctor(doctor::Doctor),
    /// Print a completion script for a shell
    Completions(Completions),
}

impl Command {
    /// The lock that the command is about, if it is one; of locks taken together, the first.
    pub fn key(&self) -> Option<&Key> {
        let keys: &[Key] = match self {
            Self::Run(run) => return run.how.key.first(),
            Self::Hold(hold) => return hold.how.key.first(),
            Self::Acquire(acquire) => return acquire.how.key.first(),
            Self::Renew(renew) => renew.key.as_slice(),
            Self::Check(check) => check.key.as_slice(),
            Self::Wait(wait) => &wait.keys,
            Self::Forget(forget) => &forget.keys,
            Self::Pause(pause) => &pause.keys,
            Self::Resume(resume) => &resume.keys,
            Self::Release(release) => release.key.as_slice(),
            Self::History(history) => &history.keys,
            Self::Status(_) | Self::Watch(_) | Self::Metrics(_) | Self::Doctor(_) | Self::Completions(_) => {
                &[]
            }
        };
        if let [key] = keys { Some(key) } else { None }
    }
}

const COMPLETIONS_AFTER: &str = "\
Examples:
  dlock completions bash > ~/.local/share/bash-completion/completions/dlock
  dlock completions zsh > \"${fpath[1]}/_dlock\"
  dlock completions fish > ~/.config/fish/completions/dlock.fish

For a KEY, TAB offers the keys that the store knows. The store is the one that
--store or DLOCK_STORE on the line names, else the one that dlock would use. If
it does not answer within a quarter of a second, no keys are offered.

EXIT STATUS
    0  the script was printed
   64  the command line makes no sense
   74  output could not be written";

/// `dlock completions`.
#[derive(Debug, Args)]
#[command(after_long_help = COMPLETIONS_AFTER)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// A shell that has a completion script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let top = Cli::command();
        let mut known: Vec<&str> = top.get_subcommands().map(clap::Command::get_name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
