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
    /// The number of the session that it belongs to.
    pub(super) session: u64,
    /// The number of the connection that the watch on it is on.
    pub(super) connection: u64,
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
        if self.life.is_some_and(|life| life.session == self.session.sessions) {
            return Ok(true);
        }
        let path = self.life_path(mine);
        let asks = [Ask::CreateForSession(path.clone()), Ask::Watch(path.clone())];
        let mut answers = self.ask(&asks, deadline)?.into_iter();
        match (answers.next(), answers.next()) {
            (Some(Ok(_) | Err(Code::NODE_EXISTS)), Some(Ok(looked)))
                if looked.stat.owner == self.session.id =>
            {
                let (session, connection) = (self.session.sessions, self.session.connections);
                self.life = Some(Life { session, connection, was_ended: false, holds: false });
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

    /// Whether this process's session node proves nothing for its hold of this token, if any: no
    /// lock was granted or renewed with it, or another process has deleted it.
    pub(super) fn proves_no_hold(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.is_some_and(|life| life.was_ended || !life.holds)
    }

    /// This process's session node, unless another process has deleted it.
    pub(super) fn living(&self) -> Option<Life> {
        self.life.filter(|life| !life.was_ended)
    }
}
