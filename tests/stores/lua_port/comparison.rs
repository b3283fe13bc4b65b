//! Plays each step of a history on both sides, and compares the answers and all that can be seen
//! afterwards.

use super::random_steps::{Step, Want};
use super::steered::Servers;
use super::{LOCKS, PEOPLE};
use dlock::clock::Moment;
use dlock::lock::{Fence, Mode, Name, Names, Owner, Token};
use dlock::rules::{
    ABSENCE, Acquired, Ask, End, FailurePause, Forget, LOG_KEPT, Lock, LockTable, NewPause, Notice, Patience,
    Refusal, Renew, Renewal, Revoke, Terms, Time, When,
};
use dlock::store::Store;
use std::time::Duration;

/// The rules and the store of one history.
pub struct Comparison<'a> {
    pub servers: &'a Servers,
    pub raw: &'a mut Vec<redis::Connection>,
    pub store: Box<dyn Store>,
    pub names: Vec<Name>,
    pub rules: LockTable,
    pub now: Time,
    pub people: Vec<(Token, Want)>,
    /// The client whose proof was compared last: one after each step.
    pub looked: usize,
    /// Last time at which no client waited.
    pub quiet: Time,
}

fn owner(who: usize) -> Owner {
    Owner {
        host: format!("host{who}"),
        pid: 100,
        user: "cron".into(),
        command: "true \"é\"".into(),
        // A lease that ends later than this was renewed.
        ttl: Some(Duration::from_millis(1500)),
        ..Owner::default()
    }
}

/// What a run expects: nothing, the end of that, an hour, two. It needs no dimension of its own.
fn expected(ttl: u64) -> Option<Duration> {
    (ttl % 4).checked_sub(1).map(|hours| Duration::from_secs(hours * 3600))
}

fn by() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

impl Comparison<'_> {
    /// The token of a client, and the locks that it wants.
    pub fn person(&self, who: usize) -> (Token, Mode, Names) {
        let (token, Want { locks, mode, .. }) = self.people[who].clone();
        let mut names = locks.iter().map(|lock| self.names[*lock].clone());
        (token, mode, Names::new(names.next().unwrap(), names))
    }

    /// Runs a command on every server.
    pub fn raw<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> Vec<T> {
        self.raw.iter_mut().map(|raw| command.query(raw).unwrap()).collect()
    }

    /// Whether dlock runs the lock rules for this store, as for a database.
    pub fn runs_the_rules(&self) -> bool {
        self.raw.is_empty()
    }

    pub fn is_quorum(&self) -> bool {
        self.raw.len() > 1
    }

    /// A quorum refuses a token that it has turned away once, and a token whose hold was revoked
    /// may only leave.
    pub fn reborn_for_a_quorum(&mut self, who: usize) {
        if self.is_quorum() {
            self.people[who].0 = Token::random().unwrap();
        }
    }

    pub fn lock(&mut self, lock: usize) -> &mut Lock {
        &mut self.rules.records.entry(self.names[lock].as_str().into()).or_default().lock
    }

    pub fn step(&mut self, step: &Step) {
        // A little time passes between two steps, so that tickets and fences differ as they do in
        // practice.
        self.now.0 += 7;
        self.servers.set_clock(self.now);
        let ms = Duration::from_millis;
        match *step {
            Step::Acquire { who, patience, ttl, min_hold, once_per, waited } => {
                let (token, _, names) = self.person(who);
                // It may not wait either, so its waiting time is zero.
                let min_hold = match self.rules.clone().renew(
                    self.now,
                    &names,
                    &Renew { token: &token, fence: None, ttl: ms(ttl), rest: None },
                ) {
                    // Several masters count a min-hold from the confirmation, so it stays as it
                    // was.
                    Renewal::Renewed | Renewal::Asked | Renewal::Superseded if self.is_quorum() => 0,
                    Renewal::Renewed | Renewal::Asked | Renewal::Superseded => min_hold,
                    Renewal::Revoked | Renewal::NotHeld => {
                        self.reborn_for_a_quorum(who);
                        min_hold
                    }
                };
                if self.runs_the_rules() {
                    // The store belongs to one process and remembers when it was heard.
                    self.store = self.servers.store(self.rules.queue_max);
                }
                let (token, mode, names) = self.person(who);
                let expect = expected(ttl);
                let (ttl, min_hold) = (ms(ttl), ms(min_hold));
                let patience = if self.is_quorum() { Patience::None } else { patience };
                let Want { replaces, not_replaceable, pause_on_failure, during_pause, .. } =
                    self.people[who].1;
                // A master of a quorum does not decide alone that a run has failed.
                let pause_on_failure = pause_on_failure.filter(|_| !self.is_quorum()).map(ms);
                let once_per = once_per.map(ms);
                let terms =
                    Terms { once_per, replaces, not_replaceable, pause_on_failure, during_pause, expect };
                // Waiters of a quorum measure their waiting time themselves.
                let waited = if self.is_quorum() { Duration::ZERO } else { ms(waited) };
                let ask = Ask {
                    token,
                    mode,
                    ttl,
                    min_hold,
                    owner: owner(who),
                    patience,
                    terms,
                    waited,
                    has_waited: waited.as_millis() % 2 == 1,
                };
                let mut lua = self.store.acquire(&names, &ask, by()).unwrap();
                match &mut lua {
                    // A quorum's waiter measures it itself, on another clock.
                    Acquired::Granted(grant) if self.is_quorum() => grant.waited = Duration::ZERO,
                    _ => {}
                }
                assert_eq!(self.rules.acquire(self.now, &names, &ask), lua, "{step:?}");
                if matches!(lua, Acquired::Busy(_)) {
                    self.reborn_for_a_quorum(who);
                }
            }
            Step::Renew { who, ttl } => {
                let (token, _, names) = self.person(who);
                // On a new connection a database is read. Else the lease might be a little longer.
                self.store.reset();
                let record = self.rules.records.get(names.first().as_str());
                let known = record.and_then(|record| Some(record.holds.get(&token)?.fence));
                let fence = match ttl % 3 {
                    0 => None,
                    one => known.map(|known| Fence(known - one + 1)),
                };
                // A master keeps it if the holder asks again, which no dlock does by then.
                let rest = (ttl % 2 == 0 && !self.is_quorum()).then_some("7 (é)");
                let renew = Renew { token: &token, fence, ttl: ms(ttl), rest };
                let lua = self.store.renew(&names, &renew, by()).unwrap();
                assert_eq!(self.rules.renew(self.now, &names, &renew), lua, "{step:?}");
            }
            Step::Leave { who, ran, job } => {
                let (token, _, names) = self.person(who);
                let record = self.rules.records.get(names.first().as_str());
                let known = record.and_then(|record| Some(record.holds.get(&token)?.fence));
                // Now and then of another grant.
                let fence = known.filter(|_| job.is_some()).map(|known| Fence(known - known % 5 / 4));
                let lasts = self.people[who].1.pause_on_failure.filter(|_| job.is_some());
                let pause = lasts
                    .map(|lasts| FailurePause { lasts: ms(lasts), reason: "failed on é: exit 1".into() });
                let end = End { ran, job, once_per: who.is_multiple_of(2), fence, pause };
                let lua = self.store.leave(&names, &token, &end, by()).unwrap();
                assert_eq!(self.rules.leave(self.now, &names, &token, &end), lua, "{step:?}");
            }
            Step::Revoke { lock, when } => {
                let (name, revoke) = (self.names[lock].clone(), Revoke { when, by: owner(99) });
                let lua = self.store.revoke(&name, &revoke, by()).unwrap();
                assert_eq!(self.rules.revoke(self.now, &name, &revoke), lua, "{step:?}");
            }
            Step::Request { lock } => {
                let name = self.names[lock].clone();
                let holders = self.store.inspect(&name, by()).unwrap().holders;
                let fence = holders.last().map_or(Fence(1), |holder| holder.fence);
                let lua = self.store.request(&name, fence, &owner(97), by()).unwrap();
                assert_eq!(self.rules.request(self.now, &name, fence, &owner(97)), lua, "{step:?}");
            }
            Step::Forget { lock } => {
                let name = self.names[lock].clone();
                let lua = self.store.forget(&name, Forget::Success, by()).unwrap();
                assert_eq!(self.rules.forget_success(self.now, &name), lua, "{step:?}");
                if self.now.0.is_multiple_of(3) {
                    let lua = self.store.forget(&name, Forget::Expected, by()).unwrap();
                    assert_eq!(self.rules.retire(&name), lua, "{step:?}");
                }
            }
            Step::Pause { lock, lasts } => {
                let (name, who) = (self.names[lock].clone(), owner(96));
                let pause =
                    lasts.map(|lasts| NewPause { by: &who, lasts: ms(lasts), shortens: lasts % 2 == 0 });
                let lua = self.store.pause(&name, pause, by()).unwrap();
                assert_eq!(self.rules.pause(self.now, &name, pause), lua, "{step:?}");
            }
            Step::Refuse { who, lock, missed } => {
                let name = &self.names[lock];
                let notice = missed.map(|(kind, subject)| Notice { kind, subject, by: who.to_string() });
                let refusal = Refusal { notice, ..Refusal::interrupted(&owner(who), None, ms(1)) };
                let lua = self.store.refuse(name, &refusal, by()).unwrap();
                assert_eq!(self.rules.refuse(self.now, &name.of_refusals(), &refusal), lua, "{step:?}");
                let record = &self.rules.records[name.of_refusals().as_str()];
                let known = self.store.refusals(name, by()).unwrap();
                // Several masters show two refusals that are alike but for the time as one.
                assert!(self.is_quorum() || record.refusals.iter().eq(&known), "{known:?} after {step:?}");
            }
            Step::Reborn { who, ref want } => self.people[who] = (Token::random().unwrap(), want.clone()),
            Step::Away(span) => {
                self.now.0 += span * 1000;
                self.servers.set_clock(self.now);
            }
            Step::Pass(span) => {
                if self.rules.records.values().all(|record| record.waiters.is_empty()) {
                    self.quiet = self.now;
                }
                // A waiter in the middle of the queue, which the rules do not see, becomes stale
                // when they see it.
                let heard = Duration::from_micros(self.now.0 - self.quiet.0);
                if !self.runs_the_rules() || self.quiet == self.now || heard + ms(span) < ABSENCE {
                    self.now.0 += span * 1000;
                    self.servers.set_clock(self.now);
                }
            }
            // The single value of the other stores is a row here.
            Step::Vanish { .. } | Step::Intrude { .. } if self.runs_the_rules() => {}
            Step::Vanish { lock } => {
                let mut delete = redis::cmd("DEL");
                self.raw::<()>(delete.arg(self.names[lock].as_str()));
                *self.lock(lock) = Lock::Free;
            }
            Step::Intrude { lock, ttl } => {
                let mut set = redis::cmd("SET");
                set.arg(self.names[lock].as_str()).arg("somebody");
                if let Some(ttl) = ttl {
                    set.arg("PX").arg(ttl);
                }
                self.raw::<()>(&set);
                let until = ttl.map(|ttl| dlock::rules::Due::after(self.now, ms(ttl)));
                *self.lock(lock) = Lock::Foreign { until };
            }
        }
        self.compare(step);
    }

    pub fn compare(&mut self, step: &Step) {
        let mut seen = Vec::new();
        while seen.len() < self.names.len() {
            seen.extend(self.store.inspect_some(&self.names[seen.len()..], LOG_KEPT, by()).unwrap());
        }
        for (name, lua) in self.names.clone().into_iter().zip(seen) {
            let record = self.rules.records.get(name.as_str()).cloned().unwrap_or_default();
            assert_eq!(record.inspect(&name, self.now), lua, "{} after {step:?}", name.as_str());
        }
        self.looked = (self.looked + 1) % PEOPLE;
        let (token, _, names) = self.person(self.looked);
        let lua = self.store.prove(&names, &token, None, by()).unwrap();
        assert_eq!(self.rules.prove(self.now, &names, &token), lua, "{} after {step:?}", self.looked);
    }

    /// I5: the server's clock is set back by an hour. Expiries that Redis has carried out do not
    /// return with it, so the rules cannot follow; but the next grant has a greater fence than the
    /// last.
    pub fn fences_grow_while_the_clock_goes_back(&mut self) {
        self.servers.set_clock(Time(self.now.0 - 3_600_000_000));
        let before: Vec<_> =
            self.names.iter().map(|name| self.store.inspect(name, by()).unwrap().fence).collect();
        for name in &self.names {
            self.store.revoke(name, &Revoke { when: When::Now, by: owner(99) }, by()).unwrap();
        }
        let token = Token::random().unwrap();
        let (ttl, min_hold) = (Duration::from_secs(1), Duration::ZERO);
        let (mode, patience) = (Mode::Exclusive, Patience::None);
        let (terms, waited) = (Terms::default(), Duration::ZERO);
        let ask =
            Ask { token, mode, ttl, min_hold, owner: owner(98), patience, terms, waited, has_waited: false };
        let others = if self.is_quorum() { 0 } else { LOCKS };
        let names = Names::new(self.names[0].clone(), self.names.iter().take(others).cloned());
        let before = before.into_iter().take(names.as_slice().len());
        if let Acquired::Granted(grant) = self.store.acquire(&names, &ask, by()).unwrap() {
            for before in before {
                assert!(Some(grant.fence) > before, "{before:?}, then {:?}", grant.fence);
            }
        }
        self.servers.set_clock(self.now);
    }

    /// I11: every key that a history leaves behind has a TTL (except the intruder's key, which is
    /// not dlock's).
    pub fn nothing_stays_for_ever(&mut self) {
        for raw in self.raw.iter_mut() {
            let keys: Vec<String> = redis::cmd("KEYS").arg("dlock.*").query(raw).unwrap();
            for key in keys {
                let ttl: i64 = redis::cmd("PTTL").arg(&key).query(raw).unwrap();
                assert!(ttl >= 0, "{key} has no TTL");
            }
        }
    }
}
