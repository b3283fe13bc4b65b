//! The result of a night: counts, faults, and the printed summary.

use super::Played;
use super::judge::{Verdict, seconds};
use super::{Arrangement, Profile};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// The result of a night.
#[derive(Default)]
pub struct Report {
    pub rounds: Vec<String>,
    pub counts: BTreeMap<&'static str, usize>,
    pub grants: usize,
    pub runs: usize,
    pub granted_overlaps: Vec<u64>,
    /// Overlaps that are not granted.
    pub overlaps: usize,
    /// Increments that a register accepted and does not have.
    pub lost: u64,
    /// Number of pairs of waiters whose order was checked.
    pub pairs: usize,
    pub refused: u64,
    pub accepted: u64,
    pub longest_stall: u64,
    pub faults: Vec<String>,
}

impl Report {
    pub(super) fn add(
        &mut self,
        arrangement: Arrangement,
        profile: Profile,
        seed: u64,
        played: &Played,
        verdict: &Verdict,
    ) {
        let Played { round, counts, raged, .. } = played;
        let harm: usize = counts.values().sum();
        let longest = verdict.granted_overlaps.iter().max().copied().unwrap_or(0);
        self.rounds.push(format!(
            "{arrangement:?} {profile:?}, seed {seed}, {:.0} s: {} runs, {} grants, {harm} faults; overlaps: {}, and {} that \
             are granted (at most {:.0} ms); {} additions, {} lost, {} refused; {} pairs in order; longest stall {:.1} s; \
             wrong: {}",
            raged.as_secs_f64(),
            round.runs.len(),
            verdict.grants,
            verdict.overlaps(),
            verdict.granted_overlaps.len(),
            seconds(longest) * 1000.0,
            verdict.accepted,
            verdict.lost,
            verdict.refused,
            verdict.pairs,
            seconds(verdict.longest_stall),
            verdict.faults.len(),
        ));
        println!("{}", self.rounds.last().expect("it was pushed"));
        for (kind, count) in counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.grants += verdict.grants;
        self.runs += round.runs.len();
        self.granted_overlaps.extend(&verdict.granted_overlaps);
        self.overlaps += verdict.overlaps();
        self.lost += verdict.lost;
        self.pairs += verdict.pairs;
        self.refused += verdict.refused;
        self.accepted += verdict.accepted;
        self.longest_stall = self.longest_stall.max(verdict.longest_stall);
        for (number, (fault, what)) in verdict.faults.iter().enumerate() {
            let line = format!("{arrangement:?} {profile:?} seed {seed}: {fault:?}: {what}");
            // The first 20 faults are enough to read.
            if number < 20 {
                println!("{line}");
            }
            self.faults.push(line);
        }
    }

    /// The whole night in a few lines.
    pub fn summary(&self, took: Duration) -> String {
        let harm: usize = self.counts.values().sum();
        let mut text = format!(
            "{:.1} min: {} runs, {} grants, {harm} faults\n",
            took.as_secs_f64() / 60.0,
            self.runs,
            self.grants
        );
        for (kind, count) in &self.counts {
            let _ = writeln!(text, "  {count:>5} {kind}");
        }
        let longest = self.granted_overlaps.iter().max().copied().unwrap_or(0);
        let _ = writeln!(
            text,
            "overlaps: {}, and {} within what is granted, the longest {:.0} ms\nlost updates: {}; {} were taken, {} refused \
             as stale\n{} pairs of which it was judged that who came first was served first\nlongest stall {:.1} s; wrong: {}",
            self.overlaps,
            self.granted_overlaps.len(),
            seconds(longest) * 1000.0,
            self.lost,
            self.accepted,
            self.refused,
            self.pairs,
            seconds(self.longest_stall),
            self.faults.len()
        );
        text
    }
}
