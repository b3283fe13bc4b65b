//! The etcd keys of a lock.
//!
//! | key behind the prefix | value |
//! |---|---|
//! | `lock/NAME` | the record of a lock, without its waiters and its log of ends |
//! | `wait/NAME/HASH` | a waiter |
//! | `session/NAME/HASH` | on a lease: the session of a holder, with its ttl in milliseconds, or of a waiter, with an empty value |
//! | `life/HASH` | on the same lease: others watch it; a touch wakes the owner |
//! | `end/NAME/NUMBER` | one of the last ends |
//!
//! HASH stands for a token in keys and records ([`crate::lock::Token::hashed`]).

use super::messages::{Bytes, Range, Span};
use crate::lock::Token;
use crate::store::net::target::Target;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use std::sync::Arc;

/// Escapes all but letters, digits and - _ . : (in the name of a lock).
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// Builds the keys behind the prefix of a target.
pub struct Layout(pub Arc<Target>);

impl Layout {
    /// A lock's key of this kind, or the prefix of such keys.
    pub fn key(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{}", self.0.space, utf8_percent_encode(name, PLAIN))
    }

    pub fn lock(&self, name: &str) -> Bytes {
        Bytes(self.key("lock", name).into())
    }

    /// The range of all records.
    pub fn locks(&self) -> Span {
        below(format!("{}/lock/", self.0.space))
    }

    /// The name of the lock whose record has this key. None if the key is not a record's.
    pub fn name_of(&self, key: &Bytes) -> Option<String> {
        let name = key.0.strip_prefix(format!("{}/lock/", self.0.space).as_bytes())?;
        percent_decode(name).decode_utf8().ok().map(Into::into)
    }

    pub fn waiter(&self, name: &str, token: &Token) -> Bytes {
        Bytes(format!("{}/{}", self.key("wait", name), token.secret()).into())
    }

    pub fn waiters(&self, name: &str) -> Span {
        below(format!("{}/", self.key("wait", name)))
    }

    pub fn session(&self, name: &str, token: &Token) -> Bytes {
        Bytes(format!("{}/{}", self.key("session", name), token.secret()).into())
    }

    pub fn sessions(&self, name: &str) -> Span {
        below(format!("{}/", self.key("session", name)))
    }

    pub fn life(&self, token: &Token) -> Bytes {
        Bytes(format!("{}/life/{}", self.0.space, token.secret()).into())
    }

    pub fn end(&self, name: &str, number: u64) -> Bytes {
        Bytes(format!("{}/{number:016x}", self.key("end", name)).into())
    }

    pub fn ends(&self, name: &str) -> Span {
        below(format!("{}/", self.key("end", name)))
    }
}

/// The token at the end of a key.
pub fn token_of(key: &Bytes) -> Result<Token, &'static str> {
    let token = key.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let token = std::str::from_utf8(token).ok().and_then(|text| Token::parse(text).ok());
    token.ok_or("a token is invalid")
}

/// The range of all keys that begin with `start`, which ends with a slash.
fn below(start: String) -> Span {
    let mut end = start.clone().into_bytes();
    end.pop();
    end.push(b'/' + 1);
    Span { key: Bytes(start.into()), range_end: Some(Bytes(end)) }
}

impl Span {
    pub fn one(key: Bytes) -> Self {
        Self { key, range_end: None }
    }

    /// Reads the whole span.
    pub fn whole(self) -> Range {
        Range { span: self, ..Range::default() }
    }
}
