//! How is the lock taken, kept and given back? Its owner asks and waits by itself, and breaks that off as soon as something
//! else is to be heeded ([`crate::store::net::alarm`]). While the job runs a thread renews, so that the thread which supervises
//! the job never waits for a server; it starts when there is to renew or to listen, so most runs never have it. When the job
//! is over there is nothing to supervise, and the owner gives the lock back itself: to wake the thread for it would cost the
//! next waiter.
//!
//! It knows no job: it says by [`Report`]s what it learned, and hands the moments until which the lease may be relied on
//! to a callback, directly from this thread, so that nothing but this thread stands between a renewal and the guard.

use crate::clock::{self, Moment};
use crate::lock::{Names, Owner, Token, Wait};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Blocker, Done, End, Grant, Left, Patience, Refusal, Superseded, Waiting};
use crate::store::net::alarm;
use crate::store::{Error, Store, View};
use event_fd::EventFd;
use keeper::{Keeper, Keeping, Kept, SUBSCRIBE_AFTER};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use stores::Stores;

pub mod event_fd;
pub mod keeper;
pub mod observer;
mod obtain;
pub mod stores;

pub use obtain::obtain;
use obtain::{Progress, Step};

/// How long one who waits does so after a failure before it asks again.
pub const RIDE_OUT_PAUSE: Duration = Duration::from_millis(300);
/// How long after a release that failed at once the next attempt follows.
const LEAVE_PAUSE: Duration = Duration::from_millis(20);

/// How long replicas that have not heard of a release are waited for: a planned failover takes a second or two.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// How long the main thread may be kept from signals to learn why a hold ended.
const TOLD_WHY_WITHIN: Duration = Duration::from_secs(1);

/// How long the end of the thread that listens is waited for.
const HANGS_UP_WITHIN: Duration = Duration::from_millis(20);

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
    /// To take the next step to the lock.
    Asks(Box<Progress>),
    /// To keep what was granted, from then on.
    Keeps(Keeping, Moment),
}

impl Lease {
    /// Is about to ask for the lock. `rely` is called with the moments of TERM and KILL after every renewal that succeeded.
    pub fn new(
        store: Box<dyn Store>,
        request: Request,
        rely: impl Fn(Moment, Moment) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (say, reports) = channel();
        let keeper = Arc::new(Keeper {
            stores: Stores::new(store),
            request,
            rely: Box::new(rely),
            reports: say,
            owner: EventFd::new()?,
            over: EventFd::new()?,
            listens: AtomicBool::new(false),
        });
        let alone = RefCell::new(Alone::Asks(Box::new(Progress::begin())));
        Ok(Self { reports, keeper, alone })
    }

    /// Takes the next step to the lock, if it is not decided yet; at most until `alarm` is readable, or until `until` where it
    /// waits. Whether it did: else reports come by [`Lease::fd`].
    pub fn wait(&self, alarm: BorrowedFd<'_>, until: Option<Moment>) -> bool {
        let alone = &mut *self.alone.borrow_mut();
        let Alone::Asks(progress) = alone else { return false };
        let Keeper { stores, request, .. } = &*self.keeper;
        let mut store = stores.lock();
        let report = &mut |report| self.keeper.say(report);
        match alarm::heeding(alarm, || progress.step(&mut **store, request, until, report)) {
            Step::GoesOn => {}
            Step::Over => *alone = Alone::Nothing,
            Step::Held(sent) => {
                let keeping = Keeping::new(sent, &request.schedule);
                *alone = Alone::Keeps(keeping, keeping.next.min(sent.after(SUBSCRIBE_AFTER)));
            }
        }
        true
    }

    fn spawn(&self, work: impl FnOnce(&Arc<Keeper>) + Send + 'static) -> io::Result<()> {
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
            Alone::Asks(_) | Alone::Nothing => None,
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
        let goes_on =
            !is_started && (!keeping.next.passed() || self.keeper.renew_here(&mut keeping) == Kept::Yes);
        self.alone.replace(if goes_on { Alone::Keeps(keeping, keeping.next) } else { Alone::Nothing });
    }

    /// What the store says of the locks now, for who wants to know why the hold ended or is to end. Nothing where it does
    /// not answer soon: nobody's job depends on it.
    pub fn views(&self) -> Vec<View> {
        let Keeper { stores, request, .. } = &*self.keeper;
        let by = Moment::now().after(request.op_timeout.min(TOLD_WHY_WITHIN));
        let Ok(mut store) = stores.lock_by(by) else { return Vec::new() };
        let views = request.names.iter().map_while(|name| store.inspect(name, by).ok()).collect::<Vec<_>>();
        if views.len() < request.names.as_slice().len() {
            store.reset();
        }
        views
    }

    /// Notes that the lock was not obtained, as far as the store takes that soon: nothing depends on it. `at` is which of the
    /// locks it was, in order of name.
    pub fn note(&self, at: usize, refusal: &Refusal) {
        let Keeper { stores, request, .. } = &*self.keeper;
        let by = Moment::now().after(request.op_timeout.min(TOLD_WHY_WITHIN));
        if let (Some(name), Ok(mut store)) = (request.names.as_slice().get(at), stores.lock_by(by)) {
            let _nothing_depends_on_it = store.refuse(name, refusal, by);
        }
    }

    /// The owner that asks.
    pub fn asker(&self) -> &Owner {
        &self.keeper.request.ask.owner
    }

    /// Nothing is renewed from now on: somebody else gives the lock back.
    pub fn abandon(&self) {
        self.alone.take();
        self.keeper.stores.close();
    }

    /// Gives the lock back, which is not renewed from now on. Takes an op-timeout, and as long as a renewal that is under
    /// way.
    pub fn give_back(&self, end: &End) -> Result<Left, Error> {
        self.abandon();
        let Keeper { stores, request, .. } = &*self.keeper;
        let by = Moment::now().after(request.op_timeout);
        let mut store = stores.lock_by(by)?;
        let left = give_back(&mut **store, &request.names, &request.ask.token, end, by)?;
        drop(store);
        self.hang_up();
        Ok(left)
    }

    /// Closes the connections, so that the server is told that they end: the process ends without that.
    fn hang_up(&self) {
        let Keeper { stores, over, listens, .. } = &*self.keeper;
        over.notify();
        stores.reset();
        let by = Moment::now().after(HANGS_UP_WITHIN);
        while listens.load(Ordering::Acquire) && !by.passed() {
            thread::sleep(Duration::from_micros(200));
        }
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
    let (mut by, mut said) = (by, None);
    loop {
        match store.leave(names, token, end, by) {
            answer if alarm::is_raised() => return answer,
            Err(Error::Unacknowledged(_)) if until.left() > LEAVE_PAUSE => {
                by = until;
                store.reset();
                clock::sleep(LEAVE_PAUSE);
            }
            Err(error) if error.is_transient() && by.left() > LEAVE_PAUSE => {
                store.reset();
                clock::sleep(LEAVE_PAUSE);
                said = Some(error).filter(|error| matches!(error, Error::Unavailable(_))).or(said);
            }
            // What the server said before tells more than that no time was left to ask it again.
            Err(error @ Error::Unreachable(_)) => return Err(said.unwrap_or(error)),
            answer => return answer,
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
