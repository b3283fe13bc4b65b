//! Is this store fit to hold locks? Has the store probed, has what was found judged, prints. What is good is decided in
//! `judge`, which knows no store; what is found out, in the stores' `probe`.

use super::server;
use crate::cli::doctor::Doctor;
use crate::config::url::Place;
use crate::config::{Settings, Source};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::doctor::{Finding, Verdict, json, text};
use crate::output::locale::Charset;
use crate::output::table::Width;
use crate::output::{self, coloured};
use crate::store::probe::Survey;
use crate::store::{file, redis};
use judge::{Named, judge};
use std::os::unix::fs::PermissionsExt;

mod judge;

/// `dlock doctor`.
pub fn doctor(settings: &Settings, flags: &Doctor) -> anyhow::Result<Exit> {
    let by = judge::Settings {
        store: settings.store.to_string(),
        named: match settings.store.source {
            Source::Default => Named::Nobody,
            _ => Named::By(settings.store.origin()),
        },
        ttl: settings.ttl(flags.ttl)?.get(),
        op_timeout: settings.op_timeout,
        secrets: secrets(settings),
    };
    let findings = judge(&survey(settings)?, &by);
    let report = if flags.json {
        json(&findings).map_err(|error| Error::Internal(error.to_string()))?
    } else {
        text(&findings, Width::of_stdout(), Charset::of_environment(), coloured(settings.color))
    };
    output::print(&report)?;
    Ok(exit(&findings, flags))
}

/// Has everything probed that the store is made of.
fn survey(settings: &Settings) -> Result<Survey, Error> {
    let (address, database, tls) = match &settings.store.place {
        Place::Tcp { host, db, tls } => {
            (redis::Address::Tcp { host: host.name.clone(), port: host.port }, *db, tls.as_ref())
        }
        Place::Unix { path, db } => (redis::Address::Unix(path.clone()), *db, None),
        Place::File { dir } => {
            return Ok(Survey::Directory(file::probe::probe(dir, &settings.store.to_string())));
        }
        Place::Sentinel { .. } | Place::Cluster { .. } | Place::Quorum { .. } => {
            return Err(Error::Config(format!("{}: such a store is not in this version", settings.store)));
        }
    };
    let node = redis::probe::probe(&server(settings, address, database, tls)?, &settings.prefix);
    Ok(Survey::Servers { nodes: vec![node], failover: None })
}

/// The files that secrets are read from. One that is gone by now does not count.
fn secrets(settings: &Settings) -> Vec<(std::path::PathBuf, u32)> {
    let mode = |path: &std::path::PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        // What is no file (/dev/fd/3, a pipe) is nobody else's to read.
        found.is_file().then(|| (path.clone(), found.permissions().mode()))
    };
    settings.secrets.iter().filter_map(mode).collect()
}

fn exit(findings: &[Finding], flags: &Doctor) -> Exit {
    match findings.iter().map(|finding| finding.verdict).max() {
        Some(Verdict::Bad) => Exit::Unavailable,
        Some(Verdict::Warn) if flags.strict => Exit::No,
        _ => Exit::Ok,
    }
}
