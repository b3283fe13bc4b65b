//! How is a renewal made that loses nothing by waiting? Each attempt runs on a thread of its own, with a store of its own.
//!
//! The first attempt is not given up before the lease ends: a server that stood still answers it as soon as it goes on, and the
//! lease then counts from when the attempt began. So a crowd of holders costs the server one small request each, and no
//! new connection. The connection may also be dead, which looks the same from here. So a second attempt is made beside the
//! first one after a while, on a connection of its own. The first answer counts, and breaks off the other attempt. Near the end
//! of the lease the second attempt is made anew again and again.

use super::{Keeper, Keeping, Kept};
use crate::clock::Moment;
use crate::lease::event_fd::EventFd;
use crate::rules::Renewal;
use crate::store::Error;
use crate::store::net::alarm;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

/// How many attempts may be under way at a time: one for each store of a holder.
const ATTEMPTS: usize = 2;

/// The attempts of one holder that are under way. Some may be left of an earlier renewal: they were broken off, and end soon.
pub struct Race {
    running: [Option<Running>; ATTEMPTS],
    results: Receiver<Outcome>,
    say: Sender<Outcome>,
    /// The error of an attempt that was broken off.
    late: Error,
}

/// An attempt under way.
struct Running {
    began: Moment,
    /// Breaks it off.
    cancel: Arc<EventFd>,
}

/// How an attempt ended.
struct Outcome {
    /// Which store it used.
    index: usize,
    began: Moment,
    answer: Result<Renewal, Error>,
}

impl Race {
    pub fn new(late: Error) -> Self {
        let (say, results) = channel();
        Self { running: Default::default(), results, say, late }
    }

    /// A store that no attempt uses, the current one first.
    fn free(&self, current: usize) -> Option<usize> {
        [current, current + 1]
            .map(|index| index % ATTEMPTS)
            .into_iter()
            .find(|index| self.running[*index].is_none())
    }

    /// How many attempts of this renewal, which began then, are under way.
    fn count(&self, since: Moment) -> usize {
        self.running.iter().flatten().filter(|running| running.began >= since).count()
    }

    /// Breaks off what is under way.
    fn break_off(&self) {
        self.running.iter().flatten().for_each(|running| running.cancel.notify());
    }

    /// Waits for the end of an attempt, at most until then.
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
    /// Renews the lease. Returns when that succeeded, when no attempt is left, or when the lock is lost.
    pub fn renew_beside(self: &Arc<Self>, race: &mut Race, keeping: &mut Keeping) -> Kept {
        let schedule = self.request.schedule;
        let began = Moment::now();
        let deadline = schedule.deadline(keeping.sent);
        let patient = deadline.max(began.after(schedule.long_attempt(keeping.usual)));
        if self.begin(race, patient).is_err() {
            return self.renew_here(keeping);
        }
        let mut late = Some(schedule.late_at(began, keeping.usual));
        let mut beside = schedule.beside_at(began, keeping.usual);
        loop {
            let dues = [late, Some(beside), (deadline > began).then_some(deadline)];
            let until = dues.into_iter().flatten().filter(|due| !due.passed()).min();
            let outcome =
                race.next(until.unwrap_or_else(|| Moment::now().after(schedule.long_attempt(keeping.usual))));
            if self.stores.is_closed() {
                return Kept::No;
            }
            match outcome {
                // It was broken off when an earlier renewal succeeded.
                Some(outcome) if outcome.began < began => {}
                Some(Outcome { index, began, answer: Ok(answer) }) => {
                    self.stores.set_current(index);
                    race.break_off();
                    keeping.usual = Moment::now().since(began);
                    return self.answered(answer, began, keeping);
                }
                Some(Outcome { began: at, answer: Err(error), .. }) if race.count(began) == 0 => {
                    self.failed(error, at, keeping);
                    return Kept::Yes;
                }
                // The other attempt goes on, and this one is made again.
                Some(Outcome { began: at, .. }) => beside = schedule.retry_at(at),
                None => {}
            }
            if race.count(began) == 0 {
                // Both stores were still in use when this renewal began.
                self.begin(race, patient).ok();
            }
            if late.is_some_and(Moment::passed) {
                late = None;
                self.is_late(&race.late, keeping);
            }
            if deadline.passed() {
                self.overdue(keeping);
            }
            if beside.passed() {
                let limit = schedule.beside_until(began, Moment::now(), keeping.usual);
                // Where no thread can be started the first attempt goes on alone.
                self.begin(race, limit).ok();
                beside = limit;
            }
        }
    }

    /// Begins an attempt on a store that is free, if there is one.
    fn begin(self: &Arc<Self>, race: &mut Race, by: Moment) -> io::Result<()> {
        let Some(index) = race.free(self.stores.current()) else { return Ok(()) };
        let (began, cancel) = (Moment::now(), Arc::new(EventFd::new()?));
        let (keeper, interrupt, say, late) =
            (Arc::clone(self), Arc::clone(&cancel), race.say.clone(), race.late.clone());
        thread::Builder::new().name("dlock-renewal".into()).spawn(move || {
            let (names, ask) = (&keeper.request.names, &keeper.request.ask);
            let mut store = keeper.stores.lock_at(index);
            let renew = || store.renew(names, &ask.token, ask.ttl, by);
            let answer = alarm::unless(interrupt.as_fd(), renew).unwrap_or(Err(late));
            if answer.is_err() {
                store.reset();
            }
            drop(store);
            // The receiver has gone when the hold is over.
            let _ = say.send(Outcome { index, began, answer });
        })?;
        race.running[index] = Some(Running { began, cancel });
        Ok(())
    }
}
