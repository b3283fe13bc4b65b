//! The environment of a command under a lock, or of a script that acquired one: the names of its
//! hold, and the settings by which a dlock inside reaches the same store.

use super::held::{self, Held, Holds};
use crate::config::Settings;
use crate::lock::{Fence, Key, Token};
use std::ffi::OsString;

/// Variables to set, or to unset (`None`).
pub type Changes = Vec<(OsString, Option<OsString>)>;

/// The variables for a new hold of these `keys`, inside other `holds`.
pub fn environment(
    settings: &Settings,
    keys: &[Key],
    held: &Held,
    slot: Option<u32>,
    holds: Holds,
) -> Changes {
    let mut changes = of_hold(keys, &held.token, held.fence, slot);
    changes.push(set(held::VARIABLE, &holds.with(held.clone()).to_string()));
    changes.extend(settings_for_the_store(settings));
    changes
}

/// The variables for a run of these `keys` under a hold of the parent job, which DLOCK_HELD lists
/// already.
pub fn environment_inside(
    settings: &Settings,
    keys: &[Key],
    token: &Token,
    fence: Fence,
    slot: Option<u32>,
) -> Changes {
    let mut changes = of_hold(keys, token, fence, slot);
    changes.extend(settings_for_the_store(settings));
    changes
}

fn of_hold(keys: &[Key], token: &Token, fence: Fence, slot: Option<u32>) -> Changes {
    let lines: Vec<&str> = keys.iter().map(Key::as_str).collect();
    vec![
        set("DLOCK_KEY", lines.first().copied().unwrap_or_default()),
        set("DLOCK_KEYS", &lines.join("\n")),
        set("DLOCK_TOKEN", token.secret()),
        set("DLOCK_FENCE", &fence.to_string()),
        ("DLOCK_SLOT".into(), slot.map(|slot| slot.to_string().into())),
    ]
}

fn settings_for_the_store(settings: &Settings) -> impl Iterator<Item = (OsString, Option<OsString>)> {
    settings.environment().into_iter().map(|(name, value)| (name.into(), value))
}

fn set(name: &str, value: &str) -> (OsString, Option<OsString>) {
    (name.into(), Some(value.into()))
}
