//! How a lock is acquired, renewed and given back. The main thread acquires by itself; a signal
//! interrupts that ([`crate::store::net::interrupt`]). While the job runs, a lease thread renews,
//! so that the thread that supervises the job never waits for a server. The lease thread starts
//! when there is something to renew or to listen for, so most short runs never have it. At the end
//! the main thread gives the lock back itself, because waking the lease thread for it would delay
//! the next waiter.
//!
//! This module knows no processes. It sends news to the main thread as [`Report`]s. The times of
//! TERM and KILL go to a callback, directly from the lease thread, so that no other thread stands
//! between a renewal and the guard.

use crate::clock::Moment;
use crate::lock::{Names, Owner, Token, Wait};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Blocker, Done, End, Grant, Left, Notice, Patience, Refusal, Superseded, Waiting};
use crate::store::net::{budget, interrupt};
use crate::store::{Error, Store, View};
use event_fd::EventFd;
use keeper::{Keeper, Keeping, Kept, SUBSCRIBE_AFTER};
use sha1_smol::Sha1;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use stores::Stores;

pub mod event_fd;
pub mod keeper;
pub mod observer;
pub mod obtain;
pub mod retry;
pub mod stores;

use obtain::{Progress, Step};
use retry::Retry;

/// First pause of a caller that waits for the lock or for a view of it.
pub const RIDE_OUT_PAUSE: Duration = Duration::from_millis(300);
/// First pause before a failed release is retried.
const LEAVE_PAUSE: Duration = Duration::from_millis(20);

/// How long a release is retried while replicas have not acknowledged it: a planned failover takes
/// a second or two.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(5);

/// Longest time for which the main thread handles no signals while it asks why a hold ended, or
/// records a refusal.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);

/// Longest wait, at the end, for the lease thread to close its subscription.
const HANGS_UP_WITHIN: Duration = Duration::from_millis(20);

/// How long to wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    No,
    At(Moment),
    Forever,
}

#[derive(Debug, Clone)]
pub struct Request {
    pub names: Names,
    /// The arguments of acquire. Its patience follows from `until`.
    pub ask: Ask,
    pub until: Until,
    /// The timetable of the lease.
    pub schedule: Schedule,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for one operation.
    pub op_timeout: Duration,
}

impl Request {
    /// Limit for one request, connecting included.
    fn budget(&self) -> Duration {
        self.connect_timeout + self.op_timeout
    }

    /// Whether TERM is due already for a lease requested at `sent`, so that no job may start.
    fn is_too_late(&self, sent: Moment) -> bool {
        self.schedule.term_at(sent).passed()
    }
}

/// News of the lock for the main thread.
#[derive(Debug)]
pub enum Report {
    /// Waiting in the queue. Sent with every heartbeat.
    Waiting(Waiting),
    /// Granted; the lease counts from `sent`.
    Granted {
        grant: Grant,
        /// Read before the request was sent (I6).
        sent: Moment,
    },
    /// Not obtained. No place in the queue is left behind.
    Busy(Blocker),
    /// Not obtained: others were faster at each attempt. The last request may have arrived, so the
    /// caller must give back whatever the token may have.
    Contended(Blocker),
    /// Not obtained: the job is done already (`--once-per`). No place in the queue is left behind.
    Done(Done),
    /// Not obtained: a newer run with `--replace` superseded it. No place in the queue is left
    /// behind.
    Superseded(Superseded),
    /// Not obtained, because the store failed. A request may still be on its way, so the caller
    /// must give back whatever the token may have.
    Failed(Error),
    /// Granted several times, and each time the answer came too late to use the lease.
    TooSlow,
    /// The grant or the place in the queue was taken away before the job could start.
    TakenAway,
    /// The store fails or does not answer. Reported once for each outage, while waiting for the
    /// lock and while holding it.
    Trouble {
        error: Error,
        /// When the job gets TERM if no renewal succeeds. Has no meaning while waiting for the
        /// lock.
        until: Moment,
    },
    /// The job is asked to end. The lock is held, and renewed until it is given back.
    Asked(Asker),
    /// After [`Report::Trouble`] an attempt succeeded again.
    Recovered,
    Lost {
        how: Loss,
        /// When the job must be dead.
        kill_by: Moment,
    },
}

/// Source of a request to end the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Operator,
    /// A newer run with `--replace`.
    Newer,
}

/// Why the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The store says that the token holds nothing.
    NotHeld,
    /// An operator revoked it.
    Revoked,
    /// The holder was asked to end, and did.
    Asked(Asker),
    /// The lease could not be renewed before its deadline.
    Deadline,
}

/// A lease, on the side of the main thread.
pub struct Lease {
    reports: Receiver<Report>,
    keeper: Arc<Keeper>,
    main_work: RefCell<MainWork>,
}

/// The work of the main thread as long as there is no lease thread.
#[derive(Default)]
enum MainWork {
    #[default]
    Nothing,
    /// Continue acquiring.
    Acquire(Box<Progress>),
    /// Keep the hold that was granted: start the lease thread at this time.
    Keep(Keeping, Moment),
}

impl Lease {
    /// Prepares to acquire; nothing is sent yet. `on_renewed` is called with the times of TERM and
    /// KILL after every successful renewal.
    pub fn new(
        store: Box<dyn Store>,
        request: Request,
        on_renewed: impl Fn(Moment, Moment) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (say, reports) = channel();
        let keeper = Arc::new(Keeper {
            stores: Stores::new(store),
            request,
            on_renewed: Box::new(on_renewed),
            reports: say,
            has_report: EventFd::new()?,
            stop_listening: EventFd::new()?,
            claims: AtomicUsize::new(0),
            has_renewed: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            rest: OnceLock::new(),
        });
        let main_work = RefCell::new(MainWork::Acquire(Box::new(Progress::begin())));
        Ok(Self { reports, keeper, main_work })
    }

    /// Takes the next step of acquiring. Returns early when `interrupt` is readable; a waiter
    /// sleeps no longer than until `until`. Returns false if there is nothing left to acquire; then
    /// wait for [`Lease::fd`].
    pub fn acquire_step(&self, interrupt: BorrowedFd<'_>, until: Option<Moment>) -> bool {
        let main_work = &mut *self.main_work.borrow_mut();
        let MainWork::Acquire(progress) = main_work else { return false };
        let Keeper { stores, request, .. } = &*self.keeper;
        let mut store = stores.lock();
        let report = &mut |report| self.keeper.say(report);
        match interrupt::armed(interrupt, || progress.step(&mut **store, request, until, report)) {
            Step::GoesOn => {}
            Step::Over => *main_work = MainWork::Nothing,
            Step::Held(fence, sent) => {
                let mut keeping = Keeping::new(fence, sent, &request.schedule);
                let mut begin_at = keeping.next.min(sent.after(SUBSCRIBE_AFTER));
                if request.ask.terms.pause_on_failure.is_some() {
                    // Only a hold that was renewed is a failure if its lease runs out, so the first
                    // renewal goes out beside the start of the job.
                    begin_at = Moment::now();
                    keeping.next = begin_at;
                }
                *main_work = MainWork::Keep(keeping, begin_at);
            }
        }
        true
    }

    fn spawn(&self, work: impl FnOnce(&Arc<Keeper>) + Send + 'static) -> io::Result<()> {
        let keeper = self.keeper.clone();
        let spawned = thread::Builder::new().name("dlock-lease".into()).spawn(move || work(&keeper));
        spawned.map(drop).map_err(|error| io::Error::other(format!("cannot start a thread: {error}")))
    }

    /// Readable when the lease thread may have reported. A report from [`Lease::acquire_step`] does
    /// not make it readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.keeper.has_report.as_fd()
    }

    /// When [`Lease::next_report`] must be called even if nothing is readable.
    pub fn next(&self) -> Option<Moment> {
        match *self.main_work.borrow() {
            MainWork::Keep(_, at) => Some(at),
            MainWork::Acquire(_) | MainWork::Nothing => None,
        }
    }

    /// The next report, if there is one. After `None` the descriptor is not readable until another
    /// report comes.
    pub fn next_report(&self) -> Option<Report> {
        let due = match *self.main_work.borrow() {
            MainWork::Keep(keeping, at) if at.passed() => Some(keeping),
            _ => None,
        };
        if let Some(keeping) = due {
            self.start_keeping(keeping);
        }
        self.reports.try_recv().ok().or_else(|| {
            self.keeper.has_report.drain();
            self.reports.try_recv().ok()
        })
    }

    /// Starts the lease thread. If no thread can be started (the job took all memory or processes),
    /// this thread renews when it is time, and tries again to start one.
    fn start_keeping(&self, mut keeping: Keeping) {
        let is_started = self.spawn(move |keeper| keeper.keep(keeping)).is_ok();
        let goes_on =
            !is_started && (!keeping.next.passed() || self.keeper.renew_here(&mut keeping) == Kept::Yes);
        let work = if goes_on { MainWork::Keep(keeping, keeping.next) } else { MainWork::Nothing };
        self.main_work.replace(work);
    }

    /// The current views of the locks, to tell why the hold ended or must end. Shorter or empty if
    /// the store does not answer soon: no job depends on it.
    pub fn views(&self) -> Vec<View> {
        let request = &self.keeper.request;
        let deadline = Moment::now().after(request.op_timeout.min(EXPLAINED_WITHIN));
        let Ok(mut store) = self.keeper.claim(deadline) else { return Vec::new() };
        let views =
            request.names.iter().map_while(|name| store.inspect(name, deadline).ok()).collect::<Vec<_>>();
        if views.len() < request.names.as_slice().len() {
            store.reset();
        }
        views
    }

    /// Records a refusal at one of the locks. `at`: index in the request's names. Returns whether this
    /// run is to announce it. If the store does not answer, each run does.
    pub fn note(&self, at: usize, refusal: &Refusal) -> bool {
        let request = &self.keeper.request;
        let within = if refusal.notice.is_some() { Duration::MAX } else { EXPLAINED_WITHIN };
        let deadline = Moment::now().after(request.op_timeout.min(within));
        let by = || Sha1::from(request.ask.token.secret()).digest().to_string();
        let notice = refusal.notice.clone().map(|notice| Notice { by: by(), ..notice });
        let refusal = &Refusal { notice, ..refusal.clone() };
        let claimed = request.names.as_slice().get(at).zip(self.keeper.claim(deadline).ok());
        match claimed.map(|(name, mut store)| store.refuse(name, refusal, deadline)) {
            Some(Ok(announces)) => announces,
            Some(Err(_)) | None => refusal.notice.as_ref().is_some_and(|notice| notice.kind.is_announced()),
        }
    }

    /// Whether the store has answered a renewal.
    pub fn has_renewed(&self) -> bool {
        self.keeper.has_renewed.load(Ordering::Acquire)
    }

    /// From the next renewal on, the store knows that these processes keep the lock.
    pub fn set_rest(&self, rest: String) {
        let _ = self.keeper.rest.set(rest);
    }

    /// The owner in the request.
    pub fn owner(&self) -> &Owner {
        &self.keeper.request.ask.owner
    }

    /// No renewal begins after this. One that is under way goes on.
    pub fn abandon(&self) {
        self.main_work.take();
        self.keeper.stores.close();
    }

    /// Gives the lock back; no renewal begins after this. Takes at most an op-timeout, plus the
    /// rest of a renewal that is under way; up to 5 s if replicas do not acknowledge.
    pub fn give_back(&self, end: &End) -> Result<Left, Error> {
        self.abandon();
        let request = &self.keeper.request;
        let mut store = self.keeper.claim(Moment::now().after(request.op_timeout))?;
        let deadline = Moment::now().after(request.op_timeout);
        let left = give_back(&mut **store, &request.names, &request.ask.token, end, deadline)?;
        drop(store);
        self.hang_up();
        Ok(left)
    }

    /// Closes the connections properly; when the process ends they would just break.
    pub fn hang_up(&self) {
        let Keeper { stores, stop_listening, listens, .. } = &*self.keeper;
        stop_listening.notify();
        stores.reset();
        let deadline = Moment::now().after(HANGS_UP_WITHIN);
        while listens.load(Ordering::Acquire) && !deadline.passed() {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Gives back everything that `token` has, retrying until `deadline`. If dlock has never asked for
/// it, nothing is sent: the server may be full. If the lock is given back and only the
/// acknowledgement of replicas is missing, it retries for longer: another master may be about to
/// take over, and must learn of the release as well.
pub fn give_back(
    store: &mut dyn Store,
    names: &Names,
    token: &Token,
    end: &End,
    deadline: Moment,
) -> Result<Left, Error> {
    if budget::is_nothing_sent() {
        return Ok(Left::NotHeld);
    }
    let until = deadline.max(Moment::now().after(ACKNOWLEDGED_WITHIN));
    let (mut deadline, mut said, mut retry) = (deadline, None, Retry::after(LEAVE_PAUSE));
    loop {
        let answer = store.leave(names, token, end, deadline);
        let pause = retry.pause(token.secret());
        match answer {
            answer if interrupt::is_raised() => return answer,
            Err(Error::Unacknowledged(_)) if until.left() > pause => {
                deadline = until;
                store.reset();
            }
            Err(error) if error.is_transient() && deadline.left() > pause => {
                if !matches!(error, Error::Contended(_)) {
                    store.reset();
                }
                said = said.or(Some(error));
            }
            // An earlier error such as "the server is down" says more than "no time left".
            Err(error @ (Error::Unreachable(_) | Error::Overloaded(_))) => return Err(said.unwrap_or(error)),
            answer => return answer,
        }
        interrupt::sleep_until(Moment::now().after(pause));
    }
}

impl Until {
    /// The end of a wait that begins now.
    pub fn from_now(wait: Wait) -> Self {
        match wait {
            Wait::No => Self::No,
            Wait::For(span) => Self::At(Moment::now().after(span)),
            Wait::Forever => Self::Forever,
        }
    }

    /// Whether to wait in the queue.
    pub const fn patience(self) -> Patience {
        match self {
            Self::No => Patience::None,
            Self::At(_) | Self::Forever => Patience::Queue,
        }
    }

    pub const fn end(self) -> Option<Moment> {
        match self {
            Self::At(end) => Some(end),
            Self::No | Self::Forever => None,
        }
    }

    /// Whether the time to wait has passed.
    pub fn is_over(self) -> bool {
        self.end().is_some_and(Moment::passed)
    }
}
