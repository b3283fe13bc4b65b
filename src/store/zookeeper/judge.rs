//! Whose lease is over? That of a life that is gone, as soon as its end in the record has come as well.

use super::Znodes;
use super::jute::{Answer, Ask, Code};
use super::node::{self, LockNode};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{Due, Record, Time};
use crate::store::engine::CatchUp;
use std::collections::BTreeMap;
use std::time::Duration;

/// A lease whose session lives lasts so long at the least.
const LASTS: Duration = Duration::from_millis(500);

impl Znodes {
    /// Asks whether somebody lives.
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

    /// Says of each hold whether its lease is over. See the beginning of the store's file. One's own is judged as others judge it,
    /// unless its session has ended.
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
                    Some(true) => entry.record.lasts(&token, Due::after(now, LASTS)),
                    // The clock of another leader may be behind: nobody waits for longer than a lease for that.
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
        // A step that finds its own hold over writes that. Who only looks does not, and to others a life that was begun anew
        // would be that of a holder.
        if whom == CatchUp::All && me.is_some_and(|me| self.is_anew(me) && is_over(me)) {
            self.session.borrow_mut().end();
            self.life.set(None);
        }
    }

    /// Whether this life of a token may still be believed in, by the record alone.
    pub(super) fn is_believed(&self, token: &Token) -> bool {
        let now = self.stamp.get().map(|stamp| Time(stamp.lower(Moment::now())));
        let until = self.believed.borrow().get(token).copied();
        until.zip(now).is_some_and(|(until, now)| !until.passed(now))
    }
}

/// The hold ends then at the latest.
fn cap(record: &mut Record, token: &Token, latest: Due) {
    if let Some(hold) = record.holds.get_mut(token).filter(|hold| hold.until > latest) {
        hold.until = latest;
        // The lock lasts as long as its last hold.
        record.lasts(token, Due(0));
    }
}
