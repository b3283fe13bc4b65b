//! A lock in znodes: naming, parsing and writing. One node has the record with all waiters. Every
//! change writes it, so its version is the version of the lock. Its children are the last ends, in
//! a ring that is written over, and the ephemeral nodes in which waiters write their heartbeats.
//! Anybody with write access may have put anything there, so everything is checked.

use super::jute::{Answer, Ask};
use crate::lock::Token;
use crate::rules::{Due, LOG_KEPT, Phase, Record, Time};
use crate::store::Error;
use crate::store::engine::stored_lock::{Change, EndPart, StoredLock};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha1_smol::Sha1;
use std::collections::BTreeSet;

/// Characters of a lock's name that are not percent-encoded in the name of its node.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':')
    .remove(b'@')
    .remove(b'+')
    .remove(b'=')
    .remove(b'~');
/// Begin of the name of a heartbeat node.
const BEAT: &str = "b-";

/// The nodes of a lock, as they were read.
#[derive(Debug)]
pub struct LockNode {
    path: String,
    /// Version of the lock's node. None if it does not exist yet.
    version: Option<i32>,
    /// Names of the nodes of ends and heartbeats.
    children: BTreeSet<String>,
    /// Whether the caller's heartbeat node belongs to its present session.
    pub has_own_beat: bool,
}

impl LockNode {
    /// A lock without a node.
    pub const fn absent(path: String) -> Self {
        Self { path, version: None, children: BTreeSet::new(), has_own_beat: false }
    }

    /// Parses a lock's node and the names of its children.
    pub fn parse(
        name: &str,
        path: String,
        read: Answer,
        children: Vec<String>,
        now: Time,
    ) -> Result<(StoredLock, Self), String> {
        let version = u64::from(read.stat.version.cast_unsigned()) + 1;
        let (mut stored, used) = StoredLock::parse(&read.data, version)?;
        stored.name = name.into();
        stored.forget_history(used, now);
        let children = children.into_iter().collect();
        Ok((stored, Self { version: Some(read.stat.version), children, ..Self::absent(path) }))
    }

    /// Whether the lock has no node.
    pub const fn is_absent(&self) -> bool {
        self.version.is_none()
    }

    /// Whether the lock's node was written only once.
    pub const fn is_new(&self) -> bool {
        matches!(self.version, Some(0))
    }

    /// The node of a waiter's heartbeats, if the waiter has one.
    pub fn beat(&self, token: &Token) -> Option<String> {
        self.children.contains(&beat_name(token)).then(|| beat_path(&self.path, token))
    }

    /// Notes that a heartbeat node has gone since the lock was read.
    pub fn forget_beat(&mut self, token: &Token) {
        self.children.remove(&beat_name(token));
    }

    /// Paths of the ends, newest first.
    pub fn end_paths(&self, ends: u64) -> impl Iterator<Item = String> {
        let numbers = (ends.saturating_sub(LOG_KEPT as u64) + 1..=ends).rev();
        let there = numbers.map(end_name).filter(|name| self.children.contains(name));
        there.map(|name| format!("{}/{name}", self.path))
    }

    /// The requests that write the lock as the lock rules left it, and the lock as they leave it.
    /// `me` is the caller, if it has a session node. A heartbeat node comes with the waiter's record
    /// and goes with it.
    pub fn write(
        mut self,
        change: Change,
        me: Option<&Token>,
        now: Time,
    ) -> Result<(Vec<Ask>, StoredLock, Self), serde_json::Error> {
        let Change { before, mut after, is_changed } = change;
        if !is_changed || (self.version.is_none() && after.is_empty()) {
            let check = |version| Ask::Check { path: self.path.clone(), version: Some(version) };
            return Ok((self.version.map(check).into_iter().collect(), after, self));
        }
        let (data, ends) = after.to_value(now)?;
        let path = self.path.clone();
        let mut asks = vec![match self.version {
            Some(_) => Ask::Set { path, data, version: self.version },
            None => Ask::Create { path, data },
        }];
        let waits = |token: &Token| after.record.waiters.contains_key(token);
        let gone = before.waiters.keys().filter(|token| !waits(token));
        asks.extend(gone.filter_map(|token| self.beat(token)).map(Ask::Delete));
        if let Some(me) = me.filter(|me| waits(me)) {
            let (path, known) = (beat_path(&self.path, me), self.beat(me));
            if known.is_some() && self.has_own_beat {
                asks.push(Ask::touch(path));
            } else {
                // A session that has ended may have left one.
                asks.extend(known.map(Ask::Delete));
                asks.push(Ask::CreateForSession(path));
            }
        }
        for EndPart { number, value: data } in ends {
            let name = end_name(number);
            let path = format!("{}/{name}", self.path);
            asks.push(match self.children.insert(name) {
                true => Ask::Create { path, data },
                false => Ask::Set { path, data, version: None },
            });
        }
        self.version = Some(self.version.map_or(0, |version| version.wrapping_add(1)));
        after.version += 1;
        Ok((asks, after, self))
    }
}

/// Name of a lock's node.
pub fn lock_name(name: &str) -> String {
    match utf8_percent_encode(name, PLAIN).to_string() {
        name if name.bytes().all(|byte| byte == b'.') => name.replace('.', "%2E"),
        name => name,
    }
}

/// The lock of a node with this name.
pub fn name_of(node: &str) -> Option<String> {
    percent_decode_str(node).decode_utf8().ok().map(Into::into)
}

/// Name of the node of an end.
fn end_name(number: u64) -> String {
    format!("e{:02}", number % LOG_KEPT as u64)
}

/// What ephemeral nodes are named after. It is a hash, because any client can list a server's
/// sessions and their nodes.
pub fn hash(token: &Token) -> String {
    Sha1::from(token.secret()).digest().to_string()
}

fn beat_name(token: &Token) -> String {
    format!("{BEAT}{}", hash(token))
}

/// Path of a waiter's heartbeat node below the lock with this path.
pub fn beat_path(lock: &str, token: &Token) -> String {
    format!("{lock}/{}", beat_name(token))
}

/// Whether a child of a lock with this name is a heartbeat node.
pub fn is_beat(child: &str) -> bool {
    child.starts_with(BEAT)
}

/// The error for data that is not understood.
pub fn garbled(shown: &str, name: &str, path: &str, why: &str) -> Error {
    Error::Garbled(format!(
        "{shown}: the record of the lock {name:?} is not dlock's, or damaged ({why}); it was not changed: delete the node \
         {path} with all below it when nothing runs under its lock"
    ))
}

/// The holders with a confirmed grant, and the ends of their leases by the record.
pub fn believed(record: &Record) -> impl Iterator<Item = (&Token, Due)> {
    let confirmed = record.holds.iter().filter(|(_, hold)| hold.confirmed && hold.phase != Phase::Cooling);
    confirmed.map(|(token, hold)| (token, hold.until))
}

#[cfg(test)]
#[expect(clippy::expect_used, reason = "a lock that cannot be made is a fault of the test")]
mod tests {
    use super::super::read::Seen;
    use super::*;
    use crate::lock::Mode;
    use crate::rules::{SILENCE, Terms, Waiter};
    use std::collections::BTreeMap;
    use std::time::Duration;

    const NOW: Time = Time(1_000_000_000);

    fn token() -> Token {
        Token::random().expect("a token")
    }

    /// A lock with these waiters in its queue, which were last heard long ago by the record.
    fn waited_for(tokens: &[&Token]) -> StoredLock {
        let mut stored = StoredLock::absent("k");
        for (ticket, token) in (1..).zip(tokens) {
            let (names, owner, terms) = (vec!["k".into()], Default::default(), Terms::default());
            let (since, stale_at, forget) = (Time(1), Due(2), Due(3));
            let waiter =
                Waiter { ticket, since, stale_at, forget, mode: Mode::Exclusive, names, owner, terms };
            stored.record.queue.insert((ticket, (*token).clone()));
            stored.record.waiters.insert((*token).clone(), waiter);
        }
        stored
    }

    fn node(beats: &[&Token]) -> LockNode {
        let children = beats.iter().map(|token| beat_name(token)).collect();
        LockNode { version: Some(4), children, ..LockNode::absent("/l".into()) }
    }

    /// Who was looked up is heard when it was; others that have a session, now.
    #[test]
    fn heartbeats_count_in_place_of_the_record() {
        let all = [token(), token(), token(), token()];
        let [stopped, unseen, gone, ended] = &all;
        let mut stored = waited_for(&all.each_ref());
        let heard = NOW.millis() - 6000;
        let seen = Seen {
            nodes: Vec::new(),
            now: NOW,
            uncertain: Duration::ZERO,
            lives: BTreeMap::from([(stopped.clone(), true), (ended.clone(), false)]),
            heartbeats: BTreeMap::from([(stopped.clone(), heard), (ended.clone(), NOW.millis())]),
            believed: BTreeMap::new(),
        };
        seen.apply_heartbeats(&mut stored, &node(&[stopped, unseen, ended]));
        let stale_at = |token: &Token| stored.record.waiters[token].stale_at;
        assert_eq!(stale_at(stopped), Due(heard + SILENCE.as_millis() as u64));
        assert!(stale_at(stopped).passed(NOW));
        assert_eq!(stale_at(unseen), Due::after(NOW, SILENCE));
        assert_eq!((stale_at(gone), stale_at(ended)), (Due(2), Due(2)));
    }

    fn written(node: LockNode, before: &StoredLock, after: StoredLock, me: &Token) -> Vec<String> {
        let change = Change { before: before.record.clone(), after, is_changed: true };
        let (asks, ..) = node.write(change, Some(me), NOW).expect("it is written");
        let shown = |ask: &Ask| match ask {
            Ask::Create { .. } => "create".into(),
            Ask::CreateForSession(path) => format!("create {path}"),
            Ask::Delete(path) => format!("delete {path}"),
            Ask::Set { path, .. } => format!("set {path}"),
            ask => format!("{ask:?}"),
        };
        asks.iter().map(shown).collect()
    }

    /// A heartbeat node comes with the waiter and goes with it, and is of its present session.
    #[test]
    fn heartbeat_nodes_follow_the_record() {
        let (me, other) = (&token(), &token());
        let (mine, others) = (beat_path("/l", me), beat_path("/l", other));
        let (nobody, both, only_me) = (waited_for(&[]), waited_for(&[other, me]), waited_for(&[me]));
        let made = written(LockNode::absent("/l".into()), &nobody, waited_for(&[me]), me);
        assert_eq!(made, ["create".into(), format!("create {mine}")]);
        let stored = written(LockNode { has_own_beat: true, ..node(&[me]) }, &only_me, waited_for(&[me]), me);
        assert_eq!(stored, ["set /l".into(), format!("set {mine}")]);
        let anew = written(node(&[me]), &only_me, waited_for(&[me]), me);
        assert_eq!(anew, ["set /l".into(), format!("delete {mine}"), format!("create {mine}")]);
        let left = written(node(&[me, other]), &both, waited_for(&[]), me);
        let mut gone = [format!("delete {mine}"), format!("delete {others}")];
        gone.sort();
        let mut deleted = left[1..].to_vec();
        deleted.sort();
        assert_eq!((left[0].as_str(), deleted.as_slice()), ("set /l", &gone[..]));
        // The node of another waiter may have gone with its session.
        assert_eq!(written(node(&[]), &both, waited_for(&[]), me), ["set /l"]);
    }
}
