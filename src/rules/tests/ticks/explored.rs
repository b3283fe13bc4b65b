//! Every history of three runs in two ticks: they arrive late, wait, lose their places, fail and
//! succeed while time passes, and the clock is set back once. Faulty variants of the rules, one
//! fault each, show that the checks find something.

use super::*;
use std::collections::HashSet;

/// Ticks come at these seconds, and runs at most [`LATE`] after them.
const TICKS: [u64; 2] = [0, 6];
/// The tick of each run.
const RUNS: [usize; 3] = [0, 0, 1];
const LATE: u64 = 1;
const SPAN: u64 = 3;
/// By how many milliseconds the clock may be set back. The ticks are further apart than this,
/// [`LATE`] and [`SPAN`] together.
const BACK: u64 = 1_500;
const END: u64 = 11;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Right,
    /// A success counts from the grant, for a time of the clock: the rule of earlier versions.
    CountsFromTheGrant,
    /// Each run counts as if it had not waited.
    ForgetsTheArrival,
    /// A waiter arrives anew at each heartbeat.
    ArrivesAgain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Run {
    Away,
    /// Since this second.
    Waits(u64),
    Runs(u64),
    Over,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Comes(usize),
    /// It is forgotten, and asks again.
    LosesItsPlace(usize),
    Ends(usize, bool),
    SetBack,
    /// A second passes, and all that wait send a heartbeat.
    Pass,
}

#[derive(Debug, Clone)]
struct State {
    table: LockTable,
    /// Seconds of true time, and how far the clock is behind, in milliseconds.
    time: u64,
    behind: u64,
    /// Steps since the last second, so that no two happen in the same moment.
    steps: u64,
    runs: [Run; 3],
    /// Those that have lost their places once.
    lost: [bool; 3],
    /// The tick of each success, and when it was granted, in seconds.
    successes: Vec<(usize, u64)>,
    path: Vec<Step>,
}

impl State {
    fn new() -> Self {
        let runs = [Run::Away; 3];
        let (table, successes, path) = (LockTable::default(), Vec::new(), Vec::new());
        Self { table, time: 0, behind: 0, steps: 0, runs, lost: [false; 3], successes, path }
    }

    /// What later steps depend on.
    fn digest(&self) -> String {
        let Self { table, time, behind, runs, lost, successes, .. } = self;
        let of = |record: &Record| {
            let queue: Vec<_> = record.queue.iter().map(|(_, token)| token.secret().to_owned()).collect();
            let came: Vec<_> = record.waiters.values().map(|waiter| waiter.since.millis() / 10).collect();
            let success = record.success.as_ref().map(|last| (last.since / 10, last.waited / 10));
            format!("{queue:?} {came:?} {success:?}")
        };
        let records: Vec<_> = table.records.values().map(of).collect();
        format!("{records:?} {time} {behind} {runs:?} {lost:?} {successes:?}")
    }

    fn now(&self) -> Time {
        Time(1_800_000_000_000_000 + self.time * 1_000_000 + self.steps * 1_000 - self.behind * 1_000)
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (who, run) in self.runs.iter().enumerate() {
            let tick = TICKS[RUNS[who]];
            match run {
                // Of two runs that want the same the first one comes first.
                Run::Away if who == 1 && self.runs[0] == Run::Away => {}
                Run::Away if (tick..=tick + LATE).contains(&self.time) => steps.push(Step::Comes(who)),
                Run::Waits(_) if !self.lost[who] => steps.push(Step::LosesItsPlace(who)),
                Run::Runs(_) => steps.extend([Step::Ends(who, true), Step::Ends(who, false)]),
                Run::Away | Run::Waits(_) | Run::Over => {}
            }
        }
        if self.behind == 0 {
            steps.push(Step::SetBack);
        }
        let must_come = |(who, run): (usize, &Run)| *run == Run::Away && self.time == TICKS[RUNS[who]] + LATE;
        if self.time < END && !self.runs.iter().enumerate().any(must_come) {
            steps.push(Step::Pass);
        }
        steps
    }

    fn apply(&mut self, rules: Rules, step: Step) -> Result<(), String> {
        self.path.push(step);
        self.steps += 1;
        match step {
            Step::Comes(who) => {
                self.runs[who] = Run::Waits(self.time);
                self.ask(rules, who)
            }
            Step::LosesItsPlace(who) => {
                let id = token(who as u32);
                self.lost[who] = true;
                for record in self.table.records.values_mut() {
                    record.remove_waiter(&id);
                }
                self.ask(rules, who)
            }
            Step::Ends(who, succeeds) => {
                if let (true, Run::Runs(since)) = (succeeds, self.runs[who]) {
                    self.succeeded(who, since)?;
                }
                self.runs[who] = Run::Over;
                let end = if succeeds { SUCCESS } else { FAILURE };
                let now = self.now();
                self.table.leave(now, &Scene::names("k"), &token(who as u32), &end);
                self.spoil(rules);
                self.all_ask(rules)
            }
            Step::SetBack => {
                self.behind = BACK;
                Ok(())
            }
            Step::Pass => {
                (self.time, self.steps) = (self.time + 1, 0);
                self.all_ask(rules)
            }
        }
    }

    fn all_ask(&mut self, rules: Rules) -> Result<(), String> {
        (0..RUNS.len())
            .filter(|who| matches!(self.runs[*who], Run::Waits(_)))
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|who| {
                self.steps += 1;
                self.ask(rules, who)
            })
    }

    fn ask(&mut self, rules: Rules, who: usize) -> Result<(), String> {
        let Run::Waits(since) = self.runs[who] else { return Ok(()) };
        self.spoil(rules);
        let mut scene = Scene { table: std::mem::take(&mut self.table), now: self.now(), ..Scene::new() };
        scene.ttl = Duration::from_secs(1_000);
        scene.terms.once_per = Some(Duration::from_secs(SPAN));
        scene.waited = Duration::from_secs(self.time - since);
        let answer = scene.acquire(who as u32, "k", X, Patience::Queue);
        self.table = scene.table;
        match answer {
            Acquired::Granted(_) => self.runs[who] = Run::Runs(self.time),
            Acquired::Done(_) => {
                self.runs[who] = Run::Over;
                // By a clock that was set back, a run may seem to have arrived before a grant.
                let is_done = |(tick, granted): &(usize, u64)| {
                    *tick == RUNS[who] || granted * 1000 + self.behind >= since * 1000
                };
                if !self.successes.iter().any(is_done) {
                    return Err(format!("run {who} is skipped, and its tick is lost"));
                }
            }
            Acquired::Waiting(_) => {}
            answer => return Err(format!("{answer:?}")),
        }
        Ok(())
    }

    fn succeeded(&mut self, who: usize, granted: u64) -> Result<(), String> {
        if self.successes.iter().any(|(tick, _)| *tick == RUNS[who]) {
            return Err(format!("run {who} repeats a tick"));
        }
        self.successes.push((RUNS[who], granted));
        Ok(())
    }

    fn spoil(&mut self, rules: Rules) {
        let now = self.now();
        for record in self.table.records.values_mut() {
            match rules {
                Rules::Right => {}
                Rules::CountsFromTheGrant => {
                    record.success.take_if(|success| now.millis() >= success.since + SPAN * 1000);
                }
                Rules::ForgetsTheArrival => {
                    record.success.iter_mut().for_each(|success| success.waited = 0);
                }
                Rules::ArrivesAgain => record.waiters.values_mut().for_each(|waiter| waiter.since = now),
            }
        }
    }
}

fn explore(rules: Rules) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut open = vec![State::new()];
    while let Some(state) = open.pop() {
        for step in state.steps() {
            let mut new = state.clone();
            new.apply(rules, step).map_err(|why| format!("{why}\nafter {:?}", new.path))?;
            if seen.insert(new.digest()) {
                open.push(new);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn each_tick_is_done_once_and_none_is_lost() {
    let states = explore(Rules::Right);
    println!("{states:?} states");
    assert!(states.is_ok(), "{}", states.err().unwrap_or_default());
}

#[test]
fn a_fault_in_the_rule_is_found_out() {
    for rules in [Rules::CountsFromTheGrant, Rules::ForgetsTheArrival, Rules::ArrivesAgain] {
        let found = explore(rules);
        assert!(found.is_err(), "{rules:?} breaks nothing");
    }
}
