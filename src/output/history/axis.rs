//! Where on the line is a moment? The time axis of the picture: bars drawn to half a character, and a head with times
//! at round places.

use crate::law::LoggedEnd;
use crate::output::locale::Charset;
use crate::output::time;

/// The distances that marks may have, in seconds: up to half a minute, half an hour, half a day, and 20 days.
const STEPS: [u64; 22] = [
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
    172_800, 432_000, 864_000, 1_728_000,
];

/// The space between two labels at least.
const APART: u64 = 3;

/// By the ink of the left half and that of the right one.
const STROKES: [[char; 3]; 3] = [[' ', '╶', '╺'], ['╴', '─', '╼'], ['╸', '╾', '━']];

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
        (0..last).map(|cell| self.stroke(ink(2 * cell), ink(2 * cell + 1))).collect()
    }

    fn stroke(&self, left: Ink, right: Ink) -> char {
        match (self.charset, left.max(right)) {
            (_, Ink::None) => ' ',
            (Charset::Ascii, Ink::Thin) => '-',
            (Charset::Ascii, Ink::Thick) => '=',
            (Charset::Unicode, _) => STROKES[left as usize][right as usize],
        }
    }

    /// The times above the bars: a mark and a label at round local times, as close as there is room for.
    pub fn head(&self) -> String {
        let room = |step| time::label(0, step).len() as u64 + 1 + APART;
        let fits = |step: &u64| step * self.width as u64 / self.span >= room(*step);
        let Some(step) = STEPS.map(|seconds| seconds * 1000).into_iter().find(fits) else {
            return String::new();
        };
        let mark = if self.charset == Charset::Unicode { '╷' } else { '|' };
        let mut head: Vec<char> = Vec::new();
        let mut at = time::next_round(self.from, step);
        while at <= self.from.saturating_add(self.span) {
            let place = self.place(at, self.width);
            let label = time::label(at, step);
            // After a change of the clocks two marks may come closer than they should.
            let free = head.is_empty() || head.len() + 1 < place;
            if free && place + 1 + label.len() <= self.width {
                head.resize(place, ' ');
                head.push(mark);
                head.extend(label.chars());
            }
            // A store may tell of any time.
            let Some(next) = at.checked_add(1) else { break };
            at = time::next_round(next, step);
        }
        head.into_iter().collect()
    }
}
