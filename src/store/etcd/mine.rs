//! What does this process know of itself that etcd forgets? Its token, that it was given back, and its place in the queue.

use super::Keys;
use crate::clock::Moment;
use crate::lock::{Mode, Token};
use crate::rules::TICKET_KEPT;
use crate::store::engine::queue::{Place, Waiting};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// The token of this process.
pub struct Mine {
    pub token: Token,
    pub is_given_up: AtomicBool,
    /// Its place in the queue, as it was heard of last.
    pub place: Mutex<Option<Standing>>,
}

/// A place in the queue: etcd forgets it when its owner is silent, and the owner does not.
#[derive(Clone)]
pub struct Standing {
    pub ticket: u64,
    pub since: u64,
    pub mode: Mode,
    pub note: Vec<u8>,
    pub heard: Moment,
}

impl Standing {
    /// As it stands in the queue.
    pub fn waiting(&self, token: &Token) -> Waiting {
        let bytes = token.secret().as_bytes().try_into().unwrap_or_default();
        let mut waiting = Waiting::new(bytes, self.ticket, self.mode, Place::Queued);
        waiting.since = self.since;
        waiting
    }
}

impl Keys {
    pub(super) fn mine(&self, token: &Token) -> Option<&Mine> {
        self.mine.as_deref().filter(|mine| mine.token == *token)
    }

    /// The place that this process remembers, for as long as places are kept.
    pub(super) fn standing(&self, token: &Token) -> Option<Standing> {
        let place = self.mine(token)?.place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        place.filter(|place| !place.heard.after(TICKET_KEPT).passed())
    }

    pub(super) fn stand(&self, token: &Token, change: impl FnOnce(&mut Option<Standing>)) {
        if let Some(mine) = self.mine(token) {
            change(&mut mine.place.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
