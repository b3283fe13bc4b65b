//! A second, simpler account of the locks, from the answers alone: which token holds what until
//! when, and which waiter came first. It reads no record. It knows what was requested, what was
//! answered, and what `inspect` shows (each caller has a pid of its own). An answer that this
//! account does not allow fails the history.

mod endings;
mod look;

use super::super::*;
use super::name;
use crate::lock::Mode;
use proptest::prelude::*;
use std::collections::BTreeSet;

pub(super) type Check = Result<(), TestCaseError>;

/// What a holder knows of one of its locks.
#[derive(Debug, Clone)]
struct Belief {
    mode: Mode,
    slot: Option<u32>,
    fence: u64,
    /// When the lease ends for the store, in ms.
    lease: u64,
    /// When the job must be dead, in µs: the deadline of I6.
    deadline: u64,
    /// How long it had waited, in ms.
    waited: u64,
    /// The end of the min-hold, in ms.
    kept: u64,
    /// Whether it was given back, or the holder is dead: only the min-hold is left.
    over: bool,
    revoked: bool,
}

impl Belief {
    fn due(&self) -> u64 {
        match (self.over, self.revoked) {
            (true, _) => self.kept,
            (_, true) => self.lease,
            _ => self.lease.max(self.kept),
        }
    }

    fn excludes(&self, other: &Self) -> bool {
        match (self.mode, other.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Slots(mine), Mode::Slots(theirs)) => mine != theirs || self.slot == other.slot,
            _ => true,
        }
    }
}

/// The place of a waiter.
#[derive(Debug, Clone)]
struct Place {
    came: u64,
    /// When its run arrived, in ms.
    since: u64,
    heard: Time,
    /// Whether it surely is in the queue, or has a grant that it does not know of.
    certain: bool,
}

/// A caller: a token, and what it requests as long as it lives. Its number is also its owner's pid.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) id: u32,
    pub(super) token: Token,
    pub(super) names: Names,
    pub(super) mode: Mode,
    pub(super) terms: Terms,
}

impl Asker {
    fn has(&self, lock: &str) -> bool {
        self.names.iter().any(|name| name.as_str() == lock)
    }

    fn meets(&self, other: &Self) -> bool {
        self.names.iter().any(|name| other.has(name.as_str()))
    }
}

#[derive(Debug, Default)]
pub(super) struct Observer {
    askers: BTreeMap<u32, Asker>,
    beliefs: BTreeMap<(String, u32), Belief>,
    places: BTreeMap<u32, Place>,
    fences: BTreeMap<String, u64>,
    /// Grants that `inspect` has shown: lock, asker, fence.
    shown: BTreeSet<(String, u32, u64)>,
    tombstones: BTreeMap<u32, u64>,
    foreign: BTreeMap<String, Option<u64>>,
    arrivals: u64,
    /// When pauses end, in ms.
    pauses: BTreeMap<String, u64>,
    /// When the last success of each lock arrived and when it was granted, in ms.
    successes: BTreeMap<String, (u64, u64)>,
    /// The newest caller with `--replace` at each lock.
    newest: BTreeMap<String, u32>,
    /// Superseded callers, and until when that is remembered, in ms.
    superseded: BTreeMap<u32, u64>,
    /// Callers that learned of their grant in this step: their places count until the step is
    /// checked.
    granted_here: Vec<u32>,
}

impl Observer {
    fn mine(&self, asker: &Asker) -> Vec<Option<&Belief>> {
        asker.names.iter().map(|name| self.beliefs.get(&(name.as_str().to_owned(), asker.id))).collect()
    }

    fn mine_mut(&mut self, id: u32) -> impl Iterator<Item = &mut Belief> {
        self.beliefs.iter_mut().filter(move |((_, asker), _)| *asker == id).map(|(_, belief)| belief)
    }

    /// Whether the caller holds all its locks, as far as it knows.
    pub(super) fn holds(&self, now: Time, asker: &Asker) -> bool {
        let held = |belief: &Belief| !belief.over && !belief.revoked && belief.due() > now.millis();
        self.mine(asker).into_iter().all(|belief| belief.is_some_and(held))
    }

    /// Whether its last answer was to wait.
    pub(super) fn is_waiting(&self, asker: &Asker) -> bool {
        self.places.contains_key(&asker.id)
    }

    /// Whether it has a grant that it does not know of.
    fn is_called(&self, asker: &Asker) -> bool {
        self.shown.iter().any(|(lock, id, _)| {
            *id == asker.id && self.beliefs.get(&(lock.clone(), *id)).is_none_or(|belief| belief.over)
        })
    }

    pub(super) fn is_spent(&self, now: Time, asker: &Asker) -> bool {
        self.tombstones.get(&asker.id).is_some_and(|until| now.millis() <= *until)
    }

    pub(super) fn acquired(&mut self, now: Time, asker: &Asker, ask: &Ask, answer: &Acquired) -> Check {
        self.askers.insert(asker.id, asker.clone());
        let is_superseded = self.superseded.get(&asker.id).is_some_and(|until| now.millis() <= *until);
        prop_assert_eq!(is_superseded, matches!(answer, Acquired::Superseded(_)), "superseded: {:?}", answer);
        if is_superseded {
            return Ok(());
        }
        let held = self.holds(now, asker);
        // The rest of a hold that was revoked or has lost a lock: its token is good only for
        // `leave`.
        let remains =
            !held && self.mine(asker).into_iter().flatten().any(|belief| belief.due() > now.millis());
        let spent = self.is_spent(now, asker) || remains;
        prop_assert_eq!(
            spent,
            *answer == Acquired::TokenEnded,
            "a spent token, and no other, is refused: {:?}",
            answer
        );
        if held && !spent {
            prop_assert!(
                matches!(answer, Acquired::Granted(_)),
                "a holder that asks again is told {:?}",
                answer
            );
        }
        let done = self.is_done(now.millis(), asker);
        if !held && !spent && !self.is_called(asker) {
            prop_assert_eq!(done, matches!(answer, Acquired::Done(_)), "is it done: {:?}", answer);
        }
        if asker.terms.replaces && !held && !matches!(answer, Acquired::Done(_) | Acquired::TokenEnded) {
            self.replaces(now, asker);
        }
        match answer {
            Acquired::Done(_) => {
                prop_assert!(done && !held);
                self.places.remove(&asker.id);
                Ok(())
            }
            Acquired::Granted(grant) => self.granted(now, asker, ask, *grant, held),
            Acquired::Waiting(waiting) => {
                let alone = self.is_alone(now, asker);
                prop_assert!(!alone, "told to wait with nobody in the way: {:?}", waiting);
                prop_assert!(
                    !waiting.next.is_zero() && waiting.next <= HEARTBEAT,
                    "next is {:?}",
                    waiting.next
                );
                self.arrivals += 1;
                let kept = self.place(now.millis(), asker).map(|place| (place.came, place.since));
                let (came, since) = kept.unwrap_or((self.arrivals, now.millis()));
                self.places.insert(asker.id, Place { came, since, heard: now, certain: true });
                Ok(())
            }
            Acquired::Busy(_) => {
                let alone = self.is_alone(now, asker) && !self.places.contains_key(&asker.id);
                prop_assert!(!alone, "busy with nobody in the way");
                Ok(())
            }
            Acquired::Superseded(_) | Acquired::TokenEnded => Ok(()),
        }
    }

    /// The previous newest caller with `--replace` at each of its locks is superseded, if it still
    /// waits.
    fn replaces(&mut self, now: Time, asker: &Asker) {
        for name in &asker.names {
            let Some(old) = self.newest.insert(name.as_str().to_owned(), asker.id) else { continue };
            let kept = |place: &Place| now.millis() <= place.heard.millis() + millis(TICKET_KEPT);
            if old != asker.id && self.places.get(&old).is_some_and(kept) {
                self.places.remove(&old);
                self.shown.retain(|(_, id, _)| *id != old);
                self.superseded.insert(old, now.millis() + millis(SPENT_KEPT));
            }
        }
    }

    fn granted(&mut self, now: Time, asker: &Asker, ask: &Ask, grant: Grant, held: bool) -> Check {
        prop_assert_eq!(grant.slot.is_some(), matches!(asker.mode, Mode::Slots(_)));
        if let (Some(slot), Mode::Slots(slots)) = (grant.slot, asker.mode) {
            prop_assert!(slot < slots, "slot {} of {}", slot, slots);
        }
        for name in &asker.names {
            let at = (name.as_str().to_owned(), asker.id);
            if let Some(old) = self.beliefs.get(&at).filter(|_| held) {
                prop_assert_eq!((old.fence, old.slot), (grant.fence.0, grant.slot), "the same grant again");
            }
            let belief = Belief {
                mode: asker.mode,
                slot: grant.slot,
                fence: grant.fence.0,
                lease: now.millis() + millis(ask.ttl),
                deadline: deadline(now, ask.ttl),
                waited: millis(grant.waited),
                // It counts from the grant. The fence is the time of the grant, because no two
                // steps share a microsecond; the second grant of a step has a fence that is later
                // by one.
                kept: if ask.min_hold.is_zero() {
                    0
                } else {
                    grant.fence.0.min(now.0) / 1000 + millis(ask.min_hold)
                },
                over: false,
                revoked: false,
            };
            let kept =
                self.beliefs.get(&at).filter(|_| held && ask.min_hold.is_zero()).map_or(0, |old| old.kept);
            self.beliefs.insert(at, Belief { kept: belief.kept.max(kept), ..belief });
        }
        self.granted_here.push(asker.id);
        Ok(())
    }

    /// Its place, unless that is forgotten at this time, in ms.
    fn place(&self, now: u64, asker: &Asker) -> Option<&Place> {
        let kept = |place: &&Place| now <= place.heard.millis() + millis(TICKET_KEPT);
        self.places.get(&asker.id).filter(kept)
    }

    /// Whether `--once-per` skips its run at this time, in ms.
    fn is_done(&self, now: u64, asker: &Asker) -> bool {
        let came = self.place(now, asker).map_or(now, |place| place.since);
        let done = |name: &Name, span| {
            let last = self.successes.get(name.as_str());
            last.is_some_and(|(arrived, since)| came < (arrived + millis(span)).max(*since))
        };
        asker.terms.once_per.is_some_and(|span| asker.names.iter().all(|name| done(name, span)))
    }

    fn is_paused(&self, now: u64, lock: &str) -> bool {
        self.pauses.get(lock).is_some_and(|until| now < *until)
    }

    pub(super) fn paused(&mut self, now: Time, lock: &str, lasts: Option<u64>, was: bool) -> Check {
        prop_assert_eq!(was, self.is_paused(now.millis(), lock), "whether {} was paused", lock);
        match lasts {
            Some(lasts) => self.pauses.insert(lock.to_owned(), now.millis() + lasts),
            None => self.pauses.remove(lock),
        };
        Ok(())
    }

    pub(super) fn forgotten(&mut self, lock: &str, was: bool) -> Check {
        prop_assert_eq!(was, self.successes.remove(lock).is_some(), "whether {} was done", lock);
        Ok(())
    }

    fn is_alone(&self, now: Time, asker: &Asker) -> bool {
        let waits = |(id, place): (&u32, &Place)| {
            // A waiter that was stale may have been excused by a gap without heartbeats.
            *id != asker.id
                && now.millis() <= place.heard.millis().saturating_add(millis(TICKET_KEPT))
                && self.askers.get(id).is_some_and(|other| other.meets(asker))
        };
        let kept = |((lock, id), belief): (&(String, u32), &Belief)| {
            asker.has(lock)
                && belief.due() > now.millis()
                && (*id != asker.id || belief.over || belief.revoked)
        };
        !self.places.iter().any(waits)
            && !self.beliefs.iter().any(kept)
            && !self.shown.iter().any(|(lock, id, _)| *id != asker.id && asker.has(lock))
            && !asker.names.iter().any(|name| self.is_foreign(now, name.as_str()))
            && !asker.names.iter().any(|name| self.is_paused(now.millis(), name.as_str()))
    }

    fn is_foreign(&self, now: Time, lock: &str) -> bool {
        self.foreign.get(lock).is_some_and(|until| until.is_none_or(|until| until >= now.millis()))
    }

    pub(super) fn renewed(&mut self, now: Time, asker: &Asker, ttl: Duration, answer: Renewal) -> Check {
        let revoked = |belief: &Belief| belief.revoked && !belief.over && belief.lease > now.millis();
        let expected = if self.holds(now, asker) {
            Renewal::Renewed
        } else if self.mine(asker).into_iter().flatten().any(revoked) {
            Renewal::Revoked
        } else {
            Renewal::NotHeld
        };
        // A request to end changes nothing about the hold.
        let answer = if answer == Renewal::Superseded { Renewal::Renewed } else { answer };
        prop_assert_eq!(answer, expected);
        if answer == Renewal::Renewed {
            for belief in self.mine_mut(asker.id) {
                belief.lease = now.millis() + millis(ttl);
                belief.deadline = deadline(now, ttl);
            }
        }
        Ok(())
    }

    /// The latest known end, in ms.
    pub(super) fn last_end(&self) -> u64 {
        let foreign = self.foreign.values().map(|until| until.unwrap_or(0));
        self.beliefs.values().map(Belief::due).chain(foreign).max().unwrap_or(0)
    }

    /// The waiters whose tickets are still retained.
    pub(super) fn waiters(&self, now: Time) -> Vec<Asker> {
        let kept = |place: &Place| now.millis() <= place.heard.millis() + millis(TICKET_KEPT);
        let ids = self.places.iter().filter(|(_, place)| kept(place)).map(|(id, _)| id);
        ids.filter_map(|id| self.askers.get(id)).cloned().collect()
    }
}

/// The deadline of I6.
fn deadline(now: Time, ttl: Duration) -> u64 {
    (now.0 + millis(ttl) * 1000).saturating_sub(millis(ttl) * 10 + 2000)
}
