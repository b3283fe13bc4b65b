//! `dlock doctor`: probes the store, judges the facts and prints the findings. `judge` decides what
//! is good and knows no store; the stores' `probe` modules find the facts.

use super::context::Context;
use super::stores::Made;
use crate::cli::doctor::Doctor;
use crate::config::url::{Host, Location};
use crate::config::{Sensitivity, Settings, Source};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::columns::Width;
use crate::output::doctor::{Finding, Verdict, text};
use crate::output::locale::Charset;
use crate::output::{self, coloured, json};
use crate::store::probe::{Node, Survey};
#[cfg(feature = "zookeeper")]
use crate::store::zookeeper::ZooKeeperStore;
use crate::store::{file, redis};
use judge::judge;
use std::os::unix::fs::PermissionsExt;

mod judge;

pub fn doctor(context: &Context, flags: &Doctor) -> anyhow::Result<Exit> {
    let settings = &context.settings;
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
    let findings = judge(&survey(context)?, &by);
    let report = if flags.json {
        json::pretty(&findings)?
    } else {
        text(&findings, Width::of_stdout(), Charset::of_environment(), coloured(settings.color))
    };
    output::print(&report)?;
    Ok(exit(&findings, flags))
}

/// Probes every part of the store.
fn survey(context: &Context) -> Result<Survey, Error> {
    let Settings { prefix, store, .. } = &context.settings;
    let probed =
        |masters: Vec<redis::Target>| masters.iter().map(|one| redis::probe::probe(one, prefix)).collect();
    let unfound = |error| vec![Node { name: store.to_string(), facts: Err(error) }];
    Ok(match context.made()? {
        Made::Directory(dir) => {
            return Ok(Survey::Directory(file::probe::probe(&dir, &store.to_string())));
        }
        #[cfg(feature = "sql")]
        Made::Database(store) => return Ok(Survey::Database(store.probe(context.deadline()))),
        #[cfg(feature = "etcd")]
        Made::Etcd(store) => return Ok(Survey::Database(store.probe(context.deadline()))),
        #[cfg(feature = "zookeeper")]
        Made::ZooKeeper(target) => {
            return Ok(Survey::Ensemble(ZooKeeperStore::open(target).probe(context.deadline())));
        }
        Made::Server(target) => Survey::Servers { nodes: probed(vec![target]), failover: None },
        Made::Masters(masters) => Survey::Masters(probed(masters)),
        Made::Sentinels(sentinels, service, master) => {
            let failover = redis::probe::down_after(&sentinels, &service);
            let found = redis::RedisStore::sentinel(sentinels, service, master).masters(context.deadline());
            Survey::Servers { nodes: found.map_or_else(unfound, probed), failover }
        }
        Made::Cluster(seeds, node) => {
            let found = redis::RedisStore::cluster(seeds, node).masters(context.deadline());
            let failover = found.as_ref().ok().and_then(|masters| redis::probe::node_timeout(masters));
            Survey::Servers { nodes: found.map_or_else(unfound, probed), failover }
        }
    })
}

/// What goes to other machines unencrypted.
fn clear(settings: &Settings) -> Option<judge::Clear> {
    let store = &settings.store;
    let hosts: Vec<String> = store.place.in_clear().into_iter().map(Host::to_string).collect();
    let mut logins = store.credentials.iter().chain(&store.sentinel_credentials);
    let has_password = logins.any(|login| login.password.is_some());
    let tls = match store.place {
        Location::Database { .. } => judge::Tls::SslMode,
        Location::Etcd { .. } => judge::Tls::Scheme("etcds"),
        Location::ZooKeeper { .. } => judge::Tls::Scheme("zookeepers"),
        _ => judge::Tls::Scheme("rediss"),
    };
    let is_secret = has_password || tls == judge::Tls::SslMode;
    (is_secret && !hosts.is_empty()).then(|| judge::Clear { hosts: hosts.join(", "), tls })
}

/// The files that the settings name, with their permission bits. A file that no longer exists is
/// left out.
fn files(settings: &Settings) -> Vec<judge::SettingsFile> {
    let file = |(path, sensitivity): &(std::path::PathBuf, Sensitivity)| {
        let found = std::fs::metadata(path).ok()?;
        let mode = found.permissions().mode();
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
