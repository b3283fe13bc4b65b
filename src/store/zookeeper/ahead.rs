//! What does a holder ask before it needs it? When its job begins, the lock as it stands then: behind the write by which it
//! holds, and it waits for no answer. Who gives back soon goes by that, and writes at once; if anything has changed since,
//! nothing is written, and it reads. And with each read, who is next: that would take a round trip of its own.

use super::Znodes;
use super::jute::{Answer, Ask, Code};
use super::node::LockNode;
use crate::clock::Moment;
use crate::lock::Token;
use crate::store::engine::ahead::{AHEAD_FOR, held_alone};
use crate::store::engine::{CatchUp, Changed, queue};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Of so many who hold or have left it is looked at once whether they live.
pub(super) const HOLDERS: usize = 8;

/// What is read together with a lock, and would take a round trip of its own when the lock has told that it is wanted.
#[derive(Default)]
pub(super) struct Ahead {
    /// Those who wait, with their locks and their nodes.
    pub(super) notes: Vec<(String, Token, String)>,
    pub(super) lives: Vec<Token>,
}

/// What was asked about locks.
pub(super) struct Question {
    /// Whether the clock was, before all else.
    pub(super) stamps: bool,
    /// The connection.
    pub(super) dial: u64,
    /// How much comes before the locks.
    pub(super) first: usize,
    /// What comes behind them.
    pub(super) ahead: Ahead,
}

/// What was asked behind the write by which this process began to hold a lock.
pub(super) struct Told {
    names: BTreeSet<String>,
    question: Question,
    /// How much.
    asks: usize,
    /// Before it was asked.
    asked: Moment,
}

impl Znodes {
    /// Whoever holds these gives them back at some time, and then has to know who is next, and who has gone.
    pub(super) fn look_ahead(&self, entries: &[LockNode], me: &Token) {
        let mut ahead = Ahead::default();
        for entry in entries.iter().filter(|entry| entry.record.holds.contains_key(me)) {
            let next = entry.queue.waiting.iter().find(|waiting| waiting.place == queue::Place::Queued);
            ahead.lives.extend(entry.left().take(HOLDERS).cloned());
            if let Some((token, path)) = next.and_then(|next| Some((next.token()?, entry.waiter_path(next))))
            {
                ahead.notes.push((entry.name.clone(), token.clone(), path));
                ahead.lives.push(token);
            }
        }
        self.ahead.replace(ahead);
    }

    /// What to ask behind a write, if this process begins to hold a lock by it, alone, and has not done so before.
    pub(super) fn ask_behind(&self, entries: &[(LockNode, Changed)], me: &Token) -> Option<(Vec<Ask>, Told)> {
        let mine = self.mine.as_ref().filter(|mine| mine.token == *me)?;
        let [(entry, Changed::Yes)] = entries else { return None };
        if !held_alone(&entry.record, me) || mine.has_asked_ahead.load(Ordering::SeqCst) {
            return None;
        }
        let names = BTreeSet::from([entry.name.clone()]);
        let (mut asks, question) = self.question(&names, CatchUp::Due, false, self.ahead.take());
        // A write that finds another version costs the servers as much as one that does not. So one hears of it.
        asks.push(Ask::Look { path: entry.path.clone(), watch: true });
        let told = Told { names, question, asks: asks.len(), asked: Moment::now() };
        Some((asks, told))
    }

    /// That is done, and will be answered.
    pub(super) fn begins(&self, told: Told) {
        // A write that came too late has had the lock watched as well. That tells of this one, which is no news.
        drop(self.session.borrow_mut().events());
        if let Some(mine) = &self.mine {
            mine.has_asked_ahead.store(true, Ordering::SeqCst);
        }
        self.told.replace(Some(told));
    }

    /// What was answered, if it may be gone by: it is new enough, and nothing was heard of a change.
    pub(super) fn known(&self, names: &BTreeSet<String>) -> Option<(Question, Vec<Result<Answer, Code>>)> {
        let told = self.told.take()?;
        let mut session = self.session.borrow_mut();
        let is_fresh = Moment::now().since(told.asked) <= AHEAD_FOR && !self.must_sync.get();
        if !is_fresh || told.names != *names || told.question.dial != session.dial() {
            return None;
        }
        let answers = session.told(self.by.get())?;
        let is_news =
            session.events().iter().any(|event| names.iter().any(|name| event.path == self.lock_path(name)));
        let is_told = |answer: &Result<Answer, Code>| matches!(answer, Ok(_) | Err(Code::NO_NODE));
        let is_whole = answers.len() == told.asks && answers.iter().all(is_told);
        (is_whole && !is_news).then_some((told.question, answers))
    }
}
