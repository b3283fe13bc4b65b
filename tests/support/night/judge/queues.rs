//! Judges the queues: the order of the waiters, and locks that stay free while a run waits.

use super::{BUSY, BUSY_AROUND, Fault, Judge, Kind, Lived, Run, SECOND, SLACK, Time, Trouble, seconds};
use std::collections::{BTreeMap, BTreeSet};

impl Judge<'_> {
    /// A run seen in the queue before another was started must have its turn first, and so must a
    /// run seen in front of another. Pairs in which the second came after the first had its turn
    /// prove nothing, so they are not counted.
    pub(super) fn served_in_order(&mut self) {
        if !self.round.has_queue {
            return;
        }
        let plain = |lived: &&Lived| {
            lived.run.hits.is_empty() && matches!(lived.run.kind, Kind::Plain | Kind::Nested | Kind::Script)
        };
        let undisturbed: BTreeMap<u64, Lived> =
            self.lived.iter().filter(plain).map(|lived| (lived.run.id, *lived)).collect();
        let mut seen: BTreeMap<u64, Time> = BTreeMap::new();
        let mut pairs: BTreeSet<(u64, u64)> = BTreeSet::new();
        for sighting in &self.round.sightings {
            for (place, run) in sighting.waiting.iter().enumerate() {
                let first = seen.entry(*run).or_insert(sighting.at);
                *first = (*first).min(sighting.at);
                pairs.extend(sighting.waiting[place + 1..].iter().map(|behind| (*run, *behind)));
            }
        }
        // A run that comes at the same moment may be put in front of another, and need not stay
        // there.
        let spawned = |id: &u64| undisturbed.get(id).map(|lived| lived.run.spawned);
        pairs.retain(|(first, second)| {
            spawned(first).is_some_and(|first| spawned(second) > Some(first + SECOND / 10))
        });
        for (id, first) in &undisturbed {
            let Some(seen) = seen.get(id).copied() else { continue };
            let came = |lived: &&Lived| {
                let shares = first.run.keys.iter().any(|key| lived.run.keys.contains(key));
                shares && lived.run.spawned > seen && lived.run.spawned < first.life.start
            };
            pairs.extend(undisturbed.values().filter(came).map(|second| (*id, second.run.id)));
        }
        for (first, second) in pairs {
            let (Some(first), Some(second)) = (undisturbed.get(&first), undisturbed.get(&second)) else {
                continue;
            };
            if self.may_be_passed_over(first.run.spawned, second.life.start.max(first.life.start)) {
                continue;
            }
            self.verdict.pairs += 1;
            if second.life.fence <= first.life.fence {
                let what = format!("it came later: {second}\n   and overtook {first}");
                self.fault(Fault::Order, what);
            }
        }
    }

    /// Whether a waiter at that time may not have been heard for so long that it was passed over. A
    /// busy machine that starts a program within one second delays no heartbeat for three seconds
    /// and more.
    pub(super) fn may_be_passed_over(&self, from: Time, until: Time) -> bool {
        let is_short = |one: &Trouble| one.kind == BUSY && one.until - one.from < 2 * BUSY_AROUND + SECOND;
        let mut near = self.round.troubles.iter().filter(|one| one.from < until && one.until > from);
        near.any(|one| !is_short(one))
    }

    pub(super) fn nobody_stands_idle(&mut self) {
        let mut ends: BTreeMap<&str, Vec<Time>> = BTreeMap::new();
        for lived in &self.lived {
            for key in &lived.run.keys {
                ends.entry(key).or_default().push(lived.life.last);
            }
        }
        ends.values_mut().for_each(|ends| ends.sort_unstable());
        for lived in
            self.lived.clone().into_iter().filter(|lived| lived.run.waits && lived.run.hits.is_empty())
        {
            let start = lived.life.start;
            let before = |key: &&str| {
                let ends = &ends[*key];
                ends[..ends.partition_point(|end| *end <= start)].last().copied()
            };
            let free = lived.run.keys.iter().filter_map(before).max().unwrap_or(0).max(lived.run.spawned);
            let stall = start.saturating_sub(free);
            self.verdict.longest_stall = self.verdict.longest_stall.max(stall);
            let bound = self.may_stand_idle(lived.run, free, start);
            if stall > bound + self.trouble(free, start) {
                let what = format!(
                    "it waited {:.1} s for nobody, and not {:.1} s: {lived}",
                    seconds(stall),
                    seconds(bound)
                );
                self.fault(Fault::Stall, what);
            }
        }
    }

    /// Longest time for which a free lock may have no holder while this run waits, on a machine
    /// that is not busy: a dead waiter costs 5 s, and several 10 s; over several masters it is 3 s
    /// for each free lock. The lease of a hit holder has to end.
    pub(super) fn may_stand_idle(&self, run: &Run, free: Time, start: Time) -> Time {
        if !self.round.is_calm {
            return 15 * SECOND + self.round.silence;
        }
        let near = free.saturating_sub(10 * SECOND + self.round.silence)..start;
        let hit = |other: &&Run| {
            other.id != run.id
                && other.keys.iter().any(|key| run.keys.contains(key))
                && other.hits.iter().any(|(at, _)| near.contains(at))
        };
        let hit: Vec<&Run> = self.round.runs.iter().filter(hit).collect();
        let lease = hit.iter().filter(|run| run.ended + run.ttl > free).map(|run| run.ttl).max().unwrap_or(0);
        let dead = match (hit.len(), self.round.has_queue) {
            (_, false) => 3 * SECOND,
            (0, true) => 0,
            (1, true) => self.round.silence,
            (_, true) => self.round.silence + 5 * SECOND,
        };
        // Some programs start between two jobs, more of them for a script that releases and
        // acquires.
        2 * SLACK + lease + dead
    }
}
