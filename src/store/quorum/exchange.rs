//! The arguments and replies of a quorum's scripts, as JSON, where their fields differ from those
//! of a single server's scripts.

use super::view::MasterView;
use crate::lock::{Fence, Owner, Token};
use crate::rules::{Ask, ms};
use crate::store::redis::argument;
use crate::store::redis::reply::History;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The argument of a script, with the longest lease that any client may ask for.
#[derive(Serialize)]
pub struct Argument<'a, A> {
    #[serde(with = "ms")]
    pub longest: Duration,
    #[serde(flatten)]
    pub argument: &'a A,
}

#[derive(Serialize)]
pub struct WinBack<'a> {
    pub token: &'a Token,
    #[serde(with = "ms")]
    pub ttl: Duration,
    #[serde(serialize_with = "Fence::as_text")]
    pub fence: Fence,
    #[serde(flatten)]
    pub hold: &'a Vouched,
}

#[derive(Serialize)]
pub struct Leave<'a> {
    #[serde(flatten)]
    pub end: argument::Leave<'a>,
    /// The total in which a caller that did not get the lock is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<&'static str>,
    /// The attempt that failed; none if the token leaves for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<&'a str>,
}

/// What a master that has the hold knows of it, for others to record.
#[derive(Default, Serialize, Deserialize)]
pub struct Vouched {
    #[serde(with = "ms")]
    pub held: Duration,
    #[serde(with = "ms")]
    pub waited: Duration,
    #[serde(with = "ms")]
    pub cooling: Duration,
    /// The owner, passed on unread.
    pub owner: serde_json::Value,
    /// Whether a run with `--replace` may not ask it to end.
    #[serde(default)]
    pub not_replaceable: bool,
}

/// The answer of a master that has renewed the hold.
#[derive(Deserialize)]
pub struct Renewed {
    /// None if the master does not know the fence yet.
    pub fence: Option<Fence>,
    pub asked: bool,
    #[serde(default)]
    pub superseded: bool,
    #[serde(flatten)]
    pub hold: Vouched,
}

#[derive(Deserialize)]
pub struct Lease {
    /// None if the master does not know the fence yet.
    pub fence: Option<Fence>,
    #[serde(with = "ms")]
    pub lease: Duration,
    /// Who asked the holder to end.
    #[serde(default)]
    pub asked: Option<Owner>,
}

#[derive(Deserialize)]
pub struct TakenAway {
    #[serde(with = "ms")]
    pub left: Duration,
    /// The lock as it was.
    pub seen: MasterView,
}

#[derive(Deserialize)]
pub struct Inspected {
    pub seen: MasterView,
    /// Why this master does not count; none if it does.
    pub unfit: Option<String>,
    #[serde(flatten)]
    pub history: History,
}

/// The argument of both phases; the second one has the fence.
#[derive(Serialize)]
pub struct Attempt<'a> {
    #[serde(flatten)]
    pub ask: &'a Ask,
    pub attempt: &'a str,
    #[serde(serialize_with = "Fence::as_text", skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
}

#[derive(Deserialize)]
pub struct Candidate {
    pub fence: Fence,
}

#[derive(Deserialize)]
pub struct Blocked {
    /// How many others have waited longer.
    pub ahead: u64,
    /// None if nothing but those others blocks the caller.
    pub seen: Option<MasterView>,
}
