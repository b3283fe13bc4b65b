//! The Lua scripts and how they are called: by hash, and once with the text when the server does not know the hash.

use crate::law;
use redis::{Cmd, Script, ServerError, cmd};
use std::sync::LazyLock;

/// One script of `scripts/`, with what all of them start with in front.
pub struct Code {
    text: String,
    hash: Script,
}

/// `scripts/acquire.lua`
pub static ACQUIRE: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/acquire.lua")));
/// `scripts/renew.lua`
pub static RENEW: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/renew.lua")));
/// `scripts/leave.lua`
pub static LEAVE: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/leave.lua")));
/// `scripts/revoke.lua`
pub static REVOKE: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/revoke.lua")));
/// `scripts/prove.lua`
pub static PROVE: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/prove.lua")));
/// `scripts/request.lua`
pub static REQUEST: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/request.lua")));
/// `scripts/watch.lua`
pub static WATCH: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/watch.lua")));
/// `scripts/inspect.lua`
pub static INSPECT: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("scripts/inspect.lua")));

impl Code {
    fn new(body: &str) -> Self {
        Self::beginning(include_str!("scripts/lock.lua"), body)
    }

    /// A script, with what it and its kin start with. The constants of the law stand before both.
    pub fn beginning(start: &str, body: &str) -> Self {
        let constants = [
            ("SILENCE", law::millis(law::SILENCE)),
            ("CONFIRM_WITHIN", law::millis(law::CONFIRM_WITHIN)),
            ("HEARTBEAT", law::millis(law::HEARTBEAT)),
            ("TICKET_KEPT", law::millis(law::TICKET_KEPT)),
            ("SPENT_KEPT", law::millis(law::SPENT_KEPT)),
            ("FOREIGN_LOOK", law::millis(law::FOREIGN_LOOK)),
            ("WATCH_KEPT", law::millis(law::WATCH_KEPT)),
            ("LOG_KEPT", law::LOG_KEPT as u64),
            ("HISTORY_KEPT", law::millis(law::HISTORY_KEPT)),
        ];
        let mut text: String =
            constants.iter().map(|(name, value)| format!("local {name} = {value}\n")).collect();
        let bounds: Vec<String> = law::stat::BOUNDS.iter().map(u64::to_string).collect();
        text.push_str(&format!("local BOUNDS = {{ {} }}\n", bounds.join(", ")));
        text.push_str(start);
        text.push_str(body);
        let hash = Script::new(&text);
        Self { text, hash }
    }

    /// The call by hash; it fails with NOSCRIPT where the server has not seen the script.
    pub fn by_hash(&self, keys: &[String], args: &[&str]) -> Cmd {
        call("EVALSHA", self.hash.get_hash(), keys, args)
    }

    /// The command that a user had no right to run in this script, or not on its keys. Before Redis 7.2 a server says
    /// only in which line that was.
    pub fn command_at_fault(&self, error: &ServerError) -> Option<&str> {
        let (_, line) = error.details()?.split_once("@user_script:")?;
        let line = line.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()?;
        let (_, call) = self.text.lines().nth(line.checked_sub(1)?)?.split_once("call('")?;
        call.split_once('\'').map(|(command, _)| command)
    }

    /// The call that brings the text along.
    pub fn by_text(&self, keys: &[String], args: &[&str]) -> Cmd {
        call("EVAL", &self.text, keys, args)
    }
}

/// Whether an error says that the user has no right to do what the script does, as against to run scripts at all.
pub fn lacks_right(error: &ServerError) -> bool {
    let text = error.details().unwrap_or_default();
    let refused = error.code() == "NOPERM" || text.contains("The user executing the script can't");
    refused && text.contains("@user_script:")
}

fn call(command: &str, script: &str, keys: &[String], args: &[&str]) -> Cmd {
    let mut call = cmd(command);
    call.arg(script).arg(keys.len()).arg(keys).arg(args);
    call
}
