//! Seventy ticks of each line of docs/recipes.md, on twelve hosts whose clocks differ by 90 s: one is
//! down, one job hangs, one fails on every host. What each host mails is counted: no tick passes
//! without a success and without a word, and no two hosts say the same.

use super::*;
use crate::exit::Ended;
use crate::lock::Period;

const HOSTS: u64 = 12;
const TICKS: u64 = 70;
const STEP: u64 = 30;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// The tick whose job hangs on the first host, the one whose job fails on each, and the host that is
/// down for the second half.
const HUNG: u64 = 20;
const FAILING: u64 = 40;
const DOWN: u64 = 7;

/// A line of a crontab; times are seconds.
#[derive(Clone, Copy)]
struct Line {
    once_per: Period,
    every: u64,
    /// How often it tries in each tick, and after how long again.
    tries: (u64, u64),
    wait: u64,
    max_run: Option<u64>,
    pause_on_failure: u64,
    job: u64,
    /// Between the first host and the last one.
    spread: u64,
}

const NIGHTLY: Line = Line {
    once_per: Period::Day,
    every: DAY,
    tries: (1, 0),
    wait: 4 * HOUR,
    max_run: Some(3 * HOUR),
    pause_on_failure: 0,
    job: 20 * MINUTE,
    spread: 90,
};
const HOURLY: Line = Line {
    once_per: Period::Hour,
    every: HOUR,
    wait: 50 * MINUTE,
    max_run: Some(45 * MINUTE),
    job: 5 * MINUTE,
    ..NIGHTLY
};

/// A run of one host.
struct Run {
    who: u32,
    tick: u64,
    host: u64,
    came: u64,
    /// When its job ends, and with which status, once it has the lock.
    ends: Option<(u64, u8)>,
}

#[derive(Default)]
struct Weeks {
    /// The tick of each run that succeeded.
    done: Vec<u64>,
    /// When dlock said something, about which tick, and what.
    said: Vec<(u64, u64, Missed, Option<Subject>)>,
    /// The ticks of jobs that failed or were stopped, for cron mails what they print.
    mailed: Vec<u64>,
}

fn play(line: Line) -> Weeks {
    let (mut scene, mut weeks, mut runs) = (Scene::new(), Weeks::default(), Vec::<Run>::new());
    let began = scene.now;
    scene.ttl = Duration::from_secs(900 * DAY);
    scene.terms.once_per = Some(line.once_per.counts());
    let mut starts: Vec<(u64, u64, u64)> = Vec::new();
    for (tick, host, again) in (0..TICKS)
        .flat_map(|tick| (0..HOSTS).map(move |host| (tick, host)))
        .flat_map(|(tick, host)| (0..line.tries.0).map(move |again| (tick, host, again)))
    {
        // A clock is not wrong by the same time each day.
        let late = line.spread * host / (HOSTS - 1) + (tick * 7 + host * 5) % 4;
        if host != DOWN || tick < TICKS / 2 {
            starts.push((tick * line.every + again * line.tries.1 + late, tick, host));
        }
    }
    starts.sort_unstable();
    let (mut starts, mut number) = (starts.into_iter().peekable(), 0);
    let mut now = 0;
    while starts.peek().is_some() || !runs.is_empty() {
        while let Some((came, tick, host)) = starts.next_if(|(at, ..)| *at <= now) {
            number += 1;
            runs.push(Run { who: number, tick, host, came, ends: None });
        }
        scene.now = scene.now.max(Time(began.0 + now * 1_000_000));
        runs.retain_mut(|run| weeks.goes_on(&mut scene, line, run, now));
        let next = starts.peek().map_or(now + STEP, |(at, ..)| *at);
        let soon = if runs.is_empty() { next } else { next.min(now + STEP) };
        now = soon.max(now + 1);
        // An operator ends what hangs without --max-run.
        if line.max_run.is_none() && now > (HUNG + 5) * line.every {
            runs.iter_mut().filter_map(|run| run.ends.as_mut()).for_each(|(at, _)| *at = (*at).min(now));
        }
    }
    weeks
}

impl Weeks {
    fn goes_on(&mut self, scene: &mut Scene, line: Line, run: &mut Run, now: u64) -> bool {
        if let Some((at, status)) = run.ends {
            if now < at {
                return true;
            }
            let lasts = Duration::from_secs(line.pause_on_failure);
            let is_pause = status != 0 && !lasts.is_zero();
            let pause = is_pause.then(|| FailurePause { lasts, reason: String::new() });
            let job = Some(Ended::Code(status));
            let end = End { ran: Ran::Yes, job, once_per: status == 0, fence: None, pause };
            scene.table.leave(scene.now, &Scene::names("k"), &token(run.who), &end);
            if status == 0 {
                self.done.push(run.tick)
            } else {
                self.mailed.push(run.tick)
            }
            return false;
        }
        let waited = now - run.came;
        scene.waited = Duration::from_secs(waited);
        let period = line.once_per;
        let notice = match scene.acquire(run.who, "k", X, Patience::None) {
            Acquired::Granted(_) => {
                let (lasts, status) = match run.tick {
                    HUNG if run.host == 0 => (line.max_run.unwrap_or(u64::MAX / 2), 124),
                    FAILING => (MINUTE, 1),
                    _ => (line.job, 0),
                };
                run.ends = Some((now + lasts, status));
                return true;
            }
            Acquired::Busy(_) if waited < line.wait => return true,
            Acquired::Busy(blocker) => {
                Notice::busy(&blocker, Some(period), (line.wait > 0).then_some(scene.waited))
            }
            Acquired::Done(done) => Notice::done(&done, period),
            answer => unreachable!("{answer:?}"),
        };
        if let Some(notice) = notice {
            let notice = Notice { by: run.who.to_string(), ..notice };
            let (kind, subject) = (notice.kind, notice.subject);
            let owner = Owner::default();
            let refusal = Refusal::interrupted(&owner, None, Duration::ZERO).with(Some(notice));
            if scene.table.refuse(scene.now, &name("k").of_refusals(), &refusal) {
                self.said.push((now, run.tick, kind, subject));
            }
        }
        false
    }

    /// The ticks that were neither done nor mentioned. What comes more often than once an hour is
    /// mentioned once an hour.
    fn silent(&self, line: Line) -> Vec<u64> {
        let is_mentioned = |tick: &u64| {
            let is_recent = |at: u64| line.every < HOUR && (at..at + HOUR).contains(&(tick * line.every));
            self.said.iter().any(|(at, about, ..)| about == tick || is_recent(*at))
        };
        let is_heard =
            |tick: &u64| self.done.contains(tick) || self.mailed.contains(tick) || is_mentioned(tick);
        (0..TICKS).filter(|tick| !is_heard(tick)).collect()
    }

    /// Whether two hosts said the same within most of an hour.
    fn repeats(&self) -> bool {
        self.said.iter().enumerate().any(|(at, (when, _, kind, subject))| {
            let is_same = |(later, _, other, about): &(u64, u64, Missed, Option<Subject>)| {
                other == kind && about == subject && later - when < 50 * MINUTE
            };
            self.said.iter().skip(at + 1).any(is_same)
        })
    }
}

#[test]
fn no_line_of_the_recipes_is_silent_in_seventy_ticks() {
    let no_limit = Line { max_run: None, ..NIGHTLY };
    let minutely = Line {
        once_per: Period::Minute,
        every: MINUTE,
        wait: 0,
        max_run: None,
        job: 20,
        spread: 25,
        ..NIGHTLY
    };
    let lines = [
        ("nightly", NIGHTLY),
        ("nightly without --max-run", no_limit),
        ("hourly", HOURLY),
        ("hourly without --max-run", Line { max_run: None, ..HOURLY }),
        ("hourly without --max-run and -w", Line { max_run: None, wait: 0, ..HOURLY }),
        ("hourly with --pause-on-failure", Line { pause_on_failure: 20 * MINUTE, ..HOURLY }),
        (
            "weekly",
            Line { once_per: Period::Week, every: 7 * DAY, wait: DAY, max_run: Some(20 * HOUR), ..NIGHTLY },
        ),
        ("minutely", minutely),
        ("every ten minutes until it has succeeded", Line { tries: (18, 10 * MINUTE), wait: 0, ..NIGHTLY }),
        (
            "cron.daily",
            Line {
                once_per: Period::Span(Duration::from_secs(20 * HOUR)),
                wait: 0,
                spread: 2 * HOUR,
                ..NIGHTLY
            },
        ),
    ];
    let mut wrong = Vec::new();
    for (title, line) in lines {
        let weeks = play(line);
        let mut done = weeks.done.clone();
        done.dedup();
        println!(
            "| {title} | {} of {TICKS} | {} by dlock | {} of jobs |",
            done.len(),
            weeks.said.len(),
            weeks.mailed.len()
        );
        if !weeks.silent(line).is_empty() || weeks.repeats() || done.len() != weeks.done.len() {
            wrong.push((title, weeks.silent(line), weeks.repeats(), weeks.done.len() - done.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Lines that a person may write, and what dlock says of each by itself. The others are a monitor's.
#[test]
fn what_is_said_of_a_wrong_line() {
    use Missed::{GaveUp, OtherHour, StillHeld, TooLong};
    let span = |hours| Period::Span(Duration::from_secs(hours * HOUR));
    let daily = |once_per| Line { once_per, ..NIGHTLY };
    let lines: [(&str, Line, &[Missed]); 10] = [
        ("--once-per 1d", daily(span(24)), &[TooLong]),
        ("--once-per 36h in a daily line", daily(span(36)), &[]),
        ("--once-per day in an hourly line", Line { once_per: Period::Day, ..HOURLY }, &[OtherHour]),
        ("--once-per hour in a daily line", daily(Period::Hour), &[]),
        ("--once-per week in a daily line", daily(Period::Week), &[OtherHour]),
        ("machines in zones six hours apart", Line { spread: 6 * HOUR, ..NIGHTLY }, &[OtherHour]),
        ("no --max-run", Line { max_run: None, ..NIGHTLY }, &[GaveUp]),
        ("no -w, no --max-run", Line { wait: 0, max_run: None, ..NIGHTLY }, &[StillHeld]),
        ("-w shorter than the job", Line { wait: 10 * MINUTE, ..NIGHTLY }, &[GaveUp]),
        ("-w longer than the period", Line { wait: 4 * HOUR, max_run: None, ..HOURLY }, &[GaveUp]),
    ];
    for (title, line, expected) in lines {
        let weeks = play(line);
        let kinds: std::collections::BTreeSet<Missed> =
            weeks.said.iter().map(|(_, _, kind, _)| *kind).collect();
        println!("| {title} | {} of {TICKS} | {kinds:?}, {} times |", weeks.done.len(), weeks.said.len());
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected, "{title}");
        assert!(!weeks.repeats(), "{title}");
    }
}
