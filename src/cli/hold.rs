//! The options of `dlock hold` and their help.

use super::after::{EXPORT, after};
use super::options::{How, Keep};
use super::run::Run;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

const AFTER: &str = "\
Examples:
  # The rest of this script runs under the lock (flock: exec 9>f; flock 9):
  dlock hold -k job --pid $$ --tree --background || exit

  # The same, for a script in which 'dlock check' or another dlock is called:
  lock=$(dlock hold -k job --pid $$ --tree --background --export) || exit
  eval \"$lock\"

  # A daemon that is started elsewhere, for as long as it lives:
  pid=$(cat /run/daemon.pid)
  dlock hold -k leader --pid \"$pid\" --background || kill \"$pid\"

  # A program in any language, by a pipe: the lock is given back when it closes
  # dlock's stdin, or ends:
  dlock hold -k import -w --json

With --pid the lock is given back when the process ends. If the lock is lost, or
an operator asks for it, the process and what descends from it are stopped
before the lease ends, as the command of 'dlock run' is. A descendant whose
parent ended before that is not found. A process that dlock may not signal is
named, and the lock is kept until it ends.

Without --pid the lock is given back at the end of stdin: a pipe, a socket or a
terminal. If a child inherits the other end of the pipe, the lock is kept until
both have ended. If the lock is lost, or an operator asks for it, stdout is
closed.

INT, TERM and HUP give the lock back, too, but not in the background. 'hold'
cannot keep a lock while the host reboots, because it needs a running process:
use 'dlock acquire -t 20m'.";

/// `dlock hold`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock hold -k KEY [OPTIONS]\n       dlock hold -k KEY --pid PID [OPTIONS]\n       dlock hold -k KEY --pid $$ --background [OPTIONS] || exit",
    allow_negative_numbers = true,
    after_long_help = after(AFTER, &[
        (0, "the process or stdin has ended, and the lock is given back; with
       --background: the lock is held"),
        (64, "the command line makes no sense; there is no such process, or it cannot
       be watched; stdin is not a pipe, socket or terminal"),
        (70, "a fault of dlock's own"),
        (74, "output could not be written; the lock is given back"),
        (75, "busy: the lock was not obtained (-E changes the number)"),
        (79, "the lock was lost, or an operator or a newer run (--replace) asked for it"),
    ]) + EXPORT
)]
pub struct Hold {
    #[command(flatten)]
    pub how: How,

    #[command(flatten)]
    pub keep: Keep,

    /// Hold the lock until this process ends, in place of the end of stdin
    #[arg(long, value_name = "PID", value_hint = ValueHint::Other, value_parser = process)]
    pub pid: Option<i32>,

    /// Keep the lock until what the process has started has ended, too; needs --pid
    ///
    /// That is what was below it when it ended, and what is left of the session or group that it led. A daemon, which has a
    /// session of its own and whose parent ended before, is not waited for, nor is dlock. A process that lost its parent within
    /// seconds of its start may be missed, unless it is in that session or group. 'dlock release' stops what is waited for.
    #[arg(long, requires = "pid")]
    pub tree: bool,

    /// Return when the lock is granted, and go on in the background; needs --pid
    ///
    /// In a session of its own, with no descriptor of the caller. INT, TERM and HUP no longer end it then: 'dlock release'
    /// does, or the end of the process. If the lock is not granted the status is that of `run`.
    #[arg(long, requires = "pid", conflicts_with = "json")]
    pub background: bool,

    /// Print shell code that sets DLOCK_KEY, DLOCK_HELD and so on; needs --background
    ///
    /// As 'dlock run' sets them for its command. 'dlock check' and 'release' then know which hold is meant, and a 'dlock run'
    /// of the same key runs at once.
    #[arg(long, requires = "background")]
    pub export: bool,

    /// Append the same variables to FILE, as NAME=value lines without quotes; needs --background
    ///
    /// In the format of $GITHUB_ENV and dotenv files. Only its owner can read a new file, because the token is in it. So dlock
    /// follows no link of another user, and writes to no file of another user unless only that user may write in its
    /// directory. DLOCK_SLOT without --slots is empty there, and so is DLOCK_KEYS with several keys.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "background")]
    pub env_file: Option<PathBuf>,

    /// Print what happens to the hold on stdout, one JSON object a line
    ///
    /// The events are waiting, busy, granted (with the token), trouble, recovered, asked, lost and released. docs/hold.md
    /// explains the fields.
    #[arg(long)]
    pub json: bool,

    /// Append messages to FILE once the lock is held, in place of stderr
    ///
    /// With --background nobody sees them otherwise. FILE may be /dev/stderr; the rules of --env-file hold.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reporting")]
    pub log: Option<PathBuf>,

    /// Write the outcome to FILE as JSON when the hold is over
    ///
    /// Also if the lock was not obtained. docs/report.md explains the fields; the outcome of a hold that was given back is
    /// 'ended'.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reporting")]
    pub report: Option<PathBuf>,
}

impl Hold {
    /// The same request as `run` flags, so that configuration files give it the same defaults.
    /// Options about CMD are switched off.
    pub fn as_run(&self) -> Run {
        Run {
            how: self.how.clone(),
            keep: self.keep.clone(),
            min_hold: Some(Duration::ZERO),
            max_run: Some(Duration::ZERO),
            tree: self.tree,
            ..Run::default()
        }
    }
}

fn process(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(0) => Err("that is no process: in a container $PPID is 0 if what started the process is outside; use 'exec dlock run' there".into()),
        Ok(pid) if pid > 0 => Ok(pid),
        _ if text.is_empty() => Err("it is empty; is the variable set?".into()),
        _ => Err("that is no process id; give a number, as $$ or $PPID".into()),
    }
}
