//! What this process remembers of itself, and etcd forgets: its token, whether that was given back,
//! and its place in the queue.

use super::Keys;
use crate::clock::Moment;
use crate::lock::{Mode, Token};
use crate::rules::TICKET_KEPT;
use crate::store::engine::queue::{Place, Waiting};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// This process's token.
pub struct OwnState {
    pub token: Token,
    pub is_given_up: AtomicBool,
    /// Its place in the queue at its last heartbeat.
    pub place: Mutex<Option<Standing>>,
}

/// A place in the queue. When its owner is stale, etcd forgets the place; the owner does not.
#[derive(Clone)]
pub struct Standing {
    pub ticket: u64,
    pub since: u64,
    pub mode: Mode,
    pub note: Vec<u8>,
    pub heard: Moment,
}

impl Standing {
    /// As an entry of the queue.
    pub fn waiting(&self, token: &Token) -> Waiting {
        let bytes = token.secret().as_bytes().try_into().unwrap_or_default();
        let mut waiting = Waiting::new(bytes, self.ticket, self.mode, Place::Queued);
        waiting.since = self.since;
        waiting
    }
}

impl Keys {
    pub(super) fn mine(&self, token: &Token) -> Option<&OwnState> {
        self.mine.as_deref().filter(|mine| mine.token == *token)
    }

    /// The place that this process remembers, for [`TICKET_KEPT`].
    pub(super) fn standing(&self, token: &Token) -> Option<Standing> {
        let place = self.mine(token)?.place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        place.filter(|place| !place.heard.after(TICKET_KEPT).passed())
    }

    /// Changes the place that this process remembers. Another process's token has none here.
    pub(super) fn stand(&self, token: &Token, change: impl FnOnce(&mut Option<Standing>)) {
        if let Some(mine) = self.mine(token) {
            change(&mut mine.place.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
