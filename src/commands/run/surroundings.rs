//! What does the command find in its environment? The names of its hold, for scripts and for what dlock itself does when
//! it is run again inside the job.

use super::super::held::{self, By, Held, Holds};
use crate::config::Settings;
use crate::lock::{Fence, Key, Token};
use std::ffi::OsString;

/// Whether this dlock seems to run inside a job that holds the same lock. What the variable says is not verified, so
/// nothing but a warning may follow from it.
pub fn is_inside_of(settings: &Settings, key: &Key) -> bool {
    Holds::of_process().of_key(settings, key).next().is_some()
}

/// The variables to set, and to unset.
pub fn environment(
    settings: &Settings,
    key: &Key,
    token: &Token,
    fence: Fence,
) -> Vec<(OsString, Option<OsString>)> {
    let set = |name: &str, value: &str| (name.into(), Some(value.into()));
    let held = Held::new(settings, vec![key.clone()], token.clone(), fence, By::Run);
    vec![
        set("DLOCK_KEY", key.as_str()),
        set("DLOCK_KEYS", key.as_str()),
        set("DLOCK_TOKEN", token.secret()),
        set("DLOCK_FENCE", &fence.to_string()),
        set(held::VARIABLE, &Holds::of_process().with(held).to_string()),
        ("DLOCK_SLOT".into(), None),
    ]
}
