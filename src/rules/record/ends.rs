//! How a hold ends: its lease runs out, it is given back, or its process is dead; and how its
//! min-hold begins.

use super::{Hold, Lock, Phase, Record, Tombstone};
use crate::exit::Ended;
use crate::lock::{Fence, Owner, PAUSE_MOST, Token};
use crate::rules::LOG_KEPT;
use crate::rules::answer::{Cause, Left, LoggedEnd, Outcome, Pause, Success};
use crate::rules::operation::{End, FailurePause};
use crate::rules::time::{Due, Time, millis};
use std::time::Duration;

impl Record {
    /// Ends what has run out, and what the lock key contradicts.
    pub(in crate::rules) fn expire(&mut self, now: Time) {
        let over = match &self.lock {
            Lock::Free => false,
            Lock::Exclusive { until, .. }
            | Lock::Shared { until }
            | Lock::Slots { until, .. }
            | Lock::Cooling { until }
            | Lock::Revoked { until } => until.passed(now),
            Lock::Foreign { until } => until.is_some_and(|until| until.is_strictly_past(now)),
        };
        if over {
            self.lock = Lock::Free;
        }
        // A pause that ends later than the longest one allowed was made by a wrong clock, and would
        // never end.
        let is_in_force =
            |pause: &Pause| (1..=millis(PAUSE_MOST)).contains(&pause.until.saturating_sub(now.millis()));
        self.paused.take_if(|pause| !is_in_force(pause));
        self.pause_while_cooling(now);
        let mut ended: Vec<(Due, Token)> = self
            .holds
            .iter()
            .filter(|(token, hold)| !self.lock_confirms(now, token, hold))
            .map(|(token, hold)| (hold.due(), token.clone()))
            .collect();
        ended.sort();
        for (due, token) in &ended {
            let outcome = if due.passed(now) { Outcome::Expired } else { Outcome::Lost };
            if outcome == Outcome::Expired {
                self.pause_after_expiry(now, token);
            }
            self.end(now, token, outcome, None, None);
        }
        if !ended.is_empty() {
            self.free_if_empty();
        }
    }

    /// Pauses an exclusive lock whose lease is over while its min-hold is not. Once: an operator may
    /// end the pause. (The scripts on Redis would have to read each hold of a lock with slots, so
    /// that one is paused when the min-hold ends.)
    fn pause_while_cooling(&mut self, now: Time) {
        let Lock::Exclusive { token, .. } = &self.lock else { return };
        let is_over = |hold: &Hold| hold.renewed && hold.until.passed(now);
        if self.holds.get(token).is_some_and(is_over) {
            let token = token.clone();
            self.pause_after_expiry(now, &token);
            if let Some(hold) = self.holds.get_mut(&token) {
                hold.pause_on_failure = None;
            }
        }
    }

    pub(super) fn lock_confirms(&self, now: Time, token: &Token, hold: &Hold) -> bool {
        match &self.lock {
            Lock::Exclusive { token: holder, .. } => holder == token,
            Lock::Revoked { .. } => hold.phase == Phase::Revoked,
            Lock::Shared { .. } | Lock::Slots { .. } => !hold.due().passed(now),
            Lock::Free | Lock::Cooling { .. } | Lock::Foreign { .. } => false,
        }
    }

    /// A shared lock or one with slots is free once its last hold is gone.
    pub(super) fn free_if_empty(&mut self) {
        if self.holds.is_empty() && matches!(self.lock, Lock::Shared { .. } | Lock::Slots { .. }) {
            self.lock = Lock::Free;
        }
    }

    /// Gives back a hold. Returns the rest of its min-hold.
    pub(in crate::rules) fn release(&mut self, now: Time, token: &Token, end: &End) -> Duration {
        if let Some(FailurePause { lasts, reason }) = &end.pause {
            self.pause_after(now, token, now.millis(), *lasts, reason.clone());
        }
        match end.ran.outcome() {
            Some(outcome) => {
                if end.counts() {
                    self.remember_success(now, token);
                }
                self.close(now, token, outcome, end.job)
            }
            None => {
                self.drop_hold(token);
                Duration::ZERO
            }
        }
    }

    /// Pauses the lock if its hold, whose lease is over or whose process is dead, says so.
    fn pause_after_expiry(&mut self, now: Time, token: &Token) {
        let Some(hold) = self.holds.get(token).filter(|hold| hold.renewed) else { return };
        let since = hold.until.0.min(now.millis());
        let reason = format!("failed on {}: its lease ran out", hold.owner.host);
        if let Some(lasts) = hold.pause_on_failure {
            self.pause_after(now, token, since, lasts, reason);
        }
    }

    /// Pauses the lock after a failure under this hold, unless the hold was asked to end. The later
    /// end counts if the lock is paused already, and an operator's pause keeps its reason.
    fn pause_after(&mut self, now: Time, token: &Token, since: u64, lasts: Duration, reason: String) {
        // A record that another program has changed may say more.
        let until = since.saturating_add(millis(lasts.min(PAUSE_MOST)));
        let is_failure = |hold: &&Hold| hold.must_be_logged() && hold.asked.is_none();
        let Some(hold) = self.holds.get(token).filter(is_failure) else { return };
        let ends = self.paused.as_ref().map_or(now.millis(), |pause| pause.until);
        if until <= ends {
            return;
        }
        let by = Owner { reason: Some(reason), ttl: None, ..hold.owner.clone() };
        self.paused = match self.paused.take().filter(|pause| pause.cause == Cause::Operator) {
            Some(pause) => Some(Pause { until, ..pause }),
            None => Some(Pause { by, since, until, cause: Cause::Failure }),
        };
    }

    /// Records a success for `--once-per`. Neither its arrival nor its grant is earlier than that of
    /// the last one, unless the last one is in the future: the clock was set back since.
    pub(super) fn remember_success(&mut self, now: Time, token: &Token) {
        let Some(hold) = self.holds.get(token).filter(|hold| hold.must_be_logged()) else { return };
        let (since, waited, ended) = (hold.since.millis(), hold.waited, now.millis());
        let new = Success { owner: hold.owner.clone(), fence: Fence(hold.fence), since, waited, ended };
        self.success = match self.success.take().filter(|last| last.since <= ended) {
            Some(last) => {
                let arrived = last.arrived().max(new.arrived());
                let later = if last.since > since { last } else { new };
                Some(Success { waited: later.since.saturating_sub(arrived), ..later })
            }
            None => Some(new),
        };
    }

    /// Ends a hold, but not its min-hold. Returns the rest of the min-hold.
    pub(super) fn close(
        &mut self,
        now: Time,
        token: &Token,
        outcome: Outcome,
        job: Option<Ended>,
    ) -> Duration {
        let kept = self.holds.get(token).filter(|hold| !hold.cool.passed(now)).cloned();
        let exclusive = matches!(self.lock, Lock::Exclusive { .. });
        self.end(now, token, outcome, job, None);
        let Some(hold) = kept else {
            self.drop_hold(token);
            return Duration::ZERO;
        };
        let cool = hold.cool;
        if exclusive {
            self.lock = Lock::Cooling { until: cool };
        } else {
            self.holds.insert(token.clone(), Hold { phase: Phase::Cooling, owner: Owner::default(), ..hold });
        }
        cool.left(now)
    }

    /// Removes a hold, if there is one, without logging it.
    pub(in crate::rules) fn drop_hold_of(&mut self, token: &Token) {
        if self.holds.contains_key(token) {
            self.drop_hold(token);
        }
    }

    /// Removes a hold, and frees the lock if it was the only one.
    pub(in crate::rules) fn drop_hold(&mut self, token: &Token) {
        self.holds.remove(token);
        match &self.lock {
            Lock::Exclusive { token: holder, .. } if holder == token => self.lock = Lock::Free,
            Lock::Revoked { .. } => self.lock = Lock::Free,
            _ => self.free_if_empty(),
        }
    }

    /// Removes a hold and logs its end, once. An unconfirmed grant leaves no trace.
    pub(in crate::rules) fn end(
        &mut self,
        now: Time,
        token: &Token,
        outcome: Outcome,
        job: Option<Ended>,
        by: Option<Owner>,
    ) {
        let Some(hold) = self.holds.remove(token) else { return };
        if !hold.must_be_logged() {
            return;
        }
        let since = hold.since.millis();
        let ended = if outcome == Outcome::Expired { now.millis().min(hold.until.0) } else { now.millis() };
        self.stat.end(since, ended, outcome, job);
        self.log.push_front(LoggedEnd {
            outcome,
            owner: hold.owner,
            fence: Fence(hold.fence),
            since,
            ended,
            waited: hold.waited,
            job,
            by: by.or(hold.asked),
            during_pause: hold.during_pause,
        });
        self.log.truncate(LOG_KEPT);
    }

    /// Ends the hold or the place in the queue of this token, whose process is known to be dead,
    /// with everything that ran under it.
    pub fn reap(&mut self, now: Time, token: &Token) {
        self.expire(now);
        self.remove_waiter(token);
        if self.is_held_by(token) {
            self.pause_after_expiry(now, token);
            self.close(now, token, Outcome::Expired, None);
        } else if self.is_revoked_from(token) {
            self.drop_hold(token);
        }
    }
}

/// The answer to `leave`.
pub(in crate::rules) fn left(released: Option<Duration>, tombstone: Option<Tombstone>, queued: bool) -> Left {
    match (released, tombstone) {
        (Some(cooling), _) => Left::Released { cooling },
        (None, Some(tombstone)) if tombstone.released => Left::Already,
        (None, Some(_)) => Left::NotHeld,
        (None, None) if queued => Left::Dequeued,
        (None, None) => Left::NotHeld,
    }
}
