//! The Lua scripts and how they are called: by hash, and once with the text if the server does not
//! know the hash. `hashes.rs` has the hashes, so that a run that needs no text assembles none. A
//! hash that is out of date costs a round trip, and a test finds it.
//!
//! A script is assembled from parts, so that it contains no more than it needs: the records of
//! locks (`scripts/record.lua`), how a hold ends (`scripts/ended.lua`), the queue
//! (`scripts/queue.lua`), the views (`scripts/look.lua`), and its own part.

use crate::lock::{Name, ONCE_PER_MOST, PAUSE_MOST, SLOTS_MAX};
use crate::rules;
use redis::{Cmd, ServerError, Value, cmd};
use std::sync::OnceLock;

pub mod hashes;

/// The records of locks, and how a hold ends: the first part of every script.
pub const RECORD: &str = concat!(include_str!("scripts/record.lua"), include_str!("scripts/ended.lua"));
/// The views of holds and blockers.
pub const LOOK: &str = include_str!("scripts/look.lua");
const QUEUE: &str = include_str!("scripts/queue.lua");

/// One script.
pub struct Code {
    hash: &'static str,
    layout: &'static Layout,
    parts: &'static [&'static str],
    /// Assembled when it is first needed.
    text: OnceLock<String>,
}

/// A script that changes something.
macro_rules! changes {
    ($hash:ident, $body:literal) => {
        Code::new(hashes::$hash, &SERVER, &[RECORD, QUEUE, include_str!($body)])
    };
}

pub static ACQUIRE: Code = changes!(ACQUIRE, "scripts/acquire.lua");
pub static RENEW: Code = changes!(RENEW, "scripts/renew.lua");
pub static LEAVE: Code = changes!(LEAVE, "scripts/leave.lua");
pub static FORGET: Code = changes!(FORGET, "scripts/forget.lua");
pub static PAUSE: Code = changes!(PAUSE, "scripts/pause.lua");
pub static REVOKE: Code = changes!(REVOKE, "scripts/revoke.lua");
pub static REQUEST: Code = changes!(REQUEST, "scripts/request.lua");
pub static PROVE: Code = Code::new(hashes::PROVE, &SERVER, &[RECORD, include_str!("scripts/prove.lua")]);
pub static WATCH: Code = Code::new(hashes::WATCH, &SERVER, &[RECORD, include_str!("scripts/watch.lua")]);
pub static ENDS: Code =
    Code::new(hashes::ENDS, &LOOKED_AT, &[RECORD, LOOK, include_str!("scripts/ends.lua")]);
pub static INSPECT: Code =
    Code::new(hashes::INSPECT, &LOOKED_AT, &[RECORD, LOOK, include_str!("scripts/inspect.lua")]);

pub const NOTE_REFUSAL: &str = include_str!("scripts/refuse.lua");
pub const TELL_REFUSALS: &str = include_str!("scripts/refused.lua");

pub static REFUSE: Code = Code::new(hashes::REFUSE, &LOOKED_AT, &[RECORD, NOTE_REFUSAL]);
pub static REFUSED: Code = Code::new(hashes::REFUSED, &LOOKED_AT, &[RECORD, TELL_REFUSALS]);

/// How the records of an arrangement are laid out.
pub struct Layout {
    /// The kinds of keys declared for each lock, after the lock key; the first is where holds are
    /// recorded.
    pub kinds: &'static [&'static str],
    /// Whether shared locks and slots count as foreign.
    pub exclusive_only: bool,
}

/// A single server, or a cluster.
pub const SERVER: Layout = Layout {
    kinds: &["hold", "due", "kept", "queue", "fence", "log", "stat", "watch"],
    exclusive_only: false,
};

/// The same for scripts over many locks, where the number of declared keys matters. The script
/// computes the others.
const LOOKED_AT: Layout = Layout { kinds: &["hold"], exclusive_only: false };

impl Layout {
    /// The keys declared for a lock.
    pub fn keys(&self, name: &Name) -> Vec<String> {
        let derived = |kind: &&str| format!("dlock.{kind}:{{{}}}:{}", name.tag(), name.as_str());
        std::iter::once(name.as_str().to_owned()).chain(self.kinds.iter().map(derived)).collect()
    }
}

impl Code {
    /// The keys declared for these locks.
    pub fn keys(&self, names: &[Name]) -> Vec<String> {
        names.iter().flat_map(|name| self.layout.keys(name)).collect()
    }

    /// A script of these parts. `hash` is the SHA-1 of its text.
    pub const fn new(hash: &'static str, layout: &'static Layout, parts: &'static [&'static str]) -> Self {
        Self { hash, layout, parts, text: OnceLock::new() }
    }

    fn text(&self) -> &str {
        self.text.get_or_init(|| assembled(self.layout, self.parts))
    }

    /// The call by hash; it fails with NOSCRIPT where the server has not seen the script.
    pub fn by_hash(&self, keys: &[String], argument: &str) -> Cmd {
        call("EVALSHA", self.hash, keys, argument)
    }

    /// The command in this script that the user has no permission for, or not on its keys. Before
    /// Redis 7.2 a server tells only the line.
    pub fn command_at_fault(&self, error: &ServerError) -> Option<&str> {
        let (_, line) = error.details()?.split_once("@user_script:")?;
        let line = line.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()?;
        let (_, call) = self.text().lines().nth(line.checked_sub(1)?)?.split_once("call('")?;
        call.split_once('\'').map(|(command, _)| command)
    }

    /// The call with the text.
    pub fn by_text(&self, keys: &[String], argument: &str) -> Cmd {
        call("EVAL", self.text(), keys, argument)
    }
}

/// The text of a script: the constants of the rules and the layout, then its parts.
fn assembled(layout: &Layout, parts: &[&str]) -> String {
    let constants = [
        ("SILENCE", rules::millis(rules::SILENCE)),
        ("GRANTED_AT_ONCE", rules::GRANTED_AT_ONCE as u64),
        ("CONFIRM_WITHIN", rules::millis(rules::CONFIRM_WITHIN)),
        ("HEARTBEAT", rules::millis(rules::HEARTBEAT)),
        ("ABSENCE", rules::millis(rules::ABSENCE)),
        ("SLOTS_MAX", u64::from(SLOTS_MAX)),
        ("TICKET_KEPT", rules::millis(rules::TICKET_KEPT)),
        ("SPENT_KEPT", rules::millis(rules::SPENT_KEPT)),
        ("PREFERENCE", rules::PREFERENCE),
        ("FOREIGN_LOOK", rules::millis(rules::FOREIGN_LOOK)),
        ("WATCH_KEPT", rules::millis(rules::WATCH_KEPT)),
        ("LOG_KEPT", rules::LOG_KEPT as u64),
        ("ONCE_PER_MOST", rules::millis(ONCE_PER_MOST)),
        ("PAUSE_MOST", rules::millis(PAUSE_MOST)),
        ("HISTORY_KEPT", rules::millis(rules::HISTORY_KEPT)),
        ("ARRIVAL_SLACK", rules::millis(rules::ARRIVAL_SLACK)),
        ("ANNOUNCED_AGAIN", rules::millis(rules::ANNOUNCED_AGAIN)),
        ("SAME_PAUSE", rules::SAME_PAUSE),
        ("EXPECTED_KEPT", rules::millis(rules::EXPECTED_KEPT)),
        ("PARTS", layout.kinds.len() as u64 + 1),
    ];
    let mut text: String =
        constants.iter().map(|(name, value)| format!("local {name} = {value}\n")).collect();
    let bounds: Vec<String> = rules::stat::BOUNDS.iter().map(u64::to_string).collect();
    text.push_str(&format!("local BOUNDS = {{ {} }}\n", bounds.join(", ")));
    text.push_str(&format!("local RECORD = '{}'\n", layout.kinds[0]));
    text.push_str(&format!("local EXCLUSIVE_ONLY = {}\n", layout.exclusive_only));
    // Without comments and indentation, because the text is sent over the network.
    let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim_start);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("--")) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Whether a reply says that the server does not know the script.
pub fn is_unknown(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Whether the user lacks a permission for a command inside the script, rather than for running
/// scripts.
pub fn lacks_right(error: &ServerError) -> bool {
    let text = error.details().unwrap_or_default();
    let refused = error.code() == "NOPERM" || text.contains("The user executing the script can't");
    refused && text.contains("@user_script:")
}

fn call(command: &str, script: &str, keys: &[String], argument: &str) -> Cmd {
    let mut call = cmd(command);
    call.arg(script).arg(keys.len()).arg(keys).arg(argument);
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::quorum::scripts as quorum;
    use std::fmt::Write as _;
    use std::path::Path;

    /// `DLOCK_REGENERATE=1 cargo test generated` writes the file anew.
    #[test]
    fn the_generated_hashes_are_fresh() -> std::io::Result<()> {
        let scripts = [
            ("ACQUIRE", &ACQUIRE),
            ("RENEW", &RENEW),
            ("LEAVE", &LEAVE),
            ("FORGET", &FORGET),
            ("PAUSE", &PAUSE),
            ("REVOKE", &REVOKE),
            ("REQUEST", &REQUEST),
            ("PROVE", &PROVE),
            ("WATCH", &WATCH),
            ("ENDS", &ENDS),
            ("INSPECT", &INSPECT),
            ("REFUSE", &REFUSE),
            ("REFUSED", &REFUSED),
            ("QUORUM_REFUSE", &quorum::REFUSE),
            ("QUORUM_REFUSED", &quorum::REFUSED),
            ("QUORUM_ACQUIRE", &quorum::ACQUIRE),
            ("QUORUM_CONFIRM", &quorum::CONFIRM),
            ("QUORUM_RENEW", &quorum::RENEW),
            ("QUORUM_WIN_BACK", &quorum::WIN_BACK),
            ("QUORUM_LEAVE", &quorum::LEAVE),
            ("QUORUM_PROVE", &quorum::PROVE),
            ("QUORUM_REQUEST", &quorum::REQUEST),
            ("QUORUM_FORGET", &quorum::FORGET),
            ("QUORUM_PAUSE", &quorum::PAUSE),
            ("QUORUM_REVOKE", &quorum::REVOKE),
            ("QUORUM_INSPECT", &quorum::INSPECT),
        ];
        let mut file = "//! The SHA-1 of each script as it is sent. Generated: DLOCK_REGENERATE=1 cargo test generated\n\n".to_owned();
        for (name, code) in scripts {
            let hash = sha1_smol::Sha1::from(code.text()).digest();
            let _ = writeln!(file, "pub const {name}: &str = \"{hash}\";");
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/script/hashes.rs");
        if std::env::var_os("DLOCK_REGENERATE").is_some() {
            return std::fs::write(path, file);
        }
        let kept = std::fs::read_to_string(path)?;
        assert!(kept == file, "a script has changed: DLOCK_REGENERATE=1 cargo test generated");
        Ok(())
    }
}
