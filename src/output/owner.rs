//! Formats the owner of a hold, for a sentence and for a table cell, the reason for the hold, and
//! what keeps it after the end of its command.

use super::escaped;
use crate::lock::Owner;

/// `user@host (pid 12)`.
pub fn who(owner: &Owner) -> String {
    format!("{}@{} (pid {})", owner.user, owner.host, owner.pid)
}

/// `user@host 12`.
pub fn cell(owner: &Owner) -> String {
    escaped(&format!("{}@{} {}", owner.user, owner.host, owner.pid)).into_owned()
}

/// The reason in parentheses, to follow the command, if there is one.
pub fn because(owner: &Owner) -> String {
    owner.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default()
}

/// After the end of the command, what it left behind, in parentheses, to follow it.
pub fn left_behind(owner: &Owner) -> String {
    let rest = owner.rest.as_deref();
    rest.map(|rest| format!(" (has ended; what it left behind then keeps the lock: {rest})"))
        .unwrap_or_default()
}
