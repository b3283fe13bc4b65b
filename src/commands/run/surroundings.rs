//! What does the command find in its environment? The names of its hold, for scripts and for what dlock itself does when
//! it is run again inside the job.

use crate::config::Settings;
use crate::lock::{Fence, Name, Token};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// One hold of this process tree, as DLOCK_HELD lists them, the outermost first.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    /// The store's URL, without its secret.
    store: String,
    prefix: String,
    keys: Vec<String>,
    token: String,
    fence: u64,
}

/// Whether this dlock seems to run inside a job that holds the same lock. What the variable says is not verified, so
/// nothing but a warning may follow from it.
pub fn is_inside_of(settings: &Settings, name: &Name) -> bool {
    let outer = std::env::var("DLOCK_HELD").unwrap_or_default();
    let holds: Vec<Held> = serde_json::from_str(&outer).unwrap_or_default();
    holds.iter().any(|held| {
        held.store == settings.store.to_string()
            && held.prefix == settings.prefix
            && held.keys.iter().any(|key| key == name.key())
    })
}

/// The variables to set, and to unset.
pub fn environment(
    settings: &Settings,
    name: &Name,
    token: &Token,
    fence: Fence,
) -> Vec<(OsString, Option<OsString>)> {
    let set = |name: &str, value: &str| (name.into(), Some(value.into()));
    let outer = std::env::var("DLOCK_HELD").unwrap_or_default();
    vec![
        set("DLOCK_KEY", name.key()),
        set("DLOCK_KEYS", name.key()),
        set("DLOCK_TOKEN", token.secret()),
        set("DLOCK_FENCE", &fence.to_string()),
        set("DLOCK_HELD", &held(settings, name, token, fence, &outer)),
        ("DLOCK_SLOT".into(), None),
    ]
}

/// The list with this hold at its end. What is no such list is dropped: it names no hold that could be verified.
fn held(settings: &Settings, name: &Name, token: &Token, fence: Fence, outer: &str) -> String {
    let mut holds: Vec<Held> = serde_json::from_str(outer).unwrap_or_default();
    holds.push(Held {
        store: settings.store.to_string(),
        prefix: settings.prefix.clone(),
        keys: vec![name.key().into()],
        token: token.secret().into(),
        fence: fence.0,
    });
    serde_json::to_string(&holds).unwrap_or_default()
}
