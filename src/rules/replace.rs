//! `--replace`: the newest run supersedes the one before it, and asks the holders to end.

use super::record::{Hold, Record};
use super::{Ask, LockTable, Newest, Phase, Superseded, Time};
use crate::lock::{Name, Names};
use std::collections::VecDeque;

impl LockTable {
    /// The newest run with `--replace` wins. If a newer one than the caller has come, the caller is
    /// superseded, and this returns the answer for it. Otherwise the caller becomes the newest, and
    /// supersedes the one before it if that still waits or has not confirmed its grant.
    pub(super) fn supersede(
        &mut self,
        now: Time,
        names: &Names,
        ask: &Ask,
        came: Time,
        work: &mut VecDeque<String>,
    ) -> Option<Superseded> {
        let mut later =
            |name: &Name| self.record(name.as_str()).superseded_by(now, &ask.token, came).cloned();
        if let Some((at, newest)) = names.iter().enumerate().find_map(|(at, name)| Some((at, later(name)?))) {
            for name in names {
                self.record(name.as_str()).remove_waiter(&ask.token);
            }
            self.record(names.as_slice()[at].as_str()).mark_superseded(now, ask.token.clone());
            return Some(Superseded { at, by: newest.owner });
        }
        for name in names {
            let record = self.record(name.as_str());
            let is_other = record.newest.as_ref().is_none_or(|newest| newest.token != ask.token);
            if !is_other {
                continue;
            }
            let new = Newest { token: ask.token.clone(), came, owner: ask.owner.clone() };
            let Some(old) = record.newest.replace(new) else { continue };
            let Some(waiter) = record.waiters.get(&old.token).filter(|waiter| waiter.terms.replaces) else {
                continue;
            };
            for other in waiter.names.clone() {
                let record = self.record(&other);
                record.expire(now);
                record.remove_waiter(&old.token);
                if record.holds.get(&old.token).is_some_and(|hold| !hold.confirmed) {
                    record.drop_hold(&old.token);
                }
                work.push_back(other);
            }
            self.record(name.as_str()).mark_superseded(now, old.token);
        }
        None
    }
}

impl Record {
    /// Asks the holders to end for a run with `--replace` that came at `came`, except those with
    /// `--no-replace`. While the lock is paused none is asked for a run that may not run then. A
    /// grant in the future was made before the clock was set back, so it counts as older.
    pub(super) fn replace(&mut self, now: Time, came: Time, ask: &Ask) {
        let may_run = self.paused.is_none() || ask.terms.during_pause;
        let is_meant = |hold: &&mut Hold| {
            let is_older = hold.since < came || hold.since > now;
            hold.phase == Phase::Held && !hold.not_replaceable && is_older && hold.asked.is_none()
        };
        for hold in self.holds.values_mut().filter(|hold| may_run && is_meant(hold)) {
            (hold.asked, hold.superseded) = (Some(ask.owner.clone()), true);
        }
    }
}
