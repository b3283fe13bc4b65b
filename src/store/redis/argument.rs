//! The arguments of scripts: each is one JSON object, whose fields the script's header describes.
//! The scripts of a quorum have some of them, too. What is not there is left out, because a null is
//! not false in Lua.

use crate::exit::Ended;
use crate::lock::{Fence, Owner, Token};
use crate::rules::{self, Ask, End, FailurePause, Missed, NewPause, Outcome, Refusal, Subject};
use serde::Serialize;

#[derive(Serialize)]
pub struct Nothing {}

/// Of `watch`, and of `prove` on a master of a quorum.
#[derive(Serialize)]
pub struct OfToken<'a> {
    pub token: &'a Token,
}

#[derive(Serialize)]
pub struct Prove<'a> {
    pub token: &'a Token,
    #[serde(serialize_with = "Fence::as_text", skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
}

#[derive(Serialize)]
pub struct Acquire<'a> {
    #[serde(flatten)]
    pub ask: &'a Ask,
    /// Number of the list on which the waiter is to be woken.
    pub connection: u64,
    /// Whether it has asked before.
    pub again: bool,
    /// Most waiters of a lock.
    pub queue_max: usize,
}

#[derive(Serialize)]
pub struct Leave<'a> {
    token: &'a Token,
    /// How the hold ended; none if nothing ran under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<Ended>,
    once_per: bool,
    #[serde(serialize_with = "Fence::as_text", skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<&'a FailurePause>,
}

impl<'a> Leave<'a> {
    pub fn new(token: &'a Token, end: &'a End) -> Self {
        let End { ran, job, once_per, fence, ref pause } = *end;
        Self { token, outcome: ran.outcome(), job, once_per, fence, pause: pause.as_ref() }
    }
}

#[derive(Serialize)]
pub struct Request<'a> {
    #[serde(serialize_with = "Fence::as_text")]
    pub fence: Fence,
    pub by: &'a Owner,
}

#[derive(Serialize)]
pub struct Forget {
    pub what: rules::Forget,
}

#[derive(Serialize)]
pub struct Pause<'a> {
    #[serde(flatten)]
    pub pause: Option<NewPause<'a>>,
}

#[derive(Serialize)]
pub struct Refuse<'a> {
    refusal: &'a Refusal,
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<Notice<'a>>,
}

#[derive(Serialize)]
struct Notice<'a> {
    kind: Missed,
    #[serde(serialize_with = "Fence::as_text", skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<u64>,
    by: &'a str,
}

impl<'a> Refuse<'a> {
    pub fn new(refusal: &'a Refusal) -> Self {
        let notice = refusal.notice.as_ref().map(|rules::Notice { kind, subject, by, .. }| {
            let (fence, pause) = match subject {
                Some(Subject::Fence(fence)) => (Some(*fence), None),
                Some(Subject::Pause(since)) => (None, Some(*since)),
                None => (None, None),
            };
            Notice { kind: *kind, fence, pause, by }
        });
        Self { refusal, notice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Error, json};
    use std::time::Duration;

    #[test]
    fn what_is_absent_is_left_out() -> Result<(), Error> {
        let token = &Token::parse(&"a".repeat(32)).map_err(Error::Garbled)?;
        let end = End::NOT_RUN;
        let leave = json(&Leave::new(token, &end))?;
        assert_eq!(leave, format!(r#"{{"token":"{}","once_per":false}}"#, token.secret()));
        assert_eq!(json(&Pause { pause: None })?, "{}");
        let renew =
            json(&rules::Renew { token, ttl: Duration::from_micros(1_500_700), fence: None, rest: None })?;
        assert_eq!(renew, format!(r#"{{"token":"{}","ttl":1500}}"#, token.secret()));
        Ok(())
    }
}
