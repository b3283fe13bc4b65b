//! What does a database prepare for a waiter while it sleeps? The statements of a hand-over, on the connection on which they
//! will be asked. Where one of them fails it is asked in full.

use super::row::Waiters;
use super::statement::{Change, Pen, Question};
use super::{Again, Failure, Line, Tables};
use crate::lock::Token;
use std::collections::BTreeSet;

impl Tables {
    /// Has the server prepare what is asked between the end of one job and the begin of the next, while nobody waits for that.
    /// Most of the time that it takes for such a statement is for what it does before it does it.
    pub(super) fn prepare(&self, token: &Token) -> Result<(), Failure> {
        let is_fit = |line: &Line| line.is_direct == Some(true) && line.prepared.is_none();
        if !self.line.borrow().as_ref().is_some_and(is_fit) {
            return Ok(());
        }
        let (grammar, names) = (self.database.grammar(), BTreeSet::from([String::new()]));
        let apart = |write: &dyn Fn(&mut Pen) -> String| {
            let mut pen = Pen::apart();
            (write(&mut pen), pen)
        };
        let reads = [Waiters::Front, Waiters::Own].map(|waiters| {
            let question = Question { names: &names, me: Some(token), waiters, with_ends: false };
            apart(&|pen| grammar.read(&question, pen))
        });
        let changes = Change::of_hand_over(token).into_iter().flatten();
        let writes = changes.map(|change| apart(&|pen| grammar.write(&change, pen)));
        let statements: Vec<_> = reads.into_iter().chain(writes).collect();
        let prepared = match grammar.prepare(&statements).map(|text| self.ask(&[text], Again::No)) {
            Some(Ok(_)) => statements.into_iter().map(|(statement, _)| statement).collect(),
            Some(Err(failure @ (Failure::Broken(_) | Failure::Silent(_)))) => return Err(failure),
            Some(Err(_)) | None => Vec::new(),
        };
        if let Some(line) = &mut *self.line.borrow_mut() {
            line.prepared = Some(prepared);
        }
        Ok(())
    }

    /// How a statement is asked for that this connection has prepared.
    pub(super) fn short(&self, write: impl Fn(&mut Pen) -> String) -> Option<String> {
        let line = self.line.borrow();
        let prepared = line.as_ref()?.prepared.as_ref().filter(|prepared| !prepared.is_empty())?;
        let mut pen = Pen::apart();
        let statement = write(&mut pen);
        let at = prepared.iter().position(|known| *known == statement)?;
        Some(self.database.grammar().execute(at, &pen))
    }

    /// What this connection has prepared is of no use.
    pub(super) fn unprepare(&self) {
        if let Some(line) = &mut *self.line.borrow_mut() {
            line.prepared = Some(Vec::new());
        }
    }
}
