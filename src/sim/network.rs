//! The store of a fleet: one server that runs the lock rules, and a network to the machines that
//! delays, loses, cuts, repeats and delivers late.

mod planted;
mod store;

use super::Planted;
use super::dice::Dice;
use super::judge::{Judge, Said};
use super::time::{MS, MachineId, Nanos, SECOND, Sim, TaskId};
use crate::lock::{Fence, Names, Token};
use crate::rules::{Acquired, Ask, End, Left, LockTable, Refusal, Renew, Renewal, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub use store::SimStore;

/// What a network does to messages.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// The longest delay of a message that is not late.
    pub delay: Nanos,
    /// One of this many messages is lost; 0: none.
    pub lost: u64,
    /// One of this many messages comes again, later; 0: none.
    pub repeated: u64,
    /// One of this many messages takes up to [`LATE`]; 0: none.
    pub late: u64,
}

impl Weather {
    pub const FINE: Self = Self { delay: MS / 2, lost: 0, repeated: 0, late: 0 };
}

/// Longest delay of a late message.
const LATE: Nanos = 8 * SECOND;

/// The server's clock at the start of the fleet, in microseconds since 1970.
const BEGAN: u64 = 1_800_000_000_000_000;

#[derive(Debug, Clone)]
enum Reply {
    Acquired(Box<Acquired>),
    Renewal(Renewal),
    Left(Left),
    Noted(bool),
}

/// A request to the server.
#[derive(Debug)]
struct Step {
    names: Names,
    token: Token,
    what: What,
}

#[derive(Debug)]
enum What {
    Acquire(Box<Ask>),
    Renew(Option<Fence>, Duration),
    Leave(End),
    Refuse(Box<Refusal>),
}

impl Step {
    fn play(&self, table: &mut LockTable, now: Time, planted: Planted) -> Reply {
        match &self.what {
            What::Acquire(ask) => Reply::Acquired(Box::new(table.acquire(now, &self.names, ask))),
            What::Renew(fence, ttl) => {
                let fence = fence.filter(|_| planted != Planted::RenewsAnyGrant);
                let renew = Renew { token: &self.token, fence, ttl: *ttl, rest: None };
                Reply::Renewal(table.renew(now, &self.names, &renew))
            }
            What::Leave(end) => {
                let answer = table.leave(now, &self.names, &self.token, end);
                if planted == Planted::FreesForOthers && answer == Left::NotHeld {
                    table.records.clear();
                }
                Reply::Left(answer)
            }
            What::Refuse(refusal) => {
                let announces = table.refuse(now, &self.names.first().of_refusals(), refusal);
                Reply::Noted(announces && planted != Planted::AnnouncesNothing)
            }
        }
    }
}

impl Reply {
    /// What the judge learns from it.
    fn said(&self) -> Said {
        match self {
            Self::Acquired(answer) => match &**answer {
                Acquired::Granted(grant) => Said::Granted(grant.fence),
                Acquired::Done(_) => Said::Done,
                _ => Said::Refused,
            },
            Self::Renewal(Renewal::Renewed) => Said::Renewed,
            Self::Left(Left::Released { .. }) => Said::Released,
            _ => Said::Nothing,
        }
    }
}

/// The server, and the links to it.
pub struct Net {
    pub sim: Arc<Sim>,
    pub planted: Planted,
    inner: Mutex<Inner>,
    pub judge: Mutex<Judge>,
}

struct Inner {
    table: LockTable,
    dice: Dice,
    weather: Weather,
    /// Sum of the steps of its clock, in microseconds.
    stepped: i64,
    /// How much faster than true time its clock runs, in millionths.
    drift: i64,
    stopped_until: Nanos,
    down_until: Nanos,
    /// No message between the server and a machine arrives in this direction before this time.
    cut: BTreeMap<(MachineId, Direction), Nanos>,
    sleepers: BTreeMap<Token, (MachineId, TaskId, Arc<Mutex<bool>>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    There,
    Back,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Net {
    pub fn new(sim: Arc<Sim>, planted: Planted, dice: Dice, weather: Weather, drift: i64) -> Arc<Self> {
        let inner = Inner {
            table: LockTable::default(),
            dice,
            weather,
            stepped: 0,
            drift,
            stopped_until: 0,
            down_until: 0,
            cut: BTreeMap::new(),
            sleepers: BTreeMap::new(),
        };
        Arc::new(Self { sim, planted, inner: Mutex::new(inner), judge: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    pub fn set_weather(&self, weather: Weather) {
        self.inner().weather = weather;
    }

    pub fn cut(&self, machine: MachineId, direction: Direction, until: Nanos) {
        self.inner().cut.insert((machine, direction), until);
    }

    pub fn stop_server(&self, until: Nanos) {
        self.inner().stopped_until = until;
        self.judge().away.push((self.sim.now(), until));
    }

    /// Kills the server. It starts again at `until`, with its records or without.
    pub fn restart_server(&self, until: Nanos, forgets: bool) {
        let mut inner = self.inner();
        inner.down_until = until;
        self.judge().away.push((self.sim.now(), until));
        inner.sleepers.clear();
        if forgets {
            inner.table = LockTable::default();
            self.judge().forgot(self.sim.now(), until);
        }
    }

    pub fn step_clock(&self, micros: i64) {
        let (now, mut inner) = (self.sim.now(), self.inner());
        self.judge().clock_stepped(now, inner.time(now));
        inner.stepped += micros;
    }

    pub fn time(&self) -> Time {
        self.inner().time(self.sim.now())
    }

    /// The records at this moment.
    pub fn table(&self) -> LockTable {
        self.inner().table.clone()
    }

    /// An operator's request.
    pub fn operate(self: &Arc<Self>, step: impl FnOnce(&mut LockTable, Time)) {
        let net = Arc::clone(self);
        let mut inner = self.inner();
        let time = inner.time(self.sim.now());
        let before = inner.table.clone();
        step(&mut inner.table, time);
        net.changed(&mut inner, &before, time, None);
    }

    /// Sends a message to the server.
    fn send(
        self: &Arc<Self>,
        machine: MachineId,
        step: &Arc<Step>,
        answer: impl Fn(Reply) + Send + Clone + 'static,
    ) {
        let now = self.sim.now();
        let mut inner = self.inner();
        let mut times = vec![inner.passes(machine, Direction::There, now)];
        let again = inner.weather.repeated;
        if inner.dice.one_in(again) {
            times.push(Some(now + inner.dice.below(LATE)));
        }
        drop(inner);
        for at in times.into_iter().flatten() {
            let (net, step, answer) = (Arc::clone(self), Arc::clone(step), answer.clone());
            self.sim.at(at, move |_| net.deliver(machine, step, answer));
        }
    }

    fn deliver(
        self: Arc<Self>,
        machine: MachineId,
        step: Arc<Step>,
        answer: impl Fn(Reply) + Send + Clone + 'static,
    ) {
        let now = self.sim.now();
        let mut inner = self.inner();
        if inner.stopped_until > now {
            let at = inner.stopped_until;
            drop(inner);
            let net = Arc::clone(&self);
            self.sim.at(at, move |_| net.deliver(machine, step, answer));
            return;
        }
        if inner.down_until > now {
            return;
        }
        let time = inner.time(now);
        let before = inner.table.clone();
        let reply = if self.planted == Planted::WritesLater {
            let mut later = before.clone();
            let reply = step.play(&mut later, time, self.planted);
            let net = Arc::clone(&self);
            self.sim.at(now + MS, move |_| net.inner().table = later);
            reply
        } else {
            step.play(&mut inner.table, time, self.planted)
        };
        self.sim.tell(|| format!("server, to machine {machine}: {reply:?}"));
        if let (What::Refuse(refusal), Reply::Noted(announces)) = (&step.what, &reply) {
            self.judge().check_announcement(step.names.first(), refusal, *announces, now);
        }
        self.changed(&mut inner, &before, time, Some((&step.token, &step.names, reply.said())));
        if let Some(at) = inner.passes(machine, Direction::Back, now) {
            drop(inner);
            self.sim.at(at, move |_| answer(reply));
        }
    }

    /// Wakes the waiters that a request concerns, and shows the change to the judge.
    fn changed(
        self: &Arc<Self>,
        inner: &mut Inner,
        before: &LockTable,
        time: Time,
        by: Option<(&Token, &Names, Said)>,
    ) {
        self.planted.spoil(&mut inner.table, before, time);
        let now = self.sim.now();
        // How long a span of the server's clock lasts in true time.
        let drift = inner.drift;
        let truly = |span: Duration| {
            let span =
                i128::try_from(span.as_nanos()).unwrap_or(0) * 1_000_000 / i128::from(1_000_000 + drift);
            u64::try_from(span).unwrap_or(0)
        };
        self.judge().looks_at(before, &inner.table, by, (time, now), truly);
        let mut woken = BTreeSet::new();
        for (name, record) in &inner.table.records {
            let old = before.records.get(name);
            let held = |token: &Token| old.is_some_and(|old| old.holds.contains_key(token));
            woken.extend(record.holds.keys().filter(|token| !held(token)).cloned());
            let head = record.queue.first().map(|(_, token)| token);
            let former = old.and_then(|old| old.queue.first().map(|(_, token)| token));
            woken.extend(
                head.filter(|_| {
                    head != former || record.lock != old.map(|old| old.lock.clone()).unwrap_or_default()
                })
                .cloned(),
            );
            woken.extend(
                record
                    .tombstones
                    .keys()
                    .filter(|token| old.is_none_or(|old| !old.tombstones.contains_key(token)))
                    .cloned(),
            );
        }
        for token in woken {
            let Some((machine, task, rung)) = inner.sleepers.get(&token).cloned() else { continue };
            if let Some(at) = inner.passes(machine, Direction::Back, now) {
                self.sim.at(at, move |sim| {
                    *lock(&rung) = true;
                    sim.wake(task);
                });
            }
        }
    }
}

impl Inner {
    fn time(&self, now: Nanos) -> Time {
        let passed = i128::from(now) * i128::from(1_000_000 + self.drift) / 1_000_000_000;
        Time(BEGAN.saturating_add_signed(i64::try_from(passed).unwrap_or(0) + self.stepped))
    }

    /// When a message arrives, if it does.
    fn passes(&mut self, machine: MachineId, direction: Direction, now: Nanos) -> Option<Nanos> {
        let Weather { delay, lost, late, .. } = self.weather;
        let is_cut = self.cut.get(&(machine, direction)).is_some_and(|until| *until > now);
        let (is_lost, is_late) = (self.dice.one_in(lost), self.dice.one_in(late));
        let takes = if is_late { self.dice.below(LATE) } else { self.dice.between(MS / 20, delay) };
        (!is_cut && !is_lost).then_some(now + takes)
    }
}
