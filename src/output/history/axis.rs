//! Where on the line is a moment? The time axis of the picture: bars drawn to half a character, and a head with times
//! at round places.

use crate::law::LoggedEnd;
use crate::output::locale::Charset;
use crate::output::time::{self, Unit};

/// The distances that marks may have, in milliseconds, and how finely their labels say the time.
const STEPS: [(u64, Unit); 22] = {
    const S: u64 = 1000;
    const M: u64 = 60 * S;
    const H: u64 = 60 * M;
    const D: u64 = 24 * H;
    [
        (S, Unit::Second),
        (2 * S, Unit::Second),
        (5 * S, Unit::Second),
        (10 * S, Unit::Second),
        (20 * S, Unit::Second),
        (30 * S, Unit::Second),
        (M, Unit::Minute),
        (2 * M, Unit::Minute),
        (5 * M, Unit::Minute),
        (10 * M, Unit::Minute),
        (20 * M, Unit::Minute),
        (30 * M, Unit::Minute),
        (H, Unit::Minute),
        (2 * H, Unit::Minute),
        (3 * H, Unit::Minute),
        (6 * H, Unit::Minute),
        (12 * H, Unit::Minute),
        (D, Unit::Day),
        (2 * D, Unit::Day),
        (5 * D, Unit::Day),
        (10 * D, Unit::Day),
        (20 * D, Unit::Day),
    ]
};

/// The space between two labels at least.
const APART: u64 = 3;

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
            (Charset::Unicode, _) => match (left, right) {
                (Ink::None, Ink::None) => ' ',
                (Ink::None, Ink::Thin) => '╶',
                (Ink::None, Ink::Thick) => '╺',
                (Ink::Thin, Ink::None) => '╴',
                (Ink::Thin, Ink::Thin) => '─',
                (Ink::Thin, Ink::Thick) => '╼',
                (Ink::Thick, Ink::None) => '╸',
                (Ink::Thick, Ink::Thin) => '╾',
                (Ink::Thick, Ink::Thick) => '━',
            },
        }
    }

    /// The times above the bars: a mark and a label at round local times, as close as there is room for.
    pub fn head(&self) -> String {
        let room = |unit: Unit| u64::try_from(unit.width()).unwrap_or(0) + 1 + APART;
        let fits = |(step, unit): &&(u64, Unit)| step * self.width as u64 / self.span >= room(*unit);
        let Some((step, unit)) = STEPS.iter().find(fits) else { return String::new() };
        let mark = if self.charset == Charset::Unicode { '╷' } else { '|' };
        let mut head: Vec<char> = Vec::new();
        let mut at = time::next_round(self.from, *step);
        while at <= self.from.saturating_add(self.span) {
            let place = self.place(at, self.width);
            let label = time::label(at, *unit);
            // After a change of the clocks two marks may come closer than they should.
            let free = head.is_empty() || head.len() + 1 < place;
            if free && place + 1 + label.len() <= self.width {
                head.resize(place, ' ');
                head.push(mark);
                head.extend(label.chars());
            }
            // A store may tell of any time.
            let Some(next) = at.checked_add(1) else { break };
            at = time::next_round(next, *step);
        }
        head.into_iter().collect()
    }
}
