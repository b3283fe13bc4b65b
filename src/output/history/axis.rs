//! What do the bars of the picture show? Where the runs follow each other closely, the place of each on one time axis. Else
//! only how long each took, on a scale: on a time axis nightly runs of ten minutes would be ticks. Bars are drawn to half a
//! character, and a head has times or durations at round places.

use crate::output::locale::Charset;
use crate::output::time;
use crate::rules::LoggedEnd;
use std::time::Duration;

/// The distances that marks may have, in seconds: up to half a minute, half an hour, half a day, and 20 days.
const STEPS: [u64; 22] = [
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
    172_800, 432_000, 864_000, 1_728_000,
];

/// The distances that marks of a linear scale may have below a second, in milliseconds.
const FRACTIONS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];

/// Where a logarithmic scale may have marks, in milliseconds: from 1ms to 10 days.
const DECADES: [u64; 12] =
    [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 345_600_000, 864_000_000];

/// The time axis is shown if at least one part in so many of it is covered by runs.
const COVERED: u64 = 4;

/// From here on the scale is logarithmic: the longest run took so many times as long as the median one.
const UNEVEN: u64 = 10;

/// The space between two labels at least.
const APART: u64 = 3;

/// By the ink of the left half and that of the right one.
const STROKES: [[char; 3]; 3] = [[' ', '╶', '╺'], ['╴', '─', '╼'], ['╸', '╾', '━']];

/// What the bars of a picture are measured by.
pub enum Bars {
    Times(Axis),
    Lengths(Scale),
}

impl Bars {
    pub fn of(log: &[LoggedEnd], width: usize, charset: Charset) -> Self {
        if are_close(log) {
            Self::Times(Axis::over(log, width, charset))
        } else {
            Self::Lengths(Scale::over(log, width, charset))
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

/// Whether the runs overlap or follow each other closely: some run waits or holds for at least a quarter of the time.
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

/// How long the runs took: each bar begins at the left.
pub struct Scale {
    /// The duration at the left end, in milliseconds: 0 on a linear scale, more on a logarithmic one.
    from: u64,
    /// The duration at the right end; more than `from`.
    to: u64,
    /// In characters.
    width: usize,
    charset: Charset,
}

impl Scale {
    pub fn over(log: &[LoggedEnd], width: usize, charset: Charset) -> Self {
        let mut lengths: Vec<u64> = log.iter().map(held).collect();
        lengths.sort_unstable();
        let [least, median, most] = [0, lengths.len().saturating_sub(1) / 2, lengths.len().saturating_sub(1)]
            .map(|at| lengths.get(at).copied().unwrap_or(0).max(1));
        // Four decades are enough: a run that failed at once is as short as any.
        let from = if most / UNEVEN > median { (least / 2).max(most / 10_000).max(1) } else { 0 };
        Self { from, to: most, width, charset }
    }

    /// The place of a duration among `parts` equal parts.
    fn place(&self, length: u64, parts: usize) -> usize {
        if self.from == 0 {
            let part = u128::from(length) * parts as u128 / u128::from(self.to);
            return usize::try_from(part).unwrap_or(usize::MAX).min(parts);
        }
        let seconds = |millis: u64| Duration::from_millis(millis).as_secs_f64();
        let (from, length, to) = (seconds(self.from), seconds(length.max(1)), seconds(self.to));
        let share = (length / from).ln() / (to / from).ln();
        (1..=parts).take_while(|part| *part as f64 <= share * parts as f64 + 1e-9).count()
    }

    /// One run, never less than half a character.
    fn bar(&self, end: &LoggedEnd) -> String {
        let ended = self.place(held(end), self.width * 2).max(1);
        let ink = |half: usize| if half < ended { Ink::Thick } else { Ink::None };
        (0..ended.div_ceil(2)).map(|cell| stroke(self.charset, ink(2 * cell), ink(2 * cell + 1))).collect()
    }

    /// The durations above the bars: as many round ones as there is room for.
    fn head(&self) -> String {
        let label = |millis: u64| match millis {
            0 => "0".into(),
            _ => time::span(Duration::from_millis(millis)),
        };
        let mut marks = Marks::new(self.width, self.charset);
        if self.from > 0 {
            for millis in DECADES.into_iter().filter(|millis| (self.from..=self.to).contains(millis)) {
                marks.add(self.place(millis, self.width), &label(millis));
            }
            return marks.text();
        }
        // The longest label of a scale is that of an odd number of minutes or hours and a half.
        let room = "59m30s".len() as u64 + 1;
        let fits = |step: &u64| step.saturating_mul(self.width as u64) / self.to >= room;
        let Some(step) = FRACTIONS.into_iter().chain(STEPS.map(|seconds| seconds * 1000)).find(fits) else {
            return String::new();
        };
        for number in 0..=self.to / step {
            marks.add(self.place(number * step, self.width), &label(number * step));
        }
        marks.text()
    }
}

/// The line above the bars, with marks and their labels.
struct Marks {
    text: Vec<char>,
    width: usize,
    mark: char,
}

impl Marks {
    fn new(width: usize, charset: Charset) -> Self {
        Self { text: Vec::new(), width, mark: if charset == Charset::Unicode { '╷' } else { '|' } }
    }

    /// Adds a mark at this place and its label, if there is room for them.
    fn add(&mut self, place: usize, label: &str) {
        let free = self.text.is_empty() || self.text.len() + 1 < place;
        if free && place + 1 + label.len() <= self.width {
            self.text.resize(place, ' ');
            self.text.push(self.mark);
            self.text.extend(label.chars());
        }
    }

    fn text(self) -> String {
        self.text.into_iter().collect()
    }
}

/// The axis under all ends of a log.
pub struct Axis {
    from: u64,
    /// What it spans, in milliseconds; not zero.
    span: u64,
    /// In characters.
    width: usize,
    charset: Charset,
}

/// How strongly half a character is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ink {
    None,
    Thin,
    Thick,
}

impl Axis {
    /// The axis from the first moment that anybody waited to the last end, `width` characters long.
    pub fn over(log: &[LoggedEnd], width: usize, charset: Charset) -> Self {
        let from = log.iter().map(|end| end.since.saturating_sub(end.waited)).min().unwrap_or(0);
        let to = log.iter().map(|end| end.ended).max().unwrap_or(0);
        Self { from, span: to.saturating_sub(from).max(1), width, charset }
    }

    /// The place of a moment among `parts` equal parts.
    fn place(&self, at: u64, parts: usize) -> usize {
        let part = u128::from(at.saturating_sub(self.from)) * parts as u128 / u128::from(self.span);
        usize::try_from(part).unwrap_or(usize::MAX).min(parts)
    }

    /// One run: thin while it waited, thick while it held, never less than half a character.
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
        (0..last).map(|cell| stroke(self.charset, ink(2 * cell), ink(2 * cell + 1))).collect()
    }

    /// The times above the bars: a mark and a label at round local times, as close as there is room for.
    pub fn head(&self) -> String {
        let room = |step| time::label(0, step).len() as u64 + 1 + APART;
        let fits = |step: &u64| step * self.width as u64 / self.span >= room(*step);
        let Some(step) = STEPS.map(|seconds| seconds * 1000).into_iter().find(fits) else {
            return String::new();
        };
        let mut marks = Marks::new(self.width, self.charset);
        let mut at = time::next_round(self.from, step);
        // After a change of the clocks two marks may come closer than they should.
        while at <= self.from.saturating_add(self.span) {
            marks.add(self.place(at, self.width), &time::label(at, step));
            // A store may tell of any time.
            let Some(next) = at.checked_add(1) else { break };
            at = time::next_round(next, step);
        }
        marks.text()
    }
}

fn stroke(charset: Charset, left: Ink, right: Ink) -> char {
    match (charset, left.max(right)) {
        (_, Ink::None) => ' ',
        (Charset::Ascii, Ink::Thin) => '-',
        (Charset::Ascii, Ink::Thick) => '=',
        (Charset::Unicode, _) => STROKES[left as usize][right as usize],
    }
}
