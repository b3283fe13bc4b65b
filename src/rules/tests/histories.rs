//! The lock rules in random histories: three locks and six callers, in every mode, several locks at
//! once, with callers that die, become stale, come back and repeat requests, and locks that vanish
//! or become foreign. Each answer goes to the [`Observer`]. Each operation is also run on only the
//! records that it needs, and once more.

use super::super::*;
use super::observer::{Asker, Check, Observer};
use super::{name, token};
use crate::exit::Ended;
use crate::lock::Mode;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

const LOCKS: [&str; 3] = ["a", "b", "c"];
const ASKERS: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    Acquire { who: usize, patience: Patience, ttl: u64, min_hold: u64 },
    Renew { who: usize, ttl: u64 },
    Leave { who: usize, ran: Ran, job: Option<Ended> },
    Late(usize),
    Revoke { lock: usize, when: When },
    Forget(usize),
    Pause { lock: usize, lasts: Option<u64> },
    Reap(usize),
    Reborn(usize),
    Pass(u64),
    Vanish(usize),
    Intrude { lock: usize, ttl: Option<u64> },
}

/// What a caller wants: locks as bits, mode, `--once-per` in ms, whether with `--replace`.
type Wish = (usize, Mode, Option<u64>, bool);

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let mode = prop_oneof![
        3 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        3 => Just(Mode::Slots(2)),
        1 => Just(Mode::Slots(3)),
    ];
    let once_per = prop_oneof![2 => Just(None), 1 => (500..8000u64).prop_map(Some), 1 => Just(Some(60_000))];
    // Histories with one mode only meet its rules more often than mixed ones.
    let replaces = prop_oneof![2 => Just(false), 1 => Just(true)];
    let mixed = prop::collection::vec((1..8usize, mode.clone(), once_per.clone(), replaces.clone()), ASKERS);
    let same =
        (prop::collection::vec((1..8usize, once_per, replaces), ASKERS), mode).prop_map(|(some, mode)| {
            some.into_iter().map(|(bits, once, replaces)| (bits, mode, once, replaces)).collect()
        });
    prop_oneof![2 => mixed, 1 => same]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..ASKERS;
    let lock = 0..LOCKS.len();
    let ttl = prop_oneof![Just(500u64), 500..6000u64, Just(30_000u64)];
    let min_hold = prop_oneof![4 => Just(0u64), 1 => 1..8000u64];
    let patience = prop_oneof![4 => Just(Patience::Queue), 1 => Just(Patience::None)];
    let span = prop_oneof![
        4 => 1..2_000u64,
        4 => 1_000..1_600_000u64,
        2 => prop::sample::select(vec![250_000u64, 500_000, 1_600_000, 3_999_000, 4_000_000, 5_000_000, 5_001_000]),
        1 => prop::sample::select(vec![30_000_000u64, 59_999_000, 60_000_000, 60_001_000, 600_001_000]),
    ];
    let job = prop_oneof![1 => Just(None), 2 => Just(Some(Ended::Code(0))), 1 => Just(Some(Ended::Code(1)))];
    let when = prop_oneof![2 => Just(When::Safe), 1 => Just(When::Now)];
    let step = prop_oneof![
        24 => (who.clone(), patience, ttl.clone(), min_hold)
            .prop_map(|(who, patience, ttl, min_hold)| Step::Acquire { who, patience, ttl, min_hold }),
        4 => (who.clone(), ttl).prop_map(|(who, ttl)| Step::Renew { who, ttl }),
        8 => (who.clone(), prop_oneof![3 => Just(Ran::Yes), 1 => Just(Ran::No)], job)
            .prop_map(|(who, ran, job)| Step::Leave { who, ran, job }),
        1 => lock.clone().prop_map(Step::Forget),
        1 => (lock.clone(), prop_oneof![1 => Just(None), 2 => (1..8000u64).prop_map(Some)])
            .prop_map(|(lock, lasts)| Step::Pause { lock, lasts }),
        1 => who.clone().prop_map(Step::Late),
        2 => (lock.clone(), when).prop_map(|(lock, when)| Step::Revoke { lock, when }),
        1 => who.clone().prop_map(Step::Reap),
        2 => who.prop_map(Step::Reborn),
        12 => span.prop_map(Step::Pass),
        1 => lock.clone().prop_map(Step::Vanish),
        1 => (lock, prop_oneof![Just(None), (1..3000u64).prop_map(Some)])
            .prop_map(|(lock, ttl)| Step::Intrude { lock, ttl }),
    ];
    prop::collection::vec(step, 1..70)
}

struct World {
    table: LockTable,
    now: Time,
    askers: Vec<Asker>,
    /// Each caller's identity before it left.
    former: Vec<Option<Asker>>,
    born: u32,
    observer: Observer,
}

fn names_of(bits: usize) -> Names {
    let mut wanted = (0..LOCKS.len()).filter(|bit| bits & (1 << bit) != 0).map(|bit| name(LOCKS[bit]));
    wanted.next().map_or_else(|| name(LOCKS[0]).into(), |first| Names::new(first, wanted))
}

impl World {
    fn new(wishes: &[Wish]) -> Self {
        let asker = |(id, (bits, mode, once_per, replaces)): (u32, &Wish)| Asker {
            id,
            token: token(id),
            names: names_of(*bits),
            mode: *mode,
            terms: Terms {
                once_per: once_per.filter(|_| *mode == Mode::Exclusive).map(Duration::from_millis),
                replaces: *replaces && *mode == Mode::Exclusive,
                not_replaceable: id % 3 == 0,
                ..Terms::default()
            },
        };
        Self {
            table: LockTable::default(),
            now: Time(1_800_000_000_000_000),
            askers: (1..).zip(wishes).map(asker).collect(),
            former: vec![None; wishes.len()],
            born: 100,
            observer: Observer::default(),
        }
    }

    fn ask(asker: &Asker, patience: Patience, ttl: u64, min_hold: u64) -> Ask {
        let owner = Owner { pid: asker.id, ..Owner::default() };
        Ask {
            token: asker.token.clone(),
            mode: asker.mode,
            ttl: Duration::from_millis(ttl),
            min_hold: Duration::from_millis(min_hold),
            owner,
            patience,
            terms: asker.terms.clone(),
            waited: Duration::ZERO,
            has_waited: false,
        }
    }

    /// Runs an operation on the table, and on only as many records as it needs, which must have the
    /// same result. Then once more, on a copy: the answer to a client that repeats the request.
    fn run<A: PartialEq + std::fmt::Debug>(
        &mut self,
        names: &Names,
        act: impl Fn(&mut LockTable) -> A,
    ) -> Result<(A, A), TestCaseError> {
        let before = self.table.clone();
        let answer = act(&mut self.table);
        let mut read: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        loop {
            let records = read.iter().map(|lock| {
                let record = before.records.get(lock).cloned().unwrap_or_default();
                (lock.clone(), record)
            });
            let mut part = LockTable { records: records.collect(), ..LockTable::default() };
            let part_answer = act(&mut part);
            let missing: Vec<String> =
                part.records.keys().filter(|lock| !read.contains(lock)).cloned().collect();
            if !missing.is_empty() {
                read.extend(missing);
                continue;
            }
            prop_assert_eq!(&answer, &part_answer, "the records that it needs are enough");
            for (lock, record) in &part.records {
                prop_assert_eq!(Some(record), self.table.records.get(lock));
            }
            break;
        }
        let mut copy = self.table.clone();
        let again = act(&mut copy);
        Ok((answer, again))
    }

    fn acquire(&mut self, asker: &Asker, ask: &Ask) -> Result<Acquired, TestCaseError> {
        let now = self.now;
        let place = asker
            .names
            .iter()
            .find_map(|name| Some(self.table.records.get(name.as_str())?.waiters.get(&asker.token)?.since));
        // A copy of a request that ended the wait finds no place, and says the same.
        let waited = place.map_or(0, |since| now.0.saturating_sub(since.0));
        let ask = &Ask { waited: Duration::from_millis(waited.div_ceil(1000)), ..ask.clone() };
        let (answer, mut again) = self.run(&asker.names, |table| table.acquire(now, &asker.names, ask))?;
        if let (Acquired::Done(first), Acquired::Done(second)) = (&answer, &mut again) {
            second.age = first.age;
        }
        // A dead waiter can count as stale for one of its locks, and at another one have 5 s more,
        // because that lock had a gap in its heartbeats. The first request may end this difference:
        // then the second one is told of another blocker, or is granted the lock.
        let is_nearer = match &answer {
            Acquired::Busy(_) => matches!(again, Acquired::Busy(_)),
            Acquired::Waiting(first) => match &again {
                Acquired::Waiting(second) => second.ahead <= first.ahead,
                again => matches!(again, Acquired::Granted(_)),
            },
            _ => false,
        };
        if !is_nearer {
            prop_assert_eq!(&answer, &again, "re-sent");
        }
        self.observer.acquired(now, asker, ask, &answer)?;
        self.observer.look(now, &self.table)?;
        Ok(answer)
    }

    fn leave(&mut self, asker: &Asker, ran: Ran, job: Option<Ended>) -> Check {
        let now = self.now;
        let end = End { ran, job, once_per: asker.id.is_multiple_of(2), fence: None, pause: None };
        let (answer, again) =
            self.run(&asker.names, |table| table.leave(now, &asker.names, &asker.token, &end))?;
        let same = matches!(
            (answer, again),
            (Left::Released { .. } | Left::Already, Left::Already)
                | (Left::Dequeued, Left::Already | Left::NotHeld)
                | (Left::NotHeld, Left::NotHeld)
        );
        prop_assert!(same, "left: {:?}, and again: {:?}", answer, again);
        self.observer.left(now, asker, &end, answer)
    }

    fn reborn(&mut self, who: usize) {
        self.born += 1;
        let old = self.askers[who].clone();
        self.askers[who] = Asker { id: self.born, token: token(self.born), ..old };
    }

    fn step(&mut self, step: &Step) -> Check {
        // No two requests reach a store in the same microsecond.
        self.now = Time(self.now.0 + 1);
        self.observer.look(self.now, &self.table)?;
        let now = self.now;
        match *step {
            Step::Acquire { who, patience, ttl, min_hold } => {
                let asker = self.askers[who].clone();
                let answer = self.acquire(&asker, &Self::ask(&asker, patience, ttl, min_hold))?;
                if matches!(answer, Acquired::Superseded(_) | Acquired::TokenEnded) {
                    self.reborn(who);
                }
            }
            Step::Renew { who, ttl } => {
                let asker = self.askers[who].clone();
                if !self.observer.is_waiting(&asker) {
                    let ttl = Duration::from_millis(ttl);
                    let renew = &Renew { token: &asker.token, fence: None, ttl, rest: None };
                    let (answer, again) =
                        self.run(&asker.names, |table| table.renew(now, &asker.names, renew))?;
                    prop_assert_eq!(answer, again);
                    let proof = self.table.prove(now, &asker.names, &asker.token);
                    prop_assert_eq!(
                        proof.map(|proof| proof.lease),
                        matches!(answer, Renewal::Renewed | Renewal::Superseded).then_some(ttl)
                    );
                    self.observer.renewed(now, &asker, ttl, answer)?;
                }
            }
            Step::Leave { who, ran, job } => {
                let asker = self.askers[who].clone();
                self.leave(&asker, ran, job)?;
                self.former[who] = Some(asker);
                self.reborn(who);
            }
            Step::Late(who) => {
                if let Some(asker) =
                    self.former[who].clone().filter(|asker| self.observer.is_spent(now, asker))
                {
                    let ask = Self::ask(&asker, Patience::Queue, 30_000, 0);
                    // The record may still say of the token that it was superseded.
                    let answer = self.acquire(&asker, &ask)?;
                    let is_refused = matches!(answer, Acquired::TokenEnded | Acquired::Superseded(_));
                    prop_assert!(is_refused, "late: {:?}", answer);
                    self.leave(&asker, Ran::Yes, None)?;
                }
            }
            Step::Revoke { lock, when } => {
                let lock = name(LOCKS[lock]);
                let revoke = Revoke { when, by: Owner::default() };
                let (answer, _) =
                    self.run(&lock.clone().into(), |table| table.revoke(now, &lock, &revoke))?;
                self.observer.revoked(now, lock.as_str(), when, &answer)?;
            }
            Step::Forget(lock) => {
                let lock = name(LOCKS[lock]);
                let (answer, _) = self.run(&lock.clone().into(), |table| table.forget_success(now, &lock))?;
                self.observer.forgotten(lock.as_str(), answer)?;
            }
            Step::Pause { lock, lasts } => {
                let (lock, by) = (name(LOCKS[lock]), Owner::default());
                let pause = lasts.map(|lasts| {
                    let lasts = Duration::from_millis(lasts);
                    NewPause { by: &by, lasts, shortens: true }
                });
                let (was, _) = self.run(&lock.clone().into(), |table| table.pause(now, &lock, pause))?;
                self.observer.paused(now, lock.as_str(), lasts, was)?;
            }
            Step::Reap(who) => {
                let asker = self.askers[who].clone();
                self.table.reap(now, &asker.token);
                self.observer.reaped(now, &asker);
                self.reborn(who);
            }
            Step::Reborn(who) => self.reborn(who),
            Step::Pass(span) => self.now = Time(now.0 + span),
            Step::Vanish(lock) => self.disturb(LOCKS[lock], None),
            Step::Intrude { lock, ttl } => self.disturb(LOCKS[lock], Some(ttl)),
        }
        self.observer.look(self.now, &self.table)
    }

    fn disturb(&mut self, lock: &str, foreign: Option<Option<u64>>) {
        let until = foreign.map(|ttl| ttl.map(|ttl| self.now.millis() + ttl));
        let key = until.map_or(Lock::Free, |until| Lock::Foreign { until: until.map(Due) });
        self.table.records.entry(lock.to_owned()).or_default().lock = key;
        self.observer.disturbed(lock, until);
    }

    /// From here on no new caller comes, holders let their leases run out, and each waiter asks
    /// again exactly at [`Waiting::next`], because nothing wakes it. Every waiter must be granted,
    /// in the time that dead ones may cost.
    fn drain(&mut self) -> Check {
        for lock in LOCKS {
            let foreign = self
                .table
                .records
                .get(lock)
                .is_some_and(|record| matches!(record.lock, Lock::Foreign { .. }));
            if foreign {
                self.disturb(lock, None);
            }
        }
        for lock in LOCKS.map(name) {
            let was = self.table.pause(self.now, &lock, None);
            self.observer.paused(self.now, lock.as_str(), None, was)?;
            self.observer.look(self.now, &self.table)?;
        }
        let mut due: Vec<(Time, Asker)> =
            self.observer.waiters(self.now).into_iter().map(|asker| (self.now, asker)).collect();
        let each = HEARTBEAT + Duration::from_millis(500);
        let count = u64::try_from(due.len()).unwrap_or(u64::MAX);
        let bound = self.observer.last_end().max(self.now.millis()) + 10_000 + (count + 1) * millis(each);
        while !due.is_empty() {
            let first = (0..due.len()).min_by_key(|at| due[*at].0).unwrap_or(0);
            let (at, asker) = due.swap_remove(first);
            self.now = self.now.max(at);
            prop_assert!(self.now.millis() <= bound, "{} and {} others still wait", asker.id, due.len());
            match self.acquire(&asker, &Self::ask(&asker, Patience::Queue, 500, 0))? {
                Acquired::Waiting(waiting) => {
                    due.push((Time(self.now.0 + millis(waiting.next) * 1000), asker))
                }
                Acquired::Granted(_) | Acquired::Done(_) => {}
                Acquired::Superseded(_) | Acquired::TokenEnded => {}
                Acquired::Busy(busy) => prop_assert!(false, "a waiter was told busy: {:?}", busy),
            }
        }
        Ok(())
    }

    /// At the end only fence and log are left.
    fn check_nothing_is_left(&mut self) -> Check {
        let written = serde_json::to_string(&self.table.records)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let read: BTreeMap<String, Record> =
            serde_json::from_str(&written).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&read, &self.table.records, "a record survives the file");
        self.now = Time(self.now.0 + 1000 * (1 + millis(SPENT_KEPT)));
        let last = Asker {
            id: 99,
            token: token(99),
            names: names_of(7),
            mode: Mode::Exclusive,
            terms: Terms::default(),
        };
        let granted = self.acquire(&last, &Self::ask(&last, Patience::None, 500, 0))?;
        prop_assert!(matches!(granted, Acquired::Granted(_)));
        self.leave(&last, Ran::Yes, None)?;
        for record in self.table.records.values() {
            prop_assert!(record.holds.is_empty() && record.queue.is_empty() && record.waiters.is_empty());
            prop_assert!(
                record.lock == Lock::Free && record.tombstones.len() <= 1 && record.log.len() <= LOG_KEPT
            );
        }
        Ok(())
    }
}

#[test]
fn the_rules_hold_in_random_histories() -> Result<(), String> {
    // The number of cases is proptest's own, or that of PROPTEST_CASES.
    let config = Config { failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&(wishes(), steps()), |(wishes, steps)| {
        let mut world = World::new(&wishes);
        for step in &steps {
            world.step(step)?;
        }
        world.drain()?;
        world.check_nothing_is_left()
    });
    outcome.map_err(|error| match error {
        TestError::Fail(why, history) => format!("{why}\n{history:#?}"),
        TestError::Abort(why) => why.to_string(),
    })
}
