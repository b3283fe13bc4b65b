//! The environment of a command under a lock, or of a script that acquired one: the names of its
//! hold, and the settings by which a dlock inside reaches the same store.

use super::held::{self, Held, Holds};
use crate::config::Settings;
use crate::lock::Key;
use std::ffi::OsString;

/// Variables to set, or to unset (`None`).
pub type Changes = Vec<(OsString, Option<OsString>)>;

/// The variables for a hold of these `keys`. `holds` are those around a new one; `None` for a
/// hold of the parent job, which DLOCK_HELD lists already.
pub fn environment(
    settings: &Settings,
    keys: &[Key],
    held: &Held,
    slot: Option<u32>,
    holds: Option<Holds>,
) -> Changes {
    let lines: Vec<&str> = keys.iter().map(Key::as_str).collect();
    let mut changes = vec![
        set("DLOCK_KEY", lines.first().copied().unwrap_or_default()),
        set("DLOCK_KEYS", &lines.join("\n")),
        set("DLOCK_TOKEN", held.token.secret()),
        set("DLOCK_FENCE", &held.fence.to_string()),
        ("DLOCK_SLOT".into(), slot.map(|slot| slot.to_string().into())),
    ];
    changes.extend(holds.map(|holds| set(held::VARIABLE, &holds.with(held.clone()).to_string())));
    changes.extend(settings.environment().into_iter().map(|(name, value)| (name.into(), value)));
    changes
}

fn set(name: &str, value: &str) -> (OsString, Option<OsString>) {
    (name.into(), Some(value.into()))
}
