//! What can be asked of a lock? The operations' arguments, as the law, the stores and the commands share them.

use super::answer::Outcome;
use crate::exit::Ended;
use crate::lock::{Mode, Owner, Token};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What `acquire` asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Names the hold, from the first call to the last.
    pub token: Token,
    /// With whom the lock may be shared.
    pub mode: Mode,
    pub ttl: Duration,
    /// How long after the grant the lock is kept at least.
    pub min_hold: Duration,
    pub owner: Owner,
    /// Whether to stand in the queue if the lock is not to be had now.
    pub patience: Patience,
    pub terms: Terms,
    /// How long its owner has been asking. With [`Terms::replaces`] it says who came last, also to a store that was away.
    pub waited: Duration,
}

/// On which terms a lock is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Only if no hold that was granted within so long ago has succeeded since: once per tick of a timetable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once_per: Option<Duration>,
    /// The newest wins: whoever holds a lock is asked to end, and whoever waits on the same terms is sent home.
    #[serde(skip_serializing_if = "is_not")]
    pub replaces: bool,
    /// Once it is granted, it is not asked to end by one that replaces.
    #[serde(skip_serializing_if = "is_not")]
    pub stays: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) const fn is_not(flag: &bool) -> bool {
    !*flag
}

impl Terms {
    /// Whether they ask for nothing special.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether to stand in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Take it now or not at all.
    None,
    Queue,
}

/// How a hold ended, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Whether CMD ran, and what ended it; if it did not, no min-hold is kept and nothing is logged.
    pub ran: Ran,
    /// CMD's exit status or signal, where known.
    pub job: Option<Ended>,
    /// Whether the lock was asked for with [`Terms::once_per`]: only then a success counts for a later run with it.
    pub once_per: bool,
}

/// Whether the command was started under the hold, and what ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// It was, and ended by itself.
    Yes,
    /// It was, and something else ended it.
    Cut(Outcome),
    No,
}

impl Ran {
    /// What the log says of it, if anything.
    pub const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Yes => Some(Outcome::Released),
            Self::Cut(outcome) => Some(outcome),
            Self::No => None,
        }
    }
}

/// A pause to begin now.
#[derive(Debug, Clone, Copy)]
pub struct NewPause<'a> {
    /// Who does it; the reason is there.
    pub by: &'a Owner,
    pub lasts: Duration,
}

/// How to take a lock away.
#[derive(Debug, Clone)]
pub struct Revoke {
    /// When the next grant may come.
    pub when: When,
    /// Who does it, for the log.
    pub by: Owner,
}

/// When the next grant may come after a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When the old job is known dead, or its lease ends.
    Safe,
    /// At once; both may run.
    Now,
}
