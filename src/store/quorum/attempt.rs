//! Wins a majority. In one attempt, phase one takes the masters, and phase two tells them the
//! fence. If that does not make a majority in time, everything is given back everywhere. A caller
//! that does not wait also repeats the attempt here, within its time.

use super::exchange::{Attempt, Blocked, Candidate, Leave};
use super::masters::{Answers, Order};
use super::view::{Clock, Firmness, Joined, MasterView};
use super::{Held, LOOK, LOOK_FIRST, QuorumStore, STRAGGLERS, scripts};
use crate::clock::{Moment, sleep_until};
use crate::lock::{Fence, Name, Names};
use crate::rules::schedule;
use crate::rules::{Acquired, Ask, Done, End, Grant, Patience, Superseded, Terms, Waiting};
use crate::store::Error;
use crate::store::redis::argument;
use std::time::Duration;

/// Shortest and longest pause after an attempt in which nobody got a majority.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// Longest time to wait until a failed attempt is taken back.
const TAKE_BACK: Duration = Duration::from_millis(250);

/// Masters may disagree for ever which of two runs with `--replace` is newer, and then neither gets
/// a majority. After this long, the one that is older on some masters goes on without `--replace`:
/// both run, one after the other.
const AGREED_WITHIN: Duration = Duration::from_secs(2);

enum Tried {
    Won(Grant),
    TokenEnded,
    Done(Done),
    Superseded(Superseded),
    Blocked {
        joined: Box<Joined>,
        /// How many others have waited longer.
        ahead: u64,
    },
}

/// One attempt.
struct Try<'a> {
    name: &'a Name,
    /// As the masters are asked.
    ask: Ask,
    /// Later attempts on this machine have greater numbers.
    number: String,
    /// End of the lease, if the attempt wins.
    end: Moment,
    deadline: Moment,
}

impl Try<'_> {
    fn argument(&self, fence: Option<Fence>) -> Attempt<'_> {
        Attempt { ask: &self.ask, attempt: &self.number, fence }
    }
}

impl QuorumStore {
    /// Makes one attempt for a caller that waits, which asks again by itself. For a caller that
    /// does not wait, repeats the attempt until it wins, another holds the lock, or its time is
    /// over.
    pub(super) fn win(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error> {
        let name = names.first();
        let doubts_until = Moment::now().after(deadline.left() / 2);
        loop {
            let (joined, ahead) = match self.attempt(name, ask, deadline)? {
                Tried::Won(grant) => return Ok(Acquired::Granted(grant)),
                Tried::Done(done) => return Ok(Acquired::Done(done)),
                Tried::Superseded(superseded) => {
                    // It does no harm if this fails: the lease is short, and each master that hears
                    // of it refuses the token from then on.
                    let _ = self.leave_as(&End::NOT_RUN, Some("superseded"), names, &ask.token, deadline);
                    return Ok(Acquired::Superseded(superseded));
                }
                Tried::TokenEnded => return Ok(Acquired::TokenEnded),
                Tried::Blocked { joined, ahead } => (joined, ahead),
            };
            let blocker = joined.blocker();
            // A release does not wait for a slow master, which may know a hold a little longer. So
            // a caller that does not wait asks again for a while.
            let is_held = match joined.firmness {
                Firmness::Firm => true,
                Firmness::Doubtful => ask.patience == Patience::Queue || doubts_until.passed(),
                Firmness::Unblocked => false,
            };
            let next = match is_held {
                true => {
                    let end = blocker.left.unwrap_or(Duration::MAX);
                    between(if ahead == 0 { LOOK_FIRST } else { LOOK })
                        .min(end.saturating_add(between(BACK_OFF)))
                }
                false => between(BACK_OFF),
            };
            if ask.patience == Patience::Queue {
                return Ok(Acquired::Waiting(Waiting { ahead: 0, next, blocker, turn: None }));
            }
            // A caller that does not wait also tries again if nobody got a majority; else all of
            // them might be refused.
            if is_held || deadline.left() < next * 2 {
                // It does no harm if this fails: what was not taken back ends with its lease, and
                // each master that hears of it refuses the token from then on.
                let _ = self.leave_as(&End::NOT_RUN, Some("busy"), names, &ask.token, deadline);
                return Ok(Acquired::Busy(blocker));
            }
            sleep_until(Moment::now().after(next));
        }
    }

    /// One attempt to get the lock. Everything that it took is given back unless it won.
    fn attempt(&mut self, name: &Name, ask: &Ask, deadline: Moment) -> Result<Tried, Error> {
        let sent = Moment::now();
        let began = match &self.asking {
            Some((token, began)) if *token == ask.token => *began,
            _ => sent,
        };
        self.asking = Some((ask.token.clone(), began));
        let disputed =
            self.disputed.as_ref().filter(|(token, _)| *token == ask.token).map(|(_, since)| *since);
        let gives_in = disputed.is_some_and(|since| since.after(AGREED_WITHIN).passed());
        let terms = Terms { replaces: ask.terms.replaces && !gives_in, ..ask.terms.clone() };
        let this = &Try {
            name,
            ask: Ask { waited: sent.since(began), terms, ..ask.clone() },
            number: sent.since_boot().as_micros().to_string(),
            end: schedule::deadline(sent, ask.ttl),
            deadline,
        };
        let first = self.call(&scripts::ACQUIRE, name, &this.argument(None))?;
        // A third of the time is left for phase two, or for giving back.
        let first_by = sent.after((deadline.left() * 2 / 3).min(ask.ttl / 2));
        let answers = self.decide(&first, first_by, |_| true);
        let everybody = self.masters.everybody();
        if let Some(error) = self.misfit(&answers) {
            self.take_back(this, &everybody);
            return Err(error);
        }
        // One master that remembers the success is enough: the success was told to a majority, and
        // that has a master in common with every other majority.
        if let Some(done) = answers.read("done")?.pop() {
            self.take_back(this, &everybody);
            return Ok(Tried::Done(done));
        }
        if answers.count("token-ended") > 0 {
            return Ok(Tried::TokenEnded);
        }
        // Masters may order two runs that came at the same time differently, but two majorities
        // cannot.
        if answers.count("superseded") >= self.masters.majority()
            && let Some(superseded) = answers.read("superseded")?.pop()
        {
            return Ok(Tried::Superseded(superseded));
        }
        if !gives_in {
            let disagree = answers.count("superseded") > 0;
            self.disputed = disagree.then(|| (ask.token.clone(), disputed.unwrap_or(sent)));
        }
        if answers.count("granted") >= self.masters.majority() {
            return self.confirm(this, &answers);
        }
        self.give_up(this, &answers)
    }

    /// Phase two, after a majority has granted the lock: tells all masters the fence.
    fn confirm(&mut self, this: &Try<'_>, granted: &Answers) -> Result<Tried, Error> {
        let (everybody, majority) = (self.masters.everybody(), self.masters.majority());
        let candidates = granted.read::<Candidate>("granted")?;
        let fence = candidates.iter().map(|candidate| candidate.fence.0).max().unwrap_or_default();
        let second = self.call(&scripts::CONFIRM, this.name, &this.argument(Some(Fence(fence))))?;
        let answers = self.decide(&second, this.deadline.min(this.end), |answers| {
            answers.count("confirmed") >= majority || answers.count("not-held") > everybody.len() - majority
        });
        if answers.count("confirmed") >= majority && !this.end.passed() {
            self.hold = Some(Held { token: this.ask.token.clone(), until: this.end, fence });
            return Ok(Tried::Won(Grant { fence: Fence(fence), waited: this.ask.waited, slot: None }));
        }
        self.take_back(this, &everybody);
        if answers.count("confirmed") + answers.count("not-held") < majority {
            return Err(self.too_few(&answers));
        }
        if this.end.passed() {
            let why = "answers too slowly for a lease of this length: give a longer --ttl";
            return Err(Error::Unavailable(format!("{} {why}", self.shown)));
        }
        // The masters were lost again between the two phases.
        let joined = Joined { seen: MasterView::FREE, firmness: Firmness::Unblocked };
        Ok(Tried::Blocked { joined: Box::new(joined), ahead: 0 })
    }

    /// Takes back what was granted without a majority, and finds out what blocks the caller.
    fn give_up(&mut self, this: &Try<'_>, answers: &Answers) -> Result<Tried, Error> {
        let (everybody, majority) = (self.masters.everybody(), self.masters.majority());
        let refused =
            |at: &usize| ["busy", "behind", "superseded"].iter().any(|what| answers.says(*at, what));
        let taken: Vec<_> = everybody.into_iter().filter(|at| !refused(at)).collect();
        self.take_back(this, &taken);
        // A caller that is superseded on some masters waits there for the newer run.
        let (busy, behind) = (answers.count("busy"), answers.count("behind") + answers.count("superseded"));
        if answers.count("granted") + busy + behind < majority {
            return Err(self.too_few(answers));
        }
        let (now, mut seen, mut ahead) = (answers.now(), Vec::new(), 0);
        for at in 0..self.masters.len() {
            if let Some(answer) = answers.of(at, "busy").or_else(|| answers.of(at, "behind")) {
                let blocked: Blocked = answer.reply.read()?;
                let clock = Clock::of(answer.head.now, now);
                ahead = ahead.max(blocked.ahead);
                seen.push(blocked.seen.map_or(MasterView::FREE, |seen| seen.timed_by(clock)));
            } else if answers.says(at, "granted") || answers.says(at, "superseded") {
                seen.push(MasterView::FREE);
            }
        }
        let mut joined = Joined::of(&seen, self.masters.len());
        // Others have waited longer, so trying again at once is useless.
        if behind > 0 && busy + behind > self.masters.len() - majority {
            joined.firmness = Firmness::Firm;
        }
        Ok(Tried::Blocked { joined: Box::new(joined), ahead })
    }

    /// Gives back what an attempt took, also where no answer came.
    fn take_back(&mut self, this: &Try<'_>, from: &[usize]) {
        let end = argument::Leave::new(&this.ask.token, &End::NOT_RUN);
        let argument = Leave { end, counts: None, attempt: Some(&this.number) };
        let Ok(leave) = self.call(&scripts::LEAVE, this.name, &argument) else { return };
        let now = Moment::now();
        let pending = self.masters.send(from, &leave, Order::TakingBack, now.after(self.request_time()));
        let until = this.deadline.min(now.after(TAKE_BACK));
        let answers = self.masters.collect(pending, until, STRAGGLERS, |_| true);
        self.report_masters(&answers);
    }
}

/// A random time between these two, so that callers that collided do not collide again.
fn between((least, most): (Duration, Duration)) -> Duration {
    let mut bytes = [0; 2];
    // Without randomness all wait equally long, which is slow but not wrong.
    let _ = getrandom::fill(&mut bytes);
    least + (most - least) * u32::from(u16::from_ne_bytes(bytes)) / u32::from(u16::MAX)
}
