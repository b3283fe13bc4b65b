//! Reads locks: the locks themselves in one round trip, and in a second one the nodes of those
//! waiters and holders that a decision can depend on. Then the records are judged.

use super::Znodes;
use super::jute::{Answer, Answers, Ask, Code};
use super::node::{self, LockNode};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{Due, Hold, Lock, Phase, Record, Time};
use crate::store::Error;
use crate::store::engine::coordinator::{Purpose, Reading, Snapshot};
use crate::store::engine::stored_lock::StoredLock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Up to this many holders are all looked up; with more, only those whose lease is over by the
/// record. Also the most released tokens that one read looks up.
const HOLDERS: usize = 8;
/// Waiters at the head of a queue that are looked up.
const FRONT: usize = 2;
/// Waiters at the head of a queue that are looked up if all of the first [`FRONT`] are stale, such
/// as those of a machine that has failed.
const FRONT_MOST: usize = 64;

/// What one operation has read.
pub struct Seen {
    /// The nodes of the locks, in order of name.
    pub(super) nodes: Vec<LockNode>,
    pub(super) now: Time,
    /// How far the leader's clock may be ahead of `now`: the end of this process's lease is written as
    /// much later.
    pub(super) uncertain: Duration,
    /// Session nodes that were looked up, and whether they exist.
    pub(super) lives: BTreeMap<Token, bool>,
    /// The last heartbeats of waiters that were looked up, in milliseconds since 1970.
    pub(super) heartbeats: BTreeMap<Token, u64>,
    /// End of each lease by the record.
    pub(super) believed: BTreeMap<Token, Due>,
}

impl Znodes {
    /// Reads once. None if the locks have changed meanwhile.
    pub(super) fn try_to_read(&mut self, reading: &Reading<'_>) -> Result<Option<Snapshot<Seen>>, Error> {
        let began = Moment::now();
        let stamps = !self.has_good_stamp(began);
        let (mut asks, first) = self.asks(reading, stamps);
        let untested = self.untested(reading.names);
        let count = asks.len();
        asks.extend(untested.iter().cloned().map(Ask::Acl));
        let mut answers = self.ask(&asks, reading.deadline)?;
        let lists = answers.split_off(count.min(answers.len()));
        let has_base = self.test(&untested, &lists)?;
        if !has_base || (stamps && answers.first() == Some(&Err(Code::NO_NODE))) {
            self.make_base(reading.deadline)?;
            return Ok(None);
        }
        let of_locks = answers.split_off(first.min(answers.len()));
        let refusals = answers.iter().filter_map(|answer| answer.as_ref().err());
        if let Some(code) = refusals.copied().find(|code| *code != Code::NO_NODE) {
            return Err(self.refused(code));
        }
        let mut seen = self.seen_at(began, &of_locks)?;
        if !self.has_session(&mut seen, answers.last()) {
            return Ok(None);
        }
        let Some(mut locks) = self.parse(reading, of_locks, &mut seen)? else { return Ok(None) };
        self.look_up(&mut locks, &mut seen, reading)?;
        if reading.purpose == Purpose::LookAtAll {
            self.read_ends(&mut locks, &seen.nodes, reading.deadline)?;
        }
        self.judge(&mut locks, &mut seen, reading);
        Ok(Some(Snapshot { locks, now: seen.now, seen }))
    }

    /// The requests for these locks, and how many others come before them. With `stamps`, one of
    /// those reads the leader's clock. The last of them looks up this process's session node, if it
    /// has one.
    fn asks(&self, reading: &Reading<'_>, stamps: bool) -> (Vec<Ask>, usize) {
        let mut asks = Vec::with_capacity(2 * reading.names.len() + 3);
        if stamps {
            asks.push(Ask::touch(self.clock()));
        }
        if self.must_sync || reading.purpose == Purpose::LookAtAll {
            asks.push(Ask::Sync(self.base()));
        }
        if let Some(mine) = self.mine.as_ref().filter(|_| self.living().is_some()) {
            asks.push(Ask::Watch(self.life_path(mine)));
        }
        let first = asks.len();
        for name in reading.names {
            let path = self.lock_path(name);
            asks.extend([Ask::Get(path.clone()), Ask::List(path)]);
        }
        (asks, first)
    }

    /// Nothing seen yet, and the time of the operation, which was read before the locks.
    pub(super) fn seen_at(&self, began: Moment, of_locks: &[Result<Answer, Code>]) -> Result<Seen, Error> {
        let Some(stamp) = self.stamp else {
            return Err(Error::Garbled(format!("{} does not give its time", self.shown())));
        };
        // The time must not be before that of any write, or a reader would find a record's times in
        // the future.
        let written = of_locks.iter().flatten().map(|answer| answer.stat.mtime.saturating_mul(1000));
        let now = Time(stamp.lower(began).max(written.max().unwrap_or_default()));
        let uncertain = Duration::from_micros(stamp.upper(began).saturating_sub(now.0));
        let (lives, heartbeats, believed) = Default::default();
        Ok(Seen { nodes: Vec::new(), now, uncertain, lives, heartbeats, believed })
    }

    /// Returns false if the session that this process's session node belonged to has ended.
    fn has_session(&mut self, seen: &mut Seen, looked: Option<&Result<Answer, Code>>) -> bool {
        let (Some(mine), Some(mut life)) = (&self.mine, self.living()) else { return true };
        if life.session != self.session.sessions {
            self.life = None;
            return false;
        }
        match looked {
            Some(Ok(_)) => {
                life.connection = self.session.connections;
                seen.lives.insert(mine.clone(), true);
            }
            _ => life.was_ended = true,
        }
        self.life = Some(life);
        true
    }

    /// None if the answers for a lock are of two versions.
    fn parse(
        &self,
        reading: &Reading<'_>,
        of_locks: Answers,
        seen: &mut Seen,
    ) -> Result<Option<Vec<StoredLock>>, Error> {
        let mut locks = Vec::with_capacity(reading.names.len());
        let mut answers = of_locks.into_iter().map(|answer| self.found(answer));
        for name in reading.names {
            let path = self.lock_path(name);
            let mut next = || answers.next().transpose().map(Option::flatten);
            let (stored, node) = match (next()?, next()?) {
                (Some(lock), Some(children)) if lock.stat.version == children.stat.version => {
                    let parsed = LockNode::parse(name, path.clone(), lock, children.names, seen.now);
                    parsed.map_err(|why| node::garbled(self.shown(), name, &path, &why))?
                }
                (None, None) => (StoredLock::absent(name), LockNode::absent(path)),
                _ => return Ok(None),
            };
            locks.push(stored);
            seen.nodes.push(node);
        }
        Ok(Some(locks))
    }

    /// Looks up session nodes and heartbeats, and applies the heartbeats to the records. The lock
    /// rules pass over stale waiters: if all of the first ones are stale, a decision depends on
    /// those behind them, which are looked up, too.
    fn look_up(
        &mut self,
        locks: &mut [StoredLock],
        seen: &mut Seen,
        reading: &Reading<'_>,
    ) -> Result<(), Error> {
        let fronts: &[usize] = if shows_all(reading) { &[usize::MAX] } else { &[FRONT, FRONT_MOST] };
        for &front in fronts {
            self.ask_for(locks, seen, reading, front)?;
            for (lock, node) in locks.iter_mut().zip(&seen.nodes) {
                seen.apply_heartbeats(lock, node);
            }
            let is_enough =
                |lock: &StoredLock| lock.record.queue.len() <= front || seen.is_one_heard(lock, front);
            if locks.iter().all(is_enough) {
                break;
            }
        }
        Ok(())
    }

    /// Looks up the session nodes and heartbeats that a decision can depend on, with `front` waiters
    /// of each queue, and that were not looked up yet.
    fn ask_for(
        &mut self,
        locks: &[StoredLock],
        seen: &mut Seen,
        reading: &Reading<'_>,
        front: usize,
    ) -> Result<(), Error> {
        let (mut lives, mut beats) = (BTreeSet::new(), Vec::new());
        for (at, (lock, node)) in locks.iter().zip(&seen.nodes).enumerate() {
            let waiters = waiters(lock, reading, front);
            let unseen = waiters.iter().filter(|token| !seen.heartbeats.contains_key(**token));
            beats.extend(unseen.filter_map(|token| Some((at, (*token).clone(), node.beat(token)?))));
            lives.extend(holders(lock, shows_all(reading), seen.now).chain(waiters));
        }
        lives.retain(|token| !seen.lives.contains_key(*token));
        let paths = lives.iter().map(|token| self.life_path(token));
        let paths = paths.chain(beats.iter().map(|(_, _, path)| path.clone()));
        let asks: Vec<Ask> = paths.map(Ask::Look).collect();
        if asks.is_empty() {
            return Ok(());
        }
        let mut answers = self.ask(&asks, reading.deadline)?.into_iter();
        for (token, answer) in lives.into_iter().zip(&mut answers) {
            seen.lives.insert(token.clone(), self.found(answer)?.is_some());
        }
        for ((at, token, _), answer) in beats.into_iter().zip(answers) {
            let node = &mut seen.nodes[at];
            match self.found(answer)? {
                Some(Answer { stat, .. }) => {
                    node.has_own_beat |= reading.me == Some(&token) && stat.owner == self.session.id;
                    let heartbeat = seen.heartbeats.entry(token).or_default();
                    *heartbeat = stat.mtime.max(*heartbeat);
                }
                None => node.forget_beat(&token),
            }
        }
        Ok(())
    }

    /// The answer about a node, if the node exists.
    fn found(&self, looked: Result<Answer, Code>) -> Result<Option<Answer>, Error> {
        match looked {
            Err(Code::NO_NODE) => Ok(None),
            looked => looked.map(Some).map_err(|code| self.refused(code)),
        }
    }

    fn read_ends(
        &mut self,
        locks: &mut [StoredLock],
        nodes: &[LockNode],
        deadline: Moment,
    ) -> Result<(), Error> {
        for (lock, node) in locks.iter_mut().zip(nodes) {
            let asks: Vec<Ask> = node.end_paths(lock.ends).map(Ask::Get).collect();
            for end in self.ask(&asks, deadline)?.iter().flatten() {
                lock.add_end(&end.data);
            }
        }
        Ok(())
    }
}

/// Whether the reading shows whole locks to a person.
fn shows_all(reading: &Reading<'_>) -> bool {
    reading.purpose == Purpose::LookAtAll && reading.me.is_none()
}

/// The waiters that a decision can depend on: the first ones, the caller and its predecessor or, if
/// the caller may join, the last ones. None if the caller is about to confirm an exclusive grant:
/// that depends on no other process, and the job starts sooner.
fn waiters<'r>(lock: &'r StoredLock, reading: &Reading<'_>, front: usize) -> BTreeSet<&'r Token> {
    let Record { queue, waiters, holds, .. } = &lock.record;
    let is_new = |hold: &Hold| hold.phase == Phase::Held && !hold.confirmed;
    if let Lock::Exclusive { token, .. } = &lock.record.lock
        && (reading.names.len() == 1 && reading.me == Some(token) && holds.get(token).is_some_and(is_new))
    {
        return BTreeSet::new();
    }
    // A waiter that only looks watches its predecessor, and its own heartbeats decide nothing.
    let me = reading.me.filter(|me| reading.purpose != Purpose::Look && !holds.contains_key(*me));
    let end = |me: &Token| (waiters.get(me).map_or(u64::MAX, |waiter| waiter.ticket), me.clone());
    let near = me.into_iter().flat_map(|me| queue.range(..=end(me)).rev().take(2));
    queue.iter().take(front).chain(near).map(|(_, token)| token).collect()
}

/// The holders that are looked up: all if they are few, else those whose lease is over by the
/// record.
fn holders(lock: &StoredLock, all: bool, now: Time) -> impl Iterator<Item = &Token> {
    let is_all = all || node::believed(&lock.record).count() <= HOLDERS;
    let due = node::believed(&lock.record).filter(move |(_, until)| is_all || until.passed(now));
    due.map(|(token, _)| token).filter(|token| lock.tracked.contains_key(*token))
}
