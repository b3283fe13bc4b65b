//! What does the command find in its environment? The names of its hold, and the settings by which a dlock inside of the
//! job reaches the same store.

use super::enclosing::Enclosing;
use crate::commands::held::{self, Held, Holds};
use crate::config::Settings;
use crate::lock::{Fence, Key, Token};
use std::ffi::OsString;

/// Variables to set, or to unset.
pub type Changes = Vec<(OsString, Option<OsString>)>;

/// The variables of a run of these `keys` with a hold of its own, inside other `holds`.
pub fn environment(
    settings: &Settings,
    keys: &[Key],
    held: &Held,
    slot: Option<u32>,
    holds: Holds,
) -> Changes {
    let mut changes = of_hold(settings, keys, &held.token, held.fence, slot);
    changes.push(set(held::VARIABLE, &holds.with(held.clone()).to_string()));
    changes
}

/// The variables of a run of these `keys` under a hold of the job around.
pub fn environment_inside(settings: &Settings, keys: &[Key], enclosing: &Enclosing) -> Changes {
    of_hold(settings, keys, &enclosing.held.token, enclosing.proof.fence, enclosing.proof.slot)
}

fn of_hold(settings: &Settings, keys: &[Key], token: &Token, fence: Fence, slot: Option<u32>) -> Changes {
    let lines: Vec<&str> = keys.iter().map(Key::as_str).collect();
    let mut changes = vec![
        set("DLOCK_KEY", lines.first().copied().unwrap_or_default()),
        set("DLOCK_KEYS", &lines.join("\n")),
        set("DLOCK_TOKEN", token.secret()),
        set("DLOCK_FENCE", &fence.to_string()),
        ("DLOCK_SLOT".into(), slot.map(|slot| slot.to_string().into())),
    ];
    changes.extend(settings.environment().into_iter().map(|(name, value)| (name.into(), value)));
    changes
}

fn set(name: &str, value: &str) -> (OsString, Option<OsString>) {
    (name.into(), Some(value.into()))
}
