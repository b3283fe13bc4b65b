//! This process's session node, which it creates before it asks for a lock and which goes with its
//! session.

use super::Znodes;
use super::jute::{Ask, Code};
use crate::clock::Moment;
use crate::lock::Token;
use crate::store::Error;

/// This process's session node.
#[derive(Clone, Copy)]
pub(super) struct Life {
    /// The session that it belongs to.
    pub(super) turn: u64,
    /// The connection that the watch on it is on.
    pub(super) dial: u64,
    /// Whether another process has deleted it.
    pub(super) was_ended: bool,
    /// Whether a lock was granted or renewed with it, so that this session is the lease. A later
    /// session proves nothing for that hold.
    pub(super) holds: bool,
}

impl Znodes {
    /// Creates this process's session node, if it has asked for a lease and its session has none.
    /// Returns false if that has to be tried again.
    pub(super) fn ensure(&mut self, deadline: Moment) -> Result<bool, Error> {
        let Some(mine) = self.mine.as_ref().filter(|_| self.session.is_lease()) else { return Ok(true) };
        if self.life.is_some_and(|life| life.turn == self.session.turn) {
            return Ok(true);
        }
        let path = self.life_path(mine);
        let asks = [Ask::CreateForSession(path.clone()), Ask::Watch(path.clone())];
        let mut answers = self.ask(&asks, deadline)?.into_iter();
        let (turn, dial, id) = (self.session.turn, self.session.dial, self.session.id);
        match (answers.next(), answers.next()) {
            (Some(Ok(_) | Err(Code::NODE_EXISTS)), Some(Ok(looked))) if looked.stat.owner == id => {
                self.life = Some(Life { turn, dial, was_ended: false, holds: false });
                return Ok(true);
            }
            // Left by a session that has ended.
            (Some(Err(Code::NODE_EXISTS)), Some(Ok(_))) => {
                drop(self.ask(&[Ask::Delete(path)], deadline)?);
            }
            (Some(Err(Code::NO_NODE)), _) => self.make_base(deadline)?,
            (Some(Err(code)), _) if code != Code::NODE_EXISTS => return Err(self.refused(code)),
            _ => {}
        }
        Ok(false)
    }

    /// Whether this process has lost the session that its hold of this token, if any, relies on. A
    /// newer session proves nothing for a lease that began before it.
    pub(super) fn is_anew(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.is_some_and(|life| life.was_ended || !life.holds)
    }

    /// This process's session node, unless another process has deleted it.
    pub(super) fn living(&self) -> Option<Life> {
        self.life.filter(|life| !life.was_ended)
    }
}
