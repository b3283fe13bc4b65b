//! How a lock is acquired, step by step: request, wait in the queue, ride out an outage there, give
//! up. Between two steps the caller may handle a signal. The last step reports that the lock is
//! held, or why it is not. Renewals are done elsewhere.

use super::retry::Retry;
use super::{RIDE_OUT_PAUSE, Report, Request, Until, give_back};
use crate::clock::Moment;
use crate::lock::{Fence, Mode, Name};
use crate::rules::view::{turn_in, typical};
use crate::rules::{Acquired, Ask, Blocker, End, Grant, LoggedEnd, State, Waiting};
use crate::store::net::failure::is_put_off;
use crate::store::net::interrupt;
use crate::store::{Error, Slept, Store};
use std::time::Duration;

/// Shortest pause between two requests of a waiter, whatever the store says.
const NEXT_AT_LEAST: Duration = Duration::from_millis(1);
/// When a waiter first asks how long runs usually take, counted from its start.
const ESTIMATE_AFTER: Duration = Duration::from_secs(5);
/// How often a waiter asks again how long runs usually take.
const ESTIMATE_EVERY: Duration = Duration::from_secs(60);
/// With this many waiters before it, a waiter does not ask how long runs usually take: its wait is
/// long anyway, and a crowd would ask at the same time.
const ESTIMATE_AHEAD_MAX: u64 = 50;
/// Most grants that may come too late to be used. At the next one the store counts as too
/// slow.
const LATE_ANSWERS: u32 = 2;

/// The next step.
#[derive(Debug, Clone, Copy)]
enum Next {
    Ask,
    /// Sleep in the queue until woken, or until this time, then ask.
    Sleep(Moment),
    /// Ask again at this time: the store has failed.
    Retry(Moment),
    /// Leave the queue: the wait is over.
    GiveUp,
}

/// The result of one step.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Another step must follow.
    GoesOn,
    /// The lock is held under this fence; the lease counts from this time.
    Held(Fence, Moment),
    /// The lock was not obtained. The last report says why.
    Over,
}

/// The state of an acquire between two steps.
#[derive(Debug)]
pub struct Progress {
    /// When the first request began.
    began: Moment,
    /// What blocks the caller, once it has had to wait.
    blocker: Option<Blocker>,
    /// Whether it has had a place in the queue.
    was_queued: bool,
    /// Whether an outage was reported.
    troubled: bool,
    /// The failure of the last request that had all its time.
    reported: Option<Error>,
    retry: Retry,
    /// Grants that came too late to be used.
    late_grants: u32,
    /// When to ask how long runs usually take.
    estimate_at: Moment,
    /// How long runs usually take, if known.
    usual: Option<Duration>,
    next: Next,
}

impl Progress {
    /// The state before the first request.
    pub fn begin() -> Self {
        let began = Moment::now();
        Self {
            began,
            blocker: None,
            was_queued: false,
            troubled: false,
            reported: None,
            retry: Retry::after(RIDE_OUT_PAUSE),
            late_grants: 0,
            estimate_at: began.after(ESTIMATE_AFTER),
            usual: None,
            next: Next::Ask,
        }
    }

    /// Takes the next step, and reports what it learns. An [interrupt] ends it early, and so does
    /// `until` while it sleeps; the next step then continues.
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
                interrupt::sleep_until(until.map_or(at, |until| until.min(at)));
                if at.passed() { obtaining.retry() } else { Step::GoesOn }
            }
        }
    }

    /// The arguments of a request sent at `sent`.
    fn ask(&self, request: &Request, sent: Moment) -> Ask {
        let (waited, has_waited) = (sent.since(self.began), self.was_queued);
        Ask { waited, has_waited, ..request.ask.clone() }
    }

    /// The deadline of a request sent at `sent`. If the store has answered or failed before, the
    /// deadline is no later than shortly after the end of the wait.
    fn deadline(&self, request: &Request, sent: Moment) -> Moment {
        let deadline = sent.after(request.budget());
        match self.retry.end(request.until) {
            Some(end) if self.blocker.is_some() || self.troubled => {
                deadline.min(end.max(sent.after(RIDE_OUT_PAUSE)))
            }
            _ => deadline,
        }
    }

    /// The failure to report. That of a request that was cut short or put off says less than the one
    /// before.
    fn telling(&mut self, error: Error, is_cut: bool) -> Error {
        let is_cut = is_cut || is_put_off(&error);
        match (&error, &self.reported) {
            (Error::Unreachable(_) | Error::Overloaded(_), Some(reported)) if is_cut => reported.clone(),
            _ => {
                self.reported = Some(error.clone());
                error
            }
        }
    }

    /// Handles the answer "you are in the queue". Returns when to ask again at the latest.
    /// `ends` reads the last ends of a lock, if the store can.
    fn handle_waiting(
        &mut self,
        request: &Request,
        waiting: &mut Waiting,
        ends: impl FnOnce(&Name, Moment) -> Option<Vec<LoggedEnd>>,
    ) -> Moment {
        let next = Moment::now().after(waiting.next.max(NEXT_AT_LEAST));
        (self.blocker, self.was_queued) = (Some(waiting.blocker.clone()), true);
        if waiting.ahead < ESTIMATE_AHEAD_MAX && self.estimate_at.passed() {
            self.estimate_at = Moment::now().after(ESTIMATE_EVERY);
            let deadline = Moment::now().after(request.op_timeout);
            // No decision depends on this, so a failure does not matter.
            self.usual = match request.names.as_slice() {
                [name] if request.ask.mode == Mode::Exclusive => {
                    ends(name, deadline).and_then(|ends| typical(&ends))
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

/// One step of an acquire.
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
        let deadline = self.progress.deadline(self.request, sent);
        let ask = self.progress.ask(self.request, sent);
        let is_cut = deadline < sent.after(self.request.budget());
        let answer = self.store.acquire(&self.request.names, &ask, deadline);
        match answer.map_err(|error| self.progress.telling(error, is_cut)) {
            Ok(Acquired::Granted(grant)) => self.granted(grant, sent),
            Ok(Acquired::Busy(blocker)) => self.over(Report::Busy(blocker)),
            Ok(Acquired::Done(done)) => self.over(Report::Done(done)),
            Ok(Acquired::Superseded(superseded)) => self.over(Report::Superseded(superseded)),
            Ok(Acquired::TokenEnded) => self.over(Report::TakenAway),
            Ok(Acquired::Waiting(waiting)) => self.queued(waiting),
            // The request may have arrived all the same; it is sent again.
            Err(_) if interrupt::is_raised() => {
                self.store.reset();
                Step::GoesOn
            }
            Err(Error::Contended(_)) => self.contended(),
            Err(error) if self.rides_out(&error, self.progress.blocker.is_some()) => {
                self.ride_out(error, sent)
            }
            Err(error) => self.fail(error),
        }
    }

    fn granted(&mut self, grant: Grant, sent: Moment) -> Step {
        if !self.request.is_too_late(sent) {
            (self.report)(Report::Granted { grant, sent });
            return Step::Held(grant.fence, sent);
        }
        self.progress.late_grants += 1;
        // Asking again extends the lease, counted from the new request.
        if self.progress.late_grants > LATE_ANSWERS { self.over(Report::TooSlow) } else { Step::GoesOn }
    }

    fn queued(&mut self, mut waiting: Waiting) -> Step {
        self.progress.retry.succeeded();
        if std::mem::take(&mut self.progress.troubled) {
            (self.report)(Report::Recovered);
        }
        let Self { store, request, progress, .. } = self;
        let token = &request.ask.token;
        let next = progress
            .handle_waiting(request, &mut waiting, |name, deadline| store.ends(name, token, deadline).ok());
        (self.report)(Report::Waiting(waiting));
        self.then(Next::Sleep(next))
    }

    /// Others were faster at each attempt. That is no fault of the store: the lock counts as busy. A
    /// caller that waits asks again until its wait is over.
    fn contended(&mut self) -> Step {
        let Self { request, progress, .. } = self;
        let blocker = progress.blocker.get_or_insert_with(|| Blocker::others(request.ask.mode)).clone();
        match request.until {
            Until::No => self.over(Report::Contended(blocker)),
            Until::At(end) if end.passed() => self.give_up(Report::Busy(blocker)),
            Until::At(_) | Until::Forever => Step::GoesOn,
        }
    }

    fn ride_out(&mut self, error: Error, sent: Moment) -> Step {
        self.store.reset();
        if self.request.until.is_over() {
            return match self.progress.blocker.clone() {
                // The wait ended during the request, with no time left for another one.
                Some(blocker) if !self.progress.troubled && !matches!(error, Error::Unacknowledged(_)) => {
                    self.give_up(Report::Busy(blocker))
                }
                _ => self.fail(error),
            };
        }
        // A run that does not wait ends soon, and then says what was the matter.
        if !std::mem::replace(&mut self.progress.troubled, true) && self.request.until != Until::No {
            (self.report)(Report::Trouble { error, until: sent });
        }
        let pause = self.pause();
        self.then(Next::Retry(Moment::now().after(pause)))
    }

    fn retry(&mut self) -> Step {
        self.progress.next = Next::Ask;
        match self
            .progress
            .blocker
            .clone()
            .filter(|_| !self.progress.troubled && self.request.until.is_over())
        {
            Some(blocker) => self.give_up(Report::Busy(blocker)),
            None => Step::GoesOn,
        }
    }

    /// Whether to ask again although the store failed. A caller that is in the queue waits for the
    /// store as it does for the lock. A caller without an answer so far does so too, unless the URL
    /// may be wrong. A grant that too few replicas have acknowledged cannot be used, so it is
    /// requested again.
    fn rides_out(&self, error: &Error, queued: bool) -> bool {
        let Self { request, progress, .. } = self;
        if queued { error.is_transient() } else { progress.retry.rides_out(error, request.until) }
    }

    /// The pause before the next try. It ends well within a lease: if the answer to a grant was
    /// lost, the waiter asks again before that lease ends. A caller that gives up soon asks once
    /// more first.
    fn pause(&mut self) -> Duration {
        let Self { request, progress, .. } = self;
        let longest = (request.ask.ttl / 4).max(2 * RIDE_OUT_PAUSE);
        let pause = progress.retry.pause(request.ask.token.secret()).min(longest);
        let left = progress.retry.end(request.until).map(|end| end.left().max(RIDE_OUT_PAUSE));
        left.map_or(pause, |left| pause.min(left))
    }

    fn fail(&mut self, error: Error) -> Step {
        let Error::Unacknowledged(text) = error else { return self.over(Report::Failed(error)) };
        // Try only once, because the replicas are known not to answer. If this fails, the guard
        // gives the lock back.
        let (deadline, end) = (Moment::now().after(self.request.op_timeout), End::NOT_RUN);
        let text = match self.store.leave(&self.request.names, &self.request.ask.token, &end, deadline) {
            Ok(_) | Err(Error::Unacknowledged(_)) => format!("{text}; the lock is given back"),
            Err(_) => text,
        };
        self.over(Report::Failed(Error::Unacknowledged(text)))
    }

    /// Sleeps in the queue until woken, or until `at`; not beyond `until`.
    fn sleep(&mut self, at: Moment, until: Option<Moment>) -> Step {
        let limit = until.map_or(at, |until| until.min(at));
        match self.store.sleep(&self.request.names, &self.request.ask.token, limit) {
            Ok(Slept::Through) if !at.passed() => return Step::GoesOn,
            Err(_) if interrupt::is_raised() => return self.then(Next::Ask),
            Ok(_) => {}
            // The next heartbeat shows what is wrong, or succeeds on a new connection.
            Err(error) if error.is_transient() => {
                return self.then(Next::Retry(Moment::now().after(RIDE_OUT_PAUSE.min(at.left()))));
            }
            Err(error) => return self.give_up(Report::Failed(error)),
        }
        self.retry()
    }

    /// Leaves the queue, and reports `why`.
    fn give_up(&mut self, why: Report) -> Step {
        let deadline = Moment::now().after(self.request.op_timeout);
        match give_back(self.store, &self.request.names, &self.request.ask.token, &End::NOT_RUN, deadline) {
            Ok(_) => self.over(why),
            Err(Error::Contended(_)) => match why {
                Report::Busy(blocker) => self.over(Report::Contended(blocker)),
                why => self.over(why),
            },
            // The waiter may have left the queue already; another acquire would put it back.
            Err(_) if interrupt::is_raised() => self.then(Next::GiveUp),
            Err(error) => self.over(Report::Failed(error)),
        }
    }
}
