//! Is the history of a night linearizable, as a lock with a fence? The foreign judge: stateright's `LinearizabilityTester`
//! decides that. Here are only the lock it compares with and the cut of a history into pieces that are short enough for it.
//!
//! It knows the history and nothing else. It judges each key by itself, and only keys on which every lock is exclusive. It
//! does not judge the order in the queue, waiting times, and whether several keys were taken in one step.

use super::history::{Event, Process, Step};
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};
use std::collections::BTreeMap;
use std::fmt;

type Time = u64;
/// The fence and the process of a hold, and which of its operations it is.
type Thread = (u64, u64, u8);
/// An operation that begins, or what it returns.
type Call = Result<Op, Ret>;

/// The reference: one holder at most, and each grant has a greater fence than all before.
#[derive(Debug, Clone, Default)]
struct Lock {
    holder: Option<u64>,
    fence: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Acquire(u64),
    Release(u64),
    /// The environment ends a hold: its lease is over, or the store lost it.
    Expire(u64),
}

#[derive(Debug, Clone, PartialEq)]
enum Ret {
    Granted(u64),
    Refused,
    Ended,
    NotHeld,
}

impl SequentialSpec for Lock {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match op {
            Op::Acquire(process) if self.holder.is_none() => {
                self.holder = Some(*process);
                self.fence += 1;
                Ret::Granted(self.fence)
            }
            Op::Acquire(_) => Ret::Refused,
            Op::Release(process) | Op::Expire(process) if self.holder == Some(*process) => {
                self.holder = None;
                Ret::Ended
            }
            Op::Release(_) | Op::Expire(_) => Ret::NotHeld,
        }
    }

    /// Any fence will do that is greater than the last one, not only the next number.
    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        let fence = match ret {
            Ret::Granted(fence) => *fence,
            _ => return self.invoke(op) == *ret,
        };
        let is_granted = fence > self.fence && matches!(self.invoke(op), Ret::Granted(_));
        self.fence = fence;
        is_granted
    }
}

/// One grant of a key, and how it ended.
#[derive(Debug, Clone)]
pub struct Hold {
    pub process: u64,
    pub fence: u64,
    pub invoked: Time,
    pub granted: Time,
    /// When the release began, and when it completed if it is known to have had its effect.
    pub release: Option<(Time, Option<Time>)>,
    /// From when on the environment may have ended it.
    pub expires: Option<Time>,
}

impl Hold {
    /// The earliest time at which it may have ended.
    fn may_end(&self) -> Time {
        let release = self.release.map(|(begins, _)| begins);
        release.into_iter().chain(self.expires).min().unwrap_or(Time::MAX)
    }
}

/// A part of a key's history that is judged by itself: it begins right after the grant of `before`, and ends right after its
/// own last grant or, if `is_last`, with the history.
pub struct Piece<'a> {
    before: Option<&'a Hold>,
    holds: &'a [Hold],
    is_last: bool,
}

/// Cuts a history, whose holds are in order of their grants, after each grant at which the state of the lock is certain.
/// docs/nights/README.md says why that loses nothing.
pub fn pieces(holds: &[Hold]) -> Vec<Piece<'_>> {
    let (mut pieces, mut from, mut greatest) = (Vec::new(), 0, 0);
    let mut least_after = vec![u64::MAX; holds.len() + 1];
    for (at, hold) in holds.iter().enumerate().rev() {
        least_after[at] = hold.fence.min(least_after[at + 1]);
    }
    let before = |from: usize| from.checked_sub(1).map(|at| &holds[at]);
    for (at, hold) in holds.iter().enumerate() {
        let (is_first, rest) = (at == 0 || greatest < hold.fence, &holds[at + 1..]);
        greatest = greatest.max(hold.fence);
        let is_in_order = is_first && hold.fence < least_after[at + 1];
        // Only the environment can have ended a hold before its job was seen.
        let came_earlier = |late: &Hold| late.fence < hold.fence && late.may_end() <= hold.granted;
        let is_held = hold.may_end() > hold.granted && !rest.iter().any(came_earlier);
        if is_in_order || is_held {
            pieces.push(Piece { before: before(from), holds: &holds[from..=at], is_last: false });
            from = at + 1;
        }
    }
    pieces.push(Piece { before: before(from), holds: &holds[from..], is_last: true });
    pieces
}

impl<'a> Piece<'a> {
    pub fn whole(holds: &'a [Hold]) -> Self {
        Self { before: None, holds, is_last: true }
    }

    /// What the foreign judge says of it.
    pub fn is_linearizable(&self) -> bool {
        // Threads in order of their fences let the search find a valid order at once, if there is one.
        let mut steps: Vec<(Time, Thread, Call)> = Vec::new();
        let mut step = |hold: &Hold, role, time, what: Call| {
            steps.push((time, (hold.fence, hold.process, role), what));
        };
        for hold in self.holds {
            step(hold, 0, hold.invoked, Ok(Op::Acquire(hold.process)));
            step(hold, 0, hold.granted, Err(Ret::Granted(hold.fence)));
        }
        let ended = if self.is_last { self.holds.len() } else { self.holds.len() - 1 };
        for hold in self.before.into_iter().chain(&self.holds[..ended]) {
            if let Some((begins, completes)) = hold.release {
                step(hold, 1, begins, Ok(Op::Release(hold.process)));
                completes.into_iter().for_each(|at| step(hold, 1, at, Err(Ret::Ended)));
            }
            hold.expires.into_iter().for_each(|at| step(hold, 2, at, Ok(Op::Expire(hold.process))));
        }
        // What begins in the nanosecond in which something completes counts as concurrent with it.
        steps.sort_by_key(|(time, _, what)| (*time, what.is_err()));
        let state = self
            .before
            .map_or(Lock::default(), |hold| Lock { holder: Some(hold.process), fence: hold.fence });
        let mut tester = LinearizabilityTester::new(state);
        for (_, thread, what) in steps {
            let noted = match what {
                Ok(op) => tester.on_invoke(thread, op),
                Err(ret) => tester.on_return(thread, ret),
            };
            noted.expect("each operation has a thread of its own");
        }
        tester.is_consistent()
    }
}

/// What came of a history.
#[derive(Debug, Default)]
pub struct Verdict {
    pub keys: usize,
    /// Keys that were also locked otherwise than exclusively.
    pub left_out: usize,
    pub grants: usize,
    pub pieces: usize,
    /// The most grants in one piece.
    pub longest: usize,
    pub faults: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, left_out, grants, pieces, longest, faults } = self;
        let verdict = if faults.is_empty() { "linearizable" } else { "NOT LINEARIZABLE" };
        write!(
            f,
            "stateright: {verdict}; {grants} grants of {keys} exclusive keys in {pieces} pieces of at most {longest}; \
             {left_out} other keys left out; {} pieces wrong",
            faults.len()
        )
    }
}

/// Judges a history, each key by itself.
pub fn judge(history: &[Event]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut by_key: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history {
        if let Some(key) = &event.key {
            by_key.entry(key).or_default().push(event);
        }
    }
    for (key, events) in by_key {
        let is_asked = |event: &&&Event| event.f == "acquire" && event.step == Step::Invoke;
        if events.iter().filter(is_asked).any(|event| event.note.as_deref() != Some("exclusive")) {
            verdict.left_out += 1;
            continue;
        }
        let holds = holds(&events);
        let pieces = pieces(&holds);
        verdict.keys += 1;
        verdict.grants += holds.len();
        verdict.pieces += pieces.len();
        for piece in pieces {
            verdict.longest = verdict.longest.max(piece.holds.len());
            if !piece.is_linearizable() {
                let Piece { before, holds, .. } = piece;
                verdict.faults.push(format!("{key}: after {before:?} no order explains {holds:?}"));
            }
        }
    }
    verdict
}

/// The grants of one key, in the order in which they were seen. An acquire that is not known to have succeeded is left out:
/// nobody saw a fence of it, so an order that explains the rest with it does so without it and its end as well.
fn holds(events: &[&Event]) -> Vec<Hold> {
    let (mut invoked, mut holds): (BTreeMap<u64, Time>, BTreeMap<u64, Hold>) = Default::default();
    for event in events {
        let Process::Client(process) = event.process else { continue };
        let known = "an acquire comes before what follows from it";
        match (event.f.as_str(), event.step) {
            ("acquire", Step::Invoke) => {
                invoked.insert(process, event.time);
            }
            ("acquire", Step::Ok) => {
                let fence = event.value.expect("a fence");
                let (invoked, granted) = (invoked[&process], event.time);
                holds
                    .insert(process, Hold { process, fence, invoked, granted, release: None, expires: None });
            }
            ("release", Step::Invoke) => {
                holds.get_mut(&process).expect(known).release = Some((event.time, None));
            }
            ("release", Step::Ok) => {
                let hold = holds.get_mut(&process).expect(known);
                hold.release = hold.release.map(|(begins, _)| (begins, Some(event.time)));
            }
            _ => {}
        }
    }
    // An expiry may begin before its acquire has completed.
    for event in events.iter().filter(|event| event.f == "expire") {
        let process = event.value.expect("a process");
        holds.get_mut(&process).expect("a process that acquires").expires = Some(event.time);
    }
    let mut holds: Vec<Hold> = holds.into_values().collect();
    holds.sort_by_key(|hold| hold.granted);
    holds
}
