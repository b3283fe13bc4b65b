//! How is a majority won? One attempt: phase one takes the masters, phase two tells them the fence, and what does not
//! come to a majority in time is given back everywhere. Then, for who does not wait, whether to try again.

use super::masters::Order;
use super::view::{Clock, Firmness, Joined, MasterView};
use super::{Held, LOOK, LOOK_FIRST, QuorumStore, STRAGGLERS, call, scripts};
use crate::clock::{Moment, sleep_until};
use crate::lock::{Fence, Name, Names};
use crate::rules::schedule::deadline;
use crate::rules::{self, Acquired, Ask, Done, Grant, Patience, Superseded, Terms, Waiting};
use crate::store::redis::reply::Reply;
use crate::store::redis::terms_to;
use crate::store::{Error, json};
use std::time::Duration;

/// When to try again after nobody got a majority.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// How long an attempt that failed is waited for to be taken back, at most.
const TAKE_BACK: Duration = Duration::from_millis(250);

/// Masters may disagree for ever who of two came later, and then each of the two lacks a majority. Whoever was the older one
/// on some of them for so long goes on as one that replaces nobody: both run, one after the other.
const AGREED_WITHIN: Duration = Duration::from_secs(2);

enum Tried {
    Won(Grant),
    Spent,
    Done(Done),
    Superseded(Superseded),
    Blocked {
        joined: Box<Joined>,
        /// How many have waited longer.
        ahead: u64,
    },
}

impl QuorumStore {
    /// Attempts until one wins, or somebody has the lock, or who does not wait runs out of time.
    pub(super) fn win(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        let name = names.first();
        let doubts_until = Moment::now().after(by.left() / 2);
        loop {
            let (joined, ahead) = match self.attempt(name, ask, by)? {
                Tried::Won(grant) => return Ok(Acquired::Granted(grant)),
                Tried::Done(done) => return Ok(Acquired::Done(done)),
                Tried::Superseded(superseded) => {
                    // The lease is short, and the token is spent wherever this arrives.
                    let _ = self.leave_as("sent-home", names, &ask.token, "", false, by);
                    return Ok(Acquired::Superseded(superseded));
                }
                Tried::Spent => return Ok(Acquired::Spent),
                Tried::Blocked { joined, ahead } => (joined, ahead),
            };
            let blocker = joined.blocker();
            // Who gives back does not wait for a master that is slow. So who does not wait asks again, for a while.
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
            // Who does not wait still tries again if nobody got a majority: else all might be turned away.
            if is_held || by.left() < next * 2 {
                // What could not be taken back yet ends with its lease; the token is spent wherever this arrives.
                let _ = self.leave_as("refused", names, &ask.token, "", false, by);
                return Ok(Acquired::Busy(blocker));
            }
            sleep_until(Moment::now().after(next));
        }
    }

    /// One attempt to get the lock; what it took is given back unless it has won.
    fn attempt(&mut self, name: &Name, ask: &Ask, by: Moment) -> Result<Tried, Error> {
        let sent = Moment::now();
        let end = deadline(sent, ask.ttl);
        let began = match &self.asked {
            Some((token, began)) if *token == ask.token => *began,
            _ => sent,
        };
        self.asked = Some((ask.token.clone(), began));
        // What comes later on this machine gets a greater number.
        let attempt = sent.since_boot().as_micros().to_string();
        let (token, longest) = (ask.token.secret(), self.longest());
        let owner = json(&ask.owner)?;
        let ttl = rules::millis(ask.ttl).to_string();
        let waited = sent.since(began);
        let waited_ms = rules::millis(waited).to_string();
        let once_per = rules::millis(ask.terms.once_per.unwrap_or_default()).to_string();
        let disputed =
            self.disputed.as_ref().filter(|(token, _)| *token == ask.token).map(|(_, since)| *since);
        let gives_in = disputed.is_some_and(|since| since.after(AGREED_WITHIN).passed());
        let terms = terms_to(&Terms { replaces: ask.terms.replaces && !gives_in, ..ask.terms.clone() });
        let patience = if ask.patience == Patience::Queue { "queue" } else { "none" };
        let first = call(
            &scripts::ACQUIRE,
            name,
            &[token, &ttl, &owner, &attempt, &longest, &waited_ms, patience, &once_per, terms],
        );
        // A third of the time is left for phase two, or for giving back.
        let first_by = sent.after((by.left() * 2 / 3).min(ask.ttl / 2));
        let everybody = self.masters.everybody();
        let mut answers = self.ask(&everybody, &first, first_by, STRAGGLERS);
        if let Some(error) = self.misfit(&answers) {
            self.take_back(name, token, &attempt, &everybody, by);
            return Err(error);
        }
        // One that remembers is enough: a majority that was told shares a master with every other majority.
        if let Some(reply) = answers.replies("done").next() {
            let done = reply.done(0)?;
            self.take_back(name, token, &attempt, &everybody, by);
            return Ok(Tried::Done(done));
        }
        if answers.count("spent") > 0 {
            return Ok(Tried::Spent);
        }
        let majority = self.masters.majority();
        // Two that came at the same time are in order on each master, and not in both orders on a majority.
        if answers.count("superseded") >= majority {
            let by_whom = answers.replies("superseded").next().map(Reply::owner).transpose()?;
            return Ok(Tried::Superseded(Superseded { at: 0, by: by_whom.unwrap_or_default() }));
        }
        if !gives_in {
            let disagree = answers.count("superseded") > 0;
            self.disputed = disagree.then(|| (ask.token.clone(), disputed.unwrap_or(sent)));
        }
        if answers.count("granted") >= majority {
            let mut fence = 0;
            for reply in answers.replies("granted") {
                fence = fence.max(reply.number()?);
            }
            let (number, min_hold) = (fence.to_string(), rules::millis(ask.min_hold).to_string());
            let second =
                call(&scripts::CONFIRM, name, &[token, &number, &min_hold, &longest, &waited_ms, terms]);
            let told = self.decide(&second, by.min(end), |told| {
                told.count("confirmed") >= majority || told.count("not-held") > everybody.len() - majority
            });
            if told.count("confirmed") >= majority && !end.passed() {
                self.hold = Some(Held { token: ask.token.clone(), until: end, fence });
                return Ok(Tried::Won(Grant { fence: Fence(fence), waited, slot: None }));
            }
            self.take_back(name, token, &attempt, &everybody, by);
            if told.count("confirmed") + told.count("not-held") < majority {
                return Err(self.short(&told));
            }
            if end.passed() {
                let text = format!("{} answers too slowly for a lease of this length", self.shown);
                return Err(Error::Unavailable(text));
            }
            // Somebody took it away in between.
            let joined = Joined { seen: MasterView::FREE, firmness: Firmness::Split };
            return Ok(Tried::Blocked { joined: Box::new(joined), ahead: 0 });
        }
        let refused =
            |at: &usize| ["busy", "behind", "superseded"].iter().any(|what| answers.says(*at, what));
        let taken: Vec<_> = everybody.into_iter().filter(|at| !refused(at)).collect();
        self.take_back(name, token, &attempt, &taken, by);
        // Who is superseded on some masters waits there for the one that came later.
        let (busy, behind) = (answers.count("busy"), answers.count("behind") + answers.count("superseded"));
        if answers.count("granted") + busy + behind < majority {
            return Err(self.short(&answers));
        }
        let (now, mut seen, mut ahead) = (answers.now(), Vec::new(), 0);
        for at in 0..self.masters.len() {
            if let Some(reply) = answers.reply(at, "busy") {
                ahead = ahead.max(reply.number()?);
                let clock = Clock::of(reply.now, now);
                seen.push(MasterView::read(reply, clock)?);
            } else if let Some(reply) = answers.reply(at, "behind") {
                ahead = ahead.max(reply.number()?);
                seen.push(MasterView::FREE);
            } else if answers.says(at, "granted") || answers.says(at, "superseded") {
                seen.push(MasterView::FREE);
            }
        }
        let mut joined = Joined::of(&seen, self.masters.len());
        // Others have waited longer: trying again at once changes nothing.
        if behind > 0 && busy + behind > self.masters.len() - majority {
            joined.firmness = Firmness::Firm;
        }
        Ok(Tried::Blocked { joined: Box::new(joined), ahead })
    }

    /// Gives back what an attempt took, also where no answer came.
    fn take_back(&mut self, name: &Name, token: &str, attempt: &str, from: &[usize], by: Moment) {
        let leave = call(&scripts::LEAVE, name, &[token, "not-run", "", attempt]);
        let now = Moment::now();
        let pending = self.masters.send(from, &leave, Order::TakingBack, now.after(self.patience()));
        let answers = self.masters.collect(pending, by.min(now.after(TAKE_BACK)), STRAGGLERS, |_| true);
        self.listen(&answers);
    }
}

/// A random span between two: who collided once is not to collide again.
fn between((least, most): (Duration, Duration)) -> Duration {
    let mut bytes = [0; 2];
    // Without randomness all wait as long, which is slow, not wrong.
    let _ = getrandom::fill(&mut bytes);
    least + (most - least) * u32::from(u16::from_ne_bytes(bytes)) / u32::from(u16::MAX)
}
