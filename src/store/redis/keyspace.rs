//! Finds the locks of a server by the names of its keys.

use super::super::net::Address;
use super::super::{Error, Which};
use super::connection::Connection;
use super::reply::garbled;
use super::route::{Limit, Whom};
use super::{RedisStore, SCAN_WITHIN};
use crate::clock::Moment;
use crate::lock::{Key, Name};
use redis::{Value, cmd};
use std::collections::BTreeSet;

/// Keys that one SCAN request looks at.
const SCAN_STEP: u64 = 1000;
/// EXISTS requests in one write.
const EXIST_STEP: usize = 500;
/// Most SCAN requests for a suggestion: they look at ten thousand keys.
pub(super) const GLIMPSE_SCANS: usize = 10;
/// Most bytes of names taken from a server: some hundred thousand locks.
const NAMES_MAX: usize = 32 * 1024 * 1024;

impl RedisStore {
    /// The locks on one server. A lock that is held or waited for has a record, and one that is
    /// cooling has a lock key. Under an empty prefix any key could be a lock key, so there it
    /// counts only if the lock has a fence.
    pub(super) fn find_at(
        &mut self,
        server: &Address,
        prefix: &str,
        which: Which,
    ) -> Result<BTreeSet<Name>, Error> {
        // A lock that was never granted may be waited for, or be paused.
        let mut kinds = match which {
            Which::Known => vec!["fence", "queue", "quorum", "pause", "expect"],
            Which::Live => vec!["hold", "queue", "quorum", "pause", "expect"],
            Which::Recent => vec!["hold", "queue", "quorum", "pause", "spent"],
        };
        if prefix.is_empty() && which != Which::Known {
            kinds.push("fence");
        }
        let (mut names, mut idle) = (BTreeSet::new(), Vec::new());
        for key in self.scan(server, &record_pattern(&kinds, prefix), false, usize::MAX)? {
            let Some((kind, name)) = lock_of(&key, &kinds, prefix) else { continue };
            if kind == "fence" && which != Which::Known {
                idle.push(name);
            } else {
                names.insert(name);
            }
        }
        idle.retain(|name| !names.contains(name));
        for some in idle.chunks(EXIST_STEP) {
            names.extend(self.existing(server, some)?);
        }
        if !prefix.is_empty() {
            let strings = self.scan(server, &format!("{}*", escape_glob(prefix)), true, usize::MAX)?;
            names.extend(strings.iter().filter_map(|full| name_under(prefix, full)));
        }
        Ok(names)
    }

    /// The locks that have been granted on one server, as far as this many SCAN requests find them.
    pub(super) fn glimpse_at(
        &mut self,
        server: &Address,
        prefix: &str,
        scans: usize,
    ) -> Result<Vec<Name>, Error> {
        let keys = self.scan(server, &record_pattern(&["fence"], prefix), false, scans)?;
        Ok(keys.iter().filter_map(|key| Some(lock_of(key, &["fence"], prefix)?.1)).collect())
    }

    /// Those of the locks that have a lock key. Each has a request of its own, because they may lie
    /// in different slots.
    pub(super) fn existing(&mut self, server: &Address, names: &[Name]) -> Result<Vec<Name>, Error> {
        let deadline = Moment::now().after(self.target.request_time());
        let ask = |connection: &mut Connection, deadline, _| {
            let exists = |name: &Name| {
                let mut exists = cmd("EXISTS");
                exists.arg(name.as_str());
                exists
            };
            connection.send(names.iter().map(exists).collect(), deadline)?;
            let mut found = Vec::new();
            for name in names {
                // A redirection counts as existing: the server no longer has the slot and cannot
                // tell.
                if connection.answer(deadline)? != Value::Int(0) {
                    found.push(name.clone());
                }
            }
            Ok((Value::Nil, found))
        };
        let whom = Whom::Server(server);
        self.caller.route.exchange(whom, deadline, Limit::OpTimeout, ask).map(|(_, found)| found)
    }

    /// The keys that match, all or those that `most` requests find. Each SCAN request has a time limit of its own, because a server with
    /// many other keys needs many.
    fn scan(
        &mut self,
        server: &Address,
        pattern: &str,
        only_strings: bool,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        let (mut found, mut size, mut cursor) = (Vec::new(), 0, "0".to_owned());
        let until = Moment::now().after(SCAN_WITHIN);
        for request in 1.. {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_STEP);
            if only_strings {
                scan.arg("TYPE").arg("string");
            }
            let deadline = Moment::now().after(self.target.request_time());
            let ask =
                |connection: &mut Connection, deadline, _| Ok((connection.ask(scan.clone(), deadline)?, ()));
            let whom = Whom::Server(server);
            let (value, ()) = self.caller.route.exchange(whom, deadline, Limit::OpTimeout, ask)?;
            let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(value)
                .map_err(|_| garbled(&self.target.shown, "a reply to SCAN that is not understood"))?;
            found.extend(
                keys.into_iter()
                    .filter_map(|key| String::from_utf8(key).ok())
                    .inspect(|key| size += key.len()),
            );
            if next == "0" || request >= most {
                break;
            }
            if until.passed() || size > NAMES_MAX {
                let (names, shown) = (found.len(), &self.target.shown);
                return Err(Error::Garbled(format!(
                    "{shown} has too many keys to list in time ({names} so far); name keys instead"
                )));
            }
            cursor = next;
        }
        Ok(found)
    }
}

/// A SCAN pattern for the records of these kinds of the locks under a prefix.
fn record_pattern(kinds: &[&str], prefix: &str) -> String {
    format!("dlock.{}:{{*}}:{}*", glob_of(kinds), escape_glob(prefix))
}

/// The kind of a record that is one of these, and its lock.
fn lock_of<'a>(key: &'a str, kinds: &[&str], prefix: &str) -> Option<(&'a str, Name)> {
    let (kind, rest) = key.strip_prefix("dlock.")?.split_once(":{")?;
    let (tag, full) = rest.split_once("}:")?;
    // The name of a `spent` key ends with the token.
    let full = if kind == "spent" { full.rsplit_once(':').map_or(full, |(full, _)| full) } else { full };
    let name = name_under(prefix, full).filter(|name| name.tag() == tag && kinds.contains(&kind))?;
    Some((kind, name))
}

/// The patterns of the keys that a user with this prefix needs: the lock keys, and the derived keys
/// of their locks. The hash tag may be anything, because a key may have one of its own. If neither
/// of two prefixes begins with the other, their patterns share no lock.
pub fn key_patterns(prefix: &str) -> String {
    let prefix = escape_glob(prefix);
    if prefix.is_empty() { "~*".into() } else { format!("~{prefix}* ~dlock.*:{{*}}:{prefix}*") }
}

fn name_under(prefix: &str, full: &str) -> Option<Name> {
    Name::new(prefix, &Key::new(full.strip_prefix(prefix)?).ok()?).ok()
}

/// A SCAN pattern that matches all of these words, and perhaps others, so that one SCAN is enough.
fn glob_of(words: &[&str]) -> String {
    let letters = |at: usize| words.iter().filter_map(|word| word.chars().nth(at)).collect::<String>();
    format!("[{}][{}]*", letters(0), letters(1))
}

/// A prefix as a SCAN pattern that matches only itself.
fn escape_glob(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if matches!(c, '*' | '?' | '[' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}
