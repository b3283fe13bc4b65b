//! How does this process show that it lives? By a node that goes with its session, which it makes before it asks for a lock.

use super::ask::BROKEN_MOST;
use super::jute::{Answer, Ask, Code};
use super::wire::Failure;
use super::{Again, Znodes};
use crate::lock::Token;
use crate::store::Error;
use std::sync::atomic::AtomicBool;

/// The token of this process.
pub(super) struct Mine {
    pub(super) token: Token,
    pub(super) is_given_up: AtomicBool,
}

/// The life of this process.
#[derive(Clone, Copy)]
pub(super) struct Life {
    /// That of this session.
    pub(super) turn: u64,
    /// The connection on which it is watched.
    pub(super) dial: u64,
    /// Somebody else has ended it.
    pub(super) was_ended: bool,
    /// A lock was granted or renewed under it: the lease is this session. Of a session that came later the hold knows nothing.
    pub(super) holds: bool,
}

impl Znodes {
    /// Sees to it that there is a session, and that this process has a life if it wants a lease.
    pub(super) fn ensure(&self) -> Result<(), Error> {
        let mut has_base = false;
        let mut broken = 0;
        loop {
            match self.session.borrow_mut().connect(self.by.get()) {
                Err(Failure::Broken(_)) if broken < BROKEN_MOST && !self.by.get().passed() => {
                    broken += 1;
                    continue;
                }
                connected => connected?,
            }
            let (turn, id) = {
                let session = self.session.borrow();
                (session.turn(), session.id())
            };
            let Some(mine) = self.mine.as_ref().filter(|_| self.ttl.is_some()) else { return Ok(()) };
            if self.life.get().is_some_and(|life| life.turn == turn) {
                return Ok(());
            }
            let path = self.life_path(&mine.token);
            let dial = self.session.borrow().dial();
            let mut answers = self
                .ask(
                    &[
                        Ask::CreateForSession { path: path.clone() },
                        Ask::Look { path: path.clone(), watch: true },
                    ],
                    Again::Yes,
                )?
                .into_iter();
            match (answers.next(), answers.next()) {
                (Some(Err(Code::NO_NODE)), _) if !has_base => {
                    self.make_base()?;
                    has_base = true;
                }
                // A reply that was lost, or the life of a session that has ended.
                (Some(Err(Code::NODE_EXISTS)), Some(Ok(Answer::Stat(stat)))) if stat.owner != id => {
                    drop(self.ask(&[Ask::Delete { path }], Again::Yes)?);
                }
                (Some(Ok(_) | Err(Code::NODE_EXISTS)), Some(Ok(Answer::Stat(stat)))) if stat.owner == id => {
                    self.life.set(Some(Life { turn, dial, was_ended: false, holds: false }));
                    return Ok(());
                }
                (Some(Err(code)), _) if code != Code::NODE_EXISTS => return Err(self.refused(code)),
                _ if self.by.get().passed() => {
                    return Err(Error::Unavailable(format!(
                        "{}: others end this process' life",
                        self.shown()
                    )));
                }
                _ => {}
            }
        }
    }

    /// Whether the session that this process has now is not the one of a hold of this token, if there is any: that one has ended,
    /// and what was begun since bears out no lease that began before it.
    pub(super) fn is_anew(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.get().is_some_and(|life| life.was_ended || !life.holds)
    }

    pub(super) fn is_own(&self, token: &Token) -> bool {
        self.mine.as_ref().is_some_and(|mine| mine.token == *token)
    }
}
