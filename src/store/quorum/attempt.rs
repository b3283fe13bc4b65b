//! How a majority is won. One attempt: phase one takes the masters, phase two tells them the fence,
//! and everything that does not become a majority in time is given back everywhere. A caller that
//! does not wait also repeats the attempt here, within its time.

use super::exchange::{Attempt, Blocked, Candidate, Leave};
use super::masters::Order;
use super::view::{Clock, Firmness, Joined, MasterView};
use super::{Held, LOOK, LOOK_FIRST, QuorumStore, STRAGGLERS, scripts};
use crate::clock::{Moment, sleep_until};
use crate::lock::{Fence, Name, Names, Token};
use crate::rules::schedule::deadline;
use crate::rules::{Acquired, Ask, Done, End, Grant, Patience, Ran, Superseded, Terms, Waiting};
use crate::store::Error;
use crate::store::redis::argument;
use std::time::Duration;

/// Pause after an attempt in which nobody got a majority.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// Longest time to wait until a failed attempt is taken back.
const TAKE_BACK: Duration = Duration::from_millis(250);

/// Masters may disagree for ever which of two runs with `--replace` is newer, and then neither gets
/// a majority. After this long, the one that is older on some masters goes on without `--replace`:
/// both run, one after the other.
const AGREED_WITHIN: Duration = Duration::from_secs(2);

/// What nothing ran under.
const NOT_RUN: End = End { ran: Ran::No, job: None, once_per: false };

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

impl QuorumStore {
    /// Repeats attempts until one wins, the lock is held by another, or the time of a caller that
    /// does not wait is over.
    pub(super) fn win(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        let name = names.first();
        let doubts_until = Moment::now().after(by.left() / 2);
        loop {
            let (joined, ahead) = match self.attempt(name, ask, by)? {
                Tried::Won(grant) => return Ok(Acquired::Granted(grant)),
                Tried::Done(done) => return Ok(Acquired::Done(done)),
                Tried::Superseded(superseded) => {
                    // A failure does no harm: the lease is short, and the token is refused wherever
                    // this arrives.
                    let _ = self.leave_as(&NOT_RUN, Some("superseded"), names, &ask.token, by);
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
                Firmness::Split => false,
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
            if is_held || by.left() < next * 2 {
                // A failure does no harm: what was not taken back ends with its lease, and the
                // token is refused wherever this arrives.
                let _ = self.leave_as(&NOT_RUN, Some("busy"), names, &ask.token, by);
                return Ok(Acquired::Busy(blocker));
            }
            sleep_until(Moment::now().after(next));
        }
    }

    /// One attempt to get the lock. Everything that it took is given back unless it won.
    fn attempt(&mut self, name: &Name, ask: &Ask, by: Moment) -> Result<Tried, Error> {
        let sent = Moment::now();
        let end = deadline(sent, ask.ttl);
        let began = match &self.asked {
            Some((token, began)) if *token == ask.token => *began,
            _ => sent,
        };
        self.asked = Some((ask.token.clone(), began));
        // Later attempts on this machine have greater numbers.
        let attempt = &*sent.since_boot().as_micros().to_string();
        let waited = sent.since(began);
        let disputed =
            self.disputed.as_ref().filter(|(token, _)| *token == ask.token).map(|(_, since)| *since);
        let gives_in = disputed.is_some_and(|since| since.after(AGREED_WITHIN).passed());
        let terms = Terms { replaces: ask.terms.replaces && !gives_in, ..ask.terms.clone() };
        let asked = Ask { waited, terms, ..ask.clone() };
        let token = &ask.token;
        let first = self.call(&scripts::ACQUIRE, name, &Attempt { ask: &asked, attempt, fence: None })?;
        // A third of the time is left for phase two, or for giving back.
        let first_by = sent.after((by.left() * 2 / 3).min(ask.ttl / 2));
        let everybody = self.masters.everybody();
        let answers = self.ask(&everybody, &first, first_by, STRAGGLERS);
        if let Some(error) = self.misfit(&answers) {
            self.take_back(name, token, attempt, &everybody, by);
            return Err(error);
        }
        // One master that remembers the success is enough: the majority that was told has a master
        // in common with every other majority.
        if let Some(done) = answers.read("done")?.pop() {
            self.take_back(name, token, attempt, &everybody, by);
            return Ok(Tried::Done(done));
        }
        if answers.count("token-ended") > 0 {
            return Ok(Tried::TokenEnded);
        }
        let majority = self.masters.majority();
        // Each master orders two runs that came at the same time, and no two majorities can do so
        // differently.
        if answers.count("superseded") >= majority
            && let Some(superseded) = answers.read("superseded")?.pop()
        {
            return Ok(Tried::Superseded(superseded));
        }
        if !gives_in {
            let disagree = answers.count("superseded") > 0;
            self.disputed = disagree.then(|| (ask.token.clone(), disputed.unwrap_or(sent)));
        }
        if answers.count("granted") >= majority {
            let fences = answers.read::<Candidate>("granted")?;
            let fence = fences.iter().map(|granted| granted.fence.0).max().unwrap_or_default();
            let confirm = Attempt { ask: &asked, attempt, fence: Some(fence.to_string()) };
            let second = self.call(&scripts::CONFIRM, name, &confirm)?;
            let told = self.decide(&second, by.min(end), |told| {
                told.count("confirmed") >= majority || told.count("not-held") > everybody.len() - majority
            });
            if told.count("confirmed") >= majority && !end.passed() {
                self.hold = Some(Held { token: ask.token.clone(), until: end, fence });
                return Ok(Tried::Won(Grant { fence: Fence(fence), waited, slot: None }));
            }
            self.take_back(name, token, attempt, &everybody, by);
            if told.count("confirmed") + told.count("not-held") < majority {
                return Err(self.short(&told));
            }
            if end.passed() {
                let text = format!(
                    "{} answers too slowly for a lease of this length: give a longer --ttl",
                    self.shown
                );
                return Err(Error::Unavailable(text));
            }
            // It was taken away between the two phases.
            let joined = Joined { seen: MasterView::FREE, firmness: Firmness::Split };
            return Ok(Tried::Blocked { joined: Box::new(joined), ahead: 0 });
        }
        let refused =
            |at: &usize| ["busy", "behind", "superseded"].iter().any(|what| answers.says(*at, what));
        let taken: Vec<_> = everybody.into_iter().filter(|at| !refused(at)).collect();
        self.take_back(name, token, attempt, &taken, by);
        // A caller that is superseded on some masters waits there for the newer run.
        let (busy, behind) = (answers.count("busy"), answers.count("behind") + answers.count("superseded"));
        if answers.count("granted") + busy + behind < majority {
            return Err(self.short(&answers));
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
    fn take_back(&mut self, name: &Name, token: &Token, attempt: &str, from: &[usize], by: Moment) {
        let argument =
            Leave { end: argument::Leave::new(token, &NOT_RUN), counts: None, attempt: Some(attempt) };
        let Ok(leave) = self.call(&scripts::LEAVE, name, &argument) else { return };
        let now = Moment::now();
        let pending = self.masters.send(from, &leave, Order::TakingBack, now.after(self.request_time()));
        let answers = self.masters.collect(pending, by.min(now.after(TAKE_BACK)), STRAGGLERS, |_| true);
        self.listen(&answers);
    }
}

/// A random time between these two, so that callers that collided do not collide again.
fn between((least, most): (Duration, Duration)) -> Duration {
    let mut bytes = [0; 2];
    // Without randomness all wait equally long, which is slow but not wrong.
    let _ = getrandom::fill(&mut bytes);
    least + (most - least) * u32::from(u16::from_ne_bytes(bytes)) / u32::from(u16::MAX)
}
