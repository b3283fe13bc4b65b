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
    /// Makes sure that this process has its session node, if it has asked for a lease.
    pub(super) fn ensure(&mut self, deadline: Moment) -> Result<(), Error> {
        let Some(mine) = self.mine.as_ref().filter(|_| self.session.is_lease()) else { return Ok(()) };
        let path = self.life_path(mine);
        let mut has_base = false;
        while self.life.is_none_or(|life| life.turn != self.session.turn()) {
            let asks = [Ask::CreateForSession(path.clone()), Ask::Watch(path.clone())];
            let mut answers = self.ask(&asks, deadline)?.into_iter();
            let (turn, dial, id) = (self.session.turn(), self.session.dial(), self.session.id());
            match (answers.next(), answers.next()) {
                (Some(Err(Code::NO_NODE)), _) if !has_base => {
                    self.make_base(deadline)?;
                    has_base = true;
                }
                // Left by a session that has ended.
                (Some(Err(Code::NODE_EXISTS)), Some(Ok(looked))) if looked.stat.owner != id => {
                    drop(self.ask(&[Ask::Delete(path.clone())], deadline)?);
                }
                (Some(Ok(_) | Err(Code::NODE_EXISTS)), Some(Ok(looked))) if looked.stat.owner == id => {
                    self.life = Some(Life { turn, dial, was_ended: false, holds: false });
                }
                (Some(Err(code)), _) if code != Code::NODE_EXISTS => return Err(self.refused(code)),
                _ if deadline.passed() => {
                    return Err(Error::Unavailable(format!(
                        "{}: other clients keep deleting the session node of this process",
                        self.shown()
                    )));
                }
                _ => {}
            }
        }
        Ok(())
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
