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
//!   the hold's deadline, because after it another one may have had the lock.
//! - A master that has been up for less than the longest lease may have forgotten a hold. Until
//!   then it is neither counted nor won back.
//!
//! Shared locks, slots, and several locks at once are refused: each master would be right by
//! itself, and the majorities would not add up to one decision.

use super::redis::reply::Refusals;
use super::redis::script::Code;
use super::redis::{RedisStore, Target, argument};
use super::{Error, Found, Listener, Slept, Store, Subscription, View, Which, json};
use crate::clock::{Moment, sleep_until};
use crate::lock::{Fence, Mode, Name, Names, Owner, Token};
use crate::rules::schedule::deadline;
use crate::rules::{
    self, Acquired, Ask, End, Left, NewPause, Proof, Ran, Refusal, Renewal, Requested, Revoke, Revoked, State,
};
use crate::store::net::interrupt;
use exchange::{Argument, Inspected, Lease, Leave, Renewed, TakenAway, Vouched, WinBack};
use masters::{Answer, Answers, Call, Master, Masters, Order};
use serde::Serialize;
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use view::{Clock, Firmness, Joined, MasterView};

mod attempt;
mod exchange;
mod masters;
pub(super) mod scripts;
mod trouble;
mod view;

/// When the waiter that has waited longest asks again for a lock that is held.
const LOOK_FIRST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));
/// When the others ask again. The masters forget waiters that ask more rarely
/// (`quorum/scripts/turn.lua`).
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// Shortest time to wait for the last masters while a lease runs.
const STRAGGLERS: Duration = Duration::from_millis(50);
/// The same for reads, where a hurried answer would blame a master that is only slow.
const STRAGGLERS_SEEN: Duration = Duration::from_millis(500);

/// Locks on a majority of independent masters.
pub struct QuorumStore {
    masters: Masters,
    shown: String,
    max_lease: Duration,
    /// The token that asks for the lock, and since when.
    asked: Option<(Token, Moment)>,
    /// The same token, and since when the masters disagree whether a newer run replaces it.
    disputed: Option<(Token, Moment)>,
    /// The hold that this store won or renewed.
    hold: Option<Held>,
    /// The last trouble reported of each master.
    troubles: Vec<Option<String>>,
    tell: Box<dyn Fn(&str) + Send>,
}

/// Wakes after a time, because no master knows what the others do, so none could notify a watcher.
struct Polling(Listener);

impl Subscription for Polling {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        let next = match self.0 {
            Listener::Holder => until,
            Listener::Watcher => until.min(Moment::now().after(LOOK.1)),
        };
        sleep_until(next);
        Ok(self.0 == Listener::Watcher)
    }
}

/// A hold, as its holder knows it.
struct Held {
    token: Token,
    /// The deadline of its last success: no master is won back later.
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
            asked: None,
            disputed: None,
            hold: None,
            troubles,
            tell: Box::new(tell),
        }
    }

    /// Why masters cannot hold such a lock; None if they can.
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

    fn ask(&mut self, to: &[usize], call: &Call, by: Moment, stragglers: Duration) -> Answers {
        self.ask_until(|_| true, to, call, by, stragglers)
    }

    fn ask_until(
        &mut self,
        is_enough: impl Fn(&Answers) -> bool,
        to: &[usize],
        call: &Call,
        by: Moment,
        stragglers: Duration,
    ) -> Answers {
        let pending = self.masters.send(to, call, Order::Behind, by);
        let answers = self.masters.collect(pending, by, stragglers, is_enough);
        self.listen(&answers);
        answers
    }

    /// Asks all masters, and waits for slow ones as long as the result depends on them.
    fn decide(&mut self, call: &Call, by: Moment, is_decided: impl Fn(&Answers) -> bool) -> Answers {
        self.ask_until(is_decided, &self.masters.everybody(), call, by, STRAGGLERS)
    }

    /// Asks all masters, where there is no hurry.
    fn look(&mut self, call: &Call, by: Moment) -> Answers {
        self.ask(&self.masters.everybody(), call, by, STRAGGLERS_SEEN)
    }

    /// Reports what has changed about a master.
    fn listen(&mut self, answers: &Answers) {
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
        self.masters.targets.first().map_or(STRAGGLERS, |target| target.connect_timeout + target.op_timeout)
    }

    fn call(&self, code: &'static Code, name: &Name, argument: &impl Serialize) -> Result<Call, Error> {
        let argument = json(&Argument { longest: self.max_lease, argument })?.into();
        Ok(Call { code, keys: scripts::MASTER.keys(name).into(), argument })
    }

    /// Gives the hold to masters that have lost it. Returns how many took it, if the answers are
    /// waited for.
    fn win_back(&mut self, name: &Name, win: &WinBack<'_>, missing: &[usize], until: Deadline) -> usize {
        let Ok(win) = self.call(&scripts::WIN_BACK, name, win) else { return 0 };
        match until {
            Deadline::Heard(by) => self.ask(missing, &win, by, STRAGGLERS).count("won"),
            Deadline::Sent(by) => {
                drop(self.masters.send(missing, &win, Order::Behind, by));
                0
            }
        }
    }
}

/// How far a request is followed.
#[derive(Clone, Copy)]
enum Deadline {
    /// Its answer is waited for.
    Heard(Moment),
    /// It is only sent.
    Sent(Moment),
}

impl Store for QuorumStore {
    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        if let Some(why) = Self::refusal(names, ask.mode) {
            return Err(Error::Unfit(why));
        }
        self.win(names, ask, by)
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        let (name, sent) = (names.first(), Moment::now());
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        // The fence of a hold that another process won is known to the masters only.
        let old = self.hold.take().filter(|hold| hold.token == *token);
        let known = old.as_ref().map(|hold| hold.fence).filter(|fence| *fence > 0);
        let argument = argument::Renew { token, ttl, fence: known.map(|fence| fence.to_string()) };
        let renew = self.call(&scripts::RENEW, name, &argument)?;
        let wins_back = old.as_ref().is_some_and(|old| !old.until.passed());
        let is_decided = |answers: &Answers| {
            let (renewed, revoked) = (answers.count("renewed"), answers.count("revoked"));
            let (missing, gone) = (answers.count("missing"), revoked + answers.count("not-held"));
            // One master that has the hold is enough to win back those that have lost it.
            let (won_back, lost) = match wins_back && revoked == 0 {
                true if renewed > 0 => (missing, gone),
                true => (0, gone),
                false => (0, gone + missing),
            };
            renewed + won_back >= majority || lost > masters - majority
        };
        let answers = self.decide(&renew, by, is_decided);
        let (mut renewed, revoked) = (answers.count("renewed"), answers.count("revoked"));
        let mut lost = revoked + answers.count("not-held") + answers.count("missing");
        let missing: Vec<_> = (0..masters).filter(|at| answers.says(*at, "missing")).collect();
        let (mut asked, mut hold, mut fence) = (None, Vouched::default(), known.unwrap_or_default());
        let mut untold = Vec::new();
        for at in 0..masters {
            let Some(answer) = answers.of(at, "renewed") else { continue };
            let told: Renewed = answer.reply.read()?;
            match told.fence {
                None => untold.push(at),
                Some(known) => fence = fence.max(known.0),
            }
            if told.superseded {
                asked = asked.or(Some(Renewal::Superseded));
            } else if told.asked {
                asked = Some(Renewal::Asked);
            }
            let (cooling, stays) = (hold.cooling.max(told.hold.cooling), hold.stays || told.hold.stays);
            hold = Vouched { cooling, stays, ..told.hold };
        }
        let win = WinBack { token, ttl, fence: fence.to_string(), hold: &hold };
        let until = Deadline::Sent(deadline(sent, ttl).min(sent.after(self.request_time())));
        if fence > 0 && !untold.is_empty() {
            self.win_back(name, &win, &untold, until);
        }
        // A hold that no master has is lost: nobody confirms it. And a hold that an operator has
        // begun to revoke is not won back.
        if renewed > 0 && revoked == 0 && !missing.is_empty() {
            if renewed >= majority {
                self.win_back(name, &win, &missing, until);
            } else if let Some(old) = old.as_ref().filter(|old| !old.until.passed()) {
                lost = lost.saturating_sub(missing.len());
                renewed += self.win_back(name, &win, &missing, Deadline::Heard(by.min(old.until)));
            }
        }
        if renewed >= majority {
            self.hold = Some(Held { token: token.clone(), until: deadline(sent, ttl), fence });
            Ok(asked.unwrap_or(Renewal::Renewed))
        } else if lost > masters - majority {
            Ok(if revoked > 0 { Renewal::Revoked } else { Renewal::NotHeld })
        } else {
            self.hold = old;
            Err(self.short(&answers))
        }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        self.leave_as(end, None, names, token, by)
    }

    /// The holder learns of it by its next renewal; one master that has the hold is enough.
    fn request(&mut self, name: &Name, fence: Fence, who: &Owner, by: Moment) -> Result<Requested, Error> {
        let argument = argument::Request { fence: fence.to_string(), by: who };
        let request = self.call(&scripts::REQUEST, name, &argument)?;
        let answers = self.look(&request, by);
        if answers.count("asked") > 0 {
            Ok(Requested::Asked)
        } else if answers.count("gone") >= self.masters.majority() {
            Ok(Requested::Gone)
        } else {
            Err(self.short(&answers))
        }
    }

    /// Does nothing: a watcher reads the lock again.
    fn watch(&mut self, _: &Name, _: &Token, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    fn subscribe(
        &mut self,
        _: &[Name],
        _: &Token,
        listener: Listener,
    ) -> Result<Box<dyn Subscription>, Error> {
        Ok(Box::new(Polling(listener)))
    }

    /// One master after the other, without a thread: this may be called before the process forks.
    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        if names.as_slice().len() > 1 {
            return Ok(None);
        }
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let prove = self.call(&scripts::PROVE, names.first(), &argument::OfToken { token })?;
        let mut answers = Answers(self.masters.targets.iter().map(|_| None).collect());
        for (at, target) in self.masters.targets.iter().enumerate() {
            let share = by.left() / u32::try_from(masters - at).unwrap_or(u32::MAX);
            answers.0[at] = Some(Master::new(target.clone()).call(&prove, Moment::now().after(share)));
            if answers.count("held") >= majority {
                let leases = answers.read::<Lease>("held")?;
                let lease = leases.iter().map(|told| told.lease).min().unwrap_or_default();
                // Without a fence it is being acquired: no master was told of a majority yet.
                let fence = leases.iter().filter_map(|told| told.fence).max();
                return Ok(fence.map(|fence| Proof { mode: Mode::Exclusive, slot: None, fence, lease }));
            }
            if answers.count("not-held") > masters - majority {
                return Ok(None);
            }
        }
        Err(self.short(&answers))
    }

    /// Every master must forget, because one that remembers is enough to skip a run.
    fn forget(&mut self, name: &Name, by: Moment) -> Result<bool, Error> {
        let answers = self.look(&self.call(&scripts::FORGET, name, &argument::Nothing {})?, by);
        let forgotten = answers.count("forgotten");
        if forgotten + answers.count("nothing") < self.masters.len() {
            return Err(self.short(&answers).map(|text| {
                format!(
                    "{text}; a master that did not answer may still have it: do this again when all answer"
                )
            }));
        }
        Ok(forgotten > 0)
    }

    /// A majority is enough: every grant needs one of these masters.
    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, by: Moment) -> Result<bool, Error> {
        let answers = self.look(&self.call(&scripts::PAUSE, name, &argument::Pause { pause })?, by);
        let (paused, majority) = (answers.count("paused"), self.masters.majority());
        if paused + answers.count("open") < majority {
            return Err(self.short(&answers));
        }
        Ok(paused >= majority)
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        let answers = self.look(&self.call(&scripts::REVOKE, name, revoke)?, by);
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let heard = answers.0.iter().flatten().flatten().count();
        if heard < majority {
            let error = self.short(&answers);
            return Err(match heard {
                0 => error,
                _ => error.map(|text| {
                    format!("{text}; those that answered have released the lock, but they are too few")
                }),
            });
        }
        let now = answers.now();
        let (mut seen, mut left, mut deleted) = (Vec::new(), Vec::new(), false);
        for at in 0..masters {
            let Some(Ok(answer)) = &answers.0[at] else { continue };
            let told: TakenAway = answer.reply.read()?;
            left.push(told.left);
            // An attempt without a majority is no hold.
            let is_free = answer.head.outcome == "free";
            seen.push(if is_free {
                MasterView::FREE
            } else {
                told.seen.timed_by(Clock::of(answer.head.now, now))
            });
            deleted |= answer.head.outcome == "foreign-deleted";
        }
        left.sort_unstable();
        // The time until a majority is free.
        let left = left[majority - 1];
        let MasterView { state, holder, foreign, .. } = Joined::of(&seen, masters).seen;
        let holders: Vec<_> = holder.into_iter().collect();
        Ok(match (state, foreign) {
            (_, Some(_)) if deleted => Revoked::ForeignDeleted,
            (_, Some(foreign)) => Revoked::Foreign(foreign),
            (State::Held, None) => Revoked::Holds { holders, left },
            (State::Cooling, None) => Revoked::Cooling,
            (State::Revoked, None) => Revoked::AlreadyRevoked { holders, left },
            (State::Free | State::Paused, None) => Revoked::Free,
        })
    }

    fn refuse(&mut self, name: &Name, refusal: &Refusal, by: Moment) -> Result<(), Error> {
        let answers = self.look(&self.call(&scripts::REFUSE, name, &argument::Refuse { refusal })?, by);
        if answers.count("noted") == 0 { Err(self.short(&answers)) } else { Ok(()) }
    }

    /// Each master records a refusal with the time of its own clock, so copies are found by all
    /// fields but the time.
    fn refusals(&mut self, name: &Name, by: Moment) -> Result<Vec<Refusal>, Error> {
        let answers = self.look(&self.call(&scripts::REFUSED, name, &argument::Nothing {})?, by);
        let now = answers.now();
        let mut all: Vec<Refusal> = Vec::new();
        for answer in (0..self.masters.len()).filter_map(|at| answers.of(at, "seen")) {
            for refusal in answer.reply.read::<Refusals>()?.read() {
                let at = refusal.at.saturating_add(now).saturating_sub(answer.head.now);
                let is_known = |known: &Refusal| Refusal { at: refusal.at, ..known.clone() } == refusal;
                if !all.iter().any(is_known) {
                    all.push(Refusal { at, ..refusal });
                }
            }
        }
        all.sort_by_key(|refusal| std::cmp::Reverse(refusal.at));
        all.truncate(rules::REFUSALS_KEPT);
        Ok(all)
    }

    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let answers = self.look(&self.call(&scripts::INSPECT, name, &argument::Nothing {})?, by);
        if answers.count("seen") < self.masters.majority() {
            return Err(self.short(&answers));
        }
        let now = answers.now();
        let (mut seen, mut fences) = (Vec::new(), Vec::new());
        let (mut log, mut stats, mut whys) = (Vec::new(), Vec::new(), Vec::new());
        let mut successes = Vec::new();
        for at in 0..self.masters.len() {
            let Some(Answer { head, reply }) = answers.of(at, "seen") else { continue };
            let clock = Clock::of(head.now, now);
            let Inspected { seen: one, unfit, history } = reply.read()?;
            log.extend(history.log().into_iter().map(|end| clock.of_end(end)));
            stats.push(clock.of_stat(history.stat()));
            seen.push((at, one.timed_by(clock)));
            fences.extend(history.fence);
            successes.extend(history.success.map(|success| clock.of_success(success)));
            whys.push(unfit.and_then(|why| self.masters.why_unfit(at, &why, head.counts_in)));
        }
        for ((at, _), why) in seen.iter().zip(whys) {
            self.note(*at, why);
        }
        let all: Vec<_> = seen.iter().map(|(_, seen)| seen.clone()).collect();
        let joined = Joined::of(&all, self.masters.len());
        // Attempts without a majority hold nothing.
        let trying = joined.firmness == Firmness::Split;
        let MasterView { state, left, holder, foreign, token, paused } =
            if trying { MasterView::FREE } else { joined.seen };
        for (at, seen) in seen {
            if (seen.state, &seen.token) != (state, &token) {
                let (shown, key) = (&self.masters.targets[at].shown, name.key());
                let (one, most) = (seen.state.word(), state.word());
                (self.tell)(&format!("{key}: {shown} says {one}, a majority says {most}"));
            }
        }
        let is_kept = !matches!(state, State::Free | State::Paused);
        let mode = (is_kept && foreign.is_none()).then_some(Mode::Exclusive);
        Ok(View {
            name: name.clone(),
            now,
            state,
            foreign,
            mode,
            holders: holder.into_iter().collect(),
            left,
            fence: fences.into_iter().max(),
            waiters: Vec::new(),
            log: view::join_logs(log),
            stat: view::join_stats(stats),
            paused,
            success: successes.into_iter().max_by_key(|success| success.fence),
        })
    }

    /// A lock that no majority has is free, so nothing is missing if a majority answers.
    fn find(&mut self, prefix: &str, which: Which) -> Result<Found, Error> {
        let failed = |why: &str| Err(Error::Unreachable(why.into()));
        let lists: Vec<_> = thread::scope(|scope| {
            let ask = |target: &Target| {
                let mut store = RedisStore::new(target.clone());
                thread::Builder::new().spawn_scoped(scope, move || store.find(prefix, which))
            };
            let asked: Vec<_> = self.masters.targets.iter().map(ask).collect();
            let heard = asked.into_iter().map(|list| match list {
                Ok(list) => list.join().unwrap_or_else(|_| failed("a thread has failed")),
                Err(error) => failed(&format!("cannot start a thread: {error}")),
            });
            heard.collect()
        });
        let (mut names, mut answered, mut reasons) = (BTreeSet::new(), 0, Vec::new());
        for list in lists {
            match list {
                Ok(found) => {
                    answered += 1;
                    names.extend(found.names);
                }
                Err(error) => reasons.push(error),
            }
        }
        if answered >= self.masters.majority() {
            return Ok(Found { names: names.into_iter().collect(), missing: Vec::new() });
        }
        let texts = reasons.iter().map(Error::to_string).collect::<Vec<_>>().join("; ");
        let text =
            format!("{answered} of the {} masters of {} answer: {texts}", self.masters.len(), self.shown);
        Err(match reasons.into_iter().find(|error| !error.is_transient()) {
            Some(error) => error.map(|_| text),
            None => Error::Unreachable(text),
        })
    }

    fn sleep(&mut self, _: &Names, _: &Token, until: Moment) -> Result<Slept, Error> {
        interrupt::sleep_until(until);
        Ok(Slept::Through)
    }

    /// A failed connection is dropped at once; those to other masters are good.
    fn reset(&mut self) {}
}

impl QuorumStore {
    /// Leaves for good. `counts` is the total that counts a caller that did not get the lock.
    fn leave_as(
        &mut self,
        end: &End,
        counts: Option<&'static str>,
        names: &Names,
        token: &Token,
        by: Moment,
    ) -> Result<Left, Error> {
        let argument = Leave { end: argument::Leave::new(token, end), counts, attempt: None };
        let leave = self.call(&scripts::LEAVE, names.first(), &argument)?;
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let given_back = |answers: &Answers| answers.count("released") + answers.count("already");
        let has_run = end.ran != Ran::No;
        let is_gone = |answers: &Answers| match has_run {
            true => answers.count("not-held") > masters - majority,
            // No job ran, so nothing depended on the hold.
            false => given_back(answers) == 0 && answers.count("not-held") >= majority,
        };
        let is_decided = |answers: &Answers| match has_run {
            true => given_back(answers) >= majority || is_gone(answers),
            false => given_back(answers) + answers.count("not-held") >= majority,
        };
        let pending = self.masters.send(&self.masters.everybody(), &leave, Order::Leaving, by);
        let answers = self.masters.collect(pending, by, STRAGGLERS, is_decided);
        self.listen(&answers);
        if !is_decided(&answers) {
            return Err(self.short(&answers));
        }
        self.hold = None;
        // If most masters have lost the hold, it does not matter what the others remember.
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
