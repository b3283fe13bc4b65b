//! `dlock doctor`: probes the store, judges the facts and prints the findings. `judge` decides what
//! is good and knows no store; the stores' `probe` modules find the facts.

use super::context::Context;
use crate::cli::doctor::Doctor;
use crate::config::url::Host;
use crate::config::{Sensitivity, Settings, Source};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::columns::Width;
use crate::output::doctor::{Finding, Verdict, text};
use crate::output::{self, coloured, json};
use crate::sys::named_file;
use judge::judge;
use std::os::unix::fs::MetadataExt as _;

pub mod identity;
mod judge;

pub fn doctor(context: &Context, flags: &Doctor) -> anyhow::Result<Exit> {
    let settings = &context.settings;
    if flags.sql {
        let none = || Error::Usage(format!("{} has no tables to create", settings.store));
        return output::print(&context.made()?.sql().ok_or_else(none)?)
            .map(|()| Exit::Ok)
            .map_err(Into::into);
    }
    let by = judge::Criteria {
        store: settings.store.to_string(),
        named: match settings.store.source {
            Source::Default => None,
            _ => Some(settings.store.origin()),
        },
        ttl: settings.ttl(flags.ttl)?.get(),
        op_timeout: settings.op_timeout,
        max_lease: settings.max_lease(),
        files: files(settings),
        exposed: settings.exposed.clone(),
        password_from: settings.password_from.clone(),
        clear: clear(settings),
    };
    let survey = context.made()?.probe(context);
    let mut findings = judge(&survey, &by);
    let identity = identity::identity(context, &survey);
    let mut place = match &*settings.prefix {
        "" => "no prefix".into(),
        prefix => format!("prefix {prefix}"),
    };
    if let Some(identity) = identity {
        place.push_str(&format!(", identity {identity}"));
        let found = format!("{identity}: the same on every machine that means this store and prefix");
        findings
            .insert(1, Finding { node: None, check: "identity", verdict: Verdict::Ok, found, advice: None });
    }
    let report = if flags.json {
        json::pretty(&findings)?
    } else {
        text(&findings, &place, Width::of_stdout(), coloured(settings.color))
    };
    output::print(&report)?;
    Ok(exit(&findings, flags))
}

/// What goes to other machines unencrypted.
fn clear(settings: &Settings) -> Option<judge::Clear> {
    let store = &settings.store;
    let mut logins = store.credentials.iter().chain(&store.sentinel_credentials);
    let has_password = logins.any(|login| login.password.is_some());
    let hosts: Vec<String> = store.place.in_clear(has_password).into_iter().map(Host::to_string).collect();
    let tls_scheme = store.place.shape().tls_scheme;
    let is_secret = has_password || tls_scheme.is_none();
    (is_secret && !hosts.is_empty()).then(|| judge::Clear { hosts: hosts.join(", "), tls_scheme })
}

/// The files that the settings name, with their permission bits. A file that no longer exists is
/// left out.
fn files(settings: &Settings) -> Vec<judge::SettingsFile> {
    let file = |(path, sensitivity): &(std::path::PathBuf, Sensitivity)| {
        let found = std::fs::metadata(path).ok()?;
        // The bits for writing count as they do where the file is read.
        let mode = found.mode();
        let is_open = named_file::may_be_written(mode, found.uid(), found.gid());
        let mode = if is_open { mode } else { mode & !0o022 };
        // What is not a regular file (/dev/fd/3, a pipe) cannot be read by others.
        found.is_file().then(|| judge::SettingsFile { path: path.clone(), sensitivity: *sensitivity, mode })
    };
    settings.files.iter().filter_map(file).collect()
}

fn exit(findings: &[Finding], flags: &Doctor) -> Exit {
    match findings.iter().map(|finding| finding.verdict).max() {
        Some(Verdict::Bad) => Exit::Unavailable,
        Some(Verdict::Warn) if flags.strict => Exit::No,
        _ => Exit::Ok,
    }
}
