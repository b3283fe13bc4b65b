//! Parses a moment: a time of day, a date or `yesterday` in this machine's zone, or a span from now.
//! In the hour that a clock shows twice, the last one and the next one are meant, but a day begins with
//! the first of two midnights; a time that a clock skips is moved on by what it skips.

use super::duration;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan as _};
use std::time::Duration;

/// What a moment may look like, for messages.
const ALLOWED: &str = "a moment is like 03:00, yesterday or '2026-11-28 03:00'";

/// A moment, as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// This long before or after now.
    Span(Duration),
    /// The midnight at which yesterday began.
    Yesterday,
    /// The same time on each day.
    TimeOfDay(Time),
    /// The midnight at which this day begins.
    Day(Date),
    At(DateTime),
}

/// Parses a moment or a duration.
pub fn parse(text: &str) -> Result<Point, String> {
    if text == "yesterday" {
        return Ok(Point::Yesterday);
    }
    let form = |form| Time::strptime(form, text).ok();
    if let Some(time) = form("%H:%M").or_else(|| form("%H:%M:%S")) {
        return Ok(Point::TimeOfDay(time));
    }
    let form = |form| DateTime::strptime(form, text).ok();
    let at = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
        .into_iter()
        .find_map(form);
    let date = || Date::strptime("%Y-%m-%d", text).ok();
    match at.map(Point::At).or_else(|| date().map(Point::Day)) {
        Some(point) => Ok(point),
        None => duration::parse(text).map(Point::Span).map_err(|why| format!("{ALLOWED}; {why}")),
    }
}

/// Parses the end of a pause. `03.00` and `18` may be meant as times of day, and bare seconds, which
/// they would be otherwise, are of no use here.
pub fn parse_end(text: &str) -> Result<Point, String> {
    if text.chars().all(|letter| letter.is_ascii_digit() || letter == '.') {
        return Err("write 03:00 for a time of day, and 3s or 18h for a span".into());
    }
    match parse(text)? {
        Point::Span(_) => duration::parse_pause(text).map(Point::Span),
        point => Ok(point),
    }
}

impl Point {
    /// The last such moment at `now`, both in milliseconds since 1970; None if it is to come.
    pub fn last(self, now: u64) -> Option<u64> {
        self.last_in(&TimeZone::system(), now)
    }

    /// The next such moment after `now`; None if it is over.
    pub fn next(self, now: u64) -> Option<u64> {
        self.next_in(&TimeZone::system(), now)
    }

    fn last_in(self, zone: &TimeZone, now: u64) -> Option<u64> {
        match self {
            Self::Span(span) => Some(now.saturating_sub(millis(span))),
            _ => self.near(zone, now).into_iter().filter(|at| *at <= now).max(),
        }
    }

    fn next_in(self, zone: &TimeZone, now: u64) -> Option<u64> {
        match self {
            Self::Span(span) => Some(now.saturating_add(millis(span))),
            _ => self.near(zone, now).into_iter().filter(|at| *at > now).min(),
        }
    }

    /// The moments that may be meant at `now`.
    fn near(self, zone: &TimeZone, now: u64) -> Vec<u64> {
        let stamp = i64::try_from(now).ok().and_then(|now| Timestamp::from_millisecond(now).ok());
        let Some(today) = stamp.map(|now| zone.to_datetime(now).date()) else { return Vec::new() };
        let on = |days: i64| today.checked_add(days.days()).ok();
        let all: Vec<DateTime> = match self {
            Self::Span(_) => Vec::new(),
            Self::Yesterday => on(-1).map(midnight).into_iter().collect(),
            Self::Day(date) => vec![midnight(date)],
            Self::TimeOfDay(time) => (-2..=2).filter_map(on).map(|date| date.to_datetime(time)).collect(),
            Self::At(at) => vec![at],
        };
        let is_day = matches!(self, Self::Yesterday | Self::Day(_));
        let stamps = all.into_iter().flat_map(|at| {
            let at = zone.to_ambiguous_timestamp(at);
            match at.offset() {
                AmbiguousOffset::Fold { .. } if !is_day => vec![at.earlier(), at.later()],
                _ => vec![at.compatible()],
            }
        });
        stamps.filter_map(|stamp| u64::try_from(stamp.ok()?.as_millisecond()).ok()).collect()
    }
}

fn midnight(date: Date) -> DateTime {
    date.at(0, 0, 0, 0)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Failure = Box<dyn std::error::Error>;

    fn at(text: &str) -> Result<u64, Failure> {
        Ok(u64::try_from(text.parse::<Timestamp>()?.as_millisecond())?)
    }

    #[test]
    fn the_last_and_the_next_in_a_fixed_zone() -> Result<(), Failure> {
        let zone = TimeZone::posix("IST-5:30")?;
        let now = at("2026-11-28T03:30:00+05:30")?;
        for (text, last, next) in [
            ("03:00", Some("2026-11-28T03:00:00+05:30"), Some("2026-11-29T03:00:00+05:30")),
            ("3:30:00", Some("2026-11-28T03:30:00+05:30"), Some("2026-11-29T03:30:00+05:30")),
            ("04:00", Some("2026-11-27T04:00:00+05:30"), Some("2026-11-28T04:00:00+05:30")),
            ("yesterday", Some("2026-11-27T00:00:00+05:30"), None),
            ("2026-11-28", Some("2026-11-28T00:00:00+05:30"), None),
            ("2026-11-29 03:00", None, Some("2026-11-29T03:00:00+05:30")),
            ("2026-11-27T03:00:05", Some("2026-11-27T03:00:05+05:30"), None),
            ("90m", Some("2026-11-28T02:00:00+05:30"), Some("2026-11-28T05:00:00+05:30")),
        ] {
            let point = parse(text)?;
            assert_eq!(point.last_in(&zone, now), last.map(at).transpose()?, "{text}");
            assert_eq!(point.next_in(&zone, now), next.map(at).transpose()?, "{text}");
        }
        for text in ["", "25:00", "03:60", "tomorrow", "2026-02-30", "28.11.2026", "2026-11-28 25:00", "3"] {
            assert!(
                !matches!(
                    parse(text),
                    Ok(Point::TimeOfDay(_) | Point::Day(_) | Point::At(_) | Point::Yesterday)
                ),
                "{text}"
            );
        }
        Ok(())
    }

    /// In Berlin three follows two on the last Sunday of October, and two twice; in March two is left
    /// out.
    #[test]
    fn nights_in_which_the_clock_is_changed() -> Result<(), Failure> {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3")?;
        let half_past_two = parse("02:30")?;
        for (now, last, next) in [
            ("2026-10-25T02:10:00+02:00", "2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00"),
            ("2026-10-25T02:40:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"),
            ("2026-10-25T02:40:00+01:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"),
            ("2026-03-29T01:50:00+01:00", "2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00"),
            ("2026-03-29T03:10:00+02:00", "2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00"),
            ("2026-03-29T04:00:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"),
        ] {
            let now_ms = at(now)?;
            assert_eq!(half_past_two.last_in(&zone, now_ms), Some(at(last)?), "{now}");
            assert_eq!(half_past_two.next_in(&zone, now_ms), Some(at(next)?), "{now}");
        }
        Ok(())
    }

    /// In Havana midnight comes twice on the first Sunday of November, an hour apart, and not at all on
    /// the second one of March. A day begins with the first, or when the clock goes on.
    #[test]
    fn a_day_that_begins_twice_or_late() -> Result<(), Failure> {
        let zone = TimeZone::posix("CST5CDT,M3.2.0/0,M11.1.0/1")?;
        let (twice, late) = (at("2026-11-01T00:00:00-04:00")?, at("2026-03-08T01:00:00-04:00")?);
        for (text, now, began) in [
            ("yesterday", "2026-11-02T09:00:00-05:00", twice),
            ("2026-11-01", "2026-11-02T09:00:00-05:00", twice),
            ("2026-11-01", "2026-11-01T00:30:00-04:00", twice),
            ("yesterday", "2026-03-09T09:00:00-04:00", late),
            ("2026-03-08", "2026-03-09T09:00:00-04:00", late),
        ] {
            assert_eq!(parse(text)?.last_in(&zone, at(now)?), Some(began), "{text} at {now}");
        }
        assert_eq!(parse("2026-11-01")?.next_in(&zone, twice - 1), Some(twice));
        assert_eq!(parse("2026-11-01")?.next_in(&zone, twice), None);
        // A time of day is not a day.
        let second = at("2026-11-01T00:00:00-05:00")?;
        assert_eq!(parse("00:00")?.last_in(&zone, second), Some(second));
        assert_eq!(parse("2026-11-01 00:00")?.last_in(&zone, second), Some(second));
        Ok(())
    }
}
