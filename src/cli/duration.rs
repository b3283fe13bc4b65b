//! Parses a span of time: `90s`, `1h30m`, or bare seconds with or without a fraction, as flock(1)
//! takes them. Months and years are refused: nobody means 30.44 days.

use crate::lock::PAUSE_MOST;
use std::time::Duration;

/// What a duration may look like, for messages.
const ALLOWED: &str = "a duration is like 90s, 1h30m, 500ms, or seconds like 1.5";

/// Most digits in one number: more than anybody needs, and too few to overflow.
const DIGITS_MAX: usize = 10;

/// Units that humantime accepts and nobody means.
const REFUSED: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];

/// Parses a duration. The error says what is allowed.
pub fn parse(text: &str) -> Result<Duration, String> {
    let refused = || Err(ALLOWED.to_owned());
    let numbers = text.split(|c: char| !c.is_ascii_digit());
    if numbers.map(str::len).max().unwrap_or(0) > DIGITS_MAX {
        return Err(format!("{ALLOWED}; numbers have at most {DIGITS_MAX} digits"));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        return seconds.map_or_else(refused, Ok);
    }
    let begins_with_number = text.starts_with(|c: char| c.is_ascii_digit());
    if begins_with_number && text.split(|c: char| !c.is_alphabetic()).any(|word| REFUSED.contains(&word)) {
        return Err(format!("{ALLOWED}; the greatest unit is the week (1w), a minute is 1m"));
    }
    humantime::parse_duration(text).or_else(|_| refused())
}

/// Parses a duration greater than zero.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    let span = parse(text)?;
    if span.is_zero() { Err("must be greater than 0".into()) } else { Ok(span) }
}

/// Parses the length of a pause.
pub fn parse_pause(text: &str) -> Result<Duration, String> {
    let span = parse_positive(text)?;
    if span < Duration::from_millis(1) {
        Err("a pause lasts 1ms at least".into())
    } else if span > PAUSE_MOST {
        Err("a pause lasts 40 days at most".into())
    } else {
        Ok(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_spellings_are_parsed() {
        for (text, millis) in [
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("500ms", 500),
            ("2d", 172_800_000),
            ("1w", 604_800_000),
            ("0", 0),
            ("10", 10_000),
            ("1.5", 1_500),
            ("0.25", 250),
            (".5", 500),
            ("3.", 3_000),
            ("1.5s", 1_500),
            ("0.5h", 1_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn malformed_durations_are_refused() {
        for text in [
            "",
            " ",
            ".",
            "..",
            "1.2.3",
            "-1",
            "-1s",
            "+1",
            "1e3",
            "nan",
            "inf",
            "1M",
            "1month",
            "2 months",
            "1y",
            "1 year",
            "1x",
            "s",
            "1h30",
            "10 20",
            "99999999999",
            "99999999999s",
            "18446744073709551615s 1000000000ns",
            "1:30",
            "٣s",
            "infinity",
            "sleep",
        ] {
            assert!(parse(text).is_err(), "{text:?} gave {:?}", parse(text));
        }
    }

    #[test]
    fn refused_unit_gets_a_hint() {
        for (text, named) in [("1M", true), ("2 years", true), ("PT5M", false), ("M", false), ("soon", false)]
        {
            assert_eq!(parse(text).is_err_and(|why| why.contains("week")), named, "{text}");
        }
    }

    #[test]
    fn timeouts_are_not_zero() {
        assert!(parse_positive("0").is_err());
        assert!(parse_positive("0ms").is_err());
        assert_eq!(parse_positive("1ms"), Ok(Duration::from_millis(1)));
        assert!(parse_pause("0.0001").is_err());
        assert_eq!(parse_pause("1ms"), Ok(Duration::from_millis(1)));
    }
}
