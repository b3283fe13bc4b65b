//! What does a holder read before it needs it? The lock as it stands when its job begins. Whoever gives the lock back soon goes by
//! that and writes at once, while the next one waits; if anything has changed since, nothing is written, and it reads.

use super::row::{LockRow, Waiters};
use super::statement::{Pen, Question};
use super::{Failure, Found, Tables};
use crate::clock::Moment;
use crate::law::{Lock, Time};
use crate::lock::Token;
use crate::store::engine::Changed;
use crate::store::engine::ahead::{AHEAD_FOR, held_alone};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// What was asked for with the own grant, by the connection that it belongs to.
pub(super) struct Ahead {
    names: BTreeSet<String>,
    /// Before it was asked for.
    asked: Moment,
}

impl Tables {
    /// The lock that this process begins to hold by this change, alone, if it has not read it ahead before.
    pub(super) fn begun(&self, entries: &[(LockRow, Changed)]) -> Option<BTreeSet<String>> {
        let mine = self.mine.as_ref().filter(|mine| !mine.has_read_ahead.load(Ordering::SeqCst))?;
        let [(row, Changed::Yes)] = entries else { return None };
        held_alone(&row.record, &mine.token).then(|| BTreeSet::from([row.name.clone()]))
    }

    /// Has the server do what is to be done `behind` a change, and read the lock that was begun to be held by it. Nobody waits for
    /// that now.
    pub(super) fn tell_behind(&self, behind: Option<String>, begun: Option<BTreeSet<String>>) {
        let me = self.mine.as_ref().map(|mine| &mine.token);
        let read = begun.as_ref().map(|names| {
            let question = Question { names, me, waiters: Waiters::Front, with_ends: false };
            let write = |pen: &mut Pen| self.database.grammar().read(&question, pen);
            self.short(write).unwrap_or_else(|| write(&mut Pen::plain()))
        });
        let told: Vec<String> = behind.into_iter().chain(read).collect();
        if told.is_empty() {
            return;
        }
        let Some(mut line) = self.line.take() else { return };
        let asked = Moment::now();
        if line.link.tell(&told.join("; "), self.by.get()).is_ok() {
            if let (Some(names), Some(mine)) = (begun, &self.mine) {
                mine.has_read_ahead.store(true, Ordering::SeqCst);
                line.ahead = Some(Ahead { names, asked });
            }
            self.line.replace(Some(line));
        }
    }

    /// What was read then, for who gives back soon. Its time is the one that was read plus what has passed since it was asked
    /// for. The server's own is earlier than that, by as long as the request took.
    pub(super) fn ahead(&self, names: &BTreeSet<String>, me: &Token) -> Option<(Vec<LockRow>, Time)> {
        let ahead = self.line.borrow_mut().as_mut()?.ahead.take()?;
        let passed = Moment::now().since(ahead.asked);
        if passed > AHEAD_FOR || ahead.names != *names || !self.is_own(me) {
            return None;
        }
        let mut line = self.line.take()?;
        let told = line.link.told(self.by.get());
        if !matches!(told, Err(Failure::Broken(_) | Failure::Silent(_))) {
            self.line.replace(Some(line));
        }
        let found = Found::parse(&[told.ok()??], self.shown()).ok()?;
        let now = Time(found.now.0.saturating_add(u64::try_from(passed.as_micros()).ok()?));
        let entries = found.locks(names, Waiters::Front, self.shown()).ok()?;
        // By a time that is ahead, a lease may seem over that is not.
        let is_over =
            |row: &LockRow| matches!(&row.record.lock, Lock::Exclusive { until, .. } if until.passed(now));
        matches!(entries.as_slice(), [row] if row.is_enough_for(me) && held_alone(&row.record, me) && !is_over(row))
            .then_some((entries, now))
    }
}
