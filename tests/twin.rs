//! Is the Lua the twin of the law? The same random histories run through `law::Record` and through the scripts on a
//! real redis-server whose wall clock the test sets, so that hours pass in no time. Every answer must be the same, and
//! after every step everything that can be seen.

use dlock::clock::Moment;
use dlock::law::{Ask, Blocker, End, JobEnd, Patience, Ran, Revoke, When};
use dlock::law::{Lock, Record, Time};
use dlock::lock::{Key, Mode, Name, Owner, Token};
use dlock::store::redis::{Address, RedisStore, Target};
use dlock::store::{Store, View};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PEOPLE: usize = 5;

/// One step of a history. People are numbered; each has one token until it is reborn with another.
#[derive(Debug, Clone)]
enum Step {
    Acquire { who: usize, patience: Patience, ttl: u64, min_hold: u64 },
    Renew { who: usize, ttl: u64 },
    Leave { who: usize, ran: Ran, job: Option<JobEnd> },
    Revoke(When),
    Reborn(usize),
    Pass(u64),
    Vanish,
    Intrude { ttl: Option<u64> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..PEOPLE;
    let ttl = prop_oneof![Just(500u64), 500..6000u64, Just(30_000u64)];
    let min_hold = prop_oneof![4 => Just(0u64), 1 => 1..8000u64];
    let patience = prop_oneof![3 => Just(Patience::Queue), 1 => Just(Patience::None)];
    let span = prop_oneof![
        4 => 1..50u64,
        4 => 50..2000u64,
        2 => prop::sample::select(vec![250u64, 500, 1600, 4000, 4999, 5000, 5001, 30_000]),
        1 => prop::sample::select(vec![59_999u64, 60_000, 60_001, 600_000, 600_001]),
    ];
    let job = prop_oneof![
        Just(None),
        any::<u8>().prop_map(|code| Some(JobEnd::Status(code))),
        (1..64i32).prop_map(|signal| Some(JobEnd::Signal(signal))),
    ];
    let step = prop_oneof![
        16 => (who.clone(), patience, ttl.clone(), min_hold)
            .prop_map(|(who, patience, ttl, min_hold)| Step::Acquire { who, patience, ttl, min_hold }),
        4 => (who.clone(), ttl).prop_map(|(who, ttl)| Step::Renew { who, ttl }),
        8 => (who.clone(), prop_oneof![3 => Just(Ran::Yes), 1 => Just(Ran::No)], job)
            .prop_map(|(who, ran, job)| Step::Leave { who, ran, job }),
        2 => prop_oneof![Just(When::Safe), Just(When::Now)].prop_map(Step::Revoke),
        4 => who.prop_map(Step::Reborn),
        12 => span.prop_map(Step::Pass),
        2 => prop_oneof![
            Just(Step::Vanish),
            prop_oneof![Just(None), (1..3000u64).prop_map(Some)].prop_map(|ttl| Step::Intrude { ttl }),
        ],
    ];
    prop::collection::vec(step, 1..60)
}

struct Server {
    process: Child,
    dir: tempfile::TempDir,
    clock: std::fs::File,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path().join("steered_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/steered_clock.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(&source).status();
        assert!(built.unwrap().success(), "cc cannot build the clock");
        let path = dir.path().join("clock");
        let clock = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let socket = dir.path().join("redis.sock");
        clock.write_at(&1_800_000_000_000_000i64.to_ne_bytes(), 0).unwrap();
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .arg("--unixsocket")
            .arg(&socket)
            .env("LD_PRELOAD", &shim)
            .env("STEERED_CLOCK", &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { process, dir, clock };
        let deadline = Moment::now().after(Duration::from_secs(20));
        while server.connect().is_err() {
            assert!(!deadline.passed(), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("unix://{}", self.socket().display()))?.get_connection()
    }

    fn set_clock(&self, now: Time) {
        let us = i64::try_from(now.0).unwrap();
        self.clock.write_at(&us.to_ne_bytes(), 0).unwrap();
    }

    fn store(&self) -> RedisStore {
        RedisStore::new(Target {
            address: Address::Unix(self.socket()),
            database: 0,
            username: None,
            password: None,
            tls: None,
            shown: "redis+unix://test".into(),
            connect_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(10),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Both sides of one history.
struct Twins<'a> {
    server: &'a Server,
    raw: &'a mut redis::Connection,
    store: RedisStore,
    name: Name,
    law: Record,
    now: Time,
    tokens: Vec<Token>,
}

fn owner(who: usize) -> Owner {
    Owner {
        host: format!("host{who}"),
        pid: 100,
        user: "cron".into(),
        command: "true \"é\"".into(),
        reason: None,
    }
}

fn by() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

impl Twins<'_> {
    fn step(&mut self, step: &Step) {
        // Between two steps a little time always passes, so that tickets and fences differ as they do in life.
        self.now.0 += 7;
        self.server.set_clock(self.now);
        let ms = Duration::from_millis;
        match *step {
            Step::Acquire { who, patience, ttl, min_hold } => {
                let token = self.tokens[who].clone();
                let ask = Ask {
                    token,
                    mode: Mode::Exclusive,
                    ttl: ms(ttl),
                    min_hold: ms(min_hold),
                    owner: owner(who),
                    patience,
                };
                let lua = self.store.acquire(&self.name.clone().into(), &ask, by()).unwrap();
                assert_eq!(self.law.acquire(self.now, &ask), lua, "{step:?}");
            }
            Step::Renew { who, ttl } => {
                let lua =
                    self.store.renew(&self.name.clone().into(), &self.tokens[who], ms(ttl), by()).unwrap();
                assert_eq!(self.law.renew(self.now, &self.tokens[who], ms(ttl)), lua, "{step:?}");
            }
            Step::Leave { who, ran, job } => {
                let end = End { ran, job };
                let lua = self.store.leave(&self.name.clone().into(), &self.tokens[who], &end, by()).unwrap();
                assert_eq!(self.law.leave(self.now, &self.tokens[who], &end), lua, "{step:?}");
            }
            Step::Revoke(when) => {
                let revoke = Revoke { when, by: owner(99) };
                let lua = self.store.revoke(&self.name, &revoke, by()).unwrap();
                assert_eq!(self.law.revoke(self.now, &revoke), lua, "{step:?}");
            }
            Step::Reborn(who) => self.tokens[who] = Token::random().unwrap(),
            Step::Pass(span) => {
                self.now.0 += span * 1000;
                self.server.set_clock(self.now);
            }
            Step::Vanish => {
                let () = redis::cmd("DEL").arg(self.name.as_str()).query(self.raw).unwrap();
                self.law.lock = Lock::Free;
            }
            Step::Intrude { ttl } => {
                let mut set = redis::cmd("SET");
                set.arg(self.name.as_str()).arg("somebody");
                if let Some(ttl) = ttl {
                    set.arg("PX").arg(ttl);
                }
                let () = set.query(self.raw).unwrap();
                let until = ttl.map(|ttl| dlock::law::Due::after(self.now, ms(ttl)));
                self.law.lock = Lock::Foreign { until };
            }
        }
        self.compare(step);
    }

    fn compare(&mut self, step: &Step) {
        let View { state, mode, foreign, holders, left, fence, waiters, log, now, .. } =
            self.store.inspect(&self.name, by()).unwrap();
        assert_eq!(now, self.now.millis());
        let seen = self.law.inspect(self.now);
        assert_eq!(
            seen.blocker,
            Blocker { at: 0, state, mode, holder: holders.into_iter().next(), others: 0, left },
            "seen after {step:?}"
        );
        assert_eq!(seen.foreign, foreign, "foreign after {step:?}");
        assert_eq!(seen.fence, fence, "fence after {step:?}");
        let waiters: Vec<_> = waiters.into_iter().map(|waiter| (waiter.owner, waiter.waiting)).collect();
        assert_eq!(seen.waiters, waiters, "waiters after {step:?}");
        assert_eq!(seen.log, log, "log after {step:?}");
    }

    /// I5: the server's clock is set back by an hour. Expiries that Redis has carried out do not come back with it, so
    /// the law cannot follow; but the next grant has a greater fence than the last.
    fn fences_grow_while_the_clock_goes_back(&mut self) {
        self.server.set_clock(Time(self.now.0 - 3_600_000_000));
        let before = self.store.inspect(&self.name, by()).unwrap().fence;
        self.store.revoke(&self.name, &Revoke { when: When::Now, by: owner(99) }, by()).unwrap();
        let token = Token::random().unwrap();
        let (ttl, min_hold) = (Duration::from_secs(1), Duration::ZERO);
        let ask =
            Ask { token, mode: Mode::Exclusive, ttl, min_hold, owner: owner(98), patience: Patience::None };
        self.store.acquire(&self.name.clone().into(), &ask, by()).unwrap();
        let after = self.store.inspect(&self.name, by()).unwrap().fence;
        assert!(after > before, "{before:?}, then {after:?}");
        self.server.set_clock(self.now);
    }

    /// I11: whatever a history leaves behind has a TTL (the intruder's key is not ours).
    fn nothing_stays_for_ever(&mut self) {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("dlock.*{}*", self.name.as_str())).query(self.raw).unwrap();
        for key in keys {
            let ttl: i64 = redis::cmd("PTTL").arg(&key).query(self.raw).unwrap();
            assert!(ttl >= 0, "{key} has no TTL");
        }
    }
}

#[test]
fn lua_and_law_answer_alike() {
    let cases = if std::env::var_os("DLOCK_SOAK").is_some() { 100_000 } else { 2000 };
    let server = Server::start();
    let raw = RefCell::new(server.connect().unwrap());
    let count = AtomicU64::new(0);
    let now = RefCell::new(Time(1_800_000_000_000_000));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&steps(), |history| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let mut raw = raw.borrow_mut();
            let mut twins = Twins {
                server: &server,
                raw: &mut raw,
                store: server.store(),
                name: Name::new("t:", &Key::new(&format!("k{number}")).unwrap()).unwrap(),
                law: Record::default(),
                now: *now.borrow(),
                tokens: (0..PEOPLE).map(|_| Token::random().unwrap()).collect(),
            };
            for step in &history {
                twins.step(step);
            }
            twins.nothing_stays_for_ever();
            twins.fences_grow_while_the_clock_goes_back();
            *now.borrow_mut() = twins.now;
            let () = redis::cmd("FLUSHALL").query(twins.raw).unwrap();
            Ok(())
        })
        .unwrap();
}
