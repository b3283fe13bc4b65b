//! Finds out why a hold ended or who asked for its end, from what the store shows of the locks: the
//! renewal itself says only that it happened. Makes no request.

use crate::lock::{Fence, Owner};
use crate::output::owner::{because, who};
use crate::rules::{LoggedEnd, Outcome};
use crate::store::View;

/// What the store knows of the hold with a given fence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fate {
    /// The store did not say.
    #[default]
    Unknown,
    /// The hold is there; with the owner who asked for its end, if one did.
    Held(Option<Owner>),
    /// It ended, as the log records it.
    Ended(Box<LoggedEnd>),
    /// The store has no trace of the hold, so it has lost its data; with the present holder, if
    /// there is one.
    Forgotten(Option<Owner>),
}

impl Fate {
    /// The fate of the hold with this fence. Of several locks, the view that says most counts.
    pub fn of(views: &[View], fence: Fence) -> Self {
        let each = views.iter().map(|view| {
            if let Some(end) = view.log.iter().find(|end| end.fence == fence) {
                return Self::Ended(Box::new(end.clone()));
            }
            match view.holders.iter().find(|holder| holder.fence == fence) {
                Some(holder) => Self::Held(holder.asked.clone()),
                None => Self::Forgotten(view.holders.first().map(|holder| holder.owner.clone())),
            }
        });
        let weight = |fate: &Self| match fate {
            Self::Unknown | Self::Held(None) => 0,
            Self::Held(Some(_)) => 1,
            Self::Forgotten(_) => 2,
            Self::Ended(end) if end.by.is_none() => 3,
            Self::Ended(_) => 4,
        };
        each.max_by_key(weight).unwrap_or(Self::Unknown)
    }

    /// Who asked for the end or took the lock away.
    pub fn by(&self) -> Option<&Owner> {
        match self {
            Self::Held(by) => by.as_ref(),
            Self::Ended(end) => end.by.as_ref(),
            Self::Unknown | Self::Forgotten(_) => None,
        }
    }

    /// How the lock was lost, as a clause.
    pub fn clause(&self) -> Option<String> {
        Some(match self {
            Self::Unknown | Self::Held(_) => return None,
            Self::Forgotten(now) => {
                let now = now.as_ref().map(|owner| format!("; {} holds it now", who(owner)));
                let now = now.unwrap_or_default();
                format!("the store no longer knows this lock: it was restarted, flushed or failed over{now}")
            }
            Self::Ended(end) => match end.outcome {
                Outcome::Expired => "its lease ran out before it was renewed".into(),
                Outcome::Lost => "its key was deleted, changed or evicted".into(),
                Outcome::Forced => format!("{} took it away", person(end.by.as_ref())),
                _ => "it was given back by its token".into(),
            },
        })
    }
}

/// The owner who acted and the reason, as the start of a sentence.
pub fn person(by: Option<&Owner>) -> String {
    by.map_or_else(|| "an operator".into(), |by| format!("{}{}", who(by), because(by)))
}
