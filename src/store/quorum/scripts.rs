//! The Lua scripts of a quorum, each for one master. The records are those of a single server
//! (`redis/scripts/record.lua`); `scripts/master.lua` tells what a master adds to them. What their replies mean together
//! is not known here.

use crate::store::redis::script::{Code, LOOK, Layout, RECORD};
use std::sync::LazyLock;

/// A script, prepared when it is first used.
pub type Script = LazyLock<Code>;

/// On a master of a quorum. A hold is recorded under a name of its own, so that a single server's is not taken for it.
pub const MASTER: Layout = Layout { kinds: &["quorum", "fence", "log", "stat"], exclusive_only: true };

pub static ACQUIRE: Script = LazyLock::new(|| turns(include_str!("scripts/acquire.lua")));
pub static CONFIRM: Script = LazyLock::new(|| turns(include_str!("scripts/confirm.lua")));
pub static RENEW: Script = LazyLock::new(|| code(include_str!("scripts/renew.lua")));
pub static WIN_BACK: Script = LazyLock::new(|| code(include_str!("scripts/win_back.lua")));
pub static LEAVE: Script = LazyLock::new(|| turns(include_str!("scripts/leave.lua")));
pub static PROVE: Script = LazyLock::new(|| code(include_str!("scripts/prove.lua")));
pub static REQUEST: Script = LazyLock::new(|| code(include_str!("scripts/request.lua")));
pub static FORGET: Script = LazyLock::new(|| code(include_str!("scripts/forget.lua")));
pub static REVOKE: Script = LazyLock::new(|| code(include_str!("scripts/revoke.lua")));
pub static INSPECT: Script =
    LazyLock::new(|| Code::new(&MASTER, &[RECORD, LOOK, START, include_str!("scripts/inspect.lua")]));

const START: &str = include_str!("scripts/master.lua");

fn turns(body: &str) -> Code {
    Code::new(&MASTER, &[RECORD, START, include_str!("scripts/turn.lua"), body])
}

fn code(body: &str) -> Code {
    Code::new(&MASTER, &[RECORD, START, body])
}
