//! How is the lock kept and given back? One thread talks to the store, to the last renewal, so that the thread which
//! supervises the job never waits for a server. When the job is over there is nothing to supervise, and its owner gives the
//! lock back itself: to wake the thread for it would cost the next waiter.
//!
//! Most runs never start that thread. Where the store allows it, their owner asks and waits by itself, and breaks that off as
//! soon as something else is to be heeded ([`Store::acquire_unless`], [`Store::sleep_unless`]): who is granted the lock has
//! no other thread to wake. The thread starts when there is to renew or to listen, and for whatever takes long.
//!
//! It knows no job: it says by [`Report`]s what it learned, and hands the moments until which the lease may be relied on
//! to a callback, directly from this thread, so that nothing but this thread stands between a renewal and the guard.

use crate::clock::{self, Moment};
use crate::law::schedule::{FailedBefore, Schedule};
use crate::law::{Acquired, Ask, Blocker, Done, End, Grant, Left, Patience, Renewal, Superseded, Waiting};
use crate::lock::{Names, Token, Wait};
use crate::store::{Error, Listener, Slept, Store, Subscription};
use event_fd::EventFd;
use obtain::Answer;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub mod event_fd;
#[cfg(test)]
mod fleet;
pub mod observer;
mod obtain;

pub use obtain::{Progress, obtain};

/// A hold that lasts longer than this listens for an operator's request; a short job is not worth the connection.
const SUBSCRIBE_AFTER: Duration = Duration::from_secs(1);
/// How long a holder does without a subscription that failed.
const BACKOFF: Duration = Duration::from_secs(1);
/// How long one who waits does so after a failure before it asks again.
pub const RIDE_OUT_PAUSE: Duration = Duration::from_millis(300);
/// How long after a release that failed at once the next attempt follows.
const LEAVE_PAUSE: Duration = Duration::from_millis(20);

/// How long replicas that have not heard of a release are waited for: a planned failover takes a second or two.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// From how many failures in a row on a person hears of it. One that the next attempt makes good is nobody's business.
const WORTH_SAYING: u32 = 2;

/// Until when to wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    No,
    At(Moment),
    Forever,
}

#[derive(Debug, Clone)]
pub struct Request {
    pub names: Names,
    /// What to ask for. Its patience is that of `until`.
    pub ask: Ask,
    pub until: Until,
    /// What to do when.
    pub schedule: Schedule,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one operation may take.
    pub op_timeout: Duration,
}

impl Request {
    /// How long one request may take, connecting included.
    fn budget(&self) -> Duration {
        self.connect_timeout + self.op_timeout
    }

    /// Whether a lease that counts from then is not to be relied on any more.
    fn is_too_late(&self, sent: Moment) -> bool {
        self.schedule.term_at(sent).passed()
    }
}

/// What the thread learned.
#[derive(Debug)]
pub enum Report {
    /// In the queue. Comes with every heartbeat.
    Waiting(Waiting),
    /// Granted; the lease counts from `sent`.
    Granted {
        grant: Grant,
        /// Read before the request was sent (I6).
        sent: Moment,
    },
    /// Not obtained, and no place in the queue is left behind.
    Busy(Blocker),
    /// Not obtained, for what it was wanted for is done. No place in the queue is left behind.
    Done(Done),
    /// Not obtained, for one that came later replaces it. No place in the queue is left behind.
    Superseded(Superseded),
    /// Not obtained, because the store failed. A request may still be on its way; whoever gave up leaves by token.
    Failed(Error),
    /// Granted again and again, and each time the answer came too late to rely on the lease.
    TooSlow,
    /// The grant or the place in the queue was taken away before the job could start.
    TakenAway,
    /// Attempts have begun to fail, and not just one. The lease is good until `until`.
    Trouble {
        error: Error,
        /// When the job is asked to end if nothing changes.
        until: Moment,
    },
    /// The job is asked to end. The lock is held, and renewed until it is given back.
    Asked(Asker),
    /// After [`Report::Trouble`] an attempt succeeded again.
    Recovered,
    /// The lock is lost.
    Lost {
        /// How that is known.
        how: Loss,
        /// When nothing of the job may be alive any more.
        kill_by: Moment,
    },
}

/// Who asks a job to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Operator,
    /// A run that came later and replaces it.
    Newer,
}

/// How it is known that the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The store says that the token holds nothing.
    NotHeld,
    /// An operator revoked it.
    Revoked,
    /// The holder was asked to end, which it did.
    Asked(Asker),
    /// It could not be renewed before the deadline.
    Deadline,
}

/// The thread, as its owner sees it.
#[derive(Debug)]
pub struct Lease {
    reports: Receiver<Report>,
    keeper: Arc<Keeper>,
    /// What its owner does by itself.
    alone: RefCell<Alone>,
}

/// What there is to do as long as there is no thread for it.
#[derive(Debug, Default)]
enum Alone {
    #[default]
    Nothing,
    /// To wait, and to ask again then at the latest.
    Waits(Box<Progress>, Moment),
    /// To keep what was granted, from then on.
    Keeps(Keeping, Moment),
}

/// How far the keeping of a hold is.
#[derive(Debug, Clone, Copy)]
struct Keeping {
    /// From when the lease counts.
    sent: Moment,
    /// When it is to be renewed next.
    next: Moment,
    /// How many attempts in a row have failed.
    failures: u32,
    /// Whether it was said that the deadline has passed.
    overdue: bool,
    /// Whether it was said that somebody asks for the end.
    asked: bool,
}

impl Keeping {
    fn new(sent: Moment, schedule: &Schedule) -> Self {
        Self { sent, next: schedule.renew_at(sent), failures: 0, overdue: false, asked: false }
    }
}

/// What both threads use.
struct Shared {
    /// The thread has it while it talks to the store, never longer than an attempt may take.
    store: Mutex<Box<dyn Store>>,
    /// The lock is being given back: it must not be renewed any more. Said before the mutex is asked for, or a thread that
    /// tries one renewal after the other could keep it for a whole outage.
    over: AtomicBool,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Box<dyn Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// Asks for the lock. `rely` is called with the moments of TERM and KILL after every renewal that succeeded. As soon as
    /// `alarm` is readable, or there is to wait, a thread goes on.
    pub fn start(
        store: Box<dyn Store>,
        request: Request,
        rely: impl Fn(Moment, Moment) + Send + Sync + 'static,
        alarm: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let (say, reports) = channel();
        let keeper = Arc::new(Keeper {
            shared: Shared { store: Mutex::new(store), over: AtomicBool::new(false) },
            request,
            rely: Box::new(rely),
            reports: say,
            owner: EventFd::new()?,
        });
        let lease = Self { reports, keeper, alone: RefCell::default() };
        lease.ask(Progress::begin(), alarm)?;
        Ok(lease)
    }

    /// Asks, and leaves to a thread what cannot be done by itself.
    fn ask(&self, mut progress: Progress, alarm: BorrowedFd<'_>) -> io::Result<()> {
        let keeper = &*self.keeper;
        let mut store = keeper.shared.store();
        let (request, sent) = (&keeper.request, Moment::now());
        let by = progress.by(request, sent);
        let answer = store.acquire_unless(alarm, &request.names, &progress.ask(request, sent), by);
        match answer {
            Some(Ok(Acquired::Granted(grant))) if !request.is_too_late(sent) => {
                keeper.say(Report::Granted { grant, sent });
                let keeping = Keeping::new(sent, &request.schedule);
                let at = keeping.next.min(sent.after(SUBSCRIBE_AFTER));
                self.alone.replace(Alone::Keeps(keeping, at));
            }
            Some(Ok(Acquired::Waiting(mut waiting))) => {
                let next = progress.hear(request, &mut waiting, |name, by| {
                    store.ends_unless(alarm, name, &request.ask.token, by)?.ok()
                });
                keeper.say(Report::Waiting(waiting));
                self.alone.replace(Alone::Waits(Box::new(progress), next));
            }
            Some(Ok(Acquired::Busy(blocker))) => keeper.say(Report::Busy(blocker)),
            Some(Ok(Acquired::Done(done))) => keeper.say(Report::Done(done)),
            Some(Ok(Acquired::Superseded(superseded))) => keeper.say(Report::Superseded(superseded)),
            first => {
                drop(store);
                self.spawn(move |keeper| keeper.run(progress, first.map(|answer| (sent, answer))))?;
            }
        }
        Ok(())
    }

    /// Waits for the lock, if there is no thread that does, and asks for it; at most until `until`, or until `alarm` is
    /// readable. Whether it did: else reports come by [`Lease::fd`].
    pub fn wait(&self, alarm: BorrowedFd<'_>, until: Option<Moment>) -> io::Result<bool> {
        let Alone::Waits(_, next) = *self.alone.borrow() else { return Ok(false) };
        let Keeper { shared, request, .. } = &*self.keeper;
        let limit = until.map_or(next, |until| until.min(next));
        let slept = shared.store().sleep_unless(alarm, &request.names, &request.ask.token, limit);
        if matches!(slept, Some(Ok(Slept::Through))) && !next.passed() {
            return Ok(true);
        }
        let Alone::Waits(progress, _) = self.alone.take() else { return Ok(false) };
        match slept {
            Some(Ok(_)) if !request.until.is_over() => self.ask(*progress, alarm)?,
            _ => self.spawn(move |keeper| keeper.run(*progress, None))?,
        }
        Ok(true)
    }

    fn spawn(&self, work: impl FnOnce(&Keeper) + Send + 'static) -> io::Result<()> {
        let keeper = self.keeper.clone();
        let spawned = thread::Builder::new().name("dlock-lease".into()).spawn(move || work(&keeper));
        spawned.map(drop).map_err(|error| io::Error::other(format!("cannot start a thread: {error}")))
    }

    /// Readable when there may be a report.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.keeper.owner.as_fd()
    }

    /// When [`Lease::next_report`] is to be called next, although nothing is readable.
    pub fn next(&self) -> Option<Moment> {
        match *self.alone.borrow() {
            Alone::Keeps(_, at) => Some(at),
            Alone::Waits(..) | Alone::Nothing => None,
        }
    }

    /// The next report, if there is one. After `None` the descriptor is quiet until another comes.
    pub fn next_report(&self) -> Option<Report> {
        let due = match *self.alone.borrow() {
            Alone::Keeps(keeping, at) if at.passed() => Some(keeping),
            _ => None,
        };
        if let Some(keeping) = due {
            self.start_keeping(keeping);
        }
        self.reports.try_recv().ok().or_else(|| {
            self.keeper.owner.drain();
            self.reports.try_recv().ok()
        })
    }

    /// A job may have used up what a thread takes. Then the caller renews by itself, when it is time, and tries again.
    fn start_keeping(&self, mut keeping: Keeping) {
        let is_started = self.spawn(move |keeper| keeper.keep(keeping)).is_ok();
        let goes_on = !is_started && (!keeping.next.passed() || self.keeper.renew(&mut keeping));
        self.alone.replace(if goes_on { Alone::Keeps(keeping, keeping.next) } else { Alone::Nothing });
    }

    /// Nothing is renewed from now on: somebody else gives the lock back.
    pub fn abandon(&self) {
        self.alone.take();
        self.keeper.shared.over.store(true, Ordering::Release);
    }

    /// Gives the lock back, which is not renewed from now on. Takes an op-timeout, and as long as a renewal that is under
    /// way.
    pub fn give_back(&self, end: &End) -> Result<Left, Error> {
        self.abandon();
        let Keeper { shared, request, .. } = &*self.keeper;
        let by = Moment::now().after(request.op_timeout);
        give_back(&mut **shared.store(), &request.names, &request.ask.token, end, by)
    }
}

/// Gives back whatever `token` has, retrying until `by`; longer where it is given back, and only replicas have not heard
/// of it: another master may be about to take over, and has to be told as well.
pub fn give_back(
    store: &mut dyn Store,
    names: &Names,
    token: &Token,
    end: &End,
    by: Moment,
) -> Result<Left, Error> {
    let until = by.max(Moment::now().after(TOLD_WITHIN));
    let mut by = by;
    loop {
        match store.leave(names, token, end, by) {
            Err(Error::Unacknowledged(_)) if until.left() > LEAVE_PAUSE => {
                by = until;
                store.reset();
                clock::sleep(LEAVE_PAUSE);
            }
            Err(error) if error.is_transient() && by.left() > LEAVE_PAUSE => {
                store.reset();
                clock::sleep(LEAVE_PAUSE);
            }
            answer => return answer,
        }
    }
}

struct Keeper {
    shared: Shared,
    request: Request,
    rely: Box<dyn Fn(Moment, Moment) + Send + Sync>,
    reports: Sender<Report>,
    owner: EventFd,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("over", &self.shared.over).finish_non_exhaustive()
    }
}

impl Keeper {
    fn run(&self, progress: Progress, first: Option<Answer>) {
        // Nobody else asks for the store before the lock is held.
        let report = &mut |report| self.report(report);
        let sent = obtain(&mut **self.shared.store(), &self.request, progress, first, report);
        if let Some(sent) = sent {
            self.keep(Keeping::new(sent, &self.request.schedule));
        }
    }

    fn report(&self, report: Report) {
        self.say(report);
        self.owner.notify();
    }

    /// To an owner who is about to look.
    fn say(&self, report: Report) {
        // Nobody listens any more when the process is about to end.
        let _ = self.reports.send(report);
    }

    /// Renews until the lock is given back or lost.
    fn keep(&self, mut keeping: Keeping) {
        let mut hearing = Hearing { listens_at: keeping.sent.after(SUBSCRIBE_AFTER), subscription: None };
        loop {
            self.listen(&mut hearing, keeping.next);
            if self.shared.over.load(Ordering::Acquire) || !self.renew(&mut keeping) {
                return;
            }
        }
    }

    /// One attempt to renew, and when the next one is due. False where the lock is lost.
    fn renew(&self, keeping: &mut Keeping) -> bool {
        let schedule = self.request.schedule;
        let mut store = self.shared.store();
        let began = Moment::now();
        let (names, ask) = (&self.request.names, &self.request.ask);
        let failed = if keeping.failures == 0 { FailedBefore::No } else { FailedBefore::Yes };
        let by = began.after(schedule.attempt(failed));
        match store.renew(names, &ask.token, ask.ttl, by) {
            Ok(answer @ (Renewal::Renewed | Renewal::Asked | Renewal::Superseded)) => {
                let sent = store.renewed_from().map_or(began, |from| from.min(began));
                (self.rely)(schedule.term_at(sent), schedule.kill_at(sent));
                if keeping.failures >= WORTH_SAYING {
                    self.report(Report::Recovered);
                }
                let asker = match answer {
                    Renewal::Asked => Some(Asker::Operator),
                    Renewal::Superseded => Some(Asker::Newer),
                    _ => None,
                };
                if let Some(asker) = asker.filter(|_| !keeping.asked) {
                    self.report(Report::Asked(asker));
                }
                let asked = keeping.asked || asker.is_some();
                *keeping = Keeping { asked, ..Keeping::new(sent, &schedule) };
            }
            Ok(answer) => {
                let how = if answer == Renewal::Revoked { Loss::Revoked } else { Loss::NotHeld };
                let kill_by = schedule.kill_of_lost(Moment::now(), keeping.sent);
                self.report(Report::Lost { how, kill_by });
                return false;
            }
            Err(error) => {
                store.reset();
                keeping.failures = keeping.failures.saturating_add(1);
                if keeping.failures == WORTH_SAYING {
                    self.report(Report::Trouble { error, until: schedule.term_at(keeping.sent) });
                }
                keeping.next = schedule.retry_at(began);
                if schedule.deadline(keeping.sent).passed() {
                    if !std::mem::replace(&mut keeping.overdue, true) {
                        let kill_by = schedule.kill_at(keeping.sent);
                        self.report(Report::Lost { how: Loss::Deadline, kill_by });
                    }
                    // The job that is left, if any, runs without the lock; there is no hurry any more.
                    keeping.next = schedule.renew_at(began);
                }
            }
        }
        true
    }
}

/// What a holder hears with.
struct Hearing {
    /// From when on it listens.
    listens_at: Moment,
    subscription: Option<Box<dyn Subscription>>,
}

impl Keeper {
    /// Sleeps until `until`, or until an operator asks for something. That nothing can be heard is no fault of the hold:
    /// the next renewal says what there is to hear.
    fn listen(&self, hearing: &mut Hearing, until: Moment) {
        if hearing.listens_at > Moment::now() {
            clock::sleep_until(until.min(hearing.listens_at));
        }
        if hearing.subscription.is_none() && !until.passed() {
            let (names, token) = (&self.request.names, &self.request.ask.token);
            hearing.subscription =
                self.shared.store().subscribe(names.as_slice(), token, Listener::Holder).ok();
        }
        while !until.passed() {
            match hearing.subscription.as_mut().map(|subscription| subscription.sleep(until)) {
                Some(Ok(true)) => return,
                Some(Ok(false)) => {}
                Some(Err(_)) => clock::sleep_until(until.min(Moment::now().after(BACKOFF))),
                None => clock::sleep_until(until),
            }
        }
    }
}

impl Until {
    /// When it is over, if it begins now.
    pub fn from_now(wait: Wait) -> Self {
        match wait {
            Wait::No => Self::No,
            Wait::For(span) => Self::At(Moment::now().after(span)),
            Wait::Forever => Self::Forever,
        }
    }

    /// Whether to stand in the queue.
    pub const fn patience(self) -> Patience {
        match self {
            Self::No => Patience::None,
            Self::At(_) | Self::Forever => Patience::Queue,
        }
    }

    /// Whether the time to wait has passed.
    pub fn is_over(self) -> bool {
        matches!(self, Self::At(end) if end.passed())
    }

    /// Whether a store that has never answered is waited for after this failure.
    pub fn rides_out(self, error: &Error) -> bool {
        self != Self::No && error.is_outage()
    }
}
