//! What time is it? The leader stamps what it writes, and from there one counts on: how far, and how well.

use super::jute::{Answer, Ask, Code};
use crate::clock::Moment;
use std::time::Duration;

/// So long one counts on from a stamp of the leader's clock.
pub(super) const STAMP_GOOD: Duration = Duration::from_secs(2);
/// Two clocks that do not run alike differ by one part in so many, at the most.
const DRIFT: u32 = 100;

/// What the clock of the leader showed.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    /// In milliseconds since 1970.
    pub(super) at: u64,
    /// It was read between these.
    pub(super) sent: Moment,
    pub(super) heard: Moment,
}

impl Stamp {
    /// No later than that clock shows at a moment, in microseconds since 1970.
    pub(super) fn lower(self, now: Moment) -> u64 {
        let passed = now.since(self.heard);
        (self.at * 1000).saturating_add(micros(passed - passed / DRIFT))
    }

    /// No earlier.
    pub(super) fn upper(self, now: Moment) -> u64 {
        let passed = now.since(self.sent);
        (self.at * 1000 + 1000).saturating_add(micros(passed + passed / DRIFT))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// When the leader did what was asked, if it tells.
pub(super) fn stamped(ask: &Ask, answer: &Result<Answer, Code>) -> Option<u64> {
    match (ask, answer.as_ref().ok()?) {
        (
            Ask::Set { .. } | Ask::SetIf { .. } | Ask::Create { .. } | Ask::CreateForSession { .. },
            Answer::Stat(stat),
        ) => Some(stat.mtime),
        (Ask::All(asks), Answer::All(answers)) => {
            asks.iter().zip(answers).find_map(|(ask, answer)| stamped(ask, &Ok(answer.clone())))
        }
        _ => None,
    }
}
