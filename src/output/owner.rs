//! How is it said whose a hold is? In a sentence, in the cell of a table, and why it is held.

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

/// Why it is held, behind the command, if that is known.
pub fn because(owner: &Owner) -> String {
    owner.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default()
}
