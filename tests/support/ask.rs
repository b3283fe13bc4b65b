//! What a run without options asks of a store, for tests that call a store and not dlock.

use dlock::lock::{Mode, Owner, Token};
use dlock::rules::{Ask, Patience, Terms};
use std::time::Duration;

/// Asks for an exclusive lock.
pub fn exclusive(token: &Token, ttl: Duration, patience: Patience) -> Ask {
    Ask {
        token: token.clone(),
        mode: Mode::Exclusive,
        ttl,
        min_hold: Duration::ZERO,
        owner: Owner::default(),
        patience,
        terms: Terms::default(),
        waited: Duration::ZERO,
        has_waited: false,
    }
}
