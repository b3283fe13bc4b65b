//! How holds end in this account: by a release, a death, an operator, or because the lock is gone.

use super::*;
use crate::exit::Ended;

impl Observer {
    pub(in super::super) fn left(&mut self, now: Time, asker: &Asker, end: &End, answer: Left) -> Check {
        let ran = end.ran;
        let live = |belief: &Belief| !belief.over && belief.due() > now.millis();
        let had: Vec<Belief> =
            self.mine(asker).into_iter().flatten().filter(|belief| live(belief)).cloned().collect();
        let called = self.is_called(asker);
        if !called {
            let released = matches!(answer, Left::Released { .. });
            prop_assert_eq!(released, !had.is_empty(), "left: {:?}", answer);
        }
        if let (Left::Released { cooling }, Ran::Yes, false) = (answer, ran, called) {
            let kept =
                had.iter().filter(|belief| !belief.revoked).map(|belief| belief.kept).max().unwrap_or(0);
            prop_assert_eq!(millis(cooling), kept.saturating_sub(now.millis()));
        }
        if end.once_per && (ran, end.job) == (Ran::Yes, Some(Ended::Code(0))) {
            for name in &asker.names {
                let at = (name.as_str().to_owned(), asker.id);
                let Some(belief) = self.beliefs.get(&at).filter(|belief| live(belief) && !belief.revoked)
                else {
                    continue;
                };
                // The fence is the time of the grant.
                let since = belief.fence / 1000;
                let last = self.successes.entry(at.0).or_default();
                *last = (last.0.max(since - belief.waited), last.1.max(since));
            }
        }
        for belief in self.mine_mut(asker.id).filter(|belief| live(belief)) {
            belief.over = true;
            if belief.revoked || ran == Ran::No {
                belief.kept = 0;
            }
        }
        self.places.remove(&asker.id);
        if !self.is_spent(now, asker) && !self.superseded.contains_key(&asker.id) {
            self.tombstones.insert(asker.id, now.millis() + millis(SPENT_KEPT));
        }
        Ok(())
    }

    pub(in super::super) fn reaped(&mut self, now: Time, asker: &Asker) {
        for belief in self.mine_mut(asker.id).filter(|belief| !belief.over && belief.due() > now.millis()) {
            belief.over = true;
            if belief.revoked {
                belief.kept = 0;
            }
        }
        self.places.remove(&asker.id);
        self.shown.retain(|(_, id, _)| *id != asker.id);
    }

    /// The lock key is gone, or is foreign now: no holder can rely on that lock.
    pub(in super::super) fn disturbed(&mut self, lock: &str, foreign: Option<Option<u64>>) {
        self.beliefs.retain(|(at, _), _| at != lock);
        self.unsettle(lock);
        self.foreign.remove(lock);
        if let Some(until) = foreign {
            self.foreign.insert(lock.to_owned(), until);
        }
    }

    /// A waiter that was granted the lock and has not confirmed has lost that grant, and is in no
    /// queue until its next request.
    fn unsettle(&mut self, lock: &str) {
        for (_, id, _) in self.shown.iter().filter(|(at, ..)| at == lock) {
            if let Some(place) = self.places.get_mut(id) {
                place.certain = false;
            }
        }
    }

    pub(in super::super) fn revoked(&mut self, now: Time, lock: &str, when: When, answer: &Revoked) -> Check {
        if self.is_foreign(now, lock) {
            prop_assert_eq!(when == When::Now, *answer == Revoked::ForeignDeleted, "{:?}", answer);
            if when == When::Now {
                self.foreign.remove(lock);
            }
            return Ok(());
        }
        // Unconfirmed grants, and all holds that are revoked at once, are refused from now on.
        let here = |((at, _), belief): &(&(String, u32), &Belief)| at == lock && belief.due() > now.millis();
        let confirmed: BTreeSet<u32> = self
            .beliefs
            .iter()
            .filter(here)
            .filter(|(_, belief)| !belief.over)
            .map(|((_, id), _)| *id)
            .collect();
        // No job runs after the lease, whatever a min-hold keeps. An exclusive lock then has no
        // hold any more.
        let refused = self.beliefs.iter().filter(here).filter(|(_, belief)| {
            let ran_out = belief.lease <= now.millis();
            let at_once = if belief.mode == Mode::Exclusive {
                when == When::Now && !ran_out
            } else {
                when == When::Now || ran_out
            };
            !belief.over && at_once
        });
        let refused: Vec<u32> = refused.map(|((_, id), _)| *id).collect();
        let called: BTreeSet<u32> = self
            .shown
            .iter()
            .filter(|(at, id, _)| at == lock && !confirmed.contains(id))
            .map(|(_, id, _)| *id)
            .collect();
        let longest = self
            .beliefs
            .iter()
            .filter(here)
            .filter(|(_, belief)| !belief.over && when == When::Safe)
            .map(|(_, belief)| belief.lease.saturating_sub(now.millis()))
            .max();
        if let Revoked::Holds { left, .. } = answer {
            prop_assert_eq!(millis(*left), longest.unwrap_or(0), "how long the revoked may live");
        }
        let until = now.millis() + millis(SPENT_KEPT);
        self.tombstones.extend(called.iter().chain(&refused).map(|id| (*id, until)));
        self.unsettle(lock);
        for ((at, _), belief) in &mut self.beliefs {
            if at == lock {
                belief.kept = 0;
                belief.revoked = true;
            }
        }
        if when == When::Now {
            self.beliefs.retain(|(at, _), _| at != lock);
        }
        Ok(())
    }
}
