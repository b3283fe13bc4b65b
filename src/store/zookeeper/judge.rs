//! Decides which leases are over: those whose session node is gone and whose end by the record has
//! passed.

use super::Znodes;
use super::jute::{Answer, Ask, Code};
use super::node::{self, LockNode};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{Due, Record, Time};
use crate::store::engine::CatchUp;
use std::collections::BTreeMap;
use std::time::Duration;

/// A lease whose session lives is good for at least this time.
const LIVE_LEASE: Duration = Duration::from_millis(500);

impl Znodes {
    /// The request that looks up a token's session node.
    pub(super) fn look(&self, token: &Token) -> Ask {
        Ask::Look { path: self.life_path(token), watch: false }
    }

    pub(super) fn looked(&self, token: Token, answer: &Result<Answer, Code>) {
        let is_there = match answer {
            Ok(Answer::Stat(_)) => true,
            Err(Code::NO_NODE) => false,
            _ => return,
        };
        self.lives.borrow_mut().insert(token, is_there);
    }

    /// Judges each hold, as the store's header says. The caller's own hold is judged by the record
    /// alone if its session has ended.
    pub(super) fn judge(&self, entries: &mut [LockNode], me: Option<&Token>, whom: CatchUp, now: Time) {
        let (lives, seen) = (self.lives.borrow(), self.heard.borrow());
        let mut believed = BTreeMap::new();
        for entry in entries.iter_mut() {
            believed.extend(node::believed(&entry.record).map(|(token, until)| (token.clone(), until)));
            let holders: Vec<Token> = node::believed(&entry.record).map(|(token, _)| token.clone()).collect();
            for token in holders {
                if Some(&token) == me && self.is_anew(&token) {
                    continue;
                }
                let Some(tracked) = entry.tracked.get(&token).copied() else { continue };
                match lives.get(&token) {
                    Some(true) => entry.record.lasts(&token, Due::after(now, LIVE_LEASE)),
                    // A new leader's clock may be behind. Nobody waits longer than one ttl for
                    // that.
                    Some(false) => {
                        cap(&mut entry.record, &token, Due::after(now, Duration::from_millis(tracked.ttl)))
                    }
                    None => {}
                }
            }
            if entry.record.absence.heard.0 > 0 {
                let heard = entry.notes.keys().filter_map(|token| seen.get(token).copied()).max();
                let absence = &mut entry.record.absence;
                absence.heard = absence.heard.max(Due(heard.unwrap_or_default()));
            }
        }
        drop((lives, seen));
        self.believed.replace(believed);
        let is_over = |me: &Token| entries.iter().any(|entry| node::is_over(&entry.record, me, now));
        // A transaction that finds the caller's hold over writes that. A plain read does not write,
        // so it ends the caller's new session, whose node others would take for that of a holder.
        if whom == CatchUp::All && me.is_some_and(|me| self.is_anew(me) && is_over(me)) {
            self.session.borrow_mut().end();
            self.life.set(None);
        }
    }

    /// Whether the token's lease is not over yet by the record.
    pub(super) fn is_believed(&self, token: &Token) -> bool {
        let now = self.stamp.get().map(|stamp| Time(stamp.lower(Moment::now())));
        let until = self.believed.borrow().get(token).copied();
        until.zip(now).is_some_and(|(until, now)| !until.passed(now))
    }
}

/// Ends a hold at `latest`, if it would end later.
fn cap(record: &mut Record, token: &Token, latest: Due) {
    if let Some(hold) = record.holds.get_mut(token).filter(|hold| hold.until > latest) {
        hold.until = latest;
        // Recomputes the end of the lock from its holds.
        record.lasts(token, Due(0));
    }
}
