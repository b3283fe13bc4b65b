//! Pictures of invented histories. The text is printed, to be looked at with `--nocapture`.

use super::*;
use crate::lock::{Fence, Owner};

const NOW: u64 = 1_763_724_720_000;

fn end(hour: u64, minutes: u64, waited: u64, outcome: Outcome, job: Option<Ended>) -> LoggedEnd {
    let since = NOW - hour * 3_600_000;
    LoggedEnd {
        outcome,
        owner: Owner {
            host: format!("web{}", hour % 3),
            pid: 4711,
            user: "app".into(),
            command: "/usr/local/bin/r\u{e9}port --all\u{1b}[31m".into(),
            ..Owner::default()
        },
        fence: Fence(since * 1000),
        since,
        ended: since + minutes * 60_000,
        waited: waited * 60_000,
        job,
        by: (outcome == Outcome::Forced).then(Owner::default),
    }
}

fn log() -> Vec<LoggedEnd> {
    let status = |status| Some(Ended::Code(status));
    vec![
        end(1, 7, 0, Outcome::Released, status(0)),
        end(2, 12, 20, Outcome::Released, status(3)),
        end(3, 1, 0, Outcome::Released, Some(Ended::Signal(15))),
        end(4, 55, 0, Outcome::Expired, None),
        end(6, 0, 0, Outcome::Released, status(0)),
        end(8, 90, 0, Outcome::Forced, None),
        end(9, 40, 70, Outcome::Released, None),
    ]
}

const PLAIN: Style = Style { coloured: Coloured::No, charset: Charset::Unicode };

#[test]
fn a_picture_fits_its_terminal() {
    for columns in [36, 50, 80, 140, 300] {
        for charset in [Charset::Unicode, Charset::Ascii] {
            let text = picture(&log(), NOW, columns, Style { charset, ..PLAIN });
            println!("{text}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            assert_eq!(text.lines().count(), 8);
            assert!(charset == Charset::Unicode || text.is_ascii(), "{text}");
            assert!(!text.contains('\x1b'));
        }
    }
}

#[test]
fn colour_adds_nothing_but_colour() {
    let coloured = Style { coloured: Coloured::Yes, ..PLAIN };
    for (with, without) in [
        (picture(&log(), NOW, 100, coloured), picture(&log(), NOW, 100, PLAIN)),
        (table(&log(), coloured), table(&log(), PLAIN)),
    ] {
        let stripped =
            regex_lite::Regex::new("\x1b\\[[0-9]*m").map(|escape| escape.replace_all(&with, "").into_owned());
        assert_eq!(stripped.as_deref(), Ok(without.as_str()));
        for code in [31, 32, 33, 35] {
            assert!(with.contains(&format!("\x1b[{code}m")), "{with}");
        }
    }
}

#[test]
fn a_bar_is_where_its_time_is() {
    let ends = log();
    let axis = Axis::over(&ends, 40, Charset::Ascii);
    // The axis begins 10 h 10 min and ends 53 min before now; 40 characters are 557 minutes.
    let bar = axis.bar(&ends[0]);
    assert!(bar.len() == 40 && bar.trim_start() == "=", "{bar:?}");
    let bar = axis.bar(&ends[6]);
    assert_eq!(bar, "-----===", "{bar:?}");
    let same = vec![end(1, 0, 0, Outcome::Released, None); 2];
    let axis = Axis::over(&same, 40, Charset::Unicode);
    assert_eq!(axis.bar(&same[0]).chars().count(), 1, "no time at all is still drawn");
    println!("{}", picture(&same, NOW, 80, PLAIN));
}

#[test]
fn spans_of_any_length_have_marks_that_do_not_meet() {
    for span in [10_000, 100_000, 3_600_000, 86_400_000, 40 * 86_400_000] {
        let mut first = end(0, 0, 0, Outcome::Released, None);
        first.since = NOW - span;
        first.ended = NOW - span;
        let ends = [end(0, 0, 0, Outcome::Released, None), first];
        for width in [24, 40, 80, 200] {
            let head = Axis::over(&ends, width, Charset::Ascii).head();
            println!("{head}");
            assert!(head.len() <= width && head.contains('|'), "{head}");
            assert!(head.split('|').skip(1).all(|label| label.trim_end().len() >= 5), "{head}");
        }
    }
}

#[test]
fn a_pipe_gets_everything() {
    let text = table(&log(), PLAIN);
    println!("{text}");
    assert!(text.contains("r\u{e9}port --all\\x1b[31m") && text.contains("@ 0"));
    assert_eq!(text.lines().count(), 8);
}

/// As a record may say that somebody else wrote.
#[test]
fn any_time_can_be_shown() {
    let style = Style { coloured: Coloured::No, charset: Charset::Unicode };
    for (since, ended) in [(u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0), (u64::MAX - 5000, u64::MAX)] {
        let log = [LoggedEnd { since, ended, ..end(1, 7, 0, Outcome::Released, None) }];
        assert_eq!(picture(&log, NOW, 80, style).lines().count(), 2);
        assert_eq!(table(&log, style).lines().count(), 2);
    }
}
