//! Joins flags and configuration files to the plain values of one run. Every default of `run` is
//! here. Does not check whether the command exists.

use super::Settings;
use super::url::Location;
use crate::cli::options::{How, exit_status};
use crate::cli::{self, key::each_once};
use crate::error::Error;
use crate::exit::{Exit, OnLost};
use crate::lock::{Key, Mode, Period, Replicas, Ttl, Wait};
use std::ffi::OsString;
use std::time::Duration;

/// The default ttl.
pub const TTL: Duration = Duration::from_secs(30);
/// The default for the longest lease on independent masters.
pub const MAX_LEASE: Duration = Duration::from_secs(5 * 60);

/// How long the lock is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepFor {
    Command,
    /// Until every process of the job has ended.
    Tree,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The keys in the order given, each once; at least one.
    pub keys: Vec<Key>,
    /// How the lock may be shared.
    pub mode: Mode,
    pub ttl: Ttl,
    pub wait: Wait,
    /// Shortest time to keep the lock; zero for none.
    pub min_hold: Duration,
    /// The longest lease allowed on independent masters.
    pub max_lease: Duration,
    /// When to stop the job.
    pub max_run: Option<Duration>,
    /// The time between TERM and KILL.
    pub grace: Duration,
    /// What to do with the job when the lock is lost.
    pub on_lost: OnLost,
    /// How long the lock is kept.
    pub keep_for: KeepFor,
    /// The status when the lock was not obtained.
    pub busy: u8,
    /// The program and its arguments; never empty.
    pub argv: Vec<OsString>,
    pub replicas: Replicas,
    /// Skip the command if a run of this period has succeeded.
    pub once_per: Option<Period>,
    /// How long nobody gets the lock if the run fails.
    pub pause_on_failure: Option<Duration>,
    /// Whether a pause does not keep it out.
    pub during_pause: bool,
    /// How often a run is to succeed; zero: none is expected.
    pub expect: Option<Duration>,
    /// Whether it replaces the holder (`--replace`).
    pub replaces: bool,
    /// Whether it cannot be replaced itself (`--no-replace`).
    pub not_replaceable: bool,
    /// `--reason`, if not empty.
    pub reason: Option<String>,
    pub label: Option<String>,
}

/// How a lock is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    pub mode: Mode,
    pub ttl: Ttl,
    pub wait: Wait,
    /// The status when the lock was not obtained.
    pub busy: u8,
}

impl Settings {
    /// Whether the end of a lease pauses a lock (`--pause-on-failure`): the store decides that, not
    /// each of several masters.
    pub fn pauses_expired(&self) -> bool {
        !matches!(self.store.place, Location::Quorum { .. })
    }

    /// The ttl: from the flag, else the configuration files, else 30 s.
    pub fn ttl(&self, flag: Option<Ttl>) -> Result<Ttl, Error> {
        match flag {
            Some(ttl) => Ok(ttl),
            None => Ttl::new(self.file.span("ttl").unwrap_or(TTL)).map_err(Error::Config),
        }
    }

    /// Joins the flags of `run` with the configuration files.
    pub fn run(&self, flags: &cli::Run) -> Result<Run, Error> {
        let file = &self.file;
        let keys = each_once(&flags.how.key);
        if keys.is_empty() {
            return Err(Error::Usage("run needs a key".into()));
        }
        let min_hold = flags.min_hold.unwrap_or_default();
        let nonblock = flags.nonblock.then_some(Some(Duration::ZERO));
        let Asking { mode, ttl, wait, busy } =
            self.asking(&flags.how, flags.how.wait.or(nonblock), min_hold)?;
        check_replace(flags, wait, mode)?;
        let reason = flags.how.reason.clone().filter(|text| !text.is_empty());
        if flags.during_pause && reason.is_none() {
            let text = "--during-pause needs --reason TEXT: whoever paused the lock sees it";
            return Err(Error::Usage(text.into()));
        }
        let max_lease = flags.max_lease.unwrap_or_else(|| self.max_lease());
        self.check_lease("ttl", ttl.get(), flags.how.ttl.is_some(), flags.max_lease)?;
        self.check_lease("min-hold", min_hold, true, flags.max_lease)?;
        let argv = match &flags.shell {
            Some(text) => vec![self.shell.clone(), "-c".into(), text.clone()],
            None => flags.command.clone(),
        };
        Ok(Run {
            keys,
            mode,
            ttl,
            wait,
            min_hold,
            max_lease,
            // As in timeout(1), zero means no limit.
            max_run: flags.max_run.or_else(|| file.span("max-run")).filter(|span| !span.is_zero()),
            grace: flags.keep.grace.or_else(|| file.span("grace")).unwrap_or(Duration::from_secs(10)),
            on_lost: flags.keep.on_lost.or_else(|| file.choice("on-lost")).unwrap_or(OnLost::Stop),
            keep_for: if flags.tree { KeepFor::Tree } else { KeepFor::Command },
            busy,
            argv,
            replicas: flags
                .keep
                .replicas
                .or_else(|| file.parsed("replicas", Replicas::parse))
                .unwrap_or(Replicas::None),
            once_per: flags.once_per,
            pause_on_failure: flags.keep.pause_on_failure,
            during_pause: flags.during_pause,
            expect: flags
                .expect
                .or_else(|| flags.once_per.filter(|period| period.word().is_some()).map(Period::whole)),
            replaces: flags.keep.replace,
            not_replaceable: flags.keep.no_replace,
            reason,
            label: flags.how.label.clone(),
        })
    }

    /// Joins the flags that `run`, `hold` and `acquire` share with the configuration files. `wait`
    /// is what the flags say of waiting.
    pub fn asking(
        &self,
        flags: &How,
        wait: Option<Option<Duration>>,
        min_hold: Duration,
    ) -> Result<Asking, Error> {
        if let Some(misplaced) = self.misplaced() {
            return Err(Error::Config(misplaced));
        }
        let file = &self.file;
        let wait = match wait {
            Some(bound) => Wait::given(bound),
            None if file.flag("wait") => Wait::Forever,
            None => file.span("wait").map_or(Wait::No, |span| Wait::given(Some(span))),
        };
        // The flags alone were checked before, so a file says that it waits.
        if let Some(set) = file.get("wait").filter(|_| !min_hold.is_zero() && wait != Wait::No) {
            return Err(Error::Config(format!(
                "--min-hold and wait ({}) cannot be combined; '-w 0' or '--min-hold 0' turns one off",
                set.source
            )));
        }
        let mode = match (flags.shared, flags.slots) {
            (true, _) => Mode::Shared,
            (false, Some(slots)) => Mode::Slots(slots),
            (false, None) => Mode::Exclusive,
        };
        let busy = flags.busy_exit_code.or_else(|| file.parsed("busy-exit-code", exit_status));
        Ok(Asking { mode, ttl: self.ttl(flags.ttl)?, wait, busy: busy.unwrap_or(Exit::BUSY) })
    }

    /// Refuses a lease that a restarted master of several independent ones could forget while it is
    /// held. `is_flag` says whether a flag gave the lease, and `max_lease` is the flag of the limit.
    pub fn check_lease(
        &self,
        name: &'static str,
        lease: Duration,
        is_flag: bool,
        max_lease: Option<Duration>,
    ) -> Result<(), Error> {
        let most = max_lease.unwrap_or_else(|| self.max_lease());
        if lease <= most || !matches!(self.store.place, Location::Quorum { .. }) {
            return Ok(());
        }
        let of = |name: &'static str, is_flag, span| {
            let span = humantime::format_duration(span);
            match self.file.get(name) {
                _ if is_flag => format!("--{name} of {span}"),
                Some(set) => format!("{name} ({}) of {span}", set.source),
                None => format!("the default --{name} of {span}"),
            }
        };
        let text = format!(
            "{} is longer than {}. Give a shorter one, or set max-lease in the configuration file, the same on every \
             machine: a master that has restarted is not counted for that long; see docs/stores.md",
            of(name, is_flag, lease),
            of("max-lease", max_lease.is_some(), most),
        );
        Err(if is_flag || max_lease.is_some() { Error::Usage(text) } else { Error::Config(text) })
    }

    /// The longest lease allowed on independent masters, by the configuration files.
    pub fn max_lease(&self) -> Duration {
        self.file.span("max-lease").unwrap_or(MAX_LEASE)
    }
}

fn check_replace(flags: &cli::Run, wait: Wait, mode: Mode) -> Result<(), Error> {
    if flags.keep.replace && wait == Wait::No {
        return Err(Error::Usage(
            "--replace waits until the old job is dead, so it needs --wait ('-w', or '-w DUR' with a limit)"
                .into(),
        ));
    }
    if flags.keep.replace && mode != Mode::Exclusive {
        return Err(Error::Usage(format!("--replace is for locks with one holder, not for {mode}")));
    }
    Ok(())
}

/// Refuses the status 0 for a lock that was not obtained: a script would go on without it.
pub fn script_status(busy: u8) -> Result<(), Error> {
    match busy {
        0 => Err(Error::Config(
            "busy-exit-code is 0 in the configuration, so the script would go on without the lock; add -E 75"
                .into(),
        )),
        _ => Ok(()),
    }
}
