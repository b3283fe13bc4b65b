//! Is the Lua the twin of the law? The same random histories run through `rules::Record` and through the scripts on a
//! real redis-server whose wall clock the test sets, so that hours pass in no time. Every answer must be the same, and
//! after every step everything that can be seen. Three masters whose clocks agree answer as one server does to those
//! who do not wait. The rows of a database are held to the law in the same way.

use crate::support::masters::steered_clock;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use dlock::clock::Moment;
use dlock::exit::Ended;
use dlock::lock::{Fence, Key, Mode, Name, Names, Owner, Token};
use dlock::rules::{ABSENCE, LOG_KEPT, Lock, LockTable, Time};
use dlock::rules::{Acquired, Ask, End, NewPause, Outcome, Patience, Ran, Renewal, Revoke, Terms, When};
use dlock::store::Store;
use dlock::store::net::Address;
use dlock::store::quorum::QuorumStore;
use dlock::store::redis::{RedisStore, Target};
#[cfg(feature = "sql")]
use dlock::store::sql::SqlStore;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What the servers' clocks say first: late enough that masters have been up for longer than any lease.
const BEGIN: Time = Time(4_000_000_000_000_000);
const PEOPLE: usize = 6;
const LOCKS: usize = 3;
/// What keys are called, with characters of two bytes.
const KEYS: [&str; LOCKS] = ["é-0", "é-é1", "-éé-é-2"];

/// What a person wants, for as long as it has one token.
#[derive(Debug, Clone)]
struct Want {
    /// Some of the locks; at least one.
    locks: Vec<usize>,
    mode: Mode,
    replaces: bool,
    stays: bool,
}

/// One step of a history. People are numbered; each has one token and one wish until it is reborn with others.
#[derive(Debug, Clone)]
enum Step {
    Acquire {
        who: usize,
        patience: Patience,
        ttl: u64,
        min_hold: u64,
        once_per: Option<u64>,
        waited: u64,
    },
    Renew {
        who: usize,
        ttl: u64,
    },
    Leave {
        who: usize,
        ran: Ran,
        job: Option<Ended>,
    },
    Revoke {
        lock: usize,
        when: When,
    },
    Reborn {
        who: usize,
        want: Want,
    },
    Pass(u64),
    /// The same, and the store is away meanwhile.
    Away(u64),
    Vanish {
        lock: usize,
    },
    Intrude {
        lock: usize,
        ttl: Option<u64>,
    },
    Request {
        lock: usize,
    },
    Forget {
        lock: usize,
    },
    Pause {
        lock: usize,
        lasts: Option<u64>,
    },
}

fn wants() -> impl Strategy<Value = Want> {
    let locks = prop_oneof![4 => Just(vec![0]), 3 => prop::sample::subsequence(vec![0, 1, 2], 1..=LOCKS)];
    let mode = prop_oneof![
        4 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        3 => Just(Mode::Slots(2)),
        1 => Just(Mode::Slots(3)),
    ];
    (locks, mode, flags()).prop_map(|(locks, mode, (replaces, stays))| Want { locks, mode, replaces, stays })
}

fn flags() -> impl Strategy<Value = (bool, bool)> + Clone {
    let flag = || prop_oneof![2 => Just(false), 1 => Just(true)];
    (flag(), flag())
}

fn rans() -> impl Strategy<Value = Ran> {
    let cut = prop::sample::select(vec![
        Outcome::Crashed,
        Outcome::Expired,
        Outcome::Lost,
        Outcome::Timeout,
        Outcome::Stopped,
        Outcome::Superseded,
    ]);
    prop_oneof![3 => Just(Ran::Yes), 2 => cut.prop_map(Ran::Cut), 1 => Just(Ran::No)]
}

fn histories() -> impl Strategy<Value = (Vec<Want>, Vec<Step>)> {
    // In one half everybody wants the same, so that a lock of several is really shared.
    let alike = wants().prop_map(|want| vec![want; PEOPLE]);
    (prop_oneof![alike, prop::collection::vec(wants(), PEOPLE)], steps(wants()))
}

fn steps(wants: impl Strategy<Value = Want>) -> impl Strategy<Value = Vec<Step>> {
    let (who, lock) = (0..PEOPLE, 0..LOCKS);
    let ttl = prop_oneof![Just(500u64), 500..6000u64, Just(30_000u64)];
    let min_hold = prop_oneof![4 => Just(0u64), 1 => 1..8000u64];
    let patience = prop_oneof![3 => Just(Patience::Queue), 1 => Just(Patience::None)];
    let span = prop_oneof![
        4 => 1..50u64,
        4 => 50..2000u64,
        2 => prop::sample::select(vec![250u64, 500, 1600, 4000, 4999, 5000, 5001, 30_000]),
        1 => prop::sample::select(vec![59_999u64, 60_000, 60_001, 600_000, 600_001]),
    ];
    let once_per = prop_oneof![3 => Just(None), 1 => (50..9000u64).prop_map(Some), 1 => Just(Some(60_000))];
    let lasts = prop_oneof![Just(None), (1..8000u64).prop_map(Some)];
    let waited = prop_oneof![6 => Just(0u64), 1 => 1..100_000u64];
    let job = prop_oneof![
        Just(None),
        Just(Some(Ended::Code(0))),
        Just(Some(Ended::Code(0))),
        any::<u8>().prop_map(|code| Some(Ended::Code(code))),
        (1..64i32).prop_map(|signal| Some(Ended::Signal(signal))),
    ];
    let step = prop_oneof![
        16 => (who.clone(), patience, ttl.clone(), min_hold, once_per, waited).prop_map(
            |(who, patience, ttl, min_hold, once_per, waited)| {
                Step::Acquire { who, patience, ttl, min_hold, once_per, waited }
            }
        ),
        4 => (who.clone(), ttl).prop_map(|(who, ttl)| Step::Renew { who, ttl }),
        8 => (who.clone(), rans(), job)
            .prop_map(|(who, ran, job)| Step::Leave { who, ran, job }),
        2 => (lock.clone(), prop_oneof![Just(When::Safe), Just(When::Now)])
            .prop_map(|(lock, when)| Step::Revoke { lock, when }),
        4 => (who, wants).prop_map(|(who, want)| Step::Reborn { who, want }),
        12 => span.prop_map(Step::Pass),
        2 => prop_oneof![
            lock.clone().prop_map(|lock| Step::Vanish { lock }),
            lock.clone().prop_map(|lock| Step::Request { lock }),
            lock.clone().prop_map(|lock| Step::Forget { lock }),
            (lock.clone(), lasts).prop_map(|(lock, lasts)| Step::Pause { lock, lasts }),
            (lock, prop_oneof![Just(None), (1..3000u64).prop_map(Some)])
                .prop_map(|(lock, ttl)| Step::Intrude { lock, ttl }),
        ],
    ];
    prop::collection::vec(step, 1..60)
}

/// Redis-servers with one clock, or a database with that clock.
struct Servers {
    processes: Vec<Child>,
    #[cfg(feature = "sql")]
    database: Option<Database>,
    dir: tempfile::TempDir,
    clock: std::fs::File,
    /// One of the masters was not waited for: this machine is too busy for a comparison.
    left_behind: Arc<AtomicBool>,
}

#[cfg(feature = "sql")]
enum Database {
    /// And the port behind which it has that clock.
    #[cfg(feature = "mysql")]
    Mysql(#[expect(dead_code, reason = "it runs until it is dropped")] Mysql, u16),
    #[cfg(feature = "postgres")]
    Postgres(Postgres),
}

impl Servers {
    fn start(count: usize) -> Self {
        let (dir, path, clock) = clock();
        let processes = (0..count).map(|at| {
            Command::new("redis-server")
                .args(["--port", "0", "--save", "", "--appendonly", "no"])
                .args(["--enable-debug-command", "yes", "--dir"])
                .arg(dir.path())
                .arg("--unixsocket")
                .arg(dir.path().join(format!("redis{at}.sock")))
                .env("LD_PRELOAD", steered_clock())
                .env("STEERED_CLOCK", &path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let servers = Self {
            processes: processes.collect(),
            #[cfg(feature = "sql")]
            database: None,
            dir,
            clock,
            left_behind: Arc::default(),
        };
        let deadline = Moment::now().after(Duration::from_secs(20));
        let mut connections = loop {
            match servers.connect() {
                Ok(connections) => break connections,
                Err(error) => assert!(!deadline.passed(), "redis-server does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // Redis 8 removes by itself what ends in this very millisecond; where it is asked for, it is still there.
        for connection in &mut connections {
            redis::cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).exec(connection).unwrap();
        }
        servers
    }

    #[cfg(feature = "mysql")]
    fn mysql() -> Self {
        let (dir, _, clock) = clock();
        let server = Mysql::start(dir.path(), &["innodb-flush-log-at-trx-commit=0"]);
        let port = server.steered(clock.try_clone().unwrap());
        let database = Some(Database::Mysql(server, port));
        Self { processes: Vec::new(), database, dir, clock, left_behind: Arc::default() }
    }

    #[cfg(feature = "postgres")]
    fn postgres() -> Self {
        let (dir, path, clock) = clock();
        let server = Postgres::start_steered(dir.path(), &["fsync=off"], Some(path));
        let database = Some(Database::Postgres(server));
        Self { processes: Vec::new(), database, dir, clock, left_behind: Arc::default() }
    }

    fn socket(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("redis{at}.sock"))
    }

    fn connect(&self) -> redis::RedisResult<Vec<redis::Connection>> {
        let connect =
            |at| redis::Client::open(format!("unix://{}", self.socket(at).display()))?.get_connection();
        (0..self.processes.len()).map(connect).collect()
    }

    fn set_clock(&self, now: Time) {
        let us = i64::try_from(now.0).unwrap();
        self.clock.write_at(&us.to_ne_bytes(), 0).unwrap();
    }

    /// One server, or a quorum of several.
    fn store(&self) -> Box<dyn Store> {
        #[cfg(feature = "sql")]
        if let Some(database) = &self.database {
            return database.store();
        }
        let target = |at| Target {
            address: Address::Unix(self.socket(at)),
            database: 0,
            username: None,
            password: None,
            tls: None,
            shown: format!("redis+unix://test{at}"),
            connect_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(10),
        };
        let left_behind = Arc::clone(&self.left_behind);
        match self.processes.len() {
            1 => Box::new(RedisStore::new(target(0))),
            count => Box::new(QuorumStore::new(
                (0..count).map(target).collect(),
                "redis+quorum://test".into(),
                Duration::from_secs(60),
                move |what| match what.starts_with("cannot reach") || what.ends_with(" is back") {
                    true => left_behind.store(true, Ordering::Relaxed),
                    false => panic!("{what}"),
                },
            )),
        }
    }
}

#[cfg(feature = "sql")]
impl Database {
    fn store(&self) -> Box<dyn Store> {
        let target = |address, database: &str| dlock::store::sql::Target {
            servers: vec![address],
            user: "app".into(),
            password: None,
            database: database.into(),
            tls: None,
            shown: "test".into(),
            connect_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(10),
        };
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_, port) => {
                let address = Address::Tcp { host: "127.0.0.1".into(), port: *port };
                Box::new(SqlStore::mysql(target(address, "ops")))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => {
                Box::new(SqlStore::postgres(target(Address::Unix(server.socket()), "postgres")))
            }
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A clock that shows the beginning, its file, and the directory that this is in.
fn clock() -> (tempfile::TempDir, PathBuf, std::fs::File) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let clock = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    clock.write_at(&i64::try_from(BEGIN.0).unwrap().to_ne_bytes(), 0).unwrap();
    (dir, path, clock)
}

/// Both sides of one history.
struct Twins<'a> {
    servers: &'a Servers,
    raw: &'a mut Vec<redis::Connection>,
    store: Box<dyn Store>,
    names: Vec<Name>,
    rules: LockTable,
    now: Time,
    people: Vec<(Token, Want)>,
    /// Whose proof was last looked at: one after each step.
    looked: usize,
    /// When nobody waited last.
    quiet: Time,
}

fn owner(who: usize) -> Owner {
    Owner {
        host: format!("host{who}"),
        pid: 100,
        user: "cron".into(),
        command: "true \"é\"".into(),
        ..Owner::default()
    }
}

fn by() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

impl Twins<'_> {
    /// The token of somebody, and the locks it wants.
    fn person(&self, who: usize) -> (Token, Mode, Names) {
        let (token, Want { locks, mode, .. }) = self.people[who].clone();
        let mut names = locks.iter().map(|lock| self.names[*lock].clone());
        (token, mode, Names::new(names.next().unwrap(), names))
    }

    /// On every server.
    fn raw<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> Vec<T> {
        self.raw.iter_mut().map(|raw| command.query(raw).unwrap()).collect()
    }

    /// Whether the store runs the law itself, as a database's does.
    fn runs_the_rules(&self) -> bool {
        self.raw.is_empty()
    }

    fn is_quorum(&self) -> bool {
        self.raw.len() > 1
    }

    /// A token that a quorum has turned away is spent, and one whose hold was revoked may only leave.
    fn reborn_for_a_quorum(&mut self, who: usize) {
        if self.is_quorum() {
            self.people[who].0 = Token::random().unwrap();
        }
    }

    fn lock(&mut self, lock: usize) -> &mut Lock {
        &mut self.rules.records.entry(self.names[lock].as_str().into()).or_default().lock
    }

    fn step(&mut self, step: &Step) {
        // Between two steps a little time always passes, so that tickets and fences differ as they do in life.
        self.now.0 += 7;
        self.servers.set_clock(self.now);
        let ms = Duration::from_millis;
        match *step {
            Step::Acquire { who, patience, ttl, min_hold, once_per, waited } => {
                let (token, _, names) = self.person(who);
                // Nor may it wait, so that what it says of how long it waited is nothing.
                let min_hold = match self.rules.clone().renew(self.now, &names, &token, ms(ttl)) {
                    // On several masters a min-hold is counted from the confirmation, so it stays as it was.
                    Renewal::Renewed | Renewal::Asked | Renewal::Superseded if self.is_quorum() => 0,
                    Renewal::Renewed | Renewal::Asked | Renewal::Superseded => min_hold,
                    Renewal::Revoked | Renewal::NotHeld => {
                        self.reborn_for_a_quorum(who);
                        min_hold
                    }
                };
                if self.runs_the_rules() {
                    // It is of one process, and remembers when that was heard of.
                    self.store = self.servers.store();
                }
                let (token, mode, names) = self.person(who);
                let (ttl, min_hold) = (ms(ttl), ms(min_hold));
                let patience = if self.is_quorum() { Patience::None } else { patience };
                let Want { replaces, stays, .. } = self.people[who].1;
                let terms = Terms { once_per: once_per.map(ms), replaces, stays };
                // Those of a quorum measure by themselves how long they have asked.
                let waited = if self.is_quorum() { Duration::ZERO } else { ms(waited) };
                let ask = Ask { token, mode, ttl, min_hold, owner: owner(who), patience, terms, waited };
                let mut lua = self.store.acquire(&names, &ask, by()).unwrap();
                match &mut lua {
                    // A quorum's waiter measures that by itself, and by another clock.
                    Acquired::Granted(grant) if self.is_quorum() => grant.waited = Duration::ZERO,
                    _ => {}
                }
                assert_eq!(self.rules.acquire(self.now, &names, &ask), lua, "{step:?}");
                if matches!(lua, Acquired::Busy(_)) {
                    self.reborn_for_a_quorum(who);
                }
            }
            Step::Renew { who, ttl } => {
                let (token, _, names) = self.person(who);
                let lua = self.store.renew(&names, &token, ms(ttl), by()).unwrap();
                assert_eq!(self.rules.renew(self.now, &names, &token, ms(ttl)), lua, "{step:?}");
            }
            Step::Leave { who, ran, job } => {
                let ((token, _, names), end) =
                    (self.person(who), End { ran, job, once_per: who.is_multiple_of(2) });
                let lua = self.store.leave(&names, &token, &end, by()).unwrap();
                assert_eq!(self.rules.leave(self.now, &names, &token, &end), lua, "{step:?}");
            }
            Step::Revoke { lock, when } => {
                let (name, revoke) = (self.names[lock].clone(), Revoke { when, by: owner(99) });
                let lua = self.store.revoke(&name, &revoke, by()).unwrap();
                assert_eq!(self.rules.revoke(self.now, &name, &revoke), lua, "{step:?}");
            }
            Step::Request { lock } => {
                let name = self.names[lock].clone();
                let holders = self.store.inspect(&name, by()).unwrap().holders;
                let fence = holders.last().map_or(Fence(1), |holder| holder.fence);
                let lua = self.store.request(&name, fence, &owner(97), by()).unwrap();
                assert_eq!(self.rules.request(self.now, &name, fence, &owner(97)), lua, "{step:?}");
            }
            Step::Forget { lock } => {
                let name = self.names[lock].clone();
                let lua = self.store.forget(&name, by()).unwrap();
                assert_eq!(self.rules.forget_success(self.now, &name), lua, "{step:?}");
            }
            Step::Pause { lock, lasts } => {
                let (name, who) = (self.names[lock].clone(), owner(96));
                let pause = lasts.map(|lasts| NewPause { by: &who, lasts: ms(lasts) });
                let lua = self.store.pause(&name, pause, by()).unwrap();
                assert_eq!(self.rules.pause(self.now, &name, pause), lua, "{step:?}");
            }
            Step::Reborn { who, ref want } => self.people[who] = (Token::random().unwrap(), want.clone()),
            Step::Away(span) => {
                self.now.0 += span * 1000;
                self.servers.set_clock(self.now);
            }
            Step::Pass(span) => {
                if self.rules.records.values().all(|record| record.waiters.is_empty()) {
                    self.quiet = self.now;
                }
                // A waiter that the law is not shown, because it stands in the middle, falls silent when it is shown.
                let heard = Duration::from_micros(self.now.0 - self.quiet.0);
                if !self.runs_the_rules() || self.quiet == self.now || heard + ms(span) < ABSENCE {
                    self.now.0 += span * 1000;
                    self.servers.set_clock(self.now);
                }
            }
            // What stands in one value there is a row here.
            Step::Vanish { .. } | Step::Intrude { .. } if self.runs_the_rules() => {}
            Step::Vanish { lock } => {
                let mut delete = redis::cmd("DEL");
                self.raw::<()>(delete.arg(self.names[lock].as_str()));
                *self.lock(lock) = Lock::Free;
            }
            Step::Intrude { lock, ttl } => {
                let mut set = redis::cmd("SET");
                set.arg(self.names[lock].as_str()).arg("somebody");
                if let Some(ttl) = ttl {
                    set.arg("PX").arg(ttl);
                }
                self.raw::<()>(&set);
                let until = ttl.map(|ttl| dlock::rules::Due::after(self.now, ms(ttl)));
                *self.lock(lock) = Lock::Foreign { until };
            }
        }
        self.compare(step);
    }

    fn compare(&mut self, step: &Step) {
        let mut seen = Vec::new();
        while seen.len() < self.names.len() {
            seen.extend(self.store.inspect_some(&self.names[seen.len()..], LOG_KEPT, by()).unwrap());
        }
        for (name, lua) in self.names.clone().into_iter().zip(seen) {
            let record = self.rules.records.get(name.as_str()).cloned().unwrap_or_default();
            assert_eq!(record.inspect(&name, self.now), lua, "{} after {step:?}", name.as_str());
        }
        self.looked = (self.looked + 1) % PEOPLE;
        let (token, _, names) = self.person(self.looked);
        let lua = self.store.prove(&names, &token, by()).unwrap();
        assert_eq!(self.rules.prove(self.now, &names, &token), lua, "{} after {step:?}", self.looked);
    }

    /// I5: the server's clock is set back by an hour. Expiries that Redis has carried out do not come back with it, so
    /// the law cannot follow; but the next grant has a greater fence than the last.
    fn fences_grow_while_the_clock_goes_back(&mut self) {
        self.servers.set_clock(Time(self.now.0 - 3_600_000_000));
        let before: Vec<_> =
            self.names.iter().map(|name| self.store.inspect(name, by()).unwrap().fence).collect();
        for name in &self.names {
            self.store.revoke(name, &Revoke { when: When::Now, by: owner(99) }, by()).unwrap();
        }
        let token = Token::random().unwrap();
        let (ttl, min_hold) = (Duration::from_secs(1), Duration::ZERO);
        let (mode, patience) = (Mode::Exclusive, Patience::None);
        let (terms, waited) = (Terms::default(), Duration::ZERO);
        let ask = Ask { token, mode, ttl, min_hold, owner: owner(98), patience, terms, waited };
        let others = if self.is_quorum() { 0 } else { LOCKS };
        let names = Names::new(self.names[0].clone(), self.names.iter().take(others).cloned());
        let before = before.into_iter().take(names.as_slice().len());
        if let Acquired::Granted(grant) = self.store.acquire(&names, &ask, by()).unwrap() {
            for before in before {
                assert!(Some(grant.fence) > before, "{before:?}, then {:?}", grant.fence);
            }
        }
        self.servers.set_clock(self.now);
    }

    /// I11: whatever a history leaves behind has a TTL (the intruder's key is not ours).
    fn nothing_stays_for_ever(&mut self) {
        for raw in self.raw.iter_mut() {
            let keys: Vec<String> = redis::cmd("KEYS").arg("dlock.*").query(raw).unwrap();
            for key in keys {
                let ttl: i64 = redis::cmd("PTTL").arg(&key).query(raw).unwrap();
                assert!(ttl >= 0, "{key} has no TTL");
            }
        }
    }
}

#[test]
fn lua_and_rules_answer_alike() {
    answer_alike(&Servers::start(1), if is_soak() { 50_000 } else { 1000 }, &histories());
}

fn queue(who: usize, ttl: u64) -> Step {
    Step::Acquire { who, patience: Patience::Queue, ttl, min_hold: 0, once_per: None, waited: 0 }
}

fn exclusive(locks: &[usize], replaces: bool) -> Want {
    Want { locks: locks.into(), mode: Mode::Exclusive, replaces, stays: false }
}

/// One whose ticket is forgotten while it stands in the middle: who is behind it was excused, for nobody was heard of.
#[test]
fn who_is_forgotten_in_the_middle_is_counted_alike() {
    let renewed = |passed| [Step::Pass(passed), Step::Renew { who: 0, ttl: 30_000 }];
    let mut history = vec![queue(0, 30_000), queue(1, 30_000)];
    history.extend(renewed(25_000));
    history.push(queue(2, 30_000));
    history.extend(renewed(25_000));
    history.extend([
        Step::Pass(10_100),
        queue(3, 30_000),
        queue(1, 30_000),
        Step::Pass(4000),
        queue(2, 30_000),
        queue(3, 30_000),
    ]);
    let alike = vec![exclusive(&[0], false); PEOPLE];
    answer_alike(&Servers::start(1), 1, &Just((alike, history)));
}

/// One that waits for two locks, counts as silent in the one queue only, and is taken out of both while the other is served.
#[test]
fn who_is_silent_in_one_of_its_queues_is_parked_alike() {
    let mut wants = vec![exclusive(&[0], false); PEOPLE];
    (wants[3], wants[4]) = (exclusive(&[0, 2], false), exclusive(&[2], false));
    let leave = Step::Leave { who: 4, ran: Ran::Yes, job: None };
    let history = vec![
        Step::Intrude { lock: 0, ttl: None },
        queue(3, 500),
        Step::Pass(4000),
        queue(0, 500),
        Step::Pass(4000),
        leave,
    ];
    answer_alike(&Servers::start(1), 1, &Just((wants, history)));
}

/// Whoever renews a grant has heard of it, and waits no more.
#[test]
fn a_grant_that_is_renewed_first_is_left_alike() {
    let leave = |who| Step::Leave { who, ran: Ran::Yes, job: None };
    let renew = Step::Renew { who: 4, ttl: 500 };
    let history = vec![queue(5, 500), queue(4, 500), leave(5), renew, leave(4), queue(0, 500)];
    answer_alike(&Servers::start(1), 1, &Just((vec![exclusive(&[0], true); PEOPLE], history)));
}

/// The masters stand on the same records, and together they keep the same law.
#[test]
fn a_quorum_and_law_answer_alike() {
    let want = (0..LOCKS, flags()).prop_map(|(lock, (replaces, stays))| Want {
        locks: vec![lock],
        mode: Mode::Exclusive,
        replaces,
        stays,
    });
    let steps = steps(want.clone());
    let cases = if is_soak() { 2000 } else { 25 };
    answer_alike(&Servers::start(3), cases, &(prop::collection::vec(want, PEOPLE), steps));
}

/// One that has nothing any more comes to see what became of the lock.
#[test]
fn who_leaves_again_sees_what_is_lost_alike() {
    let want = Want { locks: vec![0], mode: Mode::Exclusive, replaces: false, stays: false };
    let acquire =
        Step::Acquire { who: 0, patience: Patience::Queue, ttl: 500, min_hold: 0, once_per: None, waited: 0 };
    let leave = || Step::Leave { who: 1, ran: Ran::Yes, job: None };
    let history = vec![leave(), acquire, Step::Intrude { lock: 0, ttl: None }, leave(), Step::Pass(45)];
    for masters in [1, 3] {
        let wants = vec![want.clone(); PEOPLE];
        answer_alike(&Servers::start(masters), 1, &Just((wants, history.clone())));
    }
}

/// Nobody is heard while the store is away, after a lock was handed over: the first one that is heard again passes nobody.
#[test]
fn who_was_not_heard_after_a_hand_over_is_excused_alike() {
    excuses_after_a_hand_over(&Servers::start(1));
}

#[cfg(feature = "mysql")]
#[test]
fn who_was_not_heard_after_a_hand_over_is_excused_on_mysql() {
    excuses_after_a_hand_over(&Servers::mysql());
}

#[cfg(feature = "postgres")]
#[test]
fn who_was_not_heard_after_a_hand_over_is_excused_on_postgres() {
    excuses_after_a_hand_over(&Servers::postgres());
}

fn excuses_after_a_hand_over(servers: &Servers) {
    let leave = |who| Step::Leave { who, ran: Ran::Yes, job: None };
    let history = vec![
        queue(0, 60_000),
        queue(1, 60_000),
        queue(2, 60_000),
        queue(3, 60_000),
        leave(0),
        queue(1, 60_000),
        Step::Away(8000),
        queue(3, 60_000),
        leave(1),
        queue(2, 60_000),
    ];
    answer_alike(servers, 1, &Just((vec![exclusive(&[0], false); PEOPLE], history)));
}

/// What dlock makes of rows, and writes into them, is what the law says.
#[cfg(feature = "mysql")]
#[test]
fn law_over_rows_answers_alike_on_mysql() {
    answer_alike(&Servers::mysql(), if is_soak() { 2000 } else { 30 }, &histories());
}

/// The same.
#[cfg(feature = "postgres")]
#[test]
fn law_over_rows_answers_alike_on_postgres() {
    answer_alike(&Servers::postgres(), if is_soak() { 2000 } else { 30 }, &histories());
}

fn is_soak() -> bool {
    std::env::var_os("DLOCK_SOAK").is_some()
}

fn answer_alike(servers: &Servers, cases: u32, histories: &impl Strategy<Value = (Vec<Want>, Vec<Step>)>) {
    let raw = RefCell::new(servers.connect().unwrap());
    let count = AtomicU64::new(0);
    let now = RefCell::new(BEGIN);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(histories, |(wants, history)| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let mut raw = raw.borrow_mut();
            let mut twins = Twins {
                servers,
                raw: &mut raw,
                store: servers.store(),
                names: KEYS
                    .map(|key| Name::new(&format!("t{number}:"), &Key::new(key).unwrap()).unwrap())
                    .into(),
                rules: LockTable::default(),
                now: *now.borrow(),
                people: wants.into_iter().map(|want| (Token::random().unwrap(), want)).collect(),
                looked: 0,
                quiet: *now.borrow(),
            };
            for step in &history {
                let answered_alike = catch_unwind(AssertUnwindSafe(|| twins.step(step)));
                *now.borrow_mut() = twins.now;
                if servers.left_behind.swap(false, Ordering::Relaxed) {
                    return Err(TestCaseError::reject("a master was left behind"));
                }
                answered_alike.unwrap_or_else(|panic| resume_unwind(panic));
            }
            twins.nothing_stays_for_ever();
            twins.fences_grow_while_the_clock_goes_back();
            twins.raw::<()>(&redis::cmd("FLUSHALL"));
            Ok(())
        })
        .unwrap();
}
