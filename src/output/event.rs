//! What a message reports, as a word, and the holder or operator that it names. output.rs writes
//! them (`--log-format json`). docs/messages.md explains them; a new word is a minor change.

use super::missed::Fields;
use crate::exit::Exit;
use crate::lock::Owner;
use crate::rules::Holder;
use serde::Serialize;

/// What happened, as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(clap::ValueEnum))]
pub enum What {
    /// The lock was not obtained, or `--wait` ran out.
    Busy,
    /// Another run had done the work, within `--once-per`.
    Done,
    /// A newer run with `--replace` takes the place of this one, or asks it to end.
    Superseded,
    /// In the queue, or watching until a lock is free.
    Waiting,
    /// The lock was granted, or a hold of the parent job covers it.
    Granted,
    /// The store does not answer, and is tried again.
    Trouble,
    /// The store answers again.
    Recovered,
    /// An operator asks the holder to end.
    Asked,
    /// The lock is lost, or not held.
    Lost,
    /// `--max-run` is over.
    Timeout,
    /// The command has ended, and the lock is kept for what it left behind; or the process or
    /// program that a hold is for ended before the grant.
    Ended,
    /// The command was stopped (^Z).
    Suspended,
    /// The lock was given back.
    Released,
    /// The lock could not be given back yet.
    Unreleased,
    /// dlock was killed, and its guard stopped the job.
    Crashed,
    /// A process that the job started cannot be stopped.
    Unstoppable,
    /// The command cannot be executed, or was not found.
    NotStarted,
    /// The lock is free.
    Free,
    /// A holder, before it is asked to end or the lock is taken away; or the answer of `check`.
    Held,
    /// The lease was extended, or the dlock that holds the lock extends it.
    Renewed,
    /// The lock was taken away.
    Revoked,
    Paused,
    Resumed,
    /// A run with `--once-per` is due again, or no run is expected any more.
    Forgotten,
    /// Nothing was changed.
    Unchanged,
    /// The keys that a pattern matches, or that it matches none.
    Matched,
    /// A lock, or a part of the store, cannot be read.
    Unreadable,
    /// What `watch` watches.
    Watching,
    /// The report could not be written.
    Unwritten,
    /// Something about the settings.
    Setting,
    /// The store cannot be reached, or refused to serve.
    Unreachable,
    /// The store refused the password, or a right is missing.
    Denied,
    /// The command line or a setting makes no sense.
    Invalid,
    /// An internal error, or output could not be written.
    Fault,
}

impl What {
    /// The word for a command that fails with this status.
    pub fn of_failure(exit: Exit) -> Self {
        match exit {
            Exit::Usage | Exit::Config => Self::Invalid,
            Exit::Unavailable => Self::Unreachable,
            Exit::Denied => Self::Denied,
            Exit::Lost => Self::Lost,
            Exit::Busy(_) => Self::Busy,
            Exit::TimedOut => Self::Timeout,
            Exit::CannotExecute | Exit::NotFound => Self::NotStarted,
            Exit::Internal | Exit::Output | Exit::No | Exit::Ok | Exit::Job(_) | Exit::Signal(_) => {
                Self::Fault
            }
        }
    }
}

/// The fields of a message, for programs.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    pub what: What,
    /// The key, if it is not the one that the command is about.
    pub key: Option<&'a str>,
    /// The holder, or one of several holders.
    pub holder: Option<&'a Holder>,
    /// Number of waiters before this one in the queue; for `Busy`, the number in a full queue.
    pub ahead: Option<u64>,
    /// The owner who did it, or asks for it.
    pub by: Option<&'a Owner>,
    /// What a scheduled run announces for all machines.
    pub missed: Option<Fields>,
    /// The exit status, if dlock ends because of this.
    pub status: Option<u8>,
}

impl<'a> Event<'a> {
    /// A failure that ends the command.
    pub fn of_failure(exit: Exit) -> Self {
        Self::from(What::of_failure(exit)).ends(exit)
    }

    pub fn ends(self, exit: Exit) -> Self {
        Self { status: Some(exit.code()), ..self }
    }

    pub fn about(self, key: &'a str) -> Self {
        Self { key: Some(key), ..self }
    }

    pub fn held_by(self, holder: Option<&'a Holder>) -> Self {
        Self { holder, ..self }
    }

    pub fn by(self, by: Option<&'a Owner>) -> Self {
        Self { by, ..self }
    }
}

impl From<What> for Event<'_> {
    fn from(what: What) -> Self {
        Self { what, key: None, holder: None, ahead: None, by: None, missed: None, status: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_word_is_documented() -> Result<(), serde_json::Error> {
        let schema: serde_json::Value = serde_json::from_str(include_str!("../../docs/dlock.schema.json"))?;
        let words = &schema["$defs"]["message"]["properties"]["event"]["enum"];
        let words: Vec<&str> =
            words.as_array().into_iter().flatten().filter_map(|word| word.as_str()).collect();
        assert_eq!(words.len(), What::value_variants().len());
        for what in What::value_variants() {
            let word = serde_json::to_value(what)?;
            let word = word.as_str().unwrap_or_default();
            assert!(words.contains(&word), "{word} is not in the schema");
            assert!(include_str!("../../docs/messages.md").contains(&format!("`{word}`")), "{word}");
        }
        Ok(())
    }
}
