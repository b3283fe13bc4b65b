//! Every history of three runs, one of them with `--during-pause`: they come, fail, succeed and die,
//! and an operator pauses and opens the lock. Faulty variants of the rules, one fault each, show that
//! the checks find something.

use super::*;
use std::collections::HashSet;

/// The run with `--during-pause`. The others pause the lock for [`LASTS`] when they fail.
const URGENT: usize = 2;
const LASTS: u64 = 3;
/// How long the operator pauses the lock.
const FREEZE: u64 = 4;
const LEASE: u64 = 2;
const END: u64 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Right,
    /// A failure pauses nothing.
    ForgetsFailures,
    /// A lease that runs out pauses nothing.
    ForgetsCrashes,
    /// A failure takes the place of a longer pause.
    ShortensPauses,
    /// A pause lasts longer than it should.
    StaysShut,
    /// A run with `--during-pause` waits as others do.
    ForgetsUrgency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Run {
    Away,
    Waits,
    Runs,
    Over,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Comes(usize),
    Ends(usize, bool),
    Dies(usize),
    Freeze,
    Open,
    /// A second passes: those that wait send a heartbeat, those that run renew.
    Pass,
}

#[derive(Debug, Clone)]
struct State {
    table: LockTable,
    time: u64,
    /// Steps since the last second, so that no two happen in the same moment.
    steps: u64,
    runs: [Run; 3],
    /// Those that have renewed.
    renewed: [bool; 3],
    /// Until when the lock must be shut, in milliseconds, and when a dead run's lease ends.
    shut: u64,
    dead: Option<u64>,
    /// The urgent run has asked while the lock was shut.
    is_preferred: bool,
    has_frozen: bool,
    path: Vec<Step>,
}

impl State {
    fn new() -> Self {
        Self {
            table: LockTable::default(),
            time: 0,
            steps: 0,
            runs: [Run::Away; 3],
            renewed: [false; 3],
            shut: 0,
            dead: None,
            is_preferred: false,
            has_frozen: false,
            path: Vec::new(),
        }
    }

    fn digest(&self) -> String {
        let Self { table, time, runs, renewed, shut, dead, is_preferred, has_frozen, .. } = self;
        let of = |record: &Record| {
            let queue: Vec<_> = record.queue.iter().map(|(_, token)| token.secret().to_owned()).collect();
            format!("{queue:?} {:?}", record.paused.as_ref().map(|pause| (pause.until, pause.cause)))
        };
        let records: Vec<_> = table.records.values().map(of).collect();
        format!("{records:?} {time} {runs:?} {renewed:?} {shut} {dead:?} {is_preferred} {has_frozen}")
    }

    const fn ms(&self) -> u64 {
        self.time * 1000 + self.steps
    }

    const fn now(&self) -> Time {
        Time(1_800_000_000_000_000 + self.ms() * 1000)
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (who, run) in self.runs.iter().enumerate() {
            match run {
                Run::Away if who == 1 && self.runs[0] == Run::Away => {}
                Run::Away => steps.push(Step::Comes(who)),
                Run::Runs => steps.extend([Step::Ends(who, true), Step::Ends(who, false), Step::Dies(who)]),
                Run::Waits | Run::Over => {}
            }
        }
        if !self.has_frozen {
            steps.push(Step::Freeze);
        }
        if self.has_frozen && self.shut > self.ms() {
            steps.push(Step::Open);
        }
        if self.time < END {
            steps.push(Step::Pass);
        }
        steps
    }

    fn apply(&mut self, rules: Rules, step: Step) -> Result<(), String> {
        self.path.push(step);
        self.steps += 1;
        let (k, by) = (name("k"), Owner::default());
        match step {
            Step::Comes(who) => {
                self.runs[who] = Run::Waits;
                return self.ask(rules, who);
            }
            Step::Ends(who, succeeds) => {
                self.runs[who] = Run::Over;
                let fails = !succeeds && who != URGENT;
                let pause = fails
                    .then(|| FailurePause { lasts: Duration::from_secs(LASTS), reason: "exit 1".into() });
                let now = self.now();
                if rules == Rules::ShortensPauses && fails {
                    self.record().paused = None;
                }
                self.table.leave(now, &k.into(), &token(who as u32), &End { pause, ..RAN });
                if fails {
                    self.shut = self.shut.max(self.ms() + LASTS * 1000);
                }
            }
            Step::Dies(who) => {
                self.runs[who] = Run::Over;
                let until = self.record().holds.get(&token(who as u32)).map(|hold| hold.until.0);
                self.dead = until
                    .map(|until| until - 1_800_000_000_000)
                    .filter(|_| who != URGENT && self.renewed[who]);
            }
            Step::Freeze => {
                self.has_frozen = true;
                let lasts = Duration::from_secs(FREEZE);
                self.table.pause(self.now(), &k, Some(NewPause { by: &by, lasts, shortens: false }));
                self.note_death();
                self.shut = self.shut.max(self.ms() + FREEZE * 1000);
            }
            Step::Open => {
                self.table.pause(self.now(), &k, None);
                self.note_death();
                self.shut = 0;
            }
            Step::Pass => (self.time, self.steps) = (self.time + 1, 0),
        }
        self.all_ask(rules)
    }

    fn record(&mut self) -> &mut Record {
        self.table.record("k")
    }

    /// A lease that has run out shuts the lock from its end.
    fn note_death(&mut self) {
        if let Some(until) = self.dead.take_if(|until| *until <= self.time * 1000 + self.steps) {
            self.shut = self.shut.max(until + LASTS * 1000);
        }
    }

    fn all_ask(&mut self, rules: Rules) -> Result<(), String> {
        let was_shut = self.shut > self.ms() || self.dead.is_some();
        for who in 0..self.runs.len() {
            self.steps += 1;
            match self.runs[who] {
                Run::Waits => self.ask(rules, who)?,
                Run::Runs => {
                    let ttl = Duration::from_secs(LEASE);
                    let renew = Renew { token: &token(who as u32), fence: None, ttl, rest: None };
                    self.table.renew(self.now(), &name("k").into(), &renew);
                    self.renewed[who] = true;
                }
                Run::Away | Run::Over => {}
            }
        }
        // The run that is first has been granted the lock by now.
        let (now, is_shut) = (self.now(), was_shut || self.shut > self.ms());
        self.record().expire(now);
        let is_free = self.record().holds.is_empty();
        let stays = self.runs[..URGENT].contains(&Run::Waits) && is_free && !is_shut;
        if stays && matches!(self.path.last(), Some(Step::Pass)) {
            return Err("the lock stays shut".into());
        }
        Ok(())
    }

    fn ask(&mut self, rules: Rules, who: usize) -> Result<(), String> {
        self.note_death();
        self.spoil(rules);
        // It may confirm what it was granted before the lock was shut.
        let was_granted = self.record().holds.contains_key(&token(who as u32));
        let mut scene = Scene { table: std::mem::take(&mut self.table), now: self.now(), ..Scene::new() };
        let is_shut = self.shut > self.ms();
        scene.ttl = Duration::from_secs(LEASE);
        scene.terms = match who {
            URGENT => Terms { during_pause: true, ..Terms::default() },
            _ => Terms { pause_on_failure: Some(Duration::from_secs(LASTS)), ..Terms::default() },
        };
        let answer = scene.acquire(who as u32, "k", X, Patience::Queue);
        self.table = scene.table;
        self.spoil(rules);
        self.is_preferred |= who == URGENT && is_shut;
        match answer {
            Acquired::Granted(_) => self.runs[who] = Run::Runs,
            Acquired::Waiting(_) => return Ok(()),
            answer => return Err(format!("{answer:?}")),
        }
        if was_granted || who == URGENT {
            return Ok(());
        }
        if is_shut {
            return Err(format!("run {who} is granted a lock that is shut"));
        }
        if self.is_preferred && self.runs[URGENT] == Run::Waits {
            return Err(format!("run {who} is granted before an urgent one"));
        }
        Ok(())
    }

    fn spoil(&mut self, rules: Rules) {
        let record = self.record();
        match rules {
            Rules::ForgetsFailures => {
                record.paused.take_if(|pause| pause.cause == Cause::Failure);
            }
            Rules::ForgetsCrashes => record.holds.values_mut().for_each(|hold| hold.pause_on_failure = None),
            Rules::StaysShut => record.paused.iter_mut().for_each(|pause| pause.until += 3000),
            Rules::ForgetsUrgency => {
                for (token, waiter) in &mut record.waiters {
                    if waiter.ticket < PREFERENCE {
                        record.queue.remove(&(waiter.ticket, token.clone()));
                        waiter.ticket += PREFERENCE;
                        record.queue.insert((waiter.ticket, token.clone()));
                    }
                }
            }
            Rules::Right | Rules::ShortensPauses => {}
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
fn nobody_but_an_urgent_run_is_granted_a_lock_that_is_shut() {
    let states = explore(Rules::Right);
    println!("{states:?} states");
    assert!(states.is_ok(), "{}", states.err().unwrap_or_default());
}

#[test]
fn a_fault_in_the_rule_is_found_out() {
    use Rules::{ForgetsCrashes, ForgetsFailures, ForgetsUrgency, ShortensPauses, StaysShut};
    for rules in [ForgetsFailures, ForgetsCrashes, ShortensPauses, StaysShut, ForgetsUrgency] {
        let found = explore(rules);
        assert!(found.is_err(), "{rules:?} breaks nothing");
    }
}
