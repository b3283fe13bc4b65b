//! Formats the owner of a hold, for a sentence and for a table cell, and the reason for the hold.

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
