//! How is the lock taken, and waited for? In steps: asking, waiting in the queue, riding out an outage there, giving up. The
//! caller may handle a signal between two steps. The last step says that the lock is held, or why not. Keeping it is the
//! caller's affair.

use super::{RIDE_OUT_PAUSE, Report, Request, Until, give_back};
use crate::clock::Moment;
use crate::lock::{Mode, Name};
use crate::rules::view::{turn_in, typical};
use crate::rules::{Acquired, Ask, Blocker, End, HEARTBEAT, LoggedEnd, Ran, State, Waiting};
use crate::store::net::alarm;
use crate::store::{Error, Slept, Store};
use std::time::Duration;

/// A waiter never asks faster than this, whatever the store says.
const NEXT_AT_LEAST: Duration = Duration::from_millis(1);
/// One who has waited for this long looks how long runs mostly take, and again each time it has passed so often.
const LOOK_AFTER: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Whoever has more before it does not look: it takes long anyway, and a crowd would look at the same time.
const LOOKERS: u64 = 50;
/// How many grants in a row may arrive too late to be relied on before the store counts as unable to serve.
const LATE_ANSWERS: u32 = 2;

/// The next step.
#[derive(Debug, Clone, Copy)]
enum Next {
    Ask,
    /// Sleeps in the queue until it is woken, or until then, and asks.
    Sleep(Moment),
    /// Asks then, for the store has failed.
    Retry(Moment),
    /// Leaves the queue, for the wait is over.
    GiveUp,
}

/// What came of one step.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// There is another one to do.
    GoesOn,
    /// The lock is held; the lease counts from then.
    Held(Moment),
    /// It is not to be had. The last report says why.
    Over,
}

/// How far one who asks is.
#[derive(Debug)]
pub struct Progress {
    /// Since when it asks.
    began: Moment,
    /// What is in the way of one who stands in the queue.
    blocker: Option<Blocker>,
    /// It was said that the store does not answer.
    troubled: bool,
    /// How many requests in a row failed because the answer took too long.
    slow: u32,
    /// How many grants in a row came too late to be relied on.
    late: u32,
    /// When to look how long runs mostly take.
    look: Moment,
    /// How long they do.
    usual: Option<Duration>,
    next: Next,
}

impl Progress {
    /// One who has not asked yet.
    pub fn begin() -> Self {
        let began = Moment::now();
        Self {
            began,
            blocker: None,
            troubled: false,
            slow: 0,
            late: 0,
            look: began.after(LOOK_AFTER),
            usual: None,
            next: Next::Ask,
        }
    }

    /// Does what is next, and reports what it learns. An [alarm] ends it, and also `until` where it sleeps: the next step goes
    /// on.
    pub fn step(
        &mut self,
        store: &mut dyn Store,
        request: &Request,
        until: Option<Moment>,
        report: &mut dyn FnMut(Report),
    ) -> Step {
        let next = self.next;
        let mut obtaining = Obtaining { store, request, progress: self, report };
        match next {
            Next::Ask => obtaining.ask(),
            Next::GiveUp => match obtaining.progress.blocker.clone() {
                Some(blocker) => obtaining.give_up(Report::Busy(blocker)),
                None => obtaining.ask(),
            },
            Next::Sleep(at) => obtaining.sleep(at, until),
            Next::Retry(at) => {
                alarm::sleep_until(until.map_or(at, |until| until.min(at)));
                if at.passed() { obtaining.retry() } else { Step::GoesOn }
            }
        }
    }

    /// What a request asks for that is sent then.
    fn asked(&self, request: &Request, sent: Moment) -> Ask {
        Ask { waited: sent.since(self.began), ..request.ask.clone() }
    }

    /// By when a request that is sent then is to be answered: one who was heard of does not go far beyond the end of the wait.
    fn by(&self, request: &Request, sent: Moment) -> Moment {
        let by = sent.after(request.budget());
        match request.until {
            Until::At(end) if self.blocker.is_some() || self.troubled => {
                by.min(end.max(sent.after(RIDE_OUT_PAUSE)))
            }
            _ => by,
        }
    }

    /// One who stands in the queue. When to ask again at the latest; `ends` tells of the last ends of a lock, if it can.
    fn hear(
        &mut self,
        request: &Request,
        waiting: &mut Waiting,
        ends: impl FnOnce(&Name, Moment) -> Option<Vec<LoggedEnd>>,
    ) -> Moment {
        let next = Moment::now().after(waiting.next.max(NEXT_AT_LEAST));
        self.blocker = Some(waiting.blocker.clone());
        if waiting.ahead < LOOKERS && self.look.passed() {
            self.look = Moment::now().after(LOOK_AGAIN);
            let by = Moment::now().after(request.op_timeout);
            // If nobody can say, nothing depends on it.
            self.usual = match request.names.as_slice() {
                [name] if request.ask.mode == Mode::Exclusive => {
                    ends(name, by).and_then(|ends| typical(&ends))
                }
                _ => None,
            };
        }
        let held = waiting.blocker.holder.as_ref().map(|holder| holder.held);
        let is_told = waiting.blocker.state != State::Paused;
        waiting.turn = self.usual.filter(|_| is_told).map(|usual| turn_in(usual, waiting.ahead, held));
        match request.until {
            Until::At(end) => next.min(end),
            Until::No | Until::Forever => next,
        }
    }
}

/// How long to wait before a store is asked again, whose answers took too long so often in a row. A crowd that asks a busy one
/// again and again gets it no further. One that refuses is gone for a moment, and is asked soon: whoever does not ask for
/// 5 s has lost its place. And what was granted and not heard of is asked for again before its lease of that ttl ends.
fn pause(slow: u32, ttl: Duration, until: Until) -> Duration {
    let longest = HEARTBEAT.min(ttl / 4).max(RIDE_OUT_PAUSE);
    let pause = (RIDE_OUT_PAUSE * 2u32.pow(slow.saturating_sub(1).min(3))).min(longest);
    match until {
        Until::At(end) => pause.min(end.left().max(RIDE_OUT_PAUSE)),
        Until::No | Until::Forever => pause,
    }
}

/// Takes the lock, waiting as long as is wanted, and reports what it learns. The moment from which the lease counts, or
/// nothing: then the last report says why.
pub fn obtain(store: &mut dyn Store, request: &Request, report: &mut dyn FnMut(Report)) -> Option<Moment> {
    let mut progress = Progress::begin();
    loop {
        match progress.step(store, request, None, report) {
            Step::GoesOn => {}
            Step::Held(sent) => return Some(sent),
            Step::Over => return None,
        }
    }
}

/// One step.
struct Obtaining<'a> {
    store: &'a mut dyn Store,
    request: &'a Request,
    progress: &'a mut Progress,
    report: &'a mut dyn FnMut(Report),
}

impl Obtaining<'_> {
    fn over(&mut self, report: Report) -> Step {
        (self.report)(report);
        Step::Over
    }

    fn then(&mut self, next: Next) -> Step {
        self.progress.next = next;
        Step::GoesOn
    }

    fn ask(&mut self) -> Step {
        let sent = Moment::now();
        let by = self.progress.by(self.request, sent);
        let ask = self.progress.asked(self.request, sent);
        match self.store.acquire(&self.request.names, &ask, by) {
            // Asking again extends the lease, counted from the new request.
            Ok(Acquired::Granted(_)) if self.is_too_late(sent) && self.progress.late < LATE_ANSWERS => {
                self.progress.late += 1;
                Step::GoesOn
            }
            Ok(Acquired::Granted(_)) if self.is_too_late(sent) => self.over(Report::TooSlow),
            Ok(Acquired::Granted(grant)) => {
                (self.report)(Report::Granted { grant, sent });
                Step::Held(sent)
            }
            Ok(Acquired::Busy(blocker)) => self.over(Report::Busy(blocker)),
            Ok(Acquired::Done(done)) => self.over(Report::Done(done)),
            Ok(Acquired::Superseded(superseded)) => self.over(Report::Superseded(superseded)),
            Ok(Acquired::Spent) => self.over(Report::TakenAway),
            Ok(Acquired::Waiting(waiting)) => self.queued(waiting),
            // It may have arrived all the same, and is sent again.
            Err(_) if alarm::is_raised() => {
                self.store.reset();
                Step::GoesOn
            }
            Err(error) if self.rides_out(&error, self.progress.blocker.is_some()) => {
                self.ride_out(error, sent)
            }
            Err(error) => self.fail(error),
        }
    }

    fn queued(&mut self, mut waiting: Waiting) -> Step {
        self.progress.slow = 0;
        if std::mem::take(&mut self.progress.troubled) {
            (self.report)(Report::Recovered);
        }
        let Self { store, request, progress, .. } = self;
        let token = &request.ask.token;
        let next = progress.hear(request, &mut waiting, |name, by| store.ends(name, token, by).ok());
        (self.report)(Report::Waiting(waiting));
        self.then(Next::Sleep(next))
    }

    fn ride_out(&mut self, error: Error, sent: Moment) -> Step {
        self.store.reset();
        if self.is_over() {
            return match self.progress.blocker.clone() {
                // The wait ended while it was asked, and left no time to ask again.
                Some(blocker) if !self.progress.troubled && !matches!(error, Error::Unacknowledged(_)) => {
                    self.give_up(Report::Busy(blocker))
                }
                _ => self.fail(error),
            };
        }
        let is_slow = Moment::now().since(sent) > RIDE_OUT_PAUSE;
        self.progress.slow = if is_slow { self.progress.slow.saturating_add(1) } else { 0 };
        if !std::mem::replace(&mut self.progress.troubled, true) {
            (self.report)(Report::Trouble { error, until: sent });
        }
        let pause = pause(self.progress.slow, self.request.ask.ttl, self.request.until);
        self.then(Next::Retry(Moment::now().after(pause)))
    }

    fn retry(&mut self) -> Step {
        self.progress.next = Next::Ask;
        match self.progress.blocker.clone().filter(|_| !self.progress.troubled && self.is_over()) {
            Some(blocker) => self.give_up(Report::Busy(blocker)),
            None => Step::GoesOn,
        }
    }

    /// Whether to ask again although the store failed. One who has been answered waits for a store that is gone as for the
    /// lock; one who has not does so too, unless it may be the wrong store. What too few replicas have is granted and not
    /// to be relied on: it is asked for until they have it.
    fn rides_out(&self, error: &Error, queued: bool) -> bool {
        if queued { error.is_transient() } else { self.request.until.rides_out(error) }
    }

    fn fail(&mut self, error: Error) -> Step {
        let Error::Unacknowledged(text) = error else { return self.over(Report::Failed(error)) };
        // Once: that replicas do not answer is known. What is not given back in time, the guard gives back.
        let (by, end) =
            (Moment::now().after(self.request.op_timeout), End { ran: Ran::No, job: None, once_per: false });
        let said = match self.store.leave(&self.request.names, &self.request.ask.token, &end, by) {
            Ok(_) | Err(Error::Unacknowledged(_)) => format!("{text}; the lock is given back"),
            Err(_) => text,
        };
        self.over(Report::Failed(Error::Unacknowledged(said)))
    }

    fn is_too_late(&self, sent: Moment) -> bool {
        self.request.is_too_late(sent)
    }

    fn is_over(&self) -> bool {
        self.request.until.is_over()
    }

    /// Sleeps until woken or `at`. An error is one that waiting longer does not mend, or an outage.
    fn sleep(&mut self, at: Moment, until: Option<Moment>) -> Step {
        let limit = until.map_or(at, |until| until.min(at));
        match self.store.sleep(&self.request.names, &self.request.ask.token, limit) {
            Ok(Slept::Through) if !at.passed() => return Step::GoesOn,
            Err(_) if alarm::is_raised() => return self.then(Next::Ask),
            Ok(_) => {}
            // The next heartbeat says what is wrong, or that all is well on another connection.
            Err(error) if error.is_transient() => {
                return self.then(Next::Retry(Moment::now().after(RIDE_OUT_PAUSE.min(at.left()))));
            }
            Err(error) => return self.give_up(Report::Failed(error)),
        }
        self.retry()
    }

    /// Leaves the queue, and says why.
    fn give_up(&mut self, why: Report) -> Step {
        let by = Moment::now().after(self.request.op_timeout);
        let end = End { ran: Ran::No, job: None, once_per: false };
        match give_back(self.store, &self.request.names, &self.request.ask.token, &end, by) {
            Ok(_) => self.over(why),
            // It may have left: to ask again would be to come anew.
            Err(_) if alarm::is_raised() => self.then(Next::GiveUp),
            Err(error) => self.over(Report::Failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_goes_on_being_slow_is_asked_more_seldom() {
        let pauses = |ttl, until| {
            [0, 1, 2, 3, 4, u32::MAX].map(|slow| pause(slow, Duration::from_secs(ttl), until).as_millis())
        };
        assert_eq!(pauses(30, Until::Forever), [300, 300, 600, 1200, 1600, 1600]);
        assert_eq!(pauses(3, Until::Forever), [300, 300, 600, 750, 750, 750], "well within a lease of 3 s");
        assert_eq!(
            pauses(30, Until::At(Moment::now())),
            [300; 6],
            "who gives up soon looks once more before"
        );
    }
}
