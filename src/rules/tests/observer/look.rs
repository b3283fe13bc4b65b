//! What `inspect` shows after each step, compared with this account: whose turn it was, which slot,
//! which fence, and that no two holders exclude each other.

use super::*;
use crate::rules::view::View;

impl Observer {
    /// After every step: checks what `inspect` shows, and whether all answers fit together.
    pub(in super::super) fn look(&mut self, now: Time, table: &LockTable) -> Check {
        self.beliefs
            .retain(|_, belief| belief.due() > now.millis() || belief.deadline > now.0 && !belief.over);
        // Names for refusals and the like are no locks.
        let locks = table.records.iter().filter(|(lock, _)| !lock.starts_with("dlock."));
        let seen: BTreeMap<&String, View> =
            locks.map(|(lock, record)| (lock, record.inspect(&name(lock), now))).collect();
        let mut fresh: BTreeSet<(u64, u32, Option<u32>)> = BTreeSet::new();
        let mut shown = BTreeSet::new();
        for (lock, seen) in &seen {
            let last = self.fences.entry((*lock).clone()).or_default();
            let mut highest = *last;
            for holder in seen.holders.iter().filter(|_| seen.state == State::Held) {
                let (id, fence) = (holder.owner.pid, holder.fence.0);
                shown.insert(((*lock).clone(), id, fence));
                if !self.shown.contains(&((*lock).clone(), id, fence)) && fence > *last {
                    fresh.insert((fence, id, holder.slot));
                    highest = highest.max(fence);
                }
                prop_assert!(seen.fence.is_some_and(|kept| kept.0 >= fence), "a fence behind the counter");
            }
            if let Some(fence) = seen.fence {
                prop_assert!(fence.0 >= *last, "the fence of {} went back", lock);
                highest = highest.max(fence.0);
            }
            *last = highest;
        }
        // A waiter whose job is done is taken out of the queue. It gets its place back if it asks
        // after that success was forgotten.
        let is_done = |id: &u32| self.askers.get(id).is_some_and(|asker| self.is_done(now.millis(), asker));
        let done: Vec<u32> = self.places.keys().filter(|id| is_done(id)).copied().collect();
        for id in done {
            if let Some(place) = self.places.get_mut(&id) {
                place.certain = false;
            }
        }
        for (fence, id, slot) in fresh {
            self.check_grant(now, &seen, fence, id, slot)?;
        }
        self.shown = shown;
        for id in std::mem::take(&mut self.granted_here) {
            self.places.remove(&id);
        }
        let live: Vec<_> = self.beliefs.iter().filter(|(_, belief)| is_relied_on(belief, now)).collect();
        for (index, ((lock, id), one)) in live.iter().enumerate() {
            for ((at, other), two) in &live[index + 1..] {
                prop_assert!(
                    lock != at || !one.excludes(two),
                    "{} and {} both hold {}: {:?} {:?}",
                    id,
                    other,
                    lock,
                    one,
                    two
                );
                prop_assert!(lock != at || one.fence != two.fence, "{} and {} have one fence", id, other);
            }
        }
        Ok(())
    }

    /// Checks a grant of this step: all or nothing, in turn, with the lowest slot, under a fence of
    /// its own.
    fn check_grant(
        &self,
        now: Time,
        seen: &BTreeMap<&String, View>,
        fence: u64,
        id: u32,
        slot: Option<u32>,
    ) -> Check {
        let Some(asker) = self.askers.get(&id) else { return Ok(()) };
        let is_paused = |name: &Name| self.is_paused(fence / 1000, name.as_str());
        prop_assert!(!asker.names.iter().any(is_paused), "{} was granted what is paused", id);
        prop_assert!(!self.is_done(fence / 1000, asker), "{} was granted what is done", id);
        let has = |lock: &str, id: u32| {
            seen.get(&lock.to_owned())
                .is_some_and(|seen| seen.holders.iter().any(|holder| holder.owner.pid == id))
        };
        for name in &asker.names {
            let same = seen.get(&name.as_str().to_owned()).is_some_and(|seen| {
                seen.holders
                    .iter()
                    .any(|holder| (holder.owner.pid, holder.fence.0, holder.slot) == (id, fence, slot))
            });
            prop_assert!(same, "{} was granted a part: not {}", id, name.as_str());
        }
        let came = self.places.get(&id).map_or(u64::MAX, |place| place.came);
        for (other, place) in self.places.iter().filter(|(other, place)| **other != id && place.came < came) {
            let Some(waiter) = self.askers.get(other) else { continue };
            let heard = now.0.saturating_sub(place.heard.0) < 3_990_000;
            let granted = waiter.names.iter().all(|name| has(name.as_str(), *other));
            prop_assert!(
                !(place.certain && heard && waiter.meets(asker)) || granted,
                "{} overtook {}",
                id,
                other
            );
        }
        if let Some(slot) = slot {
            let mut taken: BTreeSet<u32> = BTreeSet::new();
            for name in &asker.names {
                let held = seen.get(&name.as_str().to_owned()).into_iter().flat_map(|seen| &seen.holders);
                taken.extend(held.filter(|holder| holder.fence.0 < fence).filter_map(|holder| holder.slot));
                let kept = self.beliefs.iter().filter(|((at, other), belief)| {
                    at == name.as_str() && *other != id && belief.due() > now.millis() && belief.fence < fence
                });
                taken.extend(kept.filter_map(|(_, belief)| belief.slot));
            }
            prop_assert!(!taken.contains(&slot), "slot {} is taken", slot);
            prop_assert!(
                (0..slot).all(|lower| taken.contains(&lower)),
                "{} is not the lowest but {:?}",
                slot,
                taken
            );
        }
        Ok(())
    }
}

fn is_relied_on(belief: &Belief, now: Time) -> bool {
    !belief.over && belief.deadline > now.0 || !belief.revoked && belief.kept > now.millis()
}
