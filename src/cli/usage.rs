//! Parses the command line, and turns clap's errors, and what clap cannot express, into one line
//! with a hint. Prints nothing and reads no variable or file.

use super::acquire::Acquire;
use super::complete::Question;
use super::hold::Hold;
use super::options::How;
use super::{Cli, Command, LogFormat, Release, Run, leading};
use crate::lock::Key;
use crate::shell::word;
use clap::ValueEnum as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::time::Duration;

/// A parsed command line.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one, once")]
pub enum Parsed {
    /// Run a command.
    Command(Cli),
    /// Answer a completion script.
    Complete(Question),
    /// Print this (help or version) on stdout.
    Print(String),
}

/// The commands, for messages.
const COMMANDS: &str = "run, hold, status, history, watch, metrics, acquire, renew, check, wait, release, pause, resume, forget, doctor, completions";

/// Parses a command line; the first argument is the program's name. The error is one line, for
/// status 64.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, String> {
    let mut arguments = leading::moved(arguments.into_iter().collect());
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.truncate(2);
        arguments.push("--help".into());
    }
    if arguments.get(1).is_some_and(|word| word == Question::WORD)
        && let Some(question) = Question::read(&arguments[2..])
    {
        return Ok(Parsed::Complete(question));
    }
    let command = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default().to_owned();
    match Cli::parse(&arguments) {
        Ok(mut cli) => {
            match &mut cli.command {
                Command::Run(run) => check_run(run)?,
                Command::Release(release) => check_release(release)?,
                Command::Hold(hold) => check_hold(hold)?,
                Command::Acquire(acquire) => check_acquire(acquire)?,
                Command::Renew(renew) => {
                    renew.named.join_one(&mut renew.key)?;
                    check_token("renew", renew.token_file.is_some(), renew.key.is_some())?;
                }
                Command::Check(check) => {
                    check.named.join_one(&mut check.key)?;
                    check_token("check", check.token_file.is_some(), check.key.is_some())?;
                }
                Command::Wait(wait) => wait.named.join(&mut wait.keys),
                Command::Pause(pause) => pause.named.join(&mut pause.keys),
                Command::Resume(resume) => resume.named.join(&mut resume.keys),
                Command::Forget(forget) => forget.named.join(&mut forget.keys),
                Command::Status(status) => status.named.join(&mut status.keys),
                Command::Watch(watch) => watch.named.join(&mut watch.keys),
                Command::Metrics(metrics) => metrics.named.join(&mut metrics.keys),
                Command::History(history) => history.named.join(&mut history.keys),
                Command::Doctor(_) | Command::Completions(_) => {}
            }
            Ok(Parsed::Command(cli))
        }
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(Parsed::Print(error.render().to_string()))
            }
            _ => Err(explain(&error, &command, &arguments)),
        },
    }
}

/// Whether a shell will evaluate the output, also if the command line is invalid otherwise:
/// `--export`, and what looks like it. After `run` such a word may be the job's, whose output this is.
pub fn is_evaluated(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let words = leading::moved(arguments.into_iter().take_while(|word| word != "--").collect());
    let words = words.get(1..).unwrap_or_default();
    words.first().is_none_or(|word| word != "run")
        && words.iter().any(|word| word == "--export" || word.as_encoded_bytes().starts_with(b"--export="))
}

/// The message format that a command line asks for, also if it is invalid otherwise.
pub fn log_format(arguments: impl IntoIterator<Item = OsString>) -> Option<LogFormat> {
    let mut words = arguments.into_iter().take_while(|word| word != "--");
    let mut format = None;
    while let Some(word) = words.next() {
        let word = word.to_string_lossy();
        let value = match word.strip_prefix("--log-format") {
            Some("") => words.next().map(|value| value.to_string_lossy().into_owned()),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        format = value.and_then(|value| LogFormat::from_str(&value, false).ok()).or(format);
    }
    format
}

/// Checks what clap cannot express about `run`.
fn check_run(run: &Run) -> Result<(), String> {
    if let ([], [word, separator, ..]) = (&*run.how.key, &*run.command)
        && separator == "--"
    {
        let word = short(&word.to_string_lossy());
        return Err(format!(
            "'{word}' is taken for the command; a key is given by -k: dlock run -k {word} -- CMD"
        ));
    }
    check_key("run", &run.how, " -- CMD")?;
    if waits(run.how.wait) && run.nonblock {
        return Err("--wait and --nonblock contradict each other; leave one out".into());
    }
    check_min_hold(run.how.wait, run.min_hold)?;
    match (&run.shell, run.command.is_empty()) {
        (None, true) => Err("run needs a command: dlock run -k KEY -- CMD, or -c STRING".into()),
        (Some(_), false) => Err("-c STRING and a command exclude each other; leave one out".into()),
        _ => Ok(()),
    }
}

fn check_key(command: &str, how: &How, rest: &str) -> Result<(), String> {
    if how.key.is_empty() {
        return Err(format!("{command} needs a key (-k, --key): dlock {command} -k KEY{rest}"));
    }
    // A space too many would make another lock of it, and both jobs would run.
    match how.key.iter().map(Key::as_str).find(|key| key.trim() != *key) {
        Some(key) => Err(format!("the key '{}' begins or ends with white space; remove it", short(key))),
        None => Ok(()),
    }
}

/// Whether the flag asks to wait.
fn waits(wait: Option<Option<Duration>>) -> bool {
    wait.is_some_and(|bound| bound != Some(Duration::ZERO))
}

fn check_min_hold(wait: Option<Option<Duration>>, min_hold: Option<Duration>) -> Result<(), String> {
    if waits(wait) && min_hold.is_some_and(|span| !span.is_zero()) {
        return Err("--min-hold is for scheduled runs and cannot be combined with --wait".into());
    }
    Ok(())
}

/// Checks what clap cannot express about `acquire`.
fn check_acquire(acquire: &Acquire) -> Result<(), String> {
    check_key("acquire", &acquire.how, "")?;
    check_min_hold(acquire.how.wait, acquire.min_hold)?;
    check_status_of_script(&acquire.how)
}

/// Checks what clap cannot express about `hold`.
fn check_hold(hold: &Hold) -> Result<(), String> {
    check_key("hold", &hold.how, "")?;
    if hold.background { check_status_of_script(&hold.how) } else { Ok(()) }
}

fn check_status_of_script(how: &How) -> Result<(), String> {
    match how.busy_exit_code {
        Some(0) => Err("with -E 0 the script would go on without the lock; give another number".into()),
        _ => Ok(()),
    }
}

/// A token does not name its lock, so it needs a key.
fn check_token(command: &str, token: bool, key: bool) -> Result<(), String> {
    if token && !key {
        return Err(format!("{command} needs KEY with --token-file; see 'dlock {command} --help'"));
    }
    Ok(())
}

/// Checks what clap cannot express about `release`: `requires` would allow --now with --token-file,
/// because --token-file excludes --force.
fn check_release(release: &mut Release) -> Result<(), String> {
    release.named.join_one(&mut release.key)?;
    if release.now && !release.force {
        return Err("--now goes with --force: dlock release KEY --force --now".into());
    }
    Ok(())
}

/// One line for an error of clap.
fn explain(error: &clap::Error, command: &str, arguments: &[OsString]) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    // clap names them "--wait [<DUR>]" and "<KEY>"; people say --wait and KEY.
    let name = argument.split([' ', '=']).next().unwrap_or_default().trim_matches(['<', '>', '[', ']', '.']);
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let known = COMMANDS.split(", ").any(|known| known == command);
    let help = if known { format!("dlock {command} --help") } else { "dlock --help".into() };
    match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            format!("which command? There are {COMMANDS}; see '{help}'")
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            let near = did_you_mean(command_near(&word));
            format!("no command '{}'{near}; there are {COMMANDS}", short(&word))
        }
        ErrorKind::UnknownArgument if known => unknown_argument(command, &argument, &help),
        ErrorKind::UnknownArgument => match leading::stranger(arguments) {
            None => format!("which command? There are {COMMANDS}; see '{help}'"),
            Some(stranger) => format!(
                "option '{}' cannot stand before the command; only those that every command takes can, see '{help}'",
                short(&stranger.to_string_lossy())
            ),
        },
        ErrorKind::InvalidValue if value.is_empty() => without_value(name, &help),
        ErrorKind::InvalidValue => {
            let valid = text(ContextKind::ValidValue).unwrap_or_default();
            format!("{name} is one of {valid}, not '{}'", short(&value))
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            let hint = match name {
                "--wait" if command == "run" => command_after_wait(arguments, &value).unwrap_or_default(),
                "--slots" => "; not waiting is the default, without -n".into(),
                _ => String::new(),
            };
            format!("{name} '{}': {why}{hint}", short(&value))
        }
        ErrorKind::ArgumentConflict => {
            let other = text(ContextKind::PriorArg).unwrap_or_default();
            let other = other.split([' ', ',']).next().unwrap_or_default();
            format!("{name} and {other} exclude each other; leave one out")
        }
        ErrorKind::MissingRequiredArgument => format!("{command} needs {name}; see '{help}'"),
        ErrorKind::InvalidUtf8 => format!("an argument is not valid UTF-8; see '{help}'"),
        _ => {
            let all = error.render().to_string();
            let line = all.lines().next().unwrap_or_default();
            format!("{}; see '{help}'", line.strip_prefix("error: ").unwrap_or(line))
        }
    }
}

fn unknown_argument(command: &str, argument: &str, help: &str) -> String {
    if command == "run" && argument == "--timeout" {
        return "run has no --timeout: waiting is -w, a limit for CMD is --max-run".into();
    }
    let what = if argument.starts_with('-') { "no option" } else { "unexpected argument" };
    let near = did_you_mean(option_near(command, argument));
    format!("{what} '{}'{near}; see '{help}'", short(argument))
}

/// The error for an option without its value. In flock(1), -n takes none, and means not to wait.
fn without_value(name: &str, help: &str) -> String {
    if name == "--slots" {
        return "-n without a number: not waiting is the default, leave it out \
             (with a number it means slots: -n 3, up to three holders)"
            .into();
    }
    format!("{name} needs a value; see '{help}'")
}

fn did_you_mean(near: Option<String>) -> String {
    near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default()
}

/// The command that was probably meant: a habit from other tools, or a typo.
fn command_near(word: &str) -> Option<String> {
    let habit = match word {
        "list" | "ls" | "ps" => "status",
        "unlock" => "release",
        "log" => "history",
        "lock" => "run",
        _ => nearest(word, COMMANDS.split(", "))?,
    };
    Some(habit.into())
}

/// The option of this command that was probably meant.
fn option_near(command: &str, argument: &str) -> Option<String> {
    let all = Cli::command();
    let known = all.find_subcommand(command)?.get_arguments().filter(|option| !option.is_hide_set());
    nearest(argument.strip_prefix("--")?, known.filter_map(clap::Arg::get_long))
        .map(|near| format!("--{near}"))
}

/// Whether any command has this option.
pub fn is_option(name: &str) -> bool {
    Cli::command()
        .get_subcommands()
        .any(|command| command.get_arguments().any(|option| option.get_long() == Some(name)))
}

/// The known word that was probably meant: the only one that starts with `word` (first of all up to
/// a hyphen), else the closest one, if at most one letter in four differs. A looser rule would
/// suggest words that look alike and mean something else.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    fn unique<'a>(mut found: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        found.next().filter(|_| found.next().is_none())
    }
    let known: Vec<&str> = known.collect();
    let begin =
        |end: &str| unique(known.iter().copied().filter(|name| name.starts_with(&format!("{word}{end}"))));
    let letters = word.chars().count();
    let most = (letters / 4).max(1);
    let slipped = || {
        let alike = known.iter().filter(|name| name.chars().count().abs_diff(letters) <= most);
        let slips = alike.map(|name| (strsim::damerau_levenshtein(name, word), *name));
        slips.filter(|(slips, _)| *slips <= most).min_by_key(|(slips, _)| *slips)
    };
    match letters {
        0 | 1 => None,
        2 => begin("-").or_else(|| begin("")),
        _ => begin("-").or_else(|| begin("")).or_else(|| slipped().map(|(_, name)| name)),
    }
}

/// A hint if the word after -w was probably the command; `None` if the command follows a `--`.
fn command_after_wait(arguments: &[OsString], value: &str) -> Option<String> {
    let is_wait = |word: &OsString| {
        let word = word.to_string_lossy();
        word == "--wait" || word.starts_with('-') && !word.starts_with("--") && word.ends_with('w')
    };
    let pair = |pair: &[OsString]| is_wait(&pair[0]) && pair[1] == value;
    let at = arguments.windows(2).position(pair)?;
    if arguments.get(at + 2).is_some_and(|word| word == "--") {
        return None;
    }
    let words: Vec<_> =
        arguments[at + 1..].iter().map(|text| word(&text.to_string_lossy()).into_owned()).collect();
    Some(format!("; if it is the command: {} -- {}", arguments[at].display(), short(&words.join(" "))))
}

/// The start of a typed text: enough to recognise it, and still one line.
fn short(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::each_once;
    use super::*;
    use crate::lock::Key;

    fn refused(line: &[&str]) -> String {
        let arguments = std::iter::once("dlock").chain(line.iter().copied()).map(OsString::from);
        match parse(arguments) {
            Err(line) => line,
            Ok(parsed) => unreachable!("{line:?} gave {parsed:?}"),
        }
    }

    fn run(line: &[&str]) -> Box<Run> {
        let arguments = ["dlock", "run"].iter().chain(line).map(OsString::from);
        match parse(arguments) {
            Ok(Parsed::Command(Cli { command: Command::Run(run), .. })) => run,
            other => unreachable!("{line:?} gave {other:?}"),
        }
    }

    #[test]
    fn clap_structs_are_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_refusal_is_one_line() {
        let long = "x".repeat(600);
        let lines: &[&[&str]] = &[
            &[],
            &["foo"],
            &["statsu"],
            &["acquire"],
            &["acquire", "-n", "-k", "x"],
            &["acquire", "-k", "x", "-s", "-x", "-n", "2"],
            &["acquire", "x"],
            &["hold"],
            &["hold", "-k", "x", "-n"],
            &["acquire", "-k", "x", "-s", "-n", "2"],
            &["acquire", "-k", "x", "-w", "--min-hold", "1"],
            &["acquire", "-k", "x", "--json", "--export"],
            &["acquire", "-k", "x", "-E", "0"],
            &["acquire", "-k", "x", "--", "true"],
            &["renew", "--token-file", "f"],
            &["renew", "a", "b"],
            &["check", "a", "b"],
            &["run", "-k", "a", "--once-per", "31d", "--", "true"],
            &["run", "-k", "a", "--once-per", "0", "--", "true"],
            &["run", "-k", "a", "--once-per", "1h", "-s", "--", "true"],
            &["run", "-k", "a", "--once-per", "1h", "-n3", "--", "true"],
            &["forget"],
            &["resume"],
            &["pause", "a"],
            &["pause", "a", "--reason", "r", "--for", "41d"],
            &["pause", "a", "--reason", "r", "--for", "0"],
            &["wait"],
            &["wait", "a", "-w"],
            &["wait", "a", "-w", "b"],
            &["--store", "x", "run"],
            &["-k", "x", "run"],
            &["--store", "x", "--foo", "status"],
            &["release", "a", "-k", "b"],
            &["check", "a", "-k", "b"],
            &["check", "--token-file", "f"],
            &["run"],
            &["run", "-k"],
            &["run", "-k", ""],
            &["run", "-k", "a\nb", "--", "true"],
            &["run", "-k", &long, "--", "true"],
            &["run", "true"],
            &["run", "a", "--", "true"],
            &["run", "-k", "a", "-w", "echo", "hi"],
            &["run", "-k", "a", "--"],
            &["run", "-k", "a", "-c", "true", "--", "true"],
            &["run", "-k", "a", "-w", "sleep", "--", "1"],
            &["run", "-k", "a", "-t", "1", "--ttl=100ms", "--", "true"],
            &["run", "-k", "a", "-E", "256", "--", "true"],
            &["run", "-k", "a", "-E", "-1", "--", "true"],
            &["run", "-k", "a", "--on-lost", "ignore", "--", "true"],
            &["run", "-k", "a", "--timeout", "5", "--", "true"],
            &["run", "-k", "a", "-n", "--", "true"],
            &["run", "-k", "a", "-n", "-x", "--", "true"],
            &["run", "-n", "-k", "a", "--", "true"],
            &["run", "-k", "a", "-n", "0", "--", "true"],
            &["run", "-k", "a", "-n", "1001", "--", "true"],
            &["run", "-k", "a", "-n", "-1", "--", "true"],
            &["run", "-k", "a", "-n", "true", "--", "true"],
            &["run", "-k", "a", "-s", "-x", "--", "true"],
            &["run", "-k", "a", "-s", "-n", "3", "--", "true"],
            &["run", "-k", "a", "-n3", "-e", "--", "true"],
            &["run", "-k", "a", "--tree=yes", "--", "true"],
            &["run", "-k", "a", "--report", "--", "true"],
            &["run", "-k", "a", "--report=", "--", "true"],
            &["run", "-k", "a", "--replicas", "some", "--", "true"],
            &["run", "-k", "a", "--min-hold", "1", "-w", "--", "true"],
            &["run", "-k", "a", "--nonblock", "-w", "1", "--", "true"],
            &["run", "-k", "a", "--wiat", "--", "true"],
            &["run", "-k", "a", "-q", "-v", "--", "true"],
            &["run", "-k", "a", "--op-timeout", "0", "--", "true"],
            &["run", "-k", "a ", "--", "true"],
            &["run", "-k", "a", "-k", "\u{a0}b", "--", "true"],
            &["acquire", "-k", " a"],
            &["hold", "-k", " "],
            &["status", "--jsno"],
            &["status", "--json=1"],
            &["release"],
            &["release", "k", "--slot", "1", "--force"],
            &["release", "k", "--timeout", "x"],
            &["release", "k", "--now"],
            &["release", "k", "--now", "--token-file", "f"],
            &["release", "k", "--force", "--token-file", "f"],
            &["release", "k", "l", "--force"],
            &["completions"],
            &["completions", "tcsh"],
        ];
        for line in lines {
            let said = refused(line);
            assert!(!said.contains('\n') || line.contains(&"a\nb"), "{line:?}: {said}");
            assert!(said.len() < 250, "{line:?}: {said}");
            println!("{line:?}\n    {said}");
        }
    }

    #[test]
    fn documented_hints_are_given() {
        let said = refused(&["run", "-k", "a", "--timeout", "5", "--", "true"]);
        assert!(said.contains("waiting is -w, a limit for CMD is --max-run"), "{said}");
        let said = refused(&["run", "-k", "a", "-n", "--", "true"]);
        assert!(said.contains("not waiting is the default"), "{said}");
        let said = refused(&["run", "-k", "a", "-n", "-e", "--", "true"]);
        assert!(said.contains("not waiting is the default"), "{said}");
        let said = refused(&["run", "-k", "a", "-s", "-n", "3", "--", "true"]);
        assert!(said.contains("--shared and --slots exclude each other"), "{said}");
        let said = refused(&["run", "-k", "a ", "--", "true"]);
        assert!(said.contains("'a ' begins or ends with white space"), "{said}");
        let said = refused(&["run", "a", "--", "echo", "hi"]);
        assert!(said.contains("dlock run -k a -- CMD"), "{said}");
        for line in [&["run", "-k", "a", "-w", "echo", "h i"][..], &["run", "-ka", "-qw", "echo", "h i"]] {
            let said = refused(line);
            assert!(said.ends_with("w -- echo 'h i'"), "{said}");
        }
        let said = refused(&["run", "-k", "a", "--wait", "7z", "a", "--", "x"]);
        assert!(said.ends_with("--wait -- 7z a -- x"), "{said}");
        // Here the command is in its place, and only the duration is wrong.
        let said = refused(&["run", "-k", "a", "-w", "PT5M", "--", "true"]);
        assert!(said.contains("1h30m") && !said.contains("--wait --") && !said.contains("-w --"), "{said}");
        for line in [&["run", "-k", "a", "-n", "echo", "hi"][..], &["acquire", "-k", "a", "-n", "x"]] {
            let said = refused(line);
            assert!(said.contains("from 1 to 1000") && said.contains("not waiting is the default"), "{said}");
        }
        let said = refused(&["--store", "x", "-q", "--foo", "status"]);
        assert!(said.contains("'--foo'"), "{said}");
        let said = refused(&["--store", "x", "-q"]);
        assert!(said.contains("which command"), "{said}");
        let said = refused(&["wait", "a", "-w", "b"]);
        assert!(!said.contains("command"), "{said}");
    }

    #[test]
    fn only_close_words_are_suggested() {
        for (typed, meant) in [
            ("list", "status"),
            ("ls", "status"),
            ("ps", "status"),
            ("unlock", "release"),
            ("log", "history"),
            ("lock", "run"),
            ("statsu", "status"),
            ("stat", "status"),
            ("relase", "release"),
            ("hist", "history"),
        ] {
            let said = refused(&[typed]);
            assert!(said.contains(&format!("(did you mean {meant}?)")), "{said}");
        }
        for (typed, meant) in [
            ("--wiat", "--wait"),
            ("--on", "--on-lost"),
            ("--stroe", "--store"),
            ("--busy", "--busy-exit-code"),
        ] {
            let said = refused(&["run", "-k", "a", typed, "--", "true"]);
            assert!(said.contains(&format!("(did you mean {meant}?)")), "{said}");
        }
        for line in [
            &["foo"][..],
            &["block"],
            &["r"],
            &["run", "-k", "a", "--min-run", "1", "--", "true"],
            &["run", "-k", "a", "--re", "--", "true"],
            &["status", "--on"],
            &["status", "--conf-file", "x"],
        ] {
            let said = refused(line);
            assert!(!said.contains("did you mean"), "{line:?}: {said}");
        }
    }

    #[test]
    fn separator_is_optional() {
        for line in [
            &["-k", "a", "echo", "-n", "--", "-k", "x", "--wiat"][..],
            &["-k", "a", "--", "echo", "-n", "--", "-k", "x", "--wiat"],
            &["-k", "a", "-w", "--", "echo", "-n", "--", "-k", "x", "--wiat"],
            &["-k", "a", "-w", "5", "echo", "-n", "--", "-k", "x", "--wiat"],
        ] {
            let run = run(line);
            assert_eq!(run.command, ["echo", "-n", "--", "-k", "x", "--wiat"], "{line:?}");
            assert_eq!(each_once(&run.how.key).len(), 1);
        }
    }

    #[test]
    fn key_is_an_operand_or_follows_k() {
        for line in [
            &["release", "k"][..],
            &["release", "-k", "k"],
            &["-q", "release", "-qk", "k"],
            &["history", "--key", "k"],
            &["renew", "-kk"],
            &["check", "--key=k", "--token-file", "f"],
            &["wait", "-k", "k", "-w", "1"],
        ] {
            let arguments = std::iter::once("dlock").chain(line.iter().copied()).map(OsString::from);
            match parse(arguments) {
                Ok(Parsed::Command(cli)) => {
                    assert_eq!(cli.command.key().map(Key::as_str), Some("k"), "{line:?}");
                }
                other => unreachable!("{line:?} gave {other:?}"),
            }
        }
        match parse(["dlock", "status", "a", "-k", "b", "c"].map(OsString::from)) {
            Ok(Parsed::Command(Cli { command: Command::Status(status), .. })) => {
                assert_eq!(status.keys.len(), 3)
            }
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn habits_of_other_tools_work() {
        assert_eq!(run(&["-k", "a", "--conflict-exit-code", "9", "--", "x"]).how.busy_exit_code, Some(9));
        assert!(run(&["-k", "a", "-e", "--", "x"]).how.exclusive);
        assert!(run(&["-k", "a", "-x", "--", "x"]).how.exclusive);
        assert!(run(&["-k", "a", "-s", "--", "x"]).how.shared);
        assert_eq!(run(&["-k", "a", "-n3", "--", "x"]).how.slots, Some(3));
        assert_eq!(run(&["-k", "a", "-n", "1000", "-n", "2", "--", "x"]).how.slots, Some(2));
        let keys = each_once(&run(&["-k", "b", "-k", "a", "-k", "b", "--", "x"]).how.key);
        assert_eq!(keys.iter().map(Key::as_str).collect::<Vec<_>>(), ["b", "a"]);
        assert!(run(&["-k", "a", "--nonblock", "--", "x"]).nonblock);
        assert!(run(&["-k", "a", "--nonblock", "-w", "0", "--", "x"]).nonblock);
        assert_eq!(run(&["-k", "a", "-k", "a", "--", "x", "-k", "b"]).command, ["x", "-k", "b"]);
        assert_eq!(run(&["-k", "a", "-w", "--", "10"]).how.wait, Some(None));
        assert_eq!(
            run(&["-k", "a", "-w", "1.5", "--", "x"]).how.wait,
            Some(Some(Duration::from_millis(1500)))
        );
        assert_eq!(
            run(&["-k", "a", "-t1", "-t", "2", "--", "x"]).how.ttl.map(|ttl| ttl.get().as_secs()),
            Some(2)
        );
        assert_eq!(run(&["-k", "a", "-c", ""]).shell, Some("".into()));
    }

    #[test]
    fn help_shows_no_variable_and_exits_by_print() {
        for line in
            [&["--help"][..], &["run", "--help"], &["help", "run"], &["help"], &["--version"], &["run", "-h"]]
        {
            let arguments = std::iter::once("dlock").chain(line.iter().copied()).map(OsString::from);
            assert!(matches!(parse(arguments), Ok(Parsed::Print(_))), "{line:?}");
        }
    }
}
