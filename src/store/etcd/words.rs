//! In which words is etcd asked, and what do its answers say? Its JSON: 64-bit numbers are texts, keys and values base64.
//! Whatever comes from there is checked here.

use base64::display::Base64Display;
use base64::engine::{Engine as _, general_purpose::STANDARD};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A key or a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

/// A number; zero where it is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Number(pub u64);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(&self.0, &STANDARD))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                STANDARD.decode(text).map(Bytes).map_err(|_| E::custom("this is no base64"))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }

            /// What is less than nothing, a lease that is no more, is nothing.
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(u64::try_from(number).unwrap_or(0)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                let number =
                    text.strip_prefix('-').map_or_else(|| text.parse(), |rest| rest.parse().map(|_: u64| 0));
                number.map(Number).map_err(|_| E::custom("this is no number"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// One part of a transaction.
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

/// A key, or all from it on up to another one.
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
    /// Last first, or first first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_order: Option<&'static str>,
    /// By what else than the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_target: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keys_only: bool,
    /// What the member that is asked knows will do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub serializable: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Put {
    pub key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Number>,
    /// It keeps its value and its lease, and is new all the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_value: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_lease: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Txn {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Compare>,
    pub success: Vec<Act>,
}

/// So many parts has a transaction at most, by etcd's own limit (--max-txn-ops); more of them stand in transactions within
/// it. Those may have only so many as the outer one leaves of it, by its conditions or by its parts. A touch of who waits is
/// a transaction of one part itself.
const PARTS_MOST: usize = 128;
/// How many there are in one of those at most.
const WITHIN_MOST: usize = 63;

/// Parts of a transaction with so many conditions, as etcd takes them.
pub fn bundled(acts: Vec<Act>, conditions: usize) -> Vec<Act> {
    if acts.len() < PARTS_MOST && conditions < PARTS_MOST {
        return acts;
    }
    let txn = |acts: &[Act]| Act::Txn(Txn { compare: Vec::new(), success: acts.to_vec() });
    let most = (PARTS_MOST - 1).saturating_sub(conditions).clamp(1, WITHIN_MOST);
    acts.chunks(most).map(txn).collect()
}

/// That a key was changed last at a revision, or (`version`) that it is there.
#[derive(Debug, Clone, Serialize)]
pub struct Compare {
    pub key: Bytes,
    /// Set where it is said of all keys up to there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Bytes>,
    pub target: &'static str,
    pub result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mod_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Number>,
}

impl Compare {
    /// That a key was changed last at this revision; 0 where there was none.
    pub fn unchanged(key: Bytes, revision: u64) -> Self {
        let mod_revision = Some(Number(revision));
        Self { key, range_end: None, target: "MOD", result: "EQUAL", mod_revision, version: None }
    }

    /// That there is none of these keys.
    pub fn nothing(Span { key, range_end }: Span) -> Self {
        Self { range_end, ..Self::unchanged(key, 0) }
    }

    /// That there is such a key.
    pub fn exists(key: Bytes) -> Self {
        let version = Some(Number(0));
        Self { key, range_end: None, target: "VERSION", result: "GREATER", mod_revision: None, version }
    }
}

/// Who answered, and how far it was.
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
    /// What the ranges were answered, in order.
    pub fn ranges(self) -> impl Iterator<Item = RangeAnswer> {
        let ranges = |response: Response| -> Vec<RangeAnswer> {
            let within = response.response_txn.into_iter().flat_map(|txn| txn.responses);
            let within = within.map(|response| response.response_range);
            std::iter::once(response.response_range).chain(within).flatten().collect()
        };
        self.responses.into_iter().flat_map(ranges)
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
    /// How many there are without the limit.
    pub count: Number,
}

/// A key with its value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pair {
    pub key: Bytes,
    pub value: Bytes,
    pub mod_revision: Number,
    pub lease: Number,
}

/// What is said of a lease that is granted, kept or looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseAnswer {
    pub header: Header,
    #[serde(rename = "TTL")]
    pub ttl: Number,
    /// What is on it, where that was asked.
    pub keys: Vec<Bytes>,
}

/// What comes in a stream.
#[derive(Debug, Deserialize)]
pub struct Streamed<T> {
    pub result: Option<T>,
    pub error: Option<Said>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Watched {
    pub created: bool,
    pub canceled: bool,
    pub events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    pub kv: Pair,
}

/// An error.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Said {
    #[serde(alias = "grpc_code")]
    pub code: u16,
    pub message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Login {
    pub token: String,
}

impl Said {
    /// Whether the request was larger than `--max-request-bytes` allows, or a message than the transport does.
    pub fn is_too_large(&self) -> bool {
        ["request is too large", "message larger than max"].iter().any(|why| self.message.contains(why))
    }
}

/// What a member says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub version: String,
}

/// The members of a cluster, each with what dlock does not ask about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MemberList {
    pub members: Vec<de::IgnoredAny>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_as_they_were() -> serde_json::Result<()> {
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
    fn numbers_are_texts_or_not() {
        let numbers: Vec<Number> = serde_json::from_str(r#"["7", 8, "-1", -1]"#).unwrap_or_default();
        assert_eq!(numbers, [Number(7), Number(8), Number(0), Number(0)]);
        assert!(serde_json::from_str::<Number>(r#""x""#).is_err());
    }

    /// Whether etcd takes it: what is nested has the room that is left outside of it.
    fn is_taken(compare: usize, acts: &[Act], room: usize) -> bool {
        let count = compare.max(acts.len());
        count <= room
            && acts.iter().all(|act| match act {
                Act::Txn(txn) => is_taken(txn.compare.len(), &txn.success, room - count),
                _ => true,
            })
    }

    #[test]
    fn what_is_bundled_is_taken() {
        let key = || Bytes(b"key".to_vec());
        let touch =
            Act::Txn(Txn { compare: vec![Compare::exists(key())], success: vec![Act::Put(Put::default())] });
        for (conditions, count) in
            (0..128).step_by(7).flat_map(|conditions| (60..260).map(move |count| (conditions, count)))
        {
            let acts = bundled(vec![touch.clone(); count], conditions);
            // With so many conditions there are fewer parts.
            let is_small = conditions < 100 || count < 128;
            assert!(!is_small || is_taken(conditions, &acts, PARTS_MOST), "{count} with {conditions}");
        }
    }
}
