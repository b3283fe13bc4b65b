//! The messages of etcd's JSON gateway. 64-bit numbers are strings; keys and values are base64.
//! This module checks only the form of an answer.

use base64::display::Base64Display;
use base64::engine::{Engine as _, general_purpose::STANDARD};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;

/// A key or a value; in JSON it is base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

/// A 64-bit number. A missing one is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Number(pub u64);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(&self.0, &STANDARD))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Bytes).map_err(|_| de::Error::custom("this is no base64"))
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    /// A lease that is gone has a negative ttl, which is read as 0.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let number = if text.starts_with('-') { text.parse().map(|_: i64| 0) } else { text.parse() };
        number.map(Self).map_err(|_| de::Error::custom("this is no number"))
    }
}

/// An operation of a transaction.
#[derive(Debug, Clone, Serialize)]
pub enum Act {
    #[serde(rename = "request_range")]
    Range(Range),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Span),
    #[serde(rename = "request_txn")]
    Txn(Txn),
}

/// A key, or the range from it up to, but without, `range_end`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Span {
    pub key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Bytes>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Range {
    #[serde(flatten)]
    pub span: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Number>,
    /// `ASCEND` or `DESCEND`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_order: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keys_only: bool,
    /// Whether the asked member answers from its own state, which may lag behind.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub serializable: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Put {
    pub key: Bytes,
    pub value: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Number>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_lease: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Txn {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Compare>,
    pub success: Vec<Act>,
}

/// Most operations, and most conditions, of a transaction: etcd's default of --max-txn-ops. The
/// limit includes nested ones: n outer and m inner need n + m ≤ 128. The touch of a waiter is
/// itself a transaction of one operation.
const OPERATIONS_MOST: usize = 128;
/// Most operations in a nested transaction.
const WITHIN_MOST: usize = 63;

/// Splits the operations of a transaction with this many conditions into nested transactions, as
/// etcd's limit demands.
pub fn bundled(acts: Vec<Act>, conditions: usize) -> Vec<Act> {
    if acts.len() < OPERATIONS_MOST && conditions < OPERATIONS_MOST {
        return acts;
    }
    let txn = |acts: &[Act]| Act::Txn(Txn { compare: Vec::new(), success: acts.to_vec() });
    let most = (OPERATIONS_MOST - 1).saturating_sub(conditions).clamp(1, WITHIN_MOST);
    acts.chunks(most).map(txn).collect()
}

/// A condition on a key's last revision, which is 0 if the key does not exist.
#[derive(Debug, Clone, Serialize)]
pub struct Compare {
    pub key: Bytes,
    /// Set if the condition is on all keys up to, but without, this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Bytes>,
    pub target: &'static str,
    pub result: &'static str,
    pub mod_revision: Number,
}

impl Compare {
    /// The key's last change was at this revision.
    pub const fn unchanged(key: Bytes, revision: u64) -> Self {
        let mod_revision = Number(revision);
        Self { key, range_end: None, target: "MOD", result: "EQUAL", mod_revision }
    }

    /// None of these keys exists.
    pub fn nothing(Span { key, range_end }: Span) -> Self {
        Self { range_end, ..Self::unchanged(key, 0) }
    }

    /// The key exists.
    pub fn exists(key: Bytes) -> Self {
        Self { result: "GREATER", ..Self::unchanged(key, 0) }
    }
}

/// The member that answered, and its revision and term.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Header {
    pub cluster_id: Number,
    pub member_id: Number,
    pub revision: Number,
    pub raft_term: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TxnAnswer {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<Response>,
}

impl TxnAnswer {
    /// What each of the ranges has, in order.
    pub fn ranges(self) -> impl Iterator<Item = Vec<Pair>> {
        let ranges = |response: Response| -> Vec<RangeAnswer> {
            let within = response.response_txn.into_iter().flat_map(|txn| txn.responses);
            let within = within.map(|response| response.response_range);
            std::iter::once(response.response_range).chain(within).flatten().collect()
        };
        self.responses.into_iter().flat_map(ranges).map(|range| range.kvs)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Response {
    pub response_range: Option<RangeAnswer>,
    pub response_txn: Option<TxnAnswer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeAnswer {
    pub kvs: Vec<Pair>,
}

/// A key, its value, its last revision and its lease.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pair {
    pub key: Bytes,
    pub value: Bytes,
    pub mod_revision: Number,
    pub lease: Number,
}

/// The answer to a grant, a keep-alive or a lookup of a lease.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseAnswer {
    pub header: Header,
    #[serde(rename = "TTL")]
    pub ttl: Number,
    /// The keys on it, where they were asked for.
    pub keys: Vec<Bytes>,
}

/// A message of a stream.
#[derive(Debug, Deserialize)]
pub struct Streamed<T> {
    pub result: Option<T>,
    pub error: Option<ServerError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Watched {
    pub canceled: bool,
    pub events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    pub kv: Pair,
}

/// An error of etcd.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServerError {
    #[serde(alias = "grpc_code")]
    pub code: u16,
    pub message: String,
}

impl ServerError {
    /// Whether the request exceeded `--max-request-bytes`, or the transport's limit.
    pub fn is_too_large(&self) -> bool {
        ["request is too large", "message larger than max"].iter().any(|why| self.message.contains(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_round_trip() -> serde_json::Result<()> {
        for length in 0..10 {
            let bytes = Bytes((0..length).map(|at: u8| at.wrapping_mul(29).wrapping_add(200)).collect());
            assert_eq!(serde_json::from_str::<Bytes>(&serde_json::to_string(&bytes)?)?, bytes);
        }
        assert_eq!(serde_json::to_string(&Bytes(b"dlock".to_vec()))?, r#""ZGxvY2s=""#);
        for wrong in ["a", "ab==cdef", "a===", "a!==", "ab=c"] {
            assert!(serde_json::from_value::<Bytes>(wrong.into()).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn numbers_are_strings() {
        let numbers: Vec<Number> = serde_json::from_str(r#"["7", "-1"]"#).unwrap_or_default();
        assert_eq!(numbers, [Number(7), Number(0)]);
        assert!(serde_json::from_str::<Number>(r#""x""#).is_err());
    }

    /// Whether etcd would accept it: a nested transaction has the room that the outer one leaves.
    fn fits(compare: usize, acts: &[Act], room: usize) -> bool {
        let count = compare.max(acts.len());
        count <= room
            && acts.iter().all(|act| match act {
                Act::Txn(txn) => fits(txn.compare.len(), &txn.success, room - count),
                _ => true,
            })
    }

    #[test]
    fn nesting_stays_within_etcds_limit() {
        let key = || Bytes(b"key".to_vec());
        let touch =
            Act::Txn(Txn { compare: vec![Compare::exists(key())], success: vec![Act::Put(Put::default())] });
        for (conditions, count) in
            (0..128).step_by(7).flat_map(|conditions| (60..260).map(move |count| (conditions, count)))
        {
            let acts = bundled(vec![touch.clone(); count], conditions);
            // From 100 conditions on, dlock sends few operations: it takes at most 100 locks.
            let is_small = conditions < 100 || count < 128;
            assert!(!is_small || fits(conditions, &acts, OPERATIONS_MOST), "{count} with {conditions}");
        }
    }
}
