//! The history of a round: when each operation on a lock began and completed, as JSON lines and as EDN for Jepsen's tools.
//!
//! Everything is seen from outside dlock, on one machine and by one clock (CLOCK_BOOTTIME): the runner notes when it starts
//! a run and when that run has ended, and the job notes its own life. So an acquire begins when the run is started and
//! completes when its job runs; a release begins when the job is last seen alive and completes when the run has ended.
//! Renewals are not seen from outside, and no token is known here: a process number stands for it.

use super::Plan;
use super::judge::{Hit, Kind, Outcome, Round, Run, Time, Trouble, lived};
use super::lives::Life;
use dlock::lock::Mode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Process numbers per run: one for each of its keys, and one for the environment's operation on each key.
const PROCESSES: u64 = 8;

/// The actor of an event. Jepsen numbers its clients, and calls what disturbs them the nemesis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Process {
    Client(u64),
    Named(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    Invoke,
    Ok,
    /// The operation certainly had no effect.
    Fail,
    /// It is not known whether the operation had an effect.
    Info,
}

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since the first event.
    pub time: Time,
    pub process: Process,
    #[serde(rename = "type")]
    pub step: Step,
    /// `acquire`, `release`, `expire` or `look`; of the nemesis, what it did.
    pub f: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The fence of an acquire that completed, or of the holder that a look found; the process whose hold an expire ends;
    /// the run that the nemesis hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// The mode of an acquire, the end of a run, the waiting processes in order, or whether a trouble begins or ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Event {
    pub fn new(time: Time, process: u64, step: Step, f: &str, key: &str) -> Self {
        let (process, f, key) = (Process::Client(process), f.to_owned(), Some(key.to_owned()));
        Self { time, process, step, f, key, value: None, note: None }
    }

    fn of_nemesis(time: Time, f: &str) -> Self {
        let process = Process::Named("nemesis".to_owned());
        Self { time, process, step: Step::Info, f: f.to_owned(), key: None, value: None, note: None }
    }

    fn value(self, value: u64) -> Self {
        Self { value: Some(value), ..self }
    }

    fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }
}

/// The history of a round, in order of time.
pub fn of(round: &Round) -> Vec<Event> {
    let mut lives = BTreeMap::new();
    for lived in lived(round) {
        lives.entry(lived.run.id).or_insert(lived.life);
    }
    let mut events = Vec::new();
    for run in &round.runs {
        let life = lives.get(&run.id).copied();
        for (place, key) in (0..).zip(&run.keys) {
            operations(run, life, &round.troubles, run.id * PROCESSES + place, key, &mut events);
        }
        let hits = run.hits.iter();
        events.extend(hits.map(|(at, hit)| Event::of_nemesis(*at, &format!("{hit:?}")).value(run.id)));
    }
    for trouble in &round.troubles {
        events.push(Event::of_nemesis(trouble.from, trouble.kind).note("begins"));
        events.push(Event::of_nemesis(trouble.until, trouble.kind).note("ends"));
    }
    looks(round, &mut events);
    // Events of the same nanosecond count as concurrent, so what begins comes before what completes.
    events.sort_by_key(|event| (event.time, event.step));
    let first = events.first().map_or(0, |event| event.time);
    events.iter_mut().for_each(|event| event.time -= first);
    events
}

/// What one run did to one key.
fn operations(
    run: &Run,
    life: Option<&Life>,
    troubles: &[Trouble],
    process: u64,
    key: &str,
    events: &mut Vec<Event>,
) {
    let event = |time, step, f| Event::new(time, process, step, f, key);
    let mode = match run.mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Slots(_) => "slots",
    };
    events.push(event(run.spawned, Step::Invoke, "acquire").note(mode));
    let outcome = format!("{:?}", run.outcome);
    let Some(life) = life else {
        // A lock that was granted and given back before any job ran counts as never taken.
        let is_refused = matches!(run.outcome, Outcome::Status(0 | 75));
        let step = if is_refused { Step::Fail } else { Step::Info };
        events.push(event(run.ended, step, "acquire").note(outcome));
        return;
    };
    events.push(event(life.start, Step::Ok, "acquire").value(life.fence));
    // A job that is killed within its first millisecond was alive after it had noted its start.
    let last = life.last.max(life.start + 1);
    events.push(event(last, Step::Invoke, "release"));
    let lapse = lapse(run, life, troubles);
    // A master that was replaced, or an older state, may have taken the release of a lock that the store forgot.
    let is_forgotten = troubles.iter().any(|trouble| is_forgotten(trouble, run, life));
    let is_released = run.outcome == Outcome::Status(run.wanted) && life.ended && !is_forgotten;
    let step = if is_released { Step::Ok } else { Step::Info };
    events.push(event(run.ended.max(last), step, "release").note(outcome));
    if let Some(at) = lapse.filter(|_| !is_released) {
        let environment = process + PROCESSES / 2;
        events.push(Event::new(at, environment, Step::Invoke, "expire", key).value(process));
    }
}

/// What the store said of each lock: when it was asked, and the answer.
fn looks(round: &Round, events: &mut Vec<Event>) {
    let client = |id: &u64, key: &str| {
        let run = round.runs.iter().find(|run| run.id == *id)?;
        let place = run.keys.iter().position(|one| *one == key)?;
        Some((run.id * PROCESSES + u64::try_from(place).ok()?).to_string())
    };
    for sighting in &round.sightings {
        let look = |time, step| {
            let (key, process) = (Some(sighting.key.clone()), Process::Named("look".to_owned()));
            Event { process, step, key, ..Event::of_nemesis(time, "look") }
        };
        events.push(look(sighting.from, Step::Invoke));
        let waiting: Vec<String> =
            sighting.waiting.iter().filter_map(|id| client(id, &sighting.key)).collect();
        let answer = look(sighting.at, Step::Ok).note(waiting.join(" "));
        events.push(Event { value: sighting.fences.first().copied(), ..answer });
    }
}

/// The earliest time at which the environment may have ended a hold while its job went on: docs/guarantees.md names the
/// cases. In all others the job is dead before the lease ends, and an expiry is no earlier than the release.
fn lapse(run: &Run, life: &Life, troubles: &[Trouble]) -> Option<Time> {
    let is_unguarded = |hit: &Hit| matches!(hit, Hit::KillBoth | Hit::StopAll);
    let unguarded = run.hits.iter().filter(|(_, hit)| is_unguarded(hit)).map(|(at, _)| *at);
    let forgets =
        troubles.iter().filter(|trouble| is_forgotten(trouble, run, life)).map(|trouble| trouble.from);
    let script = (run.kind == Kind::Script).then_some(run.spawned + run.ttl);
    let first = unguarded.chain(forgets).chain(script).min()?;
    Some(first.max(run.spawned)).filter(|at| *at < life.last)
}

/// Whether the store forgot while the lock was held or asked for.
fn is_forgotten(trouble: &Trouble, run: &Run, life: &Life) -> bool {
    trouble.forgets && trouble.from < life.last && trouble.until > run.spawned
}

/// One JSON object a line.
pub fn json_lines(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        let _ = writeln!(text, "{}", serde_json::to_string(event).expect("plain data"));
    }
    text
}

/// Reads what `json_lines` wrote.
pub fn parse(text: &str) -> Vec<Event> {
    let event = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    text.lines().map(event).collect()
}

/// A history as Jepsen stores it: one operation map a line. A value is a pair of the key and the value, as
/// `jepsen.independent` has it.
pub fn edn(events: &[Event]) -> String {
    let mut text = String::new();
    for (index, event) in events.iter().enumerate() {
        let process = match &event.process {
            Process::Client(number) => number.to_string(),
            Process::Named(name) => format!(":{name}"),
        };
        let step = format!("{:?}", event.step).to_lowercase();
        let f: String = event.f.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let value = event.value.map_or("nil".to_owned(), |value| value.to_string());
        let value = event.key.as_ref().map_or(value.clone(), |key| format!("[{key:?} {value}]"));
        let note = event.note.as_ref().map_or(String::new(), |note| format!(", :note {note:?}"));
        let _ = writeln!(
            text,
            "{{:index {index}, :time {}, :process {process}, :type :{step}, :f :{f}, :value {value}{note}}}",
            event.time
        );
    }
    text
}

/// Writes the history of a round in both forms into the directory that `./test --history` names.
pub fn keep(plan: Plan, events: &[Event]) {
    let Some(directory) = env::var_os("DLOCK_NIGHT_HISTORY").map(PathBuf::from) else { return };
    let Plan { arrangement, profile, seed, .. } = plan;
    let name = format!("{seed}-{arrangement:?}-{profile:?}").to_lowercase();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let write = |extension: &str, text: String| {
        let path: &Path = &directory.join(format!("{name}.{extension}"));
        fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    fs::create_dir_all(&directory).expect("a directory");
    write("jsonl", json_lines(events));
    write("edn", edn(events));
}
