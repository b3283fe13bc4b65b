//! Pictures of invented histories. `--nocapture` shows them.

use super::axis::Axis;
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
        during_pause: false,
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

#[test]
fn picture_fits_its_terminal() {
    for columns in [36, 50, 80, 140, 300] {
        let text = picture(None, &log(), &[], NOW, columns, Coloured::No).concat();
        println!("{text}");
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
        // Below 60 columns the holders have their own lines, and so does ENDED BY if it does not fit.
        let by = usize::from(text.contains("ended by"));
        assert_eq!(text.lines().count(), by + if columns < 60 { 15 } else { 8 });
        assert_eq!(by == 0, text.contains("ENDED BY"), "{text}");
        assert!(!text.contains('\x1b'));
    }
}

#[test]
fn colour_changes_no_text() {
    for (with, without) in [
        (
            picture(None, &log(), &[], NOW, 100, Coloured::Yes).concat(),
            picture(None, &log(), &[], NOW, 100, Coloured::No).concat(),
        ),
        (table(None, &log(), &[], Coloured::Yes).concat(), table(None, &log(), &[], Coloured::No).concat()),
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
fn bar_is_at_its_time() {
    let ends = log();
    let axis = Axis::of_times(&ends, 40);
    // The axis begins 10 h 10 min and ends 53 min before now; 40 characters are 557 minutes.
    let bar = axis.bar(&ends[0]);
    let is_short = bar.chars().count() == 40 && bar.trim_start().chars().count() == 1;
    assert!(is_short && ink(&bar) == 1, "{bar:?}");
    let bar = axis.bar(&ends[6]);
    assert_eq!(bar, "─────━━╸", "{bar:?}");
    let same = vec![end(1, 0, 0, Outcome::Released, None); 2];
    let axis = Axis::of_times(&same, 40);
    assert_eq!(axis.bar(&same[0]).chars().count(), 1, "no time at all is still drawn");
    println!("{}", picture(None, &same, &[], NOW, 80, Coloured::No).concat());
}

#[test]
fn marks_do_not_overlap_on_any_span() {
    for span in [10_000, 100_000, 3_600_000, 86_400_000, 40 * 86_400_000] {
        let mut first = end(0, 0, 0, Outcome::Released, None);
        first.since = NOW - span;
        first.ended = NOW - span;
        let ends = [end(0, 0, 0, Outcome::Released, None), first];
        for width in [24, 40, 80, 200] {
            let head = Axis::of_times(&ends, width).head();
            println!("{head}");
            assert!(head.chars().count() <= width && head.contains('╷'), "{head}");
            assert!(head.split('╷').skip(1).all(|label| label.trim_end().len() >= 5), "{head}");
        }
    }
}

#[test]
fn table_in_a_pipe_is_never_cut() {
    let text = table(None, &log(), &[], Coloured::No).concat();
    println!("{text}");
    assert!(text.contains("r\u{e9}port --all\\x1b[31m") && text.contains("@ 0"));
    assert_eq!(text.lines().count(), 8);
}

/// A record that another program wrote may contain any time.
#[test]
fn any_time_can_be_shown() {
    for (since, ended) in [(u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0), (u64::MAX - 5000, u64::MAX)] {
        let log = [LoggedEnd { since, ended, ..end(1, 7, 0, Outcome::Released, None) }];
        assert_eq!(picture(None, &log, &[], NOW, 80, Coloured::No).concat().lines().count(), 2);
        assert_eq!(table(None, &log, &[], Coloured::No).concat().lines().count(), 2);
    }
}

/// Nightly runs of about ten minutes, over two weeks.
fn nights() -> Vec<LoggedEnd> {
    let minutes = [12, 11, 14, 12, 0, 13, 12, 15, 12, 11, 12, 13, 9, 12];
    let night = |(night, minutes): (usize, &u64)| {
        let outcome = if *minutes == 0 { 3 } else { 0 };
        end(24 * night as u64 + 7, *minutes, 0, Outcome::Released, Some(Ended::Code(outcome)))
    };
    minutes.iter().enumerate().map(night).collect()
}

fn ink(line: &str) -> usize {
    line.chars().filter(|c| "╺╼╸╾━".contains(*c)).count()
}

#[test]
fn nightly_runs_have_bars_of_their_duration() {
    for columns in [80, 140] {
        let text = picture(None, &nights(), &[], NOW, columns, Coloured::No).concat();
        println!("{text}");
        let bars: Vec<usize> = text.lines().skip(1).map(ink).collect();
        assert!(
            bars[7] > bars[0] && bars[0] > bars[12] && bars[12] > 2 * bars[4] && bars[4] == 1,
            "{bars:?}"
        );
        assert!(bars[7] >= columns / 5, "the longest run takes the whole scale: {bars:?}");
        let head = text.lines().next().unwrap_or_default();
        assert!(head.contains("╷0") && head.contains("╷10m"), "{head}");
        assert!(text.lines().nth(1).is_some_and(|line| !line.starts_with(char::is_alphabetic)), "{text}");
    }
}

#[test]
fn time_axis_is_for_close_runs() {
    assert!(axis::are_close(&log()));
    assert!(!axis::are_close(&nights()));
    // Twenty at a time, every night: they overlap, but most of the axis would be empty.
    let crowd: Vec<_> = nights().into_iter().flat_map(|night| vec![night; 20]).collect();
    assert!(!axis::are_close(&crowd));
    assert!(axis::are_close(&nights()[..1]) && axis::are_close(&[]));
}

#[test]
fn long_key_or_holder_gets_its_own_line() {
    let mut log = nights();
    log.truncate(4);
    log[1].owner.host = "ip-10-0-12-34.eu-central-1.compute.internal.example.org".into();
    let long = "deployments/".repeat(12) + "production";
    let keys = ["report", "report", &*long, &*long].map(String::from);
    for columns in [80, 140] {
        let text = picture(Some(&keys), &log, &[], NOW, columns, Coloured::No).concat();
        println!("{text}");
        assert!(text.lines().all(|line| width(line) <= columns), "{text}");
        let whole = text.replace(['\n', ' '], "");
        assert_eq!(whole.matches(&long).count(), 1, "rows of the same key say it once: {text}");
        assert!(whole.contains(&cell(&log[1].owner).replace(' ', "")), "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|row| row.contains("app@web1 4711") && ink(row) > 5),
            "{text}"
        );
        assert_eq!(text.lines().filter(|line| ink(line) > 0).count(), 4, "{text}");
    }
}
