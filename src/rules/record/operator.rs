//! What operators do to a lock: ask a holder to end, take the lock away, pause it, watch it.

use super::{Hold, Lock, Phase, Record};
use crate::lock::{Fence, Owner, Token};
use crate::rules::WATCH_KEPT;
use crate::rules::answer::{Cause, Foreign, Holder, Outcome, Pause, Renewal, Requested, Revoked, State};
use crate::rules::operation::{NewPause, Revoke, When};
use crate::rules::time::{Due, Time, millis};

impl Record {
    /// Asks the hold with this fence to end.
    pub(in crate::rules) fn request(&mut self, fence: Fence, by: &Owner) -> Requested {
        let hold = self.holds.values_mut().find(|hold| hold.phase == Phase::Held && hold.fence == fence.0);
        match hold {
            Some(hold) => {
                hold.asked.get_or_insert_with(|| by.clone());
                Requested::Asked
            }
            None => Requested::Gone,
        }
    }

    /// What a renewal answers if this hold was asked to end.
    pub(in crate::rules) fn asked(&self, token: &Token) -> Option<Renewal> {
        let hold = self.holds.get(token).filter(|hold| hold.asked.is_some())?;
        Some(if hold.superseded { Renewal::Superseded } else { Renewal::Asked })
    }

    /// Wakes the token at every change, for [`WATCH_KEPT`].
    pub(in crate::rules) fn watch(&mut self, now: Time, token: &Token) {
        self.watchers.insert(token.clone(), Due::after(now, WATCH_KEPT));
    }

    /// Begins a pause, or ends it. Returns whether the lock was paused before.
    pub(in crate::rules) fn pause(&mut self, now: Time, pause: Option<NewPause<'_>>) -> bool {
        let was = self.paused.take();
        self.paused = pause.map(|new| {
            let (since, ends) = (now.millis(), was.as_ref().map_or(0, |was| was.until));
            let until = since.saturating_add(millis(new.lasts));
            let until = if new.shortens { until } else { until.max(ends) };
            Pause { by: new.by.clone(), since, until, cause: Cause::Operator }
        });
        was.is_some()
    }

    /// Takes the lock away from all holders.
    pub(in crate::rules) fn revoke(&mut self, now: Time, revoke: &Revoke) -> Revoked {
        let was = self.state(now);
        if let Lock::Foreign { until } = self.lock {
            if revoke.when == When::Now {
                self.lock = Lock::Free;
                return Revoked::ForeignDeleted;
            }
            let left = until.map(|until| until.left(now));
            return Revoked::Foreign(Foreign { kind: "string".into(), left });
        }
        let shown: Vec<(Token, Holder)> =
            self.shown(now, was).into_iter().map(|(token, hold)| (token.clone(), hold.shown(now))).collect();
        self.end_cooling_holds(now);
        for (token, holder) in &shown {
            let kept = self.holds.get(token).cloned();
            self.end(now, token, Outcome::Forced, None, Some(revoke.by.clone()));
            match (revoke.when, kept) {
                // Under a grant that was never confirmed, or after the lease, no job runs: the next
                // grant need not wait.
                (When::Safe, Some(hold)) if holder.confirmed && !hold.until.passed(now) => {
                    self.holds.insert(token.clone(), Hold { phase: Phase::Revoked, ..hold });
                }
                _ => self.spend(now, token.clone(), false),
            }
        }
        if revoke.when == When::Now {
            // Also the tokens that were revoked before.
            for token in std::mem::take(&mut self.holds).into_keys() {
                self.spend(now, token, false);
            }
        }
        let left = self.holds.values().map(|hold| hold.until.left(now)).max();
        self.lock = match (&self.lock, left) {
            // The server has lost the holds, so only the lock key tells how long the old job may
            // live.
            (Lock::Exclusive { until, .. } | Lock::Shared { until } | Lock::Slots { until, .. }, None)
                if shown.is_empty() && was == State::Held && revoke.when == When::Safe =>
            {
                Lock::Revoked { until: *until }
            }
            (Lock::Revoked { until }, None) if revoke.when == When::Safe => Lock::Revoked { until: *until },
            (_, None) => Lock::Free,
            (Lock::Exclusive { .. } | Lock::Revoked { .. }, Some(left)) => {
                Lock::Revoked { until: Due::after(now, left) }
            }
            (lock, Some(_)) => lock.clone(),
        };
        self.outlast();
        let left = match self.lock {
            Lock::Revoked { until } => until.left(now),
            _ => left.unwrap_or_default(),
        };
        let holders: Vec<Holder> = shown.into_iter().map(|(_, holder)| holder).collect();
        match was {
            State::Free | State::Paused => Revoked::Free,
            State::Cooling => Revoked::Cooling,
            State::Held if !holders.is_empty() => Revoked::Holds { holders, left },
            State::Held | State::Revoked => Revoked::AlreadyRevoked { holders, left },
        }
    }

    /// Ends the holds that only a min-hold keeps: an operator who takes the lock away wants these
    /// gone, too.
    fn end_cooling_holds(&mut self, now: Time) {
        let cools = |hold: &Hold| hold.phase != Phase::Revoked && !self.is_live(now, hold);
        let over: Vec<Token> =
            self.holds.iter().filter(|(_, hold)| cools(hold)).map(|(token, _)| token.clone()).collect();
        for token in &over {
            self.end(now, token, Outcome::Expired, None, None);
        }
    }
}
