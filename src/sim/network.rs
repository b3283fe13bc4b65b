//! The store of a fleet: one server that runs the lock rules, and a network to the machines that
//! delays, loses, cuts, repeats and delivers late.

use super::Planted;
use super::judge::{Judge, Said};
use super::time::{Dice, MS, MachineId, Nanos, SECOND, Sim, TaskId};
use crate::clock::{self, Moment};
use crate::lock::{Fence, Name, Names, Owner, Token};
use crate::rules::{
    Acquired, Ask, Due, End, Grant, Left, LockTable, NewPause, Proof, Refusal, Renewal, Requested, Revoke,
    Revoked, Time,
};
use crate::store::{Error, Found, Listener, Slept, Store, Subscription, View, Which};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    Renew(Duration),
    Leave(End),
}

impl Step {
    fn play(&self, table: &mut LockTable, now: Time, planted: Planted) -> Reply {
        match &self.what {
            What::Acquire(ask) => Reply::Acquired(Box::new(table.acquire(now, &self.names, ask))),
            What::Renew(ttl) => Reply::Renewal(table.renew(now, &self.names, &self.token, *ttl)),
            What::Leave(end) => {
                let answer = table.leave(now, &self.names, &self.token, end);
                if planted == Planted::FreesForOthers && answer == Left::NotHeld {
                    table.records.clear();
                }
                Reply::Left(answer)
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
                    .spent
                    .keys()
                    .filter(|token| old.is_none_or(|old| !old.spent.contains_key(token)))
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

/// The store of one process.
#[derive(Clone)]
pub struct SimStore {
    pub net: Arc<Net>,
    pub machine: MachineId,
    /// The task that uses it.
    pub task: TaskId,
    /// The task to wake after an answer.
    pub observer: Option<TaskId>,
}

impl SimStore {
    fn call(&self, names: &Names, token: &Token, what: What, by: Moment) -> Result<Reply, Error> {
        let sim = &self.net.sim;
        let deadline = sim.true_time(self.task, by);
        let step = Arc::new(Step { names: names.clone(), token: token.clone(), what });
        let place: Arc<Mutex<Option<Reply>>> = Arc::default();
        let (there, waking, task) = (Arc::clone(&place), Arc::clone(sim), self.task);
        self.net.send(self.machine, &step, move |reply| {
            lock(&there).get_or_insert(reply);
            waking.wake(task);
        });
        let answer = loop {
            if let Some(reply) = lock(&place).take() {
                break Ok(reply);
            }
            if sim.now() >= deadline {
                break Err(Error::Unreachable("no answer in time".into()));
            }
            sim.park(self.task, deadline);
        };
        if let Some(observer) = self.observer {
            let at = sim.now() + MS / 50;
            sim.at(at, move |sim| sim.wake(observer));
        }
        answer
    }
}

fn garbled<T>(_: Reply) -> Result<T, Error> {
    Err(Error::Garbled("another answer".into()))
}

impl Store for SimStore {
    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        match self.call(names, &ask.token, What::Acquire(Box::new(ask.clone())), by)? {
            Reply::Acquired(answer) => Ok(match *answer {
                Acquired::Waiting(waiting)
                    if self.net.planted == Planted::StartsUnconfirmed && waiting.ahead == 0 =>
                {
                    let holder = waiting.blocker.holder;
                    let fence = Fence(holder.map_or(1, |holder| holder.fence.0 + 1));
                    Acquired::Granted(Grant { fence, waited: Duration::ZERO, slot: None })
                }
                answer => answer,
            }),
            other => garbled(other),
        }
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        match self.call(names, token, What::Renew(ttl), by)? {
            Reply::Renewal(_) if self.net.planted == Planted::BelievesInAnyRenewal => Ok(Renewal::Renewed),
            Reply::Renewal(answer) => Ok(answer),
            other => garbled(other),
        }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        match self.call(names, token, What::Leave(end.clone()), by)? {
            Reply::Left(answer) => Ok(answer),
            other => garbled(other),
        }
    }

    fn sleep(&mut self, _: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        let (sim, rung) = (Arc::clone(&self.net.sim), Arc::new(Mutex::new(false)));
        let mine = (self.machine, self.task, Arc::clone(&rung));
        self.net.inner().sleepers.insert(token.clone(), mine);
        let deadline = sim.true_time(self.task, until);
        while sim.now() < deadline && !*lock(&rung) {
            sim.park(self.task, deadline);
        }
        Ok(if *lock(&rung) { Slept::Woken } else { Slept::Through })
    }

    fn subscribe(&mut self, _: &[Name], _: &Token, _: Listener) -> Result<Box<dyn Subscription>, Error> {
        Ok(Box::new(NoNotifications))
    }

    fn inspect(&mut self, name: &Name, _: Moment) -> Result<View, Error> {
        Err(Error::Unavailable(format!("nobody looks at {} in a fleet", name.as_str())))
    }

    fn prove(&mut self, _: &Names, _: &Token, _: Moment) -> Result<Option<Proof>, Error> {
        Ok(None)
    }

    fn request(&mut self, _: &Name, _: Fence, _: &Owner, _: Moment) -> Result<Requested, Error> {
        Ok(Requested::Gone)
    }

    fn watch(&mut self, _: &Name, _: &Token, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    fn refuse(&mut self, _: &Name, _: &Refusal, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    fn refusals(&mut self, _: &Name, _: Moment) -> Result<Vec<Refusal>, Error> {
        Ok(Vec::new())
    }

    fn forget(&mut self, _: &Name, _: Moment) -> Result<bool, Error> {
        Ok(false)
    }

    fn pause(&mut self, _: &Name, _: Option<NewPause<'_>>, _: Moment) -> Result<bool, Error> {
        Ok(false)
    }

    fn revoke(&mut self, _: &Name, _: &Revoke, _: Moment) -> Result<Revoked, Error> {
        Ok(Revoked::Free)
    }

    fn find(&mut self, _: &str, _: Which) -> Result<Found, Error> {
        Ok(Found::default())
    }

    fn reset(&mut self) {}
}

/// A holder that is notified of nothing between two renewals.
struct NoNotifications;

impl Subscription for NoNotifications {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        clock::sleep_until(until);
        Ok(false)
    }
}

impl Planted {
    /// Applies the fault to the records after an operation.
    fn spoil(self, table: &mut LockTable, before: &LockTable, now: Time) {
        for (name, record) in &mut table.records {
            let old = before.records.get(name);
            let is_new = |token: &Token| old.is_none_or(|old| !old.holds.contains_key(token));
            match self {
                // A lease ends for others before it ends for its holder.
                Self::EndsLeasesEarly => {
                    for (token, hold) in &mut record.holds {
                        let left = hold.until.left(now);
                        if is_new(token)
                            || old
                                .and_then(|old| old.holds.get(token))
                                .is_some_and(|old| old.until != hold.until)
                        {
                            hold.until = Due(hold.until.0 - u64::try_from(left.as_millis() / 4).unwrap_or(0));
                        }
                    }
                    let until = record.holds.values().map(|hold| hold.until).max();
                    if let (crate::rules::Lock::Exclusive { until: at, .. }, Some(until)) =
                        (&mut record.lock, until)
                    {
                        *at = until.max(Due(0));
                    }
                }
                Self::ForgetsWhoLeft => record.spent.clear(),
                Self::RepeatsFences => {
                    if record.holds.is_empty() {
                        record.fence = 0;
                    }
                    for (token, hold) in &mut record.holds {
                        if is_new(token) {
                            hold.fence = 7;
                        }
                    }
                }
                Self::ServesTheNewest => {
                    let queue = std::mem::take(&mut record.queue);
                    for (ticket, token) in queue {
                        let is_known = old.is_some_and(|old| old.waiters.contains_key(&token));
                        let ticket = if is_known { ticket } else { u64::MAX / 2 - ticket };
                        if let Some(waiter) = record.waiters.get_mut(&token) {
                            waiter.ticket = ticket;
                        }
                        record.queue.insert((ticket, token));
                    }
                }
                Self::IgnoresMinHold => {
                    for hold in record.holds.values_mut() {
                        hold.cool = Due(0);
                    }
                    if matches!(record.lock, crate::rules::Lock::Cooling { .. }) {
                        record.lock = crate::rules::Lock::Free;
                        record.holds.clear();
                    }
                }
                Self::WaitsForTheSilent => {
                    for waiter in record.waiters.values_mut() {
                        waiter.silent = Due(u64::MAX);
                        waiter.forget = Due(u64::MAX);
                    }
                }
                Self::LeavesItsPlace => {
                    let Some(old) = old.filter(|_| record.queue.is_empty()) else { continue };
                    for (ticket, token) in &old.queue {
                        let waiter = old.waiters.get(token).filter(|_| !record.holds.contains_key(token));
                        let Some(mut waiter) = waiter.cloned() else { continue };
                        waiter.silent = Due(u64::MAX);
                        record.waiters.insert(token.clone(), waiter);
                        record.queue.insert((*ticket, token.clone()));
                    }
                }
                Self::GivesOneSlotTwice => {
                    for hold in record.holds.values_mut().filter(|hold| hold.slot.is_some()) {
                        hold.slot = Some(0);
                    }
                }
                _ => {}
            }
        }
    }
}
