//! Judges the settings: which store they name, and what other users can read or change.

use super::{Clear, Criteria, SettingsFile, ok, warn};
use crate::config::Sensitivity;
use crate::output::doctor::Finding;

pub(super) fn of_settings(criteria: &Criteria) -> Vec<Finding> {
    let mut findings = vec![match &criteria.named {
        Some(who) => ok("store", format!("{} ({who})", criteria.store)),
        None => warn(
            "store",
            format!("{}, the built-in default: no setting names a store", criteria.store),
            "name it with --store, DLOCK_STORE or /etc/dlock.toml, because that default means a different server on each machine",
        ),
    }];
    findings.extend(criteria.password_from.iter().map(|from| ok("password", from)));
    findings.extend(criteria.files.iter().filter_map(of_file));
    findings.extend(criteria.exposed.iter().map(|variable| {
        warn(
            "secrets",
            format!("{variable} has a password in it, and every job inherits it"),
            "put the password into a file that only its user can read, and name that by DLOCK_PASSWORD_FILE or password-file",
        )
    }));
    findings.extend(criteria.clear.iter().map(of_clear));
    findings
}

fn of_clear(Clear { hosts, tls_scheme }: &Clear) -> Finding {
    let (found, tls) = match tls_scheme {
        Some(scheme) => (format!("the password goes to {hosts} unencrypted"), format!("write {scheme}")),
        None => (
            format!("everything goes to {hosts} unencrypted, and can be changed on the way"),
            "leave out sslmode=disable".into(),
        ),
    };
    warn(
        "encryption",
        found,
        format!("{tls} (TLS; docs/stores.md), or make sure that nobody else is on that network"),
    )
}

fn of_file(file: &SettingsFile) -> Option<Finding> {
    let (path, is_secret) = (file.path.display(), file.sensitivity == Sensitivity::Secret);
    let (check, bits) = if is_secret { ("secrets", "600") } else { ("settings", "644") };
    let found = if is_secret && file.mode & 0o004 != 0 {
        format!("every user of this machine can read {path}, which has a secret in it")
    } else if file.mode & 0o022 != 0 {
        format!("users other than its owner can change {path}")
    } else {
        return None;
    };
    Some(warn(check, found, format!("chmod {bits} {path}")))
}
