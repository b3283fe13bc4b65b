//! The runs of a night: real runs of dlock of every kind, on all hosts. Each is known while it
//! lives, so that the nemesis can hit it.

mod keys;
mod wishes;

use super::hosts::Host;
use super::judge::{Hit, Kind, Outcome, Run, SECOND, Time};
use super::lives::Book;
use super::peers::Tool;
use super::tasks::TaskLimits;
use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::storm::Dice;
use crate::support::world::World;
use dlock::lock::Mode;
pub use keys::REGISTERS;
use keys::{GROUPS, key, register};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use wishes::{EXCLUSIVE_WISHES, LONG, PLAIN_WISHES, WISHES, Wish};

const LONG_TTL_MS: u64 = 3000;

/// A script that acquires and releases the lock.
const SCRIPT: &str = r#"
held=$("$DLOCK" acquire --export -k "$1" -t "$2" $3) || exit
eval "$held"
shift 3
"$@"
status=$?
"$DLOCK" renew || exit
"$DLOCK" release "$DLOCK_KEY" || exit
exit $status
"#;

/// The random choices for a run.
struct Choice {
    group: usize,
    host: usize,
    ttl_ms: u64,
    /// Length of the job in milliseconds.
    span: u64,
    patience: &'static [&'static str],
}

/// Bytes of address space with which dlock can print its version.
fn least_memory() -> u64 {
    let suffices = |bytes: u64| {
        let mut dlock = Command::new("prlimit");
        dlock.arg(format!("--as={bytes}")).args([BINARY, "--version"]);
        let ended = dlock.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        ended.is_ok_and(|status| status.success())
    };
    let (mut less, mut more) = (1 << 20, 1 << 30);
    while more - less > 1 << 16 {
        let middle = u64::midpoint(less, more);
        if suffices(middle) { more = middle } else { less = middle }
    }
    more
}

/// The crowd and its records.
pub struct Crowd<'s> {
    world: &'s World,
    /// The tool that takes the locks.
    tool: Tool,
    /// Whether all runs use only what every tool supports.
    is_plain: bool,
    urls: Vec<String>,
    words: Vec<Vec<OsString>>,
    wishes: &'static [Wish],
    /// Factor on the length of leases.
    pub stretch: u64,
    pub book: Book,
    next: AtomicU64,
    /// The runs whose process has not been reaped yet, by its id.
    live: Mutex<BTreeMap<i32, Run>>,
    over: Mutex<Vec<Run>>,
    /// Task limits, if this machine allows them.
    task_limits: Option<TaskLimits>,
    pub stop: AtomicBool,
    pub complaints: Mutex<Vec<String>>,
}

/// Now, on the jobs' clock.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * SECOND + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl<'s> Crowd<'s> {
    /// A crowd on these hosts, each with its own URL of the store.
    pub fn new(world: &'s World, hosts: &[Host], has_queue: bool) -> Self {
        Self {
            world,
            tool: Tool::Dlock,
            is_plain: false,
            urls: hosts.iter().map(|host| host.url.clone()).collect(),
            words: hosts.iter().map(|host| host.words.clone()).collect(),
            stretch: 1,
            wishes: if has_queue { &WISHES } else { &PLAIN_WISHES },
            book: Book::new(world),
            next: AtomicU64::new(1),
            live: Mutex::default(),
            over: Mutex::default(),
            task_limits: TaskLimits::new(),
            stop: AtomicBool::new(false),
            complaints: Mutex::default(),
        }
    }

    /// A crowd that wants only exclusive locks and waits for them without a limit, by dlock or
    /// another tool.
    pub fn of_peers(world: &'s World, hosts: &[Host], tool: Tool) -> Self {
        Self { tool, is_plain: true, wishes: &EXCLUSIVE_WISHES, ..Self::new(world, hosts, true) }
    }

    /// The keys of the crowd.
    pub fn keys(&self) -> Vec<&'static str> {
        let letters: BTreeSet<char> = self.wishes.iter().flat_map(|wish| wish.keys.chars()).collect();
        letters.iter().flat_map(|letter| (0..GROUPS).map(|group| key(*letter, group))).collect()
    }

    pub fn live(&self) -> MutexGuard<'_, BTreeMap<i32, Run>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All runs; to be called when no worker is left.
    pub fn runs(&self) -> Vec<Run> {
        std::mem::take(&mut *self.over.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn complain(&self, what: String) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Makes one run after the other until it is stopped: long ones or random ones.
    pub fn work(&self, mut dice: Dice, long: Option<usize>) {
        while !self.stop.load(Ordering::Relaxed) {
            match long {
                Some(number) => self.long_run(number, &mut dice),
                None => self.any_run(&mut dice),
            }
        }
    }

    /// Ends all jobs and makes no more runs.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.book.end_jobs();
    }

    /// A long run. Its number decides the host and the key.
    fn long_run(&self, number: usize, dice: &mut Dice) {
        let hosts = self.words.len();
        let ttl_ms = LONG_TTL_MS * self.stretch;
        let span = ttl_ms + dice.roll(3 * ttl_ms);
        let (group, host) = (number / hosts % GROUPS, number % hosts);
        self.one_run(&LONG, Choice { group, host, ttl_ms, span, patience: &["-w"] }, dice);
    }

    fn any_run(&self, dice: &mut Dice) {
        let mut roll = dice.roll(self.wishes.iter().map(|wish| wish.share).sum());
        let wanted = |wish: &&Wish| match roll.checked_sub(wish.share) {
            Some(rest) => {
                roll = rest;
                false
            }
            None => true,
        };
        let wish = self.wishes.iter().find(wanted).expect("the shares add up");
        let host = usize::try_from(dice.roll(3)).expect("a few");
        let group = usize::try_from(dice.roll(7)).expect("a few") % GROUPS;
        let ttl_ms = *dice.of(&[3000, 5000, 5000]) * self.stretch;
        let waits = matches!(wish.kind, Kind::Replace | Kind::OncePer(_))
            || !matches!(wish.kind, Kind::MinHold(_)) && dice.roll(4) > 0;
        let span = match dice.roll(80) {
            // Long enough for renewals.
            0 if wish.kind != Kind::Script => 1000 + dice.roll(2 * ttl_ms),
            1..12 => 50 + dice.roll(200),
            _ => dice.roll(30),
        };
        let patience: &[&str] = match (waits, dice.roll(5)) {
            _ if self.is_plain => &["-w"],
            (false, _) => &[],
            (true, 0 | 1) => &["-w"],
            (true, 2) => &["-w", "10s"],
            (true, _) => &["-w", "1s"],
        };
        self.one_run(wish, Choice { group, host, ttl_ms, span, patience }, dice);
    }

    /// A limit that may be too small for dlock, and the words before its run that set it.
    fn limit(&self, id: u64, dice: &mut Dice) -> (Hit, Vec<OsString>) {
        static LEAST: OnceLock<u64> = OnceLock::new();
        let prlimit = |word: String| vec!["prlimit".into(), word.into()];
        match (dice.roll(6), &self.task_limits) {
            // About what it takes to start. The job needs more, and gets it.
            (0, _) => {
                let most = LEAST.get_or_init(least_memory) + dice.roll(2 << 20) - (1 << 19);
                (Hit::LittleMemory, prlimit(format!("--as={most}:")))
            }
            // Possibly too few for the guard, the command, a thread, and one thread for each of
            // several masters.
            (1 | 2, Some(limits)) => (Hit::FewTasks, limits.words(id, 1 + dice.roll(10)).into()),
            _ => (Hit::FewFiles, prlimit(format!("--nofile={}", dice.of(&[5, 8, 12])))),
        }
    }

    fn one_run(&self, wish: &Wish, choice: Choice, dice: &mut Dice) {
        let Choice { group, host, ttl_ms, span, mut patience } = choice;
        let status = if dice.roll(6) == 0 { 3 } else { 0 };
        let flags: &[&str] =
            if self.is_plain { &["-", "-", "-", "-", "d"] } else { &["-", "-", "-", "d", "f", "fd"] };
        let mut flags = (*dice.of(flags)).to_owned();
        if matches!(wish.mode, Mode::Slots(_)) {
            flags += "s";
        }
        let keys: Vec<&'static str> = wish.keys.chars().map(|letter| key(letter, group)).collect();
        let written = if wish.mode == Mode::Shared { "" } else { wish.keys };
        let registers: Vec<usize> = written.chars().map(|letter| register(letter, group)).collect();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let limit = (dice.roll(30) == 0 && !self.is_plain).then(|| self.limit(id, dice));

        let ttl = format!("{ttl_ms}ms");
        let mut options: Vec<OsString> = Vec::new();
        let mut option = |words: &[&str]| options.extend(words.iter().map(OsString::from));
        option(&["-t", &ttl]);
        if wish.kind != Kind::Script {
            option(&["--grace", if dice.roll(2) == 0 { "100ms" } else { "10s" }]);
        }
        for key in &keys {
            option(&["-k", key]);
        }
        match wish.mode {
            Mode::Exclusive => {}
            Mode::Shared => option(&["-s"]),
            Mode::Slots(slots) => option(&["-n", &slots.to_string()]),
        }
        match wish.kind {
            Kind::OncePer(span) => option(&["--once-per", &format!("{}ms", span / 1_000_000)]),
            Kind::MinHold(span) => option(&["--min-hold", &format!("{}ms", span / 1_000_000)]),
            Kind::Replace => option(&[if dice.roll(4) == 0 { "--no-replace" } else { "--replace" }]),
            _ => {}
        }
        if limit.is_some() && !patience.is_empty() {
            // With too few descriptors or threads for a connection the run would wait for ever.
            patience = &["-w", "1s"];
        }
        option(patience);

        let mut job: Vec<OsString> = self.book.words().map(OsString::from).into();
        job.extend([id, span].map(|number| number.to_string().into()));
        job.extend([status.to_string().into(), OsString::from(&flags)]);
        job.extend(registers.iter().map(|register| register.to_string().into()));
        let mut words = self.words[host].clone();
        if let Some((_, limit)) = &limit {
            words.extend_from_slice(limit);
        }
        let mut run = vec![BINARY.into(), "run".into(), "-q".into()];
        run.extend(options);
        // Processes that a job leaves behind and that end by themselves, or by an INT, are not
        // checked.
        if flags.contains('f') {
            run.push("--tree".into());
        }
        run.push("--".into());
        match wish.kind {
            Kind::Script => {
                words.extend(["sh", "-c", SCRIPT, "sh", keys[0], &ttl].map(OsString::from));
                words.push(patience.join(" ").into());
                words.extend(job);
            }
            Kind::Nested => {
                words.extend(run);
                words.extend([BINARY, "run", "-k", keys[0], "--"].map(OsString::from));
                words.extend(job);
            }
            _ if self.tool != Tool::Dlock => {
                words.extend(self.tool.words(&self.urls[host], keys[0], ttl_ms));
                words.extend(job);
            }
            _ => {
                words.extend(run);
                words.extend(job);
            }
        }
        let errors = self.world.path(&format!("said-{id}"));
        let mut command = self.world.command(&words[0]);
        command.args(&words[1..]).env("DLOCK_STORE", &self.urls[host]).env("DLOCK", BINARY);
        // On a machine with so many processes a server does not always answer within a second.
        command.env("DLOCK_OP_TIMEOUT", "3s");
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        command.stderr(fs::File::create(&errors).expect("a file"));
        let mut run = Run {
            id,
            keys,
            mode: wish.mode,
            kind: wish.kind,
            ttl: ttl_ms * 1_000_000,
            waits: patience == ["-w"],
            wanted: status,
            registers,
            spawned: now(),
            ended: 0,
            outcome: Outcome::Status(0),
            hits: Vec::new(),
            said: String::new(),
        };
        if let Some((hit, _)) = limit {
            run.hits.push((run.spawned, hit));
        }
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let pid = i32::try_from(child.id()).expect("a process id");
        self.live().insert(pid, run);
        // The process id is not reused before the process is reaped, and it is no target after
        // that.
        let which = Pid::from_raw(pid).expect("a process id");
        while waitid(WaitId::Pid(which), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_err() {}
        let mut run = {
            let mut live = self.live();
            let run = live.remove(&pid).expect("it was put in");
            let status = child.wait().expect("our child");
            let outcome = match status.signal() {
                Some(signal) => Outcome::Signal(signal),
                None => Outcome::Status(status.code().unwrap_or(-1)),
            };
            Run { outcome, ..run }
        };
        run.ended = now();
        let said = fs::read_to_string(&errors).unwrap_or_default();
        // Later messages of a guard are not read.
        fs::remove_file(&errors).ok();
        // Rust prints such a message, too, when there is no memory.
        let starved = run.hits.iter().any(|(_, hit)| *hit == Hit::LittleMemory);
        if said.contains("panicked") || said.contains("RUST_BACKTRACE") && !starved {
            self.complain(format!("run {id}: {said}"));
        }
        run.said = said.chars().take(600).collect();
        self.over.lock().unwrap_or_else(PoisonError::into_inner).push(run);
        std::thread::sleep(Duration::from_millis(dice.roll(20)));
    }

    /// The processes below a process, with their names.
    pub fn below(pid: i32) -> Vec<(i32, String)> {
        let mut all = vec![(pid, proc::name(pid))];
        let mut at = 0;
        while at < all.len() {
            let parent = all[at].0;
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
            for child in children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()) {
                all.push((child, proc::name(child)));
            }
            at += 1;
        }
        all
    }

    /// Ends runs that hang, so that the night ends, and returns which.
    pub fn end_all(&self) {
        for (pid, run) in self.live().iter() {
            let said = fs::read_to_string(self.world.path(&format!("said-{}", run.id)));
            let tree: Vec<_> = Self::below(*pid);
            self.complain(format!("it hangs: {run:?}\n   {tree:?}\n   {}", said.unwrap_or_default()));
            for (pid, _) in tree {
                proc::signal(pid, Signal::KILL);
            }
        }
    }
}
