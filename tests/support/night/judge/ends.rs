//! Judges how runs ended, and what the store reports about them afterwards.

use super::super::lives::Life;
use super::{FULL_DIRECTORY, Fault, Hit, Judge, Kind, Lived, Outcome, Run, SECOND, seconds, show};
use std::collections::BTreeMap;

impl Judge<'_> {
    pub(super) fn ends_are_explained(&mut self) {
        let lives: BTreeMap<u64, Lived> = self.lived.iter().map(|lived| (lived.run.id, *lived)).collect();
        for run in &self.round.runs {
            let life = lives.get(&run.id).map(|lived| lived.life);
            if let Err((fault, why)) = self.end_is_explained(run, life) {
                let near = self.troubles(run.spawned.saturating_sub(5 * SECOND), run.ended);
                let what = format!("{why}: {run:?}\n   {life:?}\n   troubles, from 5 s before: {near:?}");
                self.verdict.faults.push((fault, what));
            }
        }
    }

    pub(super) fn end_is_explained(&self, run: &Run, life: Option<&Life>) -> Result<(), (Fault, String)> {
        let has = |hits: &[Hit]| run.hits.iter().any(|(_, hit)| hits.contains(hit));
        let limited = has(&[Hit::FewFiles, Hit::LittleMemory, Hit::FewTasks]);
        let wrong = |why: &str| Err((Fault::Status, why.to_owned()));
        match run.outcome {
            Outcome::Status(status) if status == run.wanted && life.is_some_and(|life| life.ended) => Ok(()),
            Outcome::Status(0) if life.is_none() && matches!(run.kind, Kind::OncePer(_)) => Ok(()),
            Outcome::Status(75) if life.is_none() => Ok(()),
            Outcome::Status(69) if life.is_none() => {
                let explained = self.trouble(run.spawned, run.ended) > 0 || !run.hits.is_empty();
                if explained { Ok(()) } else { wrong("the store was there") }
            }
            // A script that could not release or renew: the store was away, or the script stood
            // still meanwhile.
            Outcome::Status(69)
                if run.kind == Kind::Script
                    && (self.trouble(run.spawned, run.ended) > 0 || has(&[Hit::Stop, Hit::StopAll])) =>
            {
                Ok(())
            }
            Outcome::Status(69 | 75) => wrong("its job ran all the same"),
            // The job gets TERM then, and may end by itself before the KILL.
            Outcome::Status(70)
                if limited || has(&[Hit::KillGuard, Hit::KillBoth, Hit::Stop, Hit::StopAll]) =>
            {
                Ok(())
            }
            Outcome::Status(71 | 78 | 97 | 126 | 127) if limited && life.is_none() => Ok(()),
            Outcome::Status(79) => {
                let hit = !run.hits.is_empty() || run.kind == Kind::Replace;
                // While the store is away, the release takes time, too.
                let over = life.map_or(run.ended, |life| life.last);
                let from = run.spawned.max(over.saturating_sub(2 * run.ttl));
                let outage = self.trouble(from, run.ended) > run.ttl * 2 / 5;
                if hit || outage || self.forgot(run.spawned, run.ended) {
                    Ok(())
                } else {
                    let why = format!(
                        "the lock was lost after trouble of {:.3} s",
                        seconds(self.trouble(from, run.ended))
                    );
                    Err((Fault::Loss, why))
                }
            }
            // It ended as if killed, and so may its guard, but not both: the job is stopped.
            Outcome::Signal(6 | 11) if has(&[Hit::LittleMemory]) => {
                let lives_on = life.is_some_and(|life| life.last > run.ended + run.ttl);
                if lives_on { wrong("its job lives on") } else { Ok(()) }
            }
            Outcome::Status(134 | 139) if has(&[Hit::LittleMemory]) && life.is_none() => Ok(()),
            Outcome::Signal(9) if has(&[Hit::KillDlock, Hit::KillBoth, Hit::KillJob]) => Ok(()),
            Outcome::Status(137) if has(&[Hit::KillJob]) => Ok(()),
            Outcome::Signal(2 | 15) if has(&[Hit::Interrupt]) => Ok(()),
            Outcome::Status(130 | 143) if has(&[Hit::Interrupt]) => Ok(()),
            // A script of several steps, one of which was hit.
            Outcome::Status(_) if matches!(run.kind, Kind::Script | Kind::Nested) && !run.hits.is_empty() => {
                Ok(())
            }
            _ => wrong("nothing explains how it ended"),
        }
    }

    pub(super) fn what_is_told_is_true(&mut self) {
        // Each of several masters counts and remembers what it received itself, and only one of
        // them is asked.
        let remembers = self.remembers() && self.round.has_queue;
        for (key, told) in &self.round.told {
            let of_key = |lived: &&Lived| lived.run.keys.contains(key);
            let lives: BTreeMap<u64, Lived> =
                self.lived.iter().filter(of_key).map(|lived| (lived.life.fence, *lived)).collect();
            let mut faults = Vec::new();
            for end in &told.history {
                // A run that was hit before its job recorded anything.
                let Some(lived) = lives.get(&end.fence) else { continue };
                let lived = Some(lived);
                let ran = lived.is_some_and(|lived| lived.life.ended);
                let status = lived.map(|lived| i64::from(lived.run.wanted));
                let script = lived.is_some_and(|lived| lived.run.kind == Kind::Script);
                if end.outcome == "released"
                    && end.status.is_some()
                    && !script
                    && !(ran && end.status == status)
                {
                    let has_excuse = lived.is_some_and(|lived| !lived.run.hits.is_empty());
                    if !has_excuse {
                        faults.push(format!("{key}: the history says {end:?}, and that was {}", show(lived)));
                    }
                }
                let unhurt = lived.is_some_and(|lived| {
                    lived.run.hits.is_empty() && lived.run.outcome == Outcome::Status(lived.run.wanted)
                });
                let trouble = lived.is_some_and(|l| self.trouble(l.life.last, l.run.ended + l.run.ttl) > 0);
                if end.outcome != "released" && unhurt && !script && !trouble && remembers {
                    let near = lived.map(|l| {
                        let run = l.run;
                        let near = self.troubles(run.spawned.saturating_sub(5 * SECOND), run.ended + run.ttl);
                        format!(
                            "{:.4}–{:.4}, {near:?}, {:?}",
                            seconds(run.spawned),
                            seconds(run.ended),
                            run.said
                        )
                    });
                    faults.push(format!("{key}: the history says {end:?} of {}, {near:?}", show(lived)));
                }
            }
            if remembers {
                let known: Vec<u64> = told.history.iter().map(|end| end.fence).collect();
                let missing = lives
                    .values()
                    .rev()
                    .take(known.len().min(48))
                    .find(|lived| !known.contains(&lived.life.fence) && !self.goes_unrecorded(lived));
                if let Some(lived) = missing {
                    let near = self.troubles(lived.life.start, lived.run.ended);
                    let said = &lived.run.said;
                    faults.push(format!("{key}: the history does not tell of {lived}, {near:?}, {said:?}"));
                }
            }
            faults.into_iter().for_each(|fault| self.verdict.faults.push((Fault::History, fault)));
            let of_key = self.round.runs.iter().filter(|run| run.keys.contains(key));
            let (least, most) = (lives.len(), of_key.map(|run| self.grants_of(run)).sum());
            let grants = usize::try_from(told.grants).unwrap_or(usize::MAX);
            if remembers && !(least..=most).contains(&grants) {
                let ends = told.history.len();
                let what = format!(
                    "{key}: metrics count {grants} grants; {least} jobs ran in {most} runs; the history has {ends} ends"
                );
                self.verdict.faults.push((Fault::Metrics, what));
            }
            let succeeded = lives.values().filter(|lived| lived.life.ended && lived.run.wanted == 0).count();
            if usize::try_from(told.succeeded).unwrap_or(usize::MAX) > succeeded {
                let what =
                    format!("{key}: metrics count {} successes, and there were {succeeded}", told.succeeded);
                self.verdict.faults.push((Fault::Metrics, what));
            }
        }
    }

    /// Whether the history may lack this run's end.
    pub(super) fn goes_unrecorded(&self, lived: &Lived) -> bool {
        let full = self.round.troubles.iter().filter(|one| one.kind == FULL_DIRECTORY);
        let mut full = full.filter(|one| one.from < lived.run.ended && one.until > lived.life.last);
        full.next().is_some()
    }

    /// How often a run may have been granted its lock. A run that does not receive its grant before
    /// the lease ends asks again.
    pub(super) fn grants_of(&self, run: &Run) -> usize {
        let deaf =
            if run.hits.is_empty() { self.trouble(run.spawned, run.ended) } else { run.ended - run.spawned };
        1 + usize::try_from(deaf / run.ttl).expect("a few")
    }
}
