//! Writes a transaction, and remembers this process's nodes in the queues.

use super::jute::{Answer, Ask, Code};
use super::life::Life;
use super::node::LockNode;
use super::wire::Failure;
use super::{Again, Znodes};
use crate::lock::Token;
use crate::rules::{Due, Time, millis};
use crate::store::Error;
use crate::store::engine::{Changed, Written};
use std::collections::{BTreeMap, BTreeSet};

/// Most bytes of a transaction: a server's default `jute.maxbuffer`, less some room.
const TRANSACTION_MOST: usize = 1_000_000;

/// This process's node in a queue, as it was last read or written.
pub(super) struct Place {
    pub(super) path: String,
    pub(super) data: Vec<u8>,
    pub(super) version: i32,
}

impl Znodes {
    /// Writes everything or nothing; nothing if any of it has changed since it was read.
    pub(super) fn write_step(
        &self,
        entries: Vec<(LockNode, Changed)>,
        now: Time,
        woken: &[Token],
    ) -> Result<Written, Error> {
        let lives = self.lives.take();
        self.forget_seen();
        if entries.iter().all(|(_, changed)| *changed == Changed::No) {
            return Ok(Written::Yes);
        }
        let asker = self.asker.borrow().clone();
        let (mut all, mut has_new, mut places) = (Vec::new(), false, BTreeMap::new());
        let mut onlookers = BTreeSet::new();
        let life = self.life.get().filter(|life| !life.was_ended);
        let life = life.filter(|_| asker.as_ref().is_some_and(|asker| self.is_own(asker)));
        if let (Some(_), Some(asker)) = (life, &asker) {
            // A grant, a renewal or a wait counts only while this session lasts.
            all.push(Ask::Check { path: self.life_path(asker), version: None });
        }
        let mut holds = false;
        for (mut entry, changed) in entries {
            onlookers.extend(entry.record.watchers.keys().cloned());
            if entry.is_stale() {
                self.must_sync.set(true);
                return Ok(Written::Conflict);
            }
            if changed == Changed::No {
                all.extend(entry.check());
                continue;
            }
            if let Some(hold) = asker.as_ref().and_then(|asker| entry.record.holds.get(asker))
                && hold.confirmed
                && let Some(asker) = &asker
            {
                holds = true;
                let until = Due(hold.until.0.saturating_add(millis(self.uncertain.get()) + 1));
                entry.record.lasts(asker, until);
            }
            let name = entry.name.clone();
            let place = asker.as_ref().and_then(|asker| entry.place_of(asker));
            places.insert(name, place);
            let change =
                entry.change(now).map_err(|error| error.map(|why| format!("{}: {why}", self.shown())))?;
            has_new |= change.is_new;
            all.extend(change.asks);
        }
        if all.iter().all(|ask| matches!(ask, Ask::Check { .. })) {
            // The locks had no nodes and need none.
            return Ok(Written::Yes);
        }
        // The same transaction wakes the waiters whose sessions are known to live. If one has ended
        // since, nothing is written, and the next waiter is chosen again.
        let woken = woken.iter().filter(|token| !onlookers.contains(*token));
        let is_alive = |token: &&Token| lives.get(*token).copied().unwrap_or_default();
        let (alive, others): (Vec<_>, Vec<_>) =
            woken.partition(|token| is_alive(token) && !self.wakes_apart.get());
        let wakes_with_it = !alive.is_empty();
        let wake = |token: &Token| Ask::Set { path: self.life_path(token), data: Vec::new() };
        all.extend(alive.into_iter().map(wake));
        let size: usize = all.iter().map(Ask::size).sum();
        if size > TRANSACTION_MOST {
            return Ok(Written::too_large(self.shown()));
        }
        let mut asks = vec![Ask::All(all)];
        asks.extend(others.into_iter().map(wake));
        let answer = match self.ask(&asks, Again::No) {
            Ok(answers) => answers.into_iter().next(),
            // The write may have been done. If it was, the retry finds other versions.
            Err(Failure::Broken(_)) => {
                self.must_sync.set(true);
                return Ok(Written::Conflict);
            }
            Err(failure) => return Err(failure.into()),
        };
        match answer {
            Some(Ok(Answer::All(answers))) => {
                if asker.is_some_and(|asker| self.is_own(&asker))
                    && let Some(Ask::All(all)) = asks.into_iter().next()
                {
                    self.keep_places(places, all, &answers);
                }
                if let Some(life) = life.filter(|_| holds) {
                    // The session node existed at the write, so this session is now the lease.
                    self.life.set(Some(Life { holds, ..life }));
                }
                Ok(Written::Yes)
            }
            Some(Err(code @ (Code::BAD_VERSION | Code::NODE_EXISTS | Code::NO_NODE | Code::NOT_EMPTY))) => {
                if code == Code::NO_NODE && has_new {
                    self.make_base()?;
                }
                self.must_sync.set(true);
                Ok(Written::Conflict)
            }
            // The lock may be open to everybody, and a waiter's session node to its owner only.
            Some(Err(Code::NO_AUTH)) if wakes_with_it => {
                self.wakes_apart.set(true);
                Ok(Written::Conflict)
            }
            Some(Err(code)) => Err(self.refused(code)),
            _ => Err(self.refused(Code(0))),
        }
    }

    /// Remembers this process's nodes in the queues after a write.
    fn keep_places(&self, places: BTreeMap<String, Option<String>>, asks: Vec<Ask>, answers: &[Answer]) {
        let mut known = self.places.borrow_mut();
        let mut written: BTreeMap<String, (Vec<u8>, i32)> = BTreeMap::new();
        for (ask, answer) in asks.into_iter().zip(answers) {
            match (ask, answer) {
                // A create within a transaction returns no version; the first is 0.
                (Ask::Create { path, data }, Answer::Done) => drop(written.insert(path, (data, 0))),
                (Ask::Set { path, data }, Answer::Stat(stat)) => {
                    drop(written.insert(path, (data, stat.version)));
                }
                _ => {}
            }
        }
        for (name, path) in places {
            let is_same = |place: &Place| Some(&place.path) == path.as_ref();
            match path.as_ref().and_then(|path| written.remove(path)) {
                Some((data, version)) => {
                    let path = path.unwrap_or_default();
                    known.insert(name, Place { path, data, version });
                }
                None if known.get(&name).is_some_and(is_same) => {}
                None => drop(known.remove(&name)),
            }
        }
    }
}
