//! What each operation of a [`Store`] asks the masters, and what their answers mean together.

use super::exchange::{Inspected, Lease, TakenAway, WinBack};
use super::masters::{Answer, Answers, Call, Master};
use super::view::{Clock, Firmness, Joined, MasterView};
use super::{Held, Polling, QuorumStore, STRAGGLERS_SEEN, Vouches, scripts, tally, view};
use crate::clock::Moment;
use crate::lock::{Fence, Mode, Name, Names, Owner, Token};
use crate::rules;
use crate::rules::stat::Stat;
use crate::rules::{
    Acquired, Ask, End, Forget, Left, NewPause, Proof, Refusal, Renewal, Requested, Revoke, Revoked, State,
    schedule,
};
use crate::store::net::interrupt;
use crate::store::redis::reply::{Noted, Refusals};
use crate::store::redis::{RedisStore, argument};
use crate::store::{Endurance, Error, Found, Listener, Slept, Store, Subscription, View, Which};
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

impl Store for QuorumStore {
    fn acquire(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error> {
        if let Some(why) = Self::refusal(names, ask.mode) {
            return Err(Error::Unfit(why));
        }
        self.win(names, ask, deadline)
    }

    fn renew(&mut self, names: &Names, renew: &rules::Renew<'_>, deadline: Moment) -> Result<Renewal, Error> {
        let (sent, majority) = (Moment::now(), self.masters.majority());
        let old = self.hold.take().filter(|hold| hold.token == *renew.token);
        // The masters know a fence that the caller does not.
        let won = old.as_ref().map(|hold| Fence(hold.fence)).filter(|fence| fence.0 > 0);
        let renew = &rules::Renew { fence: renew.fence.or(won), ..*renew };
        let call = self.call(&scripts::RENEW, names.first(), renew)?;
        let wins_until = || old.as_ref().map(|old| old.until).filter(|until| !until.passed());
        let (wins_back, most_lost) = (wins_until().is_some(), self.masters.len() - majority);
        let answers = self.decide(&Call { within: renew.ttl, ..call }, deadline, |answers| {
            let (renewed, lost) = tally(answers, wins_back);
            renewed >= majority || lost > most_lost
        });
        let Vouches { asked, hold, fence, untold } = self.vouches(&answers, renew.fence)?;
        let until = schedule::deadline(sent, renew.ttl);
        let win = WinBack { token: renew.token, ttl: renew.ttl, fence: Fence(fence), hold: &hold };
        let win = self.call(&scripts::WIN_BACK, names.first(), &win)?;
        // A master that does not know the fence need not take it before the next renewal.
        let soon = until.min(sent.after(self.request_time()));
        let (renewed, lost) =
            self.win_back(&win, &answers, untold, soon, wins_until().map(|until| until.min(deadline)));
        if renewed >= majority {
            let token = renew.token.clone();
            self.hold = Some(Held { token, until, fence });
            Ok(asked.unwrap_or(Renewal::Renewed))
        } else if lost > most_lost {
            Ok(if answers.count("revoked") > 0 { Renewal::Revoked } else { Renewal::NotHeld })
        } else {
            self.hold = old;
            Err(self.too_few(&answers))
        }
    }

    /// After an attempt without an answer, each master is connected anew.
    fn endurance(&self) -> Endurance {
        Endurance::Long
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, deadline: Moment) -> Result<Left, Error> {
        self.leave_as(end, None, names, token, deadline)
    }

    /// The holder learns of it by its next renewal; one master that has the hold is enough.
    fn request(
        &mut self,
        name: &Name,
        fence: Fence,
        who: &Owner,
        deadline: Moment,
    ) -> Result<Requested, Error> {
        let request = self.call(&scripts::REQUEST, name, &argument::Request { fence, by: who })?;
        let answers = self.ask_all(&request, deadline);
        if answers.count("asked") > 0 {
            Ok(Requested::Asked)
        } else if answers.count("gone") >= self.masters.majority() {
            Ok(Requested::Gone)
        } else {
            Err(self.too_few(&answers))
        }
    }

    /// Does nothing: a watcher reads the lock again.
    fn watch(&mut self, _: &Name, _: &Token, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    fn subscribe(&mut self, _: &[Name], _: &Token, listener: Listener) -> Box<dyn Subscription> {
        Box::new(Polling(listener))
    }

    /// One master after the other, without a thread: this may be called before the process forks.
    fn prove(
        &mut self,
        names: &Names,
        token: &Token,
        _: Option<Fence>,
        deadline: Moment,
    ) -> Result<Option<Proof>, Error> {
        if names.as_slice().len() > 1 {
            return Ok(None);
        }
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let prove = self.call(&scripts::PROVE, names.first(), &argument::OfToken { token })?;
        let mut answers = Answers(self.masters.targets.iter().map(|_| None).collect());
        for (at, target) in self.masters.targets.iter().enumerate() {
            let share = deadline.left() / u32::try_from(masters - at).unwrap_or(u32::MAX);
            answers.0[at] = Some(Master::new(target.clone()).call(&prove, Moment::now().after(share)));
            if answers.count("held") >= majority {
                let leases = answers.read::<Lease>("held")?;
                let lease = leases.iter().map(|lease| lease.lease).min().unwrap_or_default();
                // If no master knows a fence yet, the token is still acquiring, and holds nothing.
                let fence = leases.iter().filter_map(|lease| lease.fence).max();
                let asked = leases.into_iter().find_map(|lease| lease.asked);
                return Ok(fence.map(|fence| Proof {
                    mode: Mode::Exclusive,
                    slot: None,
                    fence,
                    lease,
                    asked,
                }));
            }
            if answers.count("not-held") > masters - majority {
                return Ok(None);
            }
        }
        Err(self.too_few(&answers))
    }

    /// Every master must forget, because one that remembers the success is enough to skip a run.
    fn forget(&mut self, name: &Name, what: Forget, deadline: Moment) -> Result<bool, Error> {
        let answers = self.ask_all(&self.call(&scripts::FORGET, name, &argument::Forget { what })?, deadline);
        let forgotten = answers.count("forgotten");
        if forgotten + answers.count("nothing") < self.masters.len() {
            return Err(self.too_few(&answers).map(|text| {
                format!(
                    "{text}; a master that did not answer may still have it: do this again when all answer"
                )
            }));
        }
        Ok(forgotten > 0)
    }

    /// A majority is enough, because every grant needs at least one of these masters.
    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, deadline: Moment) -> Result<bool, Error> {
        let answers = self.ask_all(&self.call(&scripts::PAUSE, name, &argument::Pause { pause })?, deadline);
        let (paused, majority) = (answers.count("paused"), self.masters.majority());
        if paused + answers.count("open") < majority {
            return Err(self.too_few(&answers));
        }
        Ok(paused >= majority)
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, deadline: Moment) -> Result<Revoked, Error> {
        let answers = self.ask_all(&self.call(&scripts::REVOKE, name, revoke)?, deadline);
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let answered = answers.0.iter().flatten().flatten().count();
        if answered < majority {
            let error = self.too_few(&answers);
            return Err(match answered {
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
            let taken: TakenAway = answer.reply.read()?;
            left.push(taken.left);
            // An attempt without a majority is no hold.
            let is_free = answer.head.outcome == "free";
            seen.push(if is_free {
                MasterView::FREE
            } else {
                taken.seen.timed_by(Clock::of(answer.head.now, now))
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

    /// Whether the caller is to announce it: of several answers that of the master with the smallest run id
    /// counts. So a refusal that may have to be announced waits for all of them.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<bool, Error> {
        let refuse = self.call(&scripts::REFUSE, name, &argument::Refuse::new(refusal))?;
        let has_notice = refusal.notice.is_some();
        let is_enough = |answers: &Answers| !has_notice || answers.0.iter().all(Option::is_some);
        let answers = self.ask(&self.masters.everybody(), &refuse, deadline, STRAGGLERS_SEEN, is_enough);
        let noted = (0..self.masters.len()).filter_map(|at| answers.of(at, "noted"));
        let first = noted.min_by(|one, other| one.head.run_id.cmp(&other.head.run_id));
        match first {
            Some(answer) => Ok(answer.reply.read::<Noted>()?.announces),
            None => Err(self.too_few(&answers)),
        }
    }

    /// Each master records a refusal with the time of its own clock, so copies are recognised by
    /// all fields but the time.
    fn refusals(&mut self, name: &Name, deadline: Moment) -> Result<Vec<Refusal>, Error> {
        let answers = self.ask_all(&self.call(&scripts::REFUSED, name, &argument::Nothing {})?, deadline);
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

    fn inspect(&mut self, name: &Name, deadline: Moment) -> Result<View, Error> {
        let answers = self.ask_all(&self.call(&scripts::INSPECT, name, &argument::Nothing {})?, deadline);
        if answers.count("seen") < self.masters.majority() {
            return Err(self.too_few(&answers));
        }
        let now = answers.now();
        let (mut seen, mut fences) = (Vec::new(), Vec::new());
        let (mut log, mut totals, mut whys) = (Vec::new(), Stat::default(), Vec::new());
        let (mut successes, mut expected) = (Vec::new(), Vec::new());
        for at in 0..self.masters.len() {
            let Some(Answer { head, reply }) = answers.of(at, "seen") else { continue };
            let clock = Clock::of(head.now, now);
            let Inspected { seen: one, unfit, mut history } = reply.read()?;
            let (ends, stat) = clock.history(&mut history);
            log.extend(ends);
            totals.join(&stat);
            seen.push((at, one.timed_by(clock)));
            fences.extend(history.fence);
            expected.push((history.fence, history.expected));
            successes.extend(history.success);
            whys.push(unfit.and_then(|why| self.masters.why_unfit(at, &why, head.counts_in)));
        }
        for ((at, _), why) in seen.iter().zip(whys) {
            self.note(*at, why);
        }
        let all: Vec<_> = seen.iter().map(|(_, seen)| seen.clone()).collect();
        let joined = Joined::of(&all, self.masters.len());
        // Attempts without a majority hold nothing.
        let trying = joined.firmness == Firmness::Unblocked;
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
            stat: totals,
            paused,
            success: successes.into_iter().max_by_key(|success| success.fence),
            // What the master says that saw the last grant.
            expected: expected
                .into_iter()
                .max_by_key(|(fence, one)| (*fence, one.is_some()))
                .and_then(|(_, one)| one),
        })
    }

    /// A lock that no majority has is free, so nothing is missing if a majority answers.
    fn find(&mut self, prefix: &str, which: Which) -> Result<Found, Error> {
        let (sender, lists) = channel();
        for target in &self.masters.targets {
            let (mut store, prefix, list) =
                (RedisStore::new(target.clone()), prefix.to_owned(), sender.clone());
            // The receiver is gone after an interrupt.
            let ask = move || drop(list.send(store.find(&prefix, which)));
            if let Err(error) = thread::Builder::new().name("dlock-list".into()).spawn(ask) {
                let _ = sender.send(Err(Error::Unreachable(format!("cannot start a thread: {error}"))));
            }
        }
        drop(sender);
        let (mut names, mut answered, mut reasons) = (BTreeSet::new(), 0, Vec::new());
        for _ in &self.masters.targets {
            // Each thread bounds its own requests.
            match interrupt::receive(&lists, Moment::from_boot(Duration::MAX)) {
                Some(Ok(found)) => {
                    answered += 1;
                    names.extend(found.names);
                }
                Some(Err(error)) => reasons.push(error),
                None => reasons.push(Error::Unreachable("interrupted, or a thread has failed".into())),
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

    /// The first master that answers is enough.
    fn glimpse(&mut self, prefix: &str) -> Result<Vec<Name>, Error> {
        let mut all =
            self.masters.targets.iter().map(|target| RedisStore::new(target.clone()).glimpse(prefix));
        all.find(Result::is_ok).unwrap_or(Ok(Vec::new()))
    }

    fn sleep(&mut self, _: &Names, _: &Token, until: Moment) -> Result<Slept, Error> {
        interrupt::sleep_until(until);
        Ok(Slept::Through)
    }

    /// Does nothing: a connection that failed was dropped at once, and those to other masters are
    /// good.
    fn reset(&mut self) {}
}
