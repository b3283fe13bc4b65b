//! Renewals with two attempts side by side. Each attempt runs on a thread of its own, with a store
//! of its own. A store that makes the second attempt itself (ZooKeeper) has one attempt here.
//!
//! The first attempt may go on until the lease ends (on etcd with several members, as long as one
//! of them answers): a server that was suspended answers it when it resumes, and the lease then
//! counts from when the attempt began. So after an outage a crowd of holders costs the server one
//! small request each, and no new connections. But the connection may also be dead, which looks the
//! same from here. So after a while a second attempt begins beside the first one, on a connection
//! of its own. The first answer counts, and cancels the other attempt. Near the end of the lease
//! the second attempt is repeated again and again.

use super::{Keeper, Keeping, Kept};
use crate::clock::Moment;
use crate::lease::event_fd::EventFd;
use crate::rules::Renewal;
use crate::store::Error;
use crate::store::net::budget::{self, Purpose};
use crate::store::net::interrupt;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

/// The attempts of one holder that are under way. Some may belong to an earlier renewal: they were
/// cancelled and end soon.
pub struct Race {
    /// One for each store of the holder.
    running: Vec<Option<Running>>,
    results: Receiver<Outcome>,
    say: Sender<Outcome>,
    /// The error for an attempt that is cancelled or takes too long.
    timeout_error: Error,
}

/// An attempt under way.
struct Running {
    began: Moment,
    /// Cancels it.
    cancel: Arc<EventFd>,
}

/// How an attempt ended.
struct Outcome {
    /// Index of the store that it used.
    index: usize,
    began: Moment,
    answer: Result<Renewal, Error>,
}

impl Race {
    pub fn new(timeout_error: Error, stores: usize) -> Self {
        let (say, results) = channel();
        Self { running: (0..stores).map(|_| None).collect(), results, say, timeout_error }
    }

    /// A store that no attempt uses, the current one first.
    fn free(&self, current: usize) -> Option<usize> {
        let count = self.running.len();
        (current..current + count).map(|index| index % count).find(|index| self.running[*index].is_none())
    }

    /// Attempts under way of the renewal that began at `since`.
    fn count(&self, since: Moment) -> usize {
        self.running.iter().flatten().filter(|running| running.began >= since).count()
    }

    /// Cancels all attempts under way.
    fn break_off(&self) {
        self.running.iter().flatten().for_each(|running| running.cancel.notify());
    }

    /// Waits until an attempt ends, or until `until`.
    fn next(&mut self, until: Moment) -> Option<Outcome> {
        match self.results.recv_timeout(until.left()) {
            Ok(outcome) => {
                self.running[outcome.index] = None;
                Some(outcome)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl Keeper {
    /// Renews the lease. Returns when an attempt has succeeded, when none is left, or when the lock
    /// is lost or being given back.
    pub fn renew_beside(self: &Arc<Self>, race: &mut Race, keeping: &mut Keeping) -> Kept {
        let schedule = self.request.schedule;
        let began = Moment::now();
        let deadline = schedule.deadline(keeping.sent);
        let patient = deadline.max(began.after(schedule.long_attempt(keeping.last_took)));
        if self.begin(race, *keeping, patient).is_err() {
            return self.renew_here(keeping);
        }
        let mut late_at = Some(schedule.late_at(began, keeping.last_took));
        let mut beside = schedule.beside_at(began, keeping.last_took);
        let mut failures = 0;
        loop {
            let dues = [late_at, Some(beside), (deadline > began).then_some(deadline)];
            let until = dues.into_iter().flatten().filter(|due| !due.passed()).min();
            let outcome = race
                .next(until.unwrap_or_else(|| Moment::now().after(schedule.long_attempt(keeping.last_took))));
            if self.stores.is_closed() {
                return Kept::No;
            }
            match outcome {
                // It belongs to an earlier renewal, which cancelled it.
                Some(outcome) if outcome.began < began => {}
                Some(Outcome { index, began, answer: Ok(answer) }) => {
                    self.stores.set_current(index);
                    race.break_off();
                    keeping.last_took = Moment::now().since(began);
                    return self.answered(answer, began, keeping);
                }
                Some(Outcome { began: at, answer: Err(error), .. }) if race.count(began) == 0 => {
                    self.failed(error, at, keeping);
                    return Kept::Yes;
                }
                // The other attempt goes on; this one is repeated.
                Some(Outcome { began: at, .. }) => {
                    failures += 1;
                    beside = schedule.retry_at(at, keeping.sent, failures);
                }
                None => {}
            }
            if race.count(began) == 0 {
                // Both stores were still in use when this renewal began.
                self.begin(race, *keeping, patient).ok();
            }
            if late_at.is_some_and(Moment::passed) {
                late_at = None;
                self.report_late(&race.timeout_error, keeping);
            }
            if deadline.passed() {
                self.overdue(keeping);
            }
            if beside.passed() {
                let limit = schedule.beside_until(began, Moment::now(), keeping.last_took);
                // If no thread can be started, the first attempt goes on alone.
                self.begin(race, *keeping, limit).ok();
                beside = limit;
            }
        }
    }

    /// Begins an attempt on a store that is free, if there is one.
    fn begin(self: &Arc<Self>, race: &mut Race, keeping: Keeping, deadline: Moment) -> io::Result<()> {
        let Some(index) = race.free(self.stores.current()) else { return Ok(()) };
        let (began, cancel) = (Moment::now(), Arc::new(EventFd::new()?));
        let (keeper, interrupt, say, timeout_error) =
            (Arc::clone(self), Arc::clone(&cancel), race.say.clone(), race.timeout_error.clone());
        thread::Builder::new().name("dlock-renewal".into()).spawn(move || {
            let mut store = keeper.stores.lock_at(index);
            let renew = || store.renew(&keeper.request.names, &keeping.renew(&keeper), deadline);
            let answer = budget::with(Purpose::Renewal, || interrupt::unless(interrupt.as_fd(), renew));
            let answer = answer.unwrap_or(Err(timeout_error));
            if answer.is_err() {
                store.reset();
            }
            drop(store);
            // The receiver is gone when the hold is over.
            let _ = say.send(Outcome { index, began, answer });
        })?;
        race.running[index] = Some(Running { began, cancel });
        Ok(())
    }
}
