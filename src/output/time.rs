//! Formats times: local time and rounded spans for people, RFC 3339 in UTC and whole milliseconds
//! for programs. All times come in as milliseconds since 1970. None is compared with this machine's
//! clock.

pub use crate::rules::millis;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use std::time::Duration;

/// A span rounded up to its largest unit, for an estimate.
pub fn about(span: Duration) -> String {
    let seconds = span.as_secs().max(1);
    let unit = [86_400, 3600, 60].into_iter().find(|unit| seconds >= 2 * unit).unwrap_or(1);
    self::span(Duration::from_secs(seconds.div_ceil(unit) * unit))
}

/// A span for people: two units at most.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let two =
        |n: u64, a: &str, m: u64, b: &str| if m == 0 { format!("{n}{a}") } else { format!("{n}{a}{m}{b}") };
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// The span of `--once-per`. Its words mean half of what they name.
pub fn once_per(span: Duration) -> String {
    match span.as_millis() {
        30_000 => "half a minute".into(),
        1_800_000 => "half an hour".into(),
        43_200_000 => "half a day".into(),
        302_400_000 => "half a week".into(),
        _ => self::span(span),
    }
}

/// A local time: the time of day, with the date before it if that differs from the date of `now`.
pub fn local(at: u64, now: u64) -> String {
    let (at, now) = (zoned(at), zoned(now));
    let form = if at.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    at.strftime(form).to_string()
}

/// A local time with its date.
pub fn whole(at: u64) -> String {
    zoned(at).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A local time with its date and zone.
pub fn moment(at: u64) -> String {
    zoned(at).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// Whether all these moments are on the day of `now`, in local time.
pub fn are_of_today(all: impl IntoIterator<Item = u64>, now: u64) -> bool {
    let today = zoned(now).date();
    all.into_iter().all(|at| zoned(at).date() == today)
}

/// A local time: the time of day alone, or to the minute with month and day.
pub fn short(at: u64, is_of_today: bool) -> String {
    let form = if is_of_today { "%H:%M:%S" } else { "%m-%d %H:%M" };
    zoned(at).strftime(form).to_string()
}

/// The label of a mark on an axis whose marks are `step` milliseconds apart.
pub fn label(at: u64, step: u64) -> String {
    let at = zoned(at);
    let form = match step {
        ..60_000 => "%H:%M:%S",
        60_000..86_400_000 if at.hour() != 0 || at.minute() != 0 => "%H:%M",
        _ => "%m-%d",
    };
    at.strftime(form).to_string()
}

/// The first moment from `at` on whose local time is a multiple of `step` milliseconds.
pub fn next_round(at: u64, step: u64) -> u64 {
    let offset = TimeZone::system().to_offset(stamp(at)).seconds();
    let local = i128::from(at) + i128::from(offset) * 1000;
    let past = local.rem_euclid(i128::from(step.max(1)));
    let more = if past == 0 { 0 } else { i128::from(step) - past };
    u64::try_from(i128::from(at) + more).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC, to the millisecond.
pub fn utc(at: u64) -> String {
    format!("{:.3}", stamp(at))
}

/// This machine's time.
pub fn now() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// Clamps a number from a store that is beyond the last possible time.
fn zoned(at: u64) -> Zoned {
    stamp(at).to_zoned(TimeZone::system())
}

fn stamp(at: u64) -> Timestamp {
    i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (59_999, "59s"),
            (60_000, "1m"),
            (192_000, "3m12s"),
            (3_600_000, "1h"),
            (5_405_000, "1h30m"),
            (86_400_000, "1d"),
            (100_000_000, "1d3h"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn times() {
        assert_eq!(utc(1_763_724_242_007), "2025-11-21T11:24:02.007Z");
        assert_eq!(local(u64::MAX, 0).len(), "9999-12-30 22:00:00".len());
        let (today, before) =
            (local(1_763_724_242_007, 1_763_724_243_000), local(1_663_724_242_007, 1_763_724_243_000));
        assert_eq!((today.len(), before.len()), (8, 19));
    }
}
