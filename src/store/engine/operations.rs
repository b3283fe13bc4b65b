//! What each operation of a [`Store`] reads, decides and writes.

use super::coordinator::{Coordinator, Leases, OwnLiveness, Purpose, Reading};
use super::stored_lock::StoredLock;
use super::transaction::Transaction;
use super::{Engine, LIST_REQUESTS, WATCHES_MAX, Watched};
use crate::clock::Moment;
use crate::lock::{Fence, Key, Name, Names, Owner, Token};
use crate::rules::{
    Acquired, Ask, End, Forget, LOG_KEPT, Left, LockTable, LoggedEnd, NewPause, Patience, Proof, Refusal,
    Renew, Renewal, Requested, Revoke, Revoked, Time,
};
use crate::store::{Endurance, Error, Found, Listener, Slept, Store, Subscription, View, Which};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::time::Duration;

impl<C: Coordinator> Store for Engine<C> {
    /// Begins the liveness of the token. It ends with [`Store::leave`], with [`Store::hand_over`]
    /// (not where leases are sessions), and when `acquire` answers [`Acquired::Busy`],
    /// [`Acquired::Done`], [`Acquired::Superseded`] or [`Acquired::TokenEnded`] and no record names
    /// the token any more. A token that asks again after that has none. Its hold or place then ends
    /// only when its lease is over, or when it misses its heartbeats.
    fn prepare(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let token = self.coordinator.stored(token);
        self.coordinator.begin(&token)
    }

    fn hand_over(&mut self, names: &Names, token: &Token, deadline: Moment) -> Result<(), Error> {
        // Such a session belongs to the token, and outlives the process that began it.
        if C::LEASES == Leases::Sessions {
            return Ok(());
        }
        let token = &self.coordinator.stored(token);
        self.transact(names, Some(token), None, None, deadline, |transaction| transaction.untrack(token))?;
        self.end_liveness(token, deadline);
        Ok(())
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error> {
        let ask = &Ask { token: self.coordinator.stored(&ask.token), ..ask.clone() };
        let token = &ask.token;
        let began = Moment::now();
        let was_woken = std::mem::take(&mut self.is_woken);
        let waits = self.last_heartbeat.is_some() && ask.patience == Patience::Queue && !was_woken;
        let operation = |transaction: &mut Transaction<'_, C>| acquire(transaction, names, ask);
        let idle =
            if waits { self.try_without_writing(names, token, ask.mode, deadline, operation)? } else { None };
        let (mut answer, to_watch, is_named) = match idle {
            Some(answer @ (Acquired::Waiting(_), ..)) if self.beat(names, token, deadline).is_some() => {
                answer
            }
            _ => self.transact(names, Some(token), Some(ask.mode), Some(ask.ttl), deadline, operation)?,
        };
        match &mut answer {
            Acquired::Waiting(waiting) => {
                let (crowd, rarely) = C::CROWD;
                if waiting.ahead > crowd {
                    let beats = u32::try_from(waiting.ahead / crowd).unwrap_or(u32::MAX);
                    waiting.next = C::HEARTBEAT * beats.saturating_add(1).min(rarely);
                }
                (self.last_heartbeat, self.ahead) = (Some(Moment::now()), waiting.ahead);
                self.watch_tokens(to_watch, deadline);
            }
            // The watches stay until the first renewal: dropping them takes time, and the job is to
            // start now.
            Acquired::Granted(_) => self.set_lease(names, token, began, ask.ttl, deadline),
            _ if !is_named => self.end_liveness(token, deadline),
            // A revoked holder keeps its liveness, because its job may still run.
            _ => {}
        }
        if !std::mem::replace(&mut self.has_cleaned_up, true)
            && getrandom::u32().is_ok_and(|chance| chance % C::CLEANS_UP_ONE_IN == 0)
        {
            self.clean_up(deadline);
        }
        Ok(answer)
    }

    fn renew(&mut self, names: &Names, renew: &Renew<'_>, deadline: Moment) -> Result<Renewal, Error> {
        let token = &self.coordinator.stored(renew.token);
        let renew = &Renew { token, ..*renew };
        // No failure to record what is only shown is one of the renewal.
        let plain = &Renew { rest: None, ..*renew };
        self.watched = Watched::default();
        let Some(renewal) = self.renew_outside(names, plain, deadline)? else {
            return match self.record_renewal(names, renew, deadline) {
                Err(_) if renew.rest.is_some() => self.record_renewal(names, plain, deadline),
                renewal => renewal,
            };
        };
        if renew.rest.is_some() && !self.is_rest_shown {
            let soon = Moment::now().after(deadline.left() / 4);
            self.is_rest_shown = self.record_renewal(names, renew, soon).is_ok();
        }
        Ok(renewal)
    }

    fn endurance(&self) -> Endurance {
        self.coordinator.endurance()
    }

    /// Once a read has shown that the token held the lock, or had given it back, the answer is never
    /// [`Left::NotHeld`]. The reply to the write may be lost, and a crowd that leaves at the same time
    /// may drop the tombstone of this token.
    fn leave(&mut self, names: &Names, token: &Token, end: &End, deadline: Moment) -> Result<Left, Error> {
        let token = &self.coordinator.stored(token);
        let has_left = Cell::new(self.left.as_ref() == Some(token));
        let left = self.transact(names, Some(token), None, None, deadline, |transaction| {
            let left = transaction.table.leave(transaction.now, names, token, end);
            let is_known =
                has_left.replace(has_left.get() || matches!(left, Left::Released { .. } | Left::Already));
            if left == Left::NotHeld && is_known { Left::Already } else { left }
        });
        self.left = (left.is_err() && has_left.get()).then(|| token.clone());
        let left = left?;
        self.end_liveness(token, deadline);
        Ok(left)
    }

    fn prove(
        &mut self,
        names: &Names,
        token: &Token,
        _: Option<Fence>,
        deadline: Moment,
    ) -> Result<Option<Proof>, Error> {
        let token = &self.coordinator.stored(token);
        let (locks, now) = self.read(names, Some(token), deadline)?;
        let records = locks.into_iter().map(|lock| (lock.name, lock.record));
        let table = LockTable { records: records.collect(), ..LockTable::default() };
        Ok(table.prove(now, names, token))
    }

    fn request(
        &mut self,
        name: &Name,
        fence: Fence,
        who: &Owner,
        deadline: Moment,
    ) -> Result<Requested, Error> {
        self.change(name, deadline, |table, now| table.request(now, name, fence, who))
    }

    fn watch(&mut self, name: &Name, token: &Token, deadline: Moment) -> Result<(), Error> {
        let token = &self.coordinator.stored(token);
        self.transact(&name.clone().into(), Some(token), None, None, deadline, |transaction| {
            transaction.track(token, Duration::ZERO);
            transaction.table.watch(transaction.now, name, token);
        })
    }

    /// In a directory, it needs the liveness that [`Store::prepare`] began. Without that, the
    /// subscription only sleeps.
    fn subscribe(&mut self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        self.coordinator.subscribe(names, &self.coordinator.stored(token), listener)
    }

    fn listen_as_holder(&mut self, names: &Names, token: &Token, until: Moment) -> Option<bool> {
        self.coordinator.listen_as_holder(names, &self.coordinator.stored(token), until)
    }

    fn forget(&mut self, name: &Name, what: Forget, deadline: Moment) -> Result<bool, Error> {
        self.change(name, deadline, |table, now| match what {
            Forget::Success => table.forget_success(now, name),
            Forget::Expected => table.retire(name),
        })
    }

    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, deadline: Moment) -> Result<bool, Error> {
        self.change(name, deadline, |table, now| table.pause(now, name, pause))
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, deadline: Moment) -> Result<Revoked, Error> {
        self.change(name, deadline, |table, now| table.revoke(now, name, revoke))
    }

    /// After a few conflicts the refusal is not recorded, unless the caller is to announce it. If it cannot
    /// be, because others are faster at each attempt, the caller announces it unless one of those did.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<bool, Error> {
        let beside = name.of_refusals();
        let refused = self.transact(&beside.clone().into(), None, None, None, deadline, |transaction| {
            let announces = transaction.table.refuse(transaction.now, &beside, refusal);
            transaction.may_abort = transaction.is_crowded && !announces;
            announces
        });
        if !matches!(refused, Err(Error::Contended(_))) || refusal.notice.is_none() {
            return refused;
        }
        let soon = Moment::now().after(self.coordinator.request_time());
        let (lock, now) = self.read_one(&beside, None, soon)?;
        let records = BTreeMap::from([(lock.name, lock.record)]);
        Ok(LockTable { records, ..LockTable::default() }.refuse(now, &beside, refusal))
    }

    fn refusals(&mut self, name: &Name, deadline: Moment) -> Result<Vec<Refusal>, Error> {
        Ok(self.read_one(&name.of_refusals(), None, deadline)?.0.record.refusals.into())
    }

    fn ends(&mut self, name: &Name, token: &Token, deadline: Moment) -> Result<Vec<LoggedEnd>, Error> {
        let token = self.coordinator.stored(token);
        let (lock, now) = self.read_one(name, Some(&token), deadline)?;
        Ok(view(name, now, lock).log)
    }

    fn inspect(&mut self, name: &Name, deadline: Moment) -> Result<View, Error> {
        let (lock, now) = self.read_one(name, None, deadline)?;
        Ok(view(name, now, lock))
    }

    fn find(&mut self, prefix: &str, _: Which) -> Result<Found, Error> {
        let (mut names, mut missing) = (BTreeMap::new(), Vec::new());
        let each = self.coordinator.request_time();
        // A list may take long. A server that does not answer at all shows within the time of one
        // request. What the record says does not matter.
        let (any, deadline) = (BTreeSet::from([format!("{prefix}-")]), Moment::now().after(each));
        let reading = Reading { names: &any, me: None, lease: None, purpose: Purpose::Look, deadline };
        if let Err(error) = self.coordinator.read(&reading)
            && !matches!(error, Error::Garbled(_))
        {
            return Err(error);
        }
        for full in self.coordinator.list(Moment::now().after(each.saturating_mul(LIST_REQUESTS)))? {
            let full = match full {
                Ok(full) => full,
                Err(error) => {
                    missing.push(error);
                    continue;
                }
            };
            let key = full.strip_prefix(prefix).and_then(|key| Key::new(key).ok());
            if let Some(name) = key.and_then(|key| Name::new(prefix, &key).ok()) {
                names.insert(full, name);
            }
        }
        Ok(Found { names: names.into_values().collect(), missing })
    }

    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        let token = self.coordinator.stored(token);
        self.sleep_with_heartbeats(names, &token, until)
    }

    fn reset(&mut self) {
        self.coordinator.reset();
        self.watched = Watched::default();
    }
}

impl<C: Coordinator> Engine<C> {
    /// Applies an operator's `operation` to one lock.
    fn change<R>(
        &mut self,
        name: &Name,
        deadline: Moment,
        operation: impl Fn(&mut LockTable, Time) -> R,
    ) -> Result<R, Error> {
        self.transact(&name.clone().into(), None, None, None, deadline, |transaction| {
            operation(&mut transaction.table, transaction.now)
        })
    }
}

/// Asks the rules for the locks. Returns their answer, the tokens to watch meanwhile, and whether a
/// record names the caller now.
fn acquire<C: Coordinator>(
    transaction: &mut Transaction<'_, C>,
    names: &Names,
    ask: &Ask,
) -> (Acquired, BTreeSet<Token>, bool) {
    let token = &ask.token;
    // The guard may have released the token meanwhile. Then no record names the token, and its
    // liveness has ended.
    let is_known = transaction.is_named(token);
    let life = transaction.coordinator.own(token);
    if !is_known && life == OwnLiveness::Ended {
        return (Acquired::TokenEnded, BTreeSet::new(), false);
    }
    if life == OwnLiveness::Seen {
        transaction.track(token, ask.ttl);
    }
    let expected = |transaction: &Transaction<'_, C>| {
        let of = |name: &Name| transaction.table.records.get(name.as_str())?.expected;
        names.iter().map(of).collect::<Vec<_>>()
    };
    let before = expected(transaction);
    let answer = transaction.table.acquire(transaction.now, names, ask);
    // If no record names the caller, only the count of refusals would change.
    let is_refused = !is_known
        && matches!(answer, Acquired::Busy(_) | Acquired::Done(_))
        && expected(transaction) == before;
    transaction.may_abort = transaction.is_crowded && is_refused;
    let to_watch = match answer {
        Acquired::Waiting(_) => transaction.watch_targets(token, WATCHES_MAX),
        _ => BTreeSet::new(),
    };
    (answer, to_watch, transaction.is_named(token))
}

fn view(name: &Name, now: Time, mut lock: StoredLock) -> View {
    let mut view = lock.record.inspect(name, now);
    view.log.append(&mut lock.log);
    view.log.truncate(LOG_KEPT);
    view
}
