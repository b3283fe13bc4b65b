//! The bars of the history. If the runs follow each other closely, all bars are on one time axis.
//! Otherwise each bar shows only the duration of its run, because nightly runs of ten minutes would
//! be mere ticks on a time axis. Bars are drawn to half a character; the head has round times or
//! durations.

use crate::output::time;
use crate::rules::LoggedEnd;
use std::time::Duration;

/// Possible distances between marks, in seconds: from one second to 20 days.
const STEPS: [u64; 22] = [
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
    172_800, 432_000, 864_000, 1_728_000,
];

/// Possible distances below a second between marks of durations, in milliseconds.
const FRACTIONS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];

/// Divisor: the time axis is used if the runs cover at least this part of it.
const COVERED: u64 = 4;

/// Smallest space between two labels.
const LABEL_GAP: u64 = 3;

/// Characters by the ink of their left half and right half.
const STROKES: [[char; 3]; 3] = [[' ', '╶', '╺'], ['╴', '─', '╼'], ['╸', '╾', '━']];

/// Whether the runs overlap or follow each other closely: runs wait or hold in at least a quarter
/// of the time.
pub fn are_close(log: &[LoggedEnd]) -> bool {
    let mut runs: Vec<(u64, u64)> =
        log.iter().map(|end| (end.since.saturating_sub(end.waited), end.ended)).collect();
    runs.sort_unstable();
    let (Some(first), Some(last)) = (runs.first().map(|run| run.0), runs.iter().map(|run| run.1).max())
    else {
        return true;
    };
    let (mut covered, mut until) = (0, first);
    for (from, to) in runs {
        covered += to.saturating_sub(from.max(until));
        until = until.max(to);
    }
    covered >= last.saturating_sub(first) / COVERED
}

fn held(end: &LoggedEnd) -> u64 {
    end.ended.saturating_sub(end.since)
}

/// What is above the bars.
pub struct Axis {
    /// What the bars show.
    shows: Shows,
    from: u64,
    /// The length in milliseconds; not zero.
    span: u64,
    /// In characters.
    width: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    Times,
    /// Each bar begins at the left.
    Durations,
}

/// How strongly half a character is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ink {
    None,
    Thin,
    Thick,
}

impl Axis {
    /// The axis for the bars of these ends, `width` characters long.
    pub fn of(log: &[LoggedEnd], width: usize) -> Self {
        if are_close(log) {
            return Self::of_times(log, width);
        }
        let longest = log.iter().map(held).max().unwrap_or(0);
        Self { shows: Shows::Durations, from: 0, span: longest.max(1), width }
    }

    /// The axis from the start of the first wait to the last end.
    pub fn of_times(log: &[LoggedEnd], width: usize) -> Self {
        let from = log.iter().map(|end| end.since.saturating_sub(end.waited)).min().unwrap_or(0);
        let to = log.iter().map(|end| end.ended).max().unwrap_or(0);
        Self { shows: Shows::Times, from, span: to.saturating_sub(from).max(1), width }
    }

    /// The place of a moment or duration among `parts` equal parts.
    fn place(&self, at: u64, parts: usize) -> usize {
        share(at.saturating_sub(self.from), self.span, parts)
    }

    /// The bar of one run: thin while it waited, thick while it held the lock, at least half a
    /// character.
    pub fn bar(&self, end: &LoggedEnd) -> String {
        let halves = self.width * 2;
        let (queued, since, ended) = match self.shows {
            Shows::Times => (end.since.saturating_sub(end.waited), end.since, end.ended),
            Shows::Durations => (0, 0, held(end)),
        };
        let queued = self.place(queued, halves);
        let since = self.place(since, halves).min(halves - 1);
        let ended = self.place(ended, halves).max(since + 1);
        let ink = |half: usize| match half {
            _ if (since..ended).contains(&half) => Ink::Thick,
            _ if (queued..since).contains(&half) => Ink::Thin,
            _ => Ink::None,
        };
        let last = ended.div_ceil(2);
        (0..last).map(|cell| stroke(ink(2 * cell), ink(2 * cell + 1))).collect()
    }

    /// The line above the bars: marks and labels at round local times or durations, as close as they
    /// fit.
    pub fn head(&self) -> String {
        let least = if self.shows == Shows::Times { 1000 } else { 1 };
        let fits = |step: &u64| step.saturating_mul(self.width as u64) / self.span >= self.label_room(*step);
        let steps = FRACTIONS.into_iter().chain(STEPS.map(|seconds| seconds * 1000));
        let Some(step) = steps.filter(|step| *step >= least).find(fits) else { return String::new() };
        let mut text = Vec::new();
        let mut at = self.round(self.from, step);
        while at <= self.from.saturating_add(self.span) {
            let (place, label) = (self.place(at, self.width), self.label(at, step));
            // After a clock change two marks may come closer than planned.
            let is_free = text.is_empty() || text.len() + 1 < place;
            if is_free && place + 1 + label.len() <= self.width {
                text.resize(place, ' ');
                text.push('╷');
                text.extend(label.chars());
            }
            // A record may contain any time.
            let Some(next) = at.checked_add(1) else { break };
            at = self.round(next, step);
        }
        text.into_iter().collect()
    }

    /// The first round time or duration from this one on.
    fn round(&self, at: u64, step: u64) -> u64 {
        match self.shows {
            Shows::Times => time::next_round(at, step),
            Shows::Durations => at.checked_next_multiple_of(step).unwrap_or(u64::MAX),
        }
    }

    fn label(&self, at: u64, step: u64) -> String {
        match self.shows {
            Shows::Times => time::label(at, step),
            Shows::Durations if at == 0 => "0".into(),
            Shows::Durations => time::span(Duration::from_millis(at)),
        }
    }

    /// The columns for a mark and the longest label.
    fn label_room(&self, step: u64) -> u64 {
        match self.shows {
            Shows::Times => time::label(0, step).len() as u64 + 1 + LABEL_GAP,
            // The longest is that of an odd number of half minutes.
            Shows::Durations => "59m30s".len() as u64 + 1,
        }
    }
}

/// How many of `parts` equal parts of `whole` a part of it covers.
fn share(part: u64, whole: u64, parts: usize) -> usize {
    let share = u128::from(part) * parts as u128 / u128::from(whole);
    usize::try_from(share).unwrap_or(usize::MAX).min(parts)
}

fn stroke(left: Ink, right: Ink) -> char {
    STROKES[left as usize][right as usize]
}
