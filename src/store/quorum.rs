//! A lock on a majority of several independent Redis masters. Each master decides for itself by its
//! own small scripts (`quorum/scripts/master.lua` is what they share); the code here decides what
//! their answers mean together. There is no queue: a waiter asks again after a random time, and
//! goes before waiters that have waited less.
//!
//! - A hold is a majority of the masters, with time left on the lease, counted from before the
//!   first send of that attempt, and checked again after phase two. Everything else that an attempt
//!   has taken is given back everywhere, also where no answer came.
//! - Phase one asks each master for a candidate, greater than every fence that it knows. The
//!   greatest one of a majority is the fence, and phase two tells it to a majority before it is
//!   used. So every later majority contains a master that knows it, whatever the masters' clocks
//!   say.
//! - A renewal wins back the masters that the hold has lost, with its fence. It does so only before
//!   the hold's deadline, because after it another run may have had the lock.
//! - A master that has been up for less than the longest lease may have forgotten a hold. Until
//!   then it is neither counted nor won back.
//!
//! Shared locks, slots, and several locks at once are refused: each master would be right by
//! itself, and the majorities would not add up to one decision.

use super::redis::script::Code;
use super::redis::{Target, argument};
use super::{Error, Listener, Subscription, json};
use crate::clock::Moment;
use crate::lock::{Fence, Mode, Name, Names, Token};
use crate::rules::{End, Left, Ran, Renewal};
use crate::store::net::interrupt;
use exchange::{Argument, Leave, Renewed, Vouched};
use masters::{Answers, Call, Masters, Order};
use serde::Serialize;
use std::time::Duration;

mod attempt;
mod exchange;
mod masters;
mod operations;
pub(super) mod scripts;
mod trouble;
mod view;

/// Shortest and longest pause before the waiter that has waited longest asks again for a lock that
/// is held.
const LOOK_FIRST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));
/// Shortest and longest pause before the other waiters ask again for a lock that is held. A master
/// forgets a waiter that does not ask for 1.5 s (ASKS_WITHIN in `quorum/scripts/turn.lua`).
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// Shortest time to wait for the last masters, once a majority has answered, while a lease runs.
const STRAGGLERS: Duration = Duration::from_millis(50);
/// Shortest time to wait for the last masters at a read, where a hurried answer would blame a
/// master that is only slow.
const STRAGGLERS_SEEN: Duration = Duration::from_millis(500);

/// Locks on a majority of independent masters.
pub struct QuorumStore {
    masters: Masters,
    shown: String,
    max_lease: Duration,
    /// The token that asks for the lock, and since when.
    asking: Option<(Token, Moment)>,
    /// The same token, and since when the masters disagree whether a newer run replaces it.
    disputed: Option<(Token, Moment)>,
    /// The hold that this store won or renewed.
    hold: Option<Held>,
    /// The last trouble reported of each master.
    troubles: Vec<Option<String>>,
    tell: Box<dyn Fn(&str) + Send>,
}

/// Wakes a watcher after a time, because no master knows what the others do, so none could notify
/// it. A holder learns everything by its renewals.
struct Polling(Listener);

impl Subscription for Polling {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        let next = match self.0 {
            Listener::Holder => until,
            Listener::Watcher => until.min(Moment::now().after(LOOK.1)),
        };
        interrupt::sleep_until(next);
        Ok(self.0 == Listener::Watcher)
    }
}

/// A hold, as its holder knows it.
struct Held {
    token: Token,
    /// The deadline by the last acquire or renewal that succeeded. No master is won back after it.
    until: Moment,
    fence: u64,
}

impl QuorumStore {
    /// A store on these masters, which connects when it is first used. `shown` is its name in
    /// messages, `max_lease` the longest lease that any client asks of these masters. `tell` gets
    /// messages about trouble with one of them.
    pub fn new(
        masters: Vec<Target>,
        shown: String,
        max_lease: Duration,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let troubles = masters.iter().map(|_| None).collect();
        Self {
            masters: Masters::new(masters),
            shown,
            max_lease,
            asking: None,
            disputed: None,
            hold: None,
            troubles,
            tell: Box::new(tell),
        }
    }

    /// Why a quorum cannot hold locks of this mode, or several at once; None if it can.
    pub fn refusal(names: &Names, mode: Mode) -> Option<String> {
        let why = "independent masters cannot decide that by majority";
        match mode {
            Mode::Shared => Some(format!("redis+quorum:// has no shared locks: {why}")),
            Mode::Slots(_) => Some(format!("redis+quorum:// has no slots: {why}")),
            Mode::Exclusive if names.as_slice().len() > 1 => {
                Some(format!("redis+quorum:// takes one key at a time: {why}"))
            }
            Mode::Exclusive => None,
        }
    }

    fn ask(
        &mut self,
        to: &[usize],
        call: &Call,
        deadline: Moment,
        stragglers: Duration,
        is_enough: impl Fn(&Answers) -> bool,
    ) -> Answers {
        let pending = self.masters.send(to, call, Order::Behind, deadline);
        let answers = self.masters.collect(pending, deadline, stragglers, is_enough);
        self.report_masters(&answers);
        answers
    }

    /// Asks all masters, and waits for slow ones as long as the result depends on them.
    fn decide(&mut self, call: &Call, deadline: Moment, is_decided: impl Fn(&Answers) -> bool) -> Answers {
        self.ask(&self.masters.everybody(), call, deadline, STRAGGLERS, is_decided)
    }

    /// Asks all masters, where there is no hurry.
    fn ask_all(&mut self, call: &Call, deadline: Moment) -> Answers {
        self.ask(&self.masters.everybody(), call, deadline, STRAGGLERS_SEEN, |_| true)
    }

    /// Reports what has changed about a master.
    fn report_masters(&mut self, answers: &Answers) {
        // A signal ends the wait for each master; then a missing answer tells nothing about it.
        if interrupt::is_raised() {
            return;
        }
        for at in 0..self.masters.len() {
            match &answers.0[at] {
                Some(Ok(answer)) if answer.head.outcome == "seen" => {}
                Some(answer) => self.note(at, self.masters.why_uncounted(at, answer)),
                None => {}
            }
        }
    }

    fn note(&mut self, at: usize, now: Option<String>) {
        match (&now, &self.troubles[at]) {
            (Some(why), None) => (self.tell)(why),
            (None, Some(_)) => (self.tell)(&format!("{} is back", self.masters.targets[at].shown)),
            _ => {}
        }
        self.troubles[at] = now;
    }

    fn request_time(&self) -> Duration {
        self.masters.targets.first().map_or(STRAGGLERS, |target| target.request_time())
    }

    fn call(&self, code: &'static Code, name: &Name, argument: &impl Serialize) -> Result<Call, Error> {
        let argument = json(&Argument { longest: self.max_lease, argument })?.into();
        let within = self.masters.targets.first().map_or(STRAGGLERS, |target| target.op_timeout);
        Ok(Call { code, keys: scripts::MASTER.keys(name).into(), argument, within })
    }

    /// Joins the answers of the masters that have renewed a hold, whose fence is `known` if this
    /// process won it.
    fn vouches(&self, answers: &Answers, known: Option<Fence>) -> Result<Vouches, Error> {
        let fence = known.map(|fence| fence.0).unwrap_or_default();
        let mut vouches = Vouches { fence, ..Vouches::default() };
        for at in 0..self.masters.len() {
            let Some(answer) = answers.of(at, "renewed") else { continue };
            let Renewed { fence, superseded, asked, hold } = answer.reply.read()?;
            match fence {
                None => vouches.untold.push(at),
                Some(fence) => vouches.fence = vouches.fence.max(fence.0),
            }
            if superseded {
                vouches.asked = vouches.asked.or(Some(Renewal::Superseded));
            } else if asked {
                vouches.asked = Some(Renewal::Asked);
            }
            let cooling = hold.cooling.max(vouches.hold.cooling);
            let waited = hold.waited.max(vouches.hold.waited);
            let not_replaceable = hold.not_replaceable || vouches.hold.not_replaceable;
            vouches.hold = Vouched { waited, cooling, not_replaceable, ..hold };
        }
        if vouches.fence == 0 {
            vouches.untold.clear();
        }
        Ok(vouches)
    }

    /// Gives a renewed hold to the masters that have lost it, and its fence to the `untold` ones. If
    /// the hold lacks a majority, waits for their answers until `until`. Returns how many masters
    /// have the hold, and to how many it is lost: a hold that no master confirms is lost, and one
    /// that an operator has begun to revoke is not won back.
    fn win_back(
        &mut self,
        win: &Call,
        answers: &Answers,
        mut untold: Vec<usize>,
        soon: Moment,
        until: Option<Moment>,
    ) -> (usize, usize) {
        let (renewed, lost) = tally(answers, false);
        let is_won_back = renewed > 0 && answers.count("revoked") == 0;
        let is_missing = |at: &usize| is_won_back && answers.says(*at, "missing");
        let missing: Vec<_> = (0..self.masters.len()).filter(is_missing).collect();
        let has_majority = renewed >= self.masters.majority();
        if has_majority {
            untold.extend(&missing);
        }
        drop(self.masters.send(&untold, win, Order::Behind, soon));
        match until.filter(|_| !has_majority && !missing.is_empty()) {
            Some(until) => {
                let won = self.ask(&missing, win, until, STRAGGLERS, |_| true).count("won");
                (renewed + won, lost.saturating_sub(missing.len()))
            }
            None => (renewed, lost),
        }
    }
}

/// What the masters that have renewed a hold know of it together.
#[derive(Default)]
struct Vouches {
    /// If the holder was asked to end: the answer to its renewal.
    asked: Option<Renewal>,
    hold: Vouched,
    /// The greatest fence.
    fence: u64,
    /// The masters that do not know the fence, if it is known.
    untold: Vec<usize>,
}

/// How many masters have a hold by their answers to its renewal, and to how many it is lost. With
/// `wins_back`, those that have lost it will have it again, if one master has it.
fn tally(answers: &Answers, wins_back: bool) -> (usize, usize) {
    let [renewed, revoked, missing, not_held] =
        ["renewed", "revoked", "missing", "not-held"].map(|what| answers.count(what));
    match wins_back && revoked == 0 {
        true if renewed > 0 => (renewed + missing, not_held),
        true => (0, not_held),
        false => (renewed, revoked + not_held + missing),
    }
}

impl QuorumStore {
    /// Leaves for good. `counts` names the total in which a caller that did not get the lock is
    /// counted.
    fn leave_as(
        &mut self,
        end: &End,
        counts: Option<&'static str>,
        names: &Names,
        token: &Token,
        deadline: Moment,
    ) -> Result<Left, Error> {
        let argument = Leave { end: argument::Leave::new(token, end), counts, attempt: None };
        let leave = self.call(&scripts::LEAVE, names.first(), &argument)?;
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let given_back = |answers: &Answers| answers.count("released") + answers.count("already");
        // A failure to start the command may pause the lock, which takes a majority, too.
        let has_run = end.ran != Ran::No || end.pause.is_some();
        let is_gone = |answers: &Answers| match has_run {
            true => answers.count("not-held") > masters - majority,
            // No job ran, so nothing depended on the hold.
            false => given_back(answers) == 0 && answers.count("not-held") >= majority,
        };
        let is_decided = |answers: &Answers| match has_run {
            true => given_back(answers) >= majority || is_gone(answers),
            false => given_back(answers) + answers.count("not-held") >= majority,
        };
        let pending = self.masters.send(&self.masters.everybody(), &leave, Order::Leaving, deadline);
        let answers = self.masters.collect(pending, deadline, STRAGGLERS, is_decided);
        self.report_masters(&answers);
        if !is_decided(&answers) {
            return Err(self.too_few(&answers));
        }
        self.hold = None;
        // If so many masters have lost the hold, it does not matter what the others remember.
        if is_gone(&answers) {
            Ok(Left::NotHeld)
        } else if answers.count("released") > 0 {
            let left = answers.read("released")?.into_iter();
            let mut cooling: Vec<Duration> = left.filter_map(Left::cooling).collect();
            // The lock is kept until a majority is free.
            cooling.sort_unstable();
            let kept = cooling.len().checked_sub(majority).and_then(|kept| cooling.get(kept));
            Ok(Left::Released { cooling: kept.copied().unwrap_or_default() })
        } else {
            Ok(Left::Already)
        }
    }
}
