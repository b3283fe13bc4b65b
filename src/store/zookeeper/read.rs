//! Reads locks: their nodes in one round trip, and in a second one the waiters' and session nodes
//! that the lock rules need. Before the lock rules see the holds, they are judged.

use super::jute::{Answer, Ask, Code, Stat};
use super::node::{self, LockNode};
use super::stamp::STAMP_GOOD;
use super::write::Place;
use super::{Again, Znodes};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{LOG_KEPT, Record, Time};
use crate::store::Error;
use crate::store::engine::{CatchUp, granted_alone};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Up to this many holders are all looked up; with more, only those whose lease is over by the
/// record. Also the most released tokens that one read looks up.
const HOLDERS: usize = 8;
/// Waiters read at the head of a queue where several of them may be granted the lock.
const FRONT: usize = 3;
/// Ends that a waiter reads: enough to estimate how long a run takes.
const ENDS: usize = 16;

impl Znodes {
    /// The locks, and the time, which was read before them.
    pub(super) fn read(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<LockNode>, Time), Error> {
        self.asker.replace(me.cloned());
        let is_own = self.mine.as_ref().is_some_and(|mine| me == Some(&mine.token));
        let mut is_again = false;
        loop {
            if std::mem::replace(&mut is_again, true) && self.by.get().passed() {
                return Err(Error::Unavailable(format!(
                    "{}: other processes change the lock all the time",
                    self.shown()
                )));
            }
            self.forget_seen();
            if is_own {
                self.ensure()?;
            }
            let life = self.life.get().filter(|life| !life.was_ended);
            let mine = self.mine.as_ref().filter(|_| life.is_some());
            let began = Moment::now();
            let stamps = self.stamp.get().is_none_or(|stamp| began.since(stamp.heard) > STAMP_GOOD);
            let dial = self.session.borrow().dial();
            let (asks, first) = self.asks(names, whom, stamps);
            let mut answers = self.ask(&asks, Again::Yes)?;
            if stamps && answers.first() == Some(&Err(Code::NO_NODE)) {
                self.make_base()?;
                continue;
            }
            if let Some(code) = answers
                .iter()
                .take(first)
                .filter_map(|answer| answer.as_ref().err())
                .copied()
                .find(|code| *code != Code::NO_NODE)
            {
                return Err(self.refused(code));
            }
            let Some(stamp) = self.stamp.get() else { return Err(self.clock_unknown()) };
            // The time must not be before that of any write, or a reader would find a record's
            // times in the future.
            let written = answers[first..].iter().filter_map(|answer| match answer {
                Ok(Answer::Data(_, stat)) => Some(stat.mtime.saturating_mul(1000)),
                _ => None,
            });
            let written = written.max().unwrap_or_default();
            let (lower, upper) = if stamps {
                (stamp.at * 1000, stamp.upper(Moment::now()))
            } else {
                (stamp.lower(began), stamp.upper(began))
            };
            let now = Time(lower.max(written));
            self.uncertain.set(Duration::from_micros(upper.saturating_sub(now.0)));
            if let (Some(mine), Some(mut life)) = (mine, life) {
                if life.turn != self.session.borrow().turn() {
                    // That session has ended meanwhile, and its node with it.
                    self.life.set(None);
                    continue;
                }
                match &answers[first - 1] {
                    Ok(Answer::Stat(_)) => {
                        // `dial` was read before the request. If a reconnect came in between, the
                        // numbers differ, and the waiter looks again.
                        life.dial = dial;
                        self.lives.borrow_mut().insert(mine.token.clone(), true);
                    }
                    _ => life.was_ended = true,
                }
                self.life.set(Some(life));
            }
            let Some(mut entries) = self.parse(names, answers.split_off(first), now)? else {
                // The lock was changed between the two requests.
                continue;
            };
            if !self.fetch(&mut entries, me, whom, now)? {
                // A waiter has left since.
                continue;
            }
            self.must_sync.set(false);
            self.judge(&mut entries, me, whom, now);
            return Ok((entries, now));
        }
    }

    /// The requests for these locks, and how many others come before them. With `stamps`, one of
    /// those reads the leader's clock.
    fn asks(&self, names: &BTreeSet<String>, whom: CatchUp, stamps: bool) -> (Vec<Ask>, usize) {
        let mut asks = Vec::with_capacity(2 * names.len() + 3);
        if stamps {
            asks.push(Ask::Set { path: self.clock(), data: Vec::new() });
        }
        if self.must_sync.get() || whom == CatchUp::All {
            asks.push(Ask::Sync { path: self.base() });
        }
        if let Some(mine) = self.mine.as_ref().filter(|_| self.life.get().is_some_and(|life| !life.was_ended))
        {
            asks.push(Ask::Look { path: self.life_path(&mine.token), watch: true });
        }
        let first = asks.len();
        for name in names {
            let path = self.lock_path(name);
            asks.extend([Ask::Get { path: path.clone() }, Ask::List { path }]);
        }
        (asks, first)
    }

    fn clock_unknown(&self) -> Error {
        Error::Garbled(format!("{} does not give its time", self.shown()))
    }

    /// None if the answers for a lock are of two versions.
    fn parse(
        &self,
        names: &BTreeSet<String>,
        answers: Vec<Result<Answer, Code>>,
        now: Time,
    ) -> Result<Option<Vec<LockNode>>, Error> {
        let (mut entries, mut answers) = (Vec::with_capacity(names.len()), answers.into_iter());
        for name in names {
            let path = self.lock_path(name);
            let entry = match (answers.next(), answers.next()) {
                (Some(Ok(Answer::Data(body, stat))), Some(Ok(Answer::Names(children, listed)))) => {
                    if stat.version != listed.version {
                        return Ok(None);
                    }
                    let parsed = LockNode::parse(name, path.clone(), &body, stat, children, now);
                    parsed.map_err(|why| node::garbled(self.shown(), name, &path, &why))?
                }
                (Some(Err(Code::NO_NODE)), Some(Err(Code::NO_NODE))) => LockNode::absent(name, path),
                (Some(Err(Code::NO_NODE)), _) | (_, Some(Err(Code::NO_NODE))) => return Ok(None),
                (Some(Err(code)), _) | (_, Some(Err(code))) => return Err(self.refused(code)),
                _ => return Err(self.refused(Code(0))),
            };
            entries.push(entry);
        }
        Ok(Some(entries))
    }

    /// Reads in one round trip what the lock rules need to know of waiters and holders. Returns
    /// false if a waiter has left since.
    fn fetch(
        &self,
        entries: &mut [LockNode],
        me: Option<&Token>,
        whom: CatchUp,
        now: Time,
    ) -> Result<bool, Error> {
        let is_all = whom == CatchUp::All && me.is_none();
        let is_single = entries.len() == 1;
        // A waiter that only confirms its grant needs no other waiter, and remembers its own node:
        // so its job starts sooner.
        let confirms =
            |entry: &LockNode| me.filter(|me| is_single && granted_alone(&entry.record, me).is_some());
        if let [entry] = &mut *entries
            && let Some(me) = confirms(entry)
            && let Some(place) = self.places.borrow().get(&entry.name).filter(|_| self.is_own(me))
        {
            entry.notes.insert(me.clone(), place.data.clone());
        }
        let (mut asks, mut notes, mut lives, mut ends) =
            (Vec::new(), Vec::new(), BTreeSet::new(), Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            let suspended = entry.queue.waiting.iter().filter(|_| is_all);
            let confirms = confirms(entry).is_some();
            let front = match (is_all, entry.queue.is_for_one()) {
                (true, _) => usize::MAX,
                (false, _) if confirms => 0,
                (false, true) if is_single => 1,
                (false, _) => FRONT,
            };
            for waiting in entry.wanted(front, me).into_iter().chain(suspended) {
                let is_known =
                    |token: &Token| notes.contains(&(at, token.clone())) || entry.notes.contains_key(token);
                let Some(token) = waiting.token().filter(|token| !is_known(token)) else { continue };
                asks.push(Ask::Get { path: entry.waiter_path(waiting) });
                notes.push((at, token.clone()));
                lives.insert(token);
            }
            let held: Vec<&Token> = node::believed(&entry.record).map(|(token, _)| token).collect();
            let is_few = is_all || held.len() <= HOLDERS;
            let asked = |token: &&&Token| {
                entry.tracked.contains_key(**token) && (is_few || node::is_over(&entry.record, token, now))
            };
            lives.extend(held.iter().filter(asked).map(|token| (*token).clone()));
            // Released tokens are dropped from the record once their session has ended.
            lives.extend(entry.left().filter(|_| !confirms).take(HOLDERS).cloned());
            if whom == CatchUp::All {
                for path in entry.end_paths().into_iter().take(if is_all { LOG_KEPT } else { ENDS }) {
                    asks.push(Ask::Get { path });
                    ends.push(at);
                }
            }
        }
        let is_mine = |token: &Token| Some(token) == me && self.is_own(token) && self.life.get().is_some();
        lives.retain(|token| !is_mine(token) && !self.lives.borrow().contains_key(token));
        let looked: Vec<Token> = lives.into_iter().collect();
        asks.extend(looked.iter().map(|token| self.look(token)));
        if asks.is_empty() {
            return Ok(true);
        }
        let mut answers = self.ask(&asks, Again::Yes)?.into_iter();
        for ((at, token), answer) in notes.into_iter().zip(&mut answers) {
            match answer {
                Ok(Answer::Data(data, stat)) => self.saw(&mut entries[at], token, data, stat),
                Err(Code::NO_NODE) => return Ok(false),
                Err(code) => return Err(self.refused(code)),
                Ok(_) => {}
            }
        }
        let mut logs: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for (at, answer) in ends.into_iter().zip(&mut answers) {
            if let Ok(Answer::Data(data, _)) = answer {
                logs.entry(at).or_default().push(data);
            }
        }
        for (at, log) in logs {
            entries[at].set_log(log.iter().map(Vec::as_slice));
        }
        for (token, answer) in looked.into_iter().zip(answers) {
            if let Err(code) = answer
                && code != Code::NO_NODE
            {
                return Err(self.refused(code));
            }
            self.looked(token, &answer);
        }
        Ok(true)
    }

    /// Notes what a waiter's node tells: its last heartbeat and, if the waiter is this process, the
    /// node to write the next heartbeat to.
    pub(super) fn saw(&self, entry: &mut LockNode, token: Token, data: Vec<u8>, stat: Stat) {
        let mut heard = self.heard.borrow_mut();
        let last = heard.entry(token.clone()).or_default();
        *last = stat.mtime.max(*last);
        if self.is_own(&token)
            && let Some(at) = entry.queue.find(&token).filter(|_| entry.queue.is_queued(&token))
        {
            let path = entry.waiter_path(&entry.queue.waiting[at]);
            let place = Place { path, data: data.clone(), version: stat.version };
            self.places.borrow_mut().insert(entry.name.clone(), place);
        }
        entry.notes.insert(token, data);
    }

    /// Forgets what the last operation has looked up.
    pub(super) fn forget_seen(&self) {
        self.lives.borrow_mut().clear();
        self.heard.borrow_mut().clear();
    }

    /// Shows the lock rules a waiter.
    pub(super) fn show_waiter(
        &self,
        entry: &mut LockNode,
        waiter: usize,
        record: &mut Record,
    ) -> Result<Vec<String>, Error> {
        let Some(token) = entry.queue.token(waiter) else { return Ok(Vec::new()) };
        if !entry.notes.contains_key(&token) {
            let place = entry.waiter_path(&entry.queue.waiting[waiter]);
            let asks = [Ask::Get { path: place }, self.look(&token)];
            let mut answers = self.ask(&asks, Again::Yes)?.into_iter();
            match answers.next() {
                Some(Ok(Answer::Data(data, stat))) => self.saw(entry, token.clone(), data, stat),
                // The waiter has left since, so this transaction cannot be written.
                Some(Err(Code::NO_NODE)) => {
                    entry.drop_waiter(waiter);
                    return Ok(Vec::new());
                }
                Some(Err(code)) => return Err(self.refused(code)),
                _ => return Err(self.refused(Code(0))),
            }
            let is_there = matches!(answers.next(), Some(Ok(Answer::Stat(_))));
            self.lives.borrow_mut().insert(token.clone(), is_there);
        }
        // The heartbeats of a waiter whose session has ended no longer count.
        let is_there = self.lives.borrow().get(&token).copied().unwrap_or(false);
        let heard = self.heard.borrow().get(&token).copied().filter(|_| is_there);
        let data = entry.notes.get(&token).cloned().unwrap_or_default();
        let shown = entry.show(waiter, &data, heard, record);
        shown.map_err(|why| node::garbled(self.shown(), &entry.name, &entry.path, why))
    }
}
