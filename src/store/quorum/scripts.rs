//! The Lua scripts of a quorum; each runs on one master. The records are those of a single server
//! (`redis/scripts/record.lua`), with the additions of `scripts/master.lua`. [`super::QuorumStore`]
//! decides what the replies mean together.

use crate::store::redis::script::{Code, LOOK, Layout, NOTE_REFUSAL, RECORD, TELL_REFUSALS, hashes};

/// The keys on a master of a quorum. Its holds have a key kind of their own, so that they are not
/// mistaken for holds of a single server.
pub const MASTER: Layout = Layout { kinds: &["quorum", "fence", "log", "stat"], exclusive_only: true };

const START: &str = include_str!("scripts/master.lua");
const TURN: &str = include_str!("scripts/turn.lua");

/// A script that also needs `turn.lua`.
macro_rules! turns {
    ($hash:ident, $body:literal) => {
        Code::new(hashes::$hash, &MASTER, &[RECORD, START, TURN, include_str!($body)])
    };
}

macro_rules! code {
    ($hash:ident, $body:literal) => {
        Code::new(hashes::$hash, &MASTER, &[RECORD, START, include_str!($body)])
    };
}

pub static ACQUIRE: Code = turns!(QUORUM_ACQUIRE, "scripts/acquire.lua");
pub static CONFIRM: Code = turns!(QUORUM_CONFIRM, "scripts/confirm.lua");
pub static RENEW: Code = code!(QUORUM_RENEW, "scripts/renew.lua");
pub static WIN_BACK: Code = code!(QUORUM_WIN_BACK, "scripts/win_back.lua");
pub static LEAVE: Code = turns!(QUORUM_LEAVE, "scripts/leave.lua");
pub static PROVE: Code = code!(QUORUM_PROVE, "scripts/prove.lua");
pub static REQUEST: Code = code!(QUORUM_REQUEST, "scripts/request.lua");
pub static FORGET: Code = code!(QUORUM_FORGET, "scripts/forget.lua");
pub static PAUSE: Code = code!(QUORUM_PAUSE, "scripts/pause.lua");
pub static REVOKE: Code = code!(QUORUM_REVOKE, "scripts/revoke.lua");
pub static REFUSE: Code = Code::new(hashes::QUORUM_REFUSE, &MASTER, &[RECORD, START, NOTE_REFUSAL]);
pub static REFUSED: Code = Code::new(hashes::QUORUM_REFUSED, &MASTER, &[RECORD, START, TELL_REFUSALS]);
pub static INSPECT: Code =
    Code::new(hashes::QUORUM_INSPECT, &MASTER, &[RECORD, LOOK, START, include_str!("scripts/inspect.lua")]);
