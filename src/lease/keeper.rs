//! How a hold is kept: by renewals, and by listening for a request to end between them. Such a
//! request comes from an operator, or from a newer run with `--replace`.

use super::event_fd::EventFd;
use super::stores::{InUse, Stores};
use super::{Asker, Loss, Report, Request};
use crate::clock::{self, Moment};
use crate::lock::Fence;
use crate::rules::schedule::{FailedBefore, Schedule};
use crate::rules::{Ask, Renew, Renewal};
use crate::store::net::budget::{self, Purpose};
use crate::store::net::interrupt;
use crate::store::{BACKOFF, Error, Listener, Subscription};
use race::Race;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod race;

/// From this age on a hold listens for a request to end. On some stores that takes a connection, and
/// a shorter job is not worth it.
pub const SUBSCRIBE_AFTER: Duration = Duration::from_secs(1);
/// Pause between two attempts to listen, or while the main thread wants the store.
const YIELD: Duration = Duration::from_millis(10);
/// From this many failures in a row on, failures are reported. A single one is not: often the next
/// attempt succeeds.
const WORTH_SAYING: u32 = 2;

/// What the lease thread and the main thread share.
pub struct Keeper {
    pub stores: Stores,
    pub request: Request,
    /// Called with the times of TERM and KILL after each renewal.
    pub on_renewed: Box<dyn Fn(Moment, Moment) + Send + Sync>,
    pub reports: Sender<Report>,
    /// Readable when the lease thread has reported.
    pub has_report: EventFd,
    /// Readable when listening must end: the hold is over, or the main thread wants the store.
    pub stop_listening: EventFd,
    /// How many threads want the store now.
    pub claims: AtomicUsize,
    /// Whether the store has answered a renewal.
    pub has_renewed: AtomicBool,
    /// Whether the lease thread has a subscription, which it closes when it ends.
    pub listens: AtomicBool,
    /// [`Renew::rest`] of the next renewals.
    pub rest: OnceLock<String>,
}

/// The state of a hold between two renewals.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// The fence of the grant.
    fence: Fence,
    /// When the last successful request was sent; the lease counts from here.
    pub sent: Moment,
    /// When to renew next.
    pub next: Moment,
    /// Failed attempts in a row. One that takes too long raises this to [`WORTH_SAYING`] at once.
    failures: u32,
    /// Whether the passing of the deadline was reported.
    overdue: bool,
    /// Whether a request to end was reported.
    asked: bool,
    /// How long the last successful request took.
    pub last_took: Duration,
}

impl Keeping {
    /// A hold that was just granted, by a request sent at `sent`.
    pub fn new(fence: Fence, sent: Moment, schedule: &Schedule) -> Self {
        let (next, last_took) = (schedule.renew_at(sent), Moment::now().since(sent));
        Self { fence, sent, next, failures: 0, overdue: false, asked: false, last_took }
    }

    /// The arguments of a renewal.
    fn renew<'a>(&self, keeper: &'a Keeper) -> Renew<'a> {
        let Ask { token, ttl, .. } = &keeper.request.ask;
        Renew { token, fence: Some(self.fence), ttl: *ttl, rest: keeper.rest.get().map(String::as_str) }
    }
}

/// Whether to go on renewing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Yes,
    No,
}

struct Listening {
    /// When to begin, or to try again.
    listens_at: Moment,
    /// Times that listening has failed in a row.
    failures: u32,
    subscription: Option<Box<dyn Subscription>>,
}

impl Keeper {
    pub fn report(&self, report: Report) {
        self.say(report);
        self.has_report.notify();
    }

    /// Reports without waking the main thread, which is about to read reports anyway.
    pub fn say(&self, report: Report) {
        // The receiver is gone when the process is about to end.
        let _ = self.reports.send(report);
    }

    /// Renews until the lock is given back or lost.
    pub fn keep(self: &Arc<Self>, mut keeping: Keeping) {
        let mut listening =
            Listening { listens_at: keeping.sent.after(SUBSCRIBE_AFTER), failures: 0, subscription: None };
        let mut race = self
            .stores
            .timeout_error()
            .map(|timeout_error| Race::new(timeout_error.clone(), self.stores.count()));
        loop {
            self.listen(&mut listening, keeping.next);
            if self.stores.is_closed() {
                break;
            }
            let kept = match &mut race {
                Some(race) => self.renew_beside(race, &mut keeping),
                None => self.renew_here(&mut keeping),
            };
            if kept == Kept::No {
                break;
            }
        }
        drop(listening);
        self.listens.store(false, Ordering::Release);
    }

    /// One attempt to renew on this thread. Returns `No` if the lock is lost.
    pub fn renew_here(&self, keeping: &mut Keeping) -> Kept {
        let schedule = self.request.schedule;
        let mut store = self.stores.lock();
        let began = Moment::now();
        let failed = if keeping.failures == 0 { FailedBefore::No } else { FailedBefore::Yes };
        let limit = match self.stores.is_long() {
            true => schedule.long_attempt(keeping.last_took),
            false => schedule.attempt(failed),
        };
        let renew = || store.renew(&self.request.names, &keeping.renew(self), began.after(limit));
        match budget::with(Purpose::Renewal, renew) {
            Ok(answer) => {
                drop(store);
                keeping.last_took = Moment::now().since(began);
                self.answered(answer, began, keeping)
            }
            Err(error) => {
                store.reset();
                drop(store);
                self.failed(error, began, keeping);
                Kept::Yes
            }
        }
    }

    /// Handles the answer to a renewal sent at `sent`.
    pub fn answered(&self, answer: Renewal, sent: Moment, keeping: &mut Keeping) -> Kept {
        let schedule = self.request.schedule;
        let asker = match answer {
            Renewal::Renewed => None,
            Renewal::Asked => Some(Asker::Operator),
            Renewal::Superseded => Some(Asker::Newer),
            lost => {
                let how = if lost == Renewal::Revoked { Loss::Revoked } else { Loss::NotHeld };
                let kill_by = schedule.kill_of_lost(Moment::now(), keeping.sent);
                self.report(Report::Lost { how, kill_by });
                return Kept::No;
            }
        };
        self.has_renewed.store(true, Ordering::Release);
        (self.on_renewed)(schedule.term_at(sent), schedule.kill_at(sent));
        if keeping.failures >= WORTH_SAYING {
            self.report(Report::Recovered);
        }
        if let Some(asker) = asker.filter(|_| !keeping.asked) {
            self.report(Report::Asked(asker));
        }
        let (asked, last_took) = (keeping.asked || asker.is_some(), keeping.last_took);
        *keeping = Keeping { asked, last_took, ..Keeping::new(keeping.fence, sent, &schedule) };
        Kept::Yes
    }

    /// Handles a failed attempt, and sets when the next one is due.
    pub fn failed(&self, error: Error, began: Moment, keeping: &mut Keeping) {
        let schedule = self.request.schedule;
        keeping.failures = keeping.failures.saturating_add(1);
        if keeping.failures == WORTH_SAYING {
            self.report(Report::Trouble { error, until: schedule.term_at(keeping.sent) });
        }
        keeping.next = schedule.retry_at(began, keeping.sent, keeping.failures);
        if schedule.deadline(keeping.sent).passed() {
            self.overdue(keeping);
            // What is left of the job runs without the lock; nothing is urgent any more.
            keeping.next = schedule.renew_at(began);
        }
    }

    /// Reports that an attempt takes long, if this outage was not reported yet.
    pub fn report_late(&self, error: &Error, keeping: &mut Keeping) {
        if keeping.failures < WORTH_SAYING {
            keeping.failures = WORTH_SAYING;
            let until = self.request.schedule.term_at(keeping.sent);
            self.report(Report::Trouble { error: error.clone(), until });
        }
    }

    /// Reports once that the deadline has passed.
    pub fn overdue(&self, keeping: &mut Keeping) {
        if !std::mem::replace(&mut keeping.overdue, true) {
            let kill_by = self.request.schedule.kill_at(keeping.sent);
            self.report(Report::Lost { how: Loss::Deadline, kill_by });
        }
    }

    /// Sleeps until `until`, or until the job is asked to end. If listening fails, the hold is not
    /// affected: the next renewal brings the request.
    fn listen(&self, listening: &mut Listening, until: Moment) {
        if listening.listens_at > Moment::now() {
            clock::sleep_until(until.min(listening.listens_at));
        }
        // The subscription of some stores does not fail on an interrupt, but returns early.
        while !until.passed() && !self.stores.is_closed() {
            if self.claims.load(Ordering::Acquire) > 0 {
                clock::sleep_until(until.min(Moment::now().after(YIELD)));
                continue;
            }
            let heard = interrupt::unless(self.stop_listening.as_fd(), || self.hear(listening, until));
            self.stop_listening.drain();
            if matches!(heard, Some(Ok(_))) {
                listening.failures = 0;
            }
            match heard {
                _ if self.stores.is_closed() => return,
                Some(Ok(true)) => return,
                Some(Ok(false)) | None => clock::sleep_until(until.min(Moment::now().after(YIELD))),
                Some(Err(_)) => {
                    // A server that is starting would be held up by thousands of new connections.
                    let pause = BACKOFF.saturating_mul(1 << listening.failures.min(5));
                    listening.failures += 1;
                    listening.listens_at = Moment::now().after(pause);
                    clock::sleep_until(until.min(listening.listens_at));
                }
            }
        }
    }

    /// Locks a store for the main thread, as [`Stores::lock_by`] does. Stops listening if that uses
    /// the current store.
    pub fn claim(&self, deadline: Moment) -> Result<InUse<'_>, Error> {
        self.claims.fetch_add(1, Ordering::AcqRel);
        if self.stores.try_lock().is_none() {
            self.stop_listening.notify();
        }
        let claimed = self.stores.lock_by(deadline);
        self.claims.fetch_sub(1, Ordering::AcqRel);
        claimed
    }

    /// Sleeps until `until` and returns false, or until the store wakes it and returns true. Uses
    /// the store's own connection if the store can, else a subscription.
    fn hear(&self, listening: &mut Listening, until: Moment) -> Result<bool, Error> {
        let subscription = match &mut listening.subscription {
            Some(subscription) => subscription,
            none => {
                let (names, token) = (&self.request.names, &self.request.ask.token);
                // An attempt to renew that got no answer still uses its connection.
                let Some(mut store) = self.stores.try_lock() else {
                    interrupt::sleep_until(until.min(Moment::now().after(BACKOFF)));
                    return Ok(false);
                };
                if let Some(heard) = store.listen_as_holder(names, token, until) {
                    return Ok(heard);
                }
                let subscription = store.subscribe(names.as_slice(), token, Listener::Holder);
                self.listens.store(true, Ordering::Release);
                none.insert(subscription)
            }
        };
        subscription.sleep(until)
    }
}
