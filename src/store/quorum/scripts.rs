//! The Lua scripts of a quorum, each for one master. What their replies mean together is not known here.

use crate::store::redis::script::{Code, SERVER};
use std::sync::LazyLock;

/// A script, prepared when it is first used.
pub type Script = LazyLock<Code>;

/// `scripts/acquire.lua`
pub static ACQUIRE: Script = LazyLock::new(|| code(include_str!("scripts/acquire.lua")));
/// `scripts/confirm.lua`
pub static CONFIRM: Script = LazyLock::new(|| code(include_str!("scripts/confirm.lua")));
/// `scripts/renew.lua`
pub static RENEW: Script = LazyLock::new(|| code(include_str!("scripts/renew.lua")));
/// `scripts/win_back.lua`
pub static WIN_BACK: Script = LazyLock::new(|| code(include_str!("scripts/win_back.lua")));
/// `scripts/leave.lua`
pub static LEAVE: Script = LazyLock::new(|| code(include_str!("scripts/leave.lua")));
/// `scripts/prove.lua`
pub static PROVE: Script = LazyLock::new(|| code(include_str!("scripts/prove.lua")));
/// `scripts/request.lua`
pub static REQUEST: Script = LazyLock::new(|| code(include_str!("scripts/request.lua")));
/// `scripts/revoke.lua`
pub static REVOKE: Script = LazyLock::new(|| code(include_str!("scripts/revoke.lua")));
/// `scripts/inspect.lua`
pub static INSPECT: Script = LazyLock::new(|| code(include_str!("scripts/inspect.lua")));

fn code(body: &str) -> Code {
    Code::new(&SERVER, &[include_str!("scripts/node.lua"), body])
}
