//! How is a step written, and where does this process wait after it?

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

/// A step is not larger than a server takes (`jute.maxbuffer`).
const STEP_MOST: usize = 1_000_000;

/// The node of this process in a queue, as it was read or written last.
pub(super) struct Place {
    pub(super) path: String,
    pub(super) data: Vec<u8>,
    pub(super) version: i32,
}

impl Znodes {
    /// All of it or nothing, and only if nobody else has changed any of it since it was read.
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
            // What is granted, renewed or waited for counts only as long as this session does.
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
            // There was nothing, and there is nothing to keep.
            return Ok(Written::Yes);
        }
        // Those who are known to live are woken by the write itself. If one has died since, nothing is written, and who is
        // next is seen anew.
        let woken = woken.iter().filter(|token| !onlookers.contains(*token));
        let is_alive = |token: &&Token| lives.get(*token).copied().unwrap_or_default();
        let (alive, others): (Vec<_>, Vec<_>) =
            woken.partition(|token| is_alive(token) && !self.wakes_apart.get());
        let wakes_with_it = !alive.is_empty();
        let wake = |token: &Token| Ask::Set { path: self.life_path(token), data: Vec::new() };
        all.extend(alive.into_iter().map(wake));
        let size: usize = all.iter().map(Ask::size).sum();
        if size > STEP_MOST {
            return Ok(Written::too_large(self.shown()));
        }
        let mut asks = vec![Ask::All(all)];
        asks.extend(others.into_iter().map(wake));
        let answer = match self.ask(&asks, Again::No) {
            Ok(answers) => answers.into_iter().next(),
            // Whether it was done shows when it is tried again: if it was, the versions are others.
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
                    // It was there when that was written, so the lease is its session from then on.
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
            // The lock may be everybody's, and the life of one of them his own.
            Some(Err(Code::NO_AUTH)) if wakes_with_it => {
                self.wakes_apart.set(true);
                Ok(Written::Conflict)
            }
            Some(Err(code)) => Err(self.refused(code)),
            _ => Err(self.refused(Code(0))),
        }
    }

    /// Where this process waits after a step that has written these.
    fn keep_places(&self, places: BTreeMap<String, Option<String>>, asks: Vec<Ask>, answers: &[Answer]) {
        let mut known = self.places.borrow_mut();
        let mut written: BTreeMap<String, (Vec<u8>, i32)> = BTreeMap::new();
        for (ask, answer) in asks.into_iter().zip(answers) {
            match (ask, answer) {
                // Of a node that it makes it tells no version: it is the first.
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
