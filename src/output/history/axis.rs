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

/// What the bars are measured by.
pub enum Bars {
    Times(Axis),
    Lengths(Scale),
}

impl Bars {
    pub fn of(log: &[LoggedEnd], width: usize) -> Self {
        if are_close(log) {
            Self::Times(Axis::over(log, width))
        } else {
            Self::Lengths(Scale::over(log, width))
        }
    }

    pub fn bar(&self, end: &LoggedEnd) -> String {
        match self {
            Self::Times(axis) => axis.bar(end),
            Self::Lengths(scale) => scale.bar(end),
        }
    }

    pub fn head(&self) -> String {
        match self {
            Self::Times(axis) => axis.head(),
            Self::Lengths(scale) => scale.head(),
        }
    }
}

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

/// A scale of durations: each bar begins at the left.
pub struct Scale {
    /// The duration at the right end in milliseconds; not zero.
    to: u64,
    /// In characters.
    width: usize,
}

impl Scale {
    pub fn over(log: &[LoggedEnd], width: usize) -> Self {
        Self { to: log.iter().map(held).max().unwrap_or(0).max(1), width }
    }

    /// The place of a duration among `parts` equal parts.
    fn place(&self, length: u64, parts: usize) -> usize {
        share(length, self.to, parts)
    }

    /// The bar of one run, at least half a character.
    fn bar(&self, end: &LoggedEnd) -> String {
        let ended = self.place(held(end), self.width * 2).max(1);
        let ink = |half: usize| if half < ended { Ink::Thick } else { Ink::None };
        (0..ended.div_ceil(2)).map(|cell| stroke(ink(2 * cell), ink(2 * cell + 1))).collect()
    }

    /// The durations above the bars: as many round ones as fit.
    fn head(&self) -> String {
        let label = |millis: u64| match millis {
            0 => "0".into(),
            _ => time::span(Duration::from_millis(millis)),
        };
        // The longest label is that of an odd number of half minutes.
        let room = "59m30s".len() as u64 + 1;
        let fits = |step: &u64| step.saturating_mul(self.width as u64) / self.to >= room;
        let Some(step) = FRACTIONS.into_iter().chain(STEPS.map(|seconds| seconds * 1000)).find(fits) else {
            return String::new();
        };
        let mut marks = Marks::new(self.width);
        for number in 0..=self.to / step {
            marks.add(self.place(number * step, self.width), &label(number * step));
        }
        marks.text()
    }
}

/// The line above the bars, with marks and labels.
struct Marks {
    text: Vec<char>,
    width: usize,
}

impl Marks {
    fn new(width: usize) -> Self {
        Self { text: Vec::new(), width }
    }

    /// Adds a mark at this place and its label, if there is room for them.
    fn add(&mut self, place: usize, label: &str) {
        let free = self.text.is_empty() || self.text.len() + 1 < place;
        if free && place + 1 + label.len() <= self.width {
            self.text.resize(place, ' ');
            self.text.push('╷');
            self.text.extend(label.chars());
        }
    }

    fn text(self) -> String {
        self.text.into_iter().collect()
    }
}

/// The time axis of all ends of a log.
pub struct Axis {
    from: u64,
    /// The length in milliseconds; not zero.
    span: u64,
    /// In characters.
    width: usize,
}

/// How strongly half a character is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ink {
    None,
    Thin,
    Thick,
}

impl Axis {
    /// The axis from the start of the first wait to the last end, `width` characters long.
    pub fn over(log: &[LoggedEnd], width: usize) -> Self {
        let from = log.iter().map(|end| end.since.saturating_sub(end.waited)).min().unwrap_or(0);
        let to = log.iter().map(|end| end.ended).max().unwrap_or(0);
        Self { from, span: to.saturating_sub(from).max(1), width }
    }

    /// The place of a moment among `parts` equal parts.
    fn place(&self, at: u64, parts: usize) -> usize {
        share(at.saturating_sub(self.from), self.span, parts)
    }

    /// The bar of one run: thin while it waited, thick while it held the lock, at least half a
    /// character.
    pub fn bar(&self, end: &LoggedEnd) -> String {
        let halves = self.width * 2;
        let queued = self.place(end.since.saturating_sub(end.waited), halves);
        let since = self.place(end.since, halves).min(halves - 1);
        let ended = self.place(end.ended, halves).max(since + 1);
        let ink = |half: usize| match half {
            _ if (since..ended).contains(&half) => Ink::Thick,
            _ if (queued..since).contains(&half) => Ink::Thin,
            _ => Ink::None,
        };
        let last = ended.div_ceil(2);
        (0..last).map(|cell| stroke(ink(2 * cell), ink(2 * cell + 1))).collect()
    }

    /// The times above the bars: marks and labels at round local times, as close as they fit.
    pub fn head(&self) -> String {
        let room = |step| time::label(0, step).len() as u64 + 1 + LABEL_GAP;
        let fits = |step: &u64| step * self.width as u64 / self.span >= room(*step);
        let Some(step) = STEPS.map(|seconds| seconds * 1000).into_iter().find(fits) else {
            return String::new();
        };
        let mut marks = Marks::new(self.width);
        let mut at = time::next_round(self.from, step);
        // After a clock change two marks may come closer than planned.
        while at <= self.from.saturating_add(self.span) {
            marks.add(self.place(at, self.width), &time::label(at, step));
            // A record may contain any time.
            let Some(next) = at.checked_add(1) else { break };
            at = time::next_round(next, step);
        }
        marks.text()
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
