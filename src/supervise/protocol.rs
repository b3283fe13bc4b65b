//! The messages between dlock and the guard, one per datagram. Both ends are the same version of
//! the same program, so the format may change at any time.

use super::Reached;
use crate::clock::Moment;
use serde::{Deserialize, Serialize};

/// The longest message. One environment variable may have 128 KiB (MAX_ARG_STRLEN).
pub(super) const LONGEST: usize = 192 * 1024;

/// A change to CMD's environment: a variable, and its value or `None` to unset it.
pub(super) type Change = (Vec<u8>, Option<Vec<u8>>);

/// An order from dlock to the guard. If dlock is gone, the guard sees the socket close.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// More of CMD's environment. The last part comes with `Start`.
    Environment(Vec<Change>),
    Start(Vec<Change>),
    /// Pass this signal on to CMD, or to what it left behind.
    Relay(i32, Reached),
    /// The lock is lost: send TERM now, and KILL at this moment.
    Lost(Moment),
    /// The job was asked to end: stop it with its full grace.
    Stop,
    /// dlock ends now and leaves the rest to the guard. It has printed all messages itself.
    Finish,
}

/// Encodes an order or an event.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes a message; `None` if it is malformed.
pub(super) fn decode<'a, T: Deserialize<'a>>(datagram: &'a [u8]) -> Option<T> {
    postcard::from_bytes(datagram).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::{Ended, Event, NotStarted, Process, StopReason};
    use std::time::Duration;

    #[test]
    fn orders_survive_encoding() {
        let changes = vec![
            (b"A".to_vec(), Some(b"1=2\n".to_vec())),
            (b"B".to_vec(), None),
            (b"C".to_vec(), Some(vec![])),
        ];
        for order in [
            Order::Environment(changes.clone()),
            Order::Start(changes),
            Order::Start(vec![]),
            Order::Relay(15, Reached::Nobody),
            Order::Relay(2, Reached::CallerGroup),
            Order::Lost(Moment::from_boot(Duration::new(7, 9))),
            Order::Stop,
            Order::Finish,
        ] {
            assert_eq!(decode(&encode(&order)), Some(order));
        }
    }

    #[test]
    fn events_survive_encoding() {
        let mut events = vec![
            Event::NotStarted(NotStarted::Errno(2)),
            Event::NotStarted(NotStarted::TooLate),
            Event::Suspended { signal: 20 },
            Event::Continued,
            Event::Refused(Process { pid: 9, name: "a (b) ü".into() }),
            Event::CommandEnded { status: Ended::Code(7) },
            Event::CommandEnded { status: Ended::Signal(9) },
            Event::Ended { status: None, reason: None },
            Event::Ended { status: Some(Ended::Code(255)), reason: Some(StopReason::MaxRun) },
            Event::Ended { status: Some(Ended::Signal(64)), reason: None },
        ];
        let reasons = [
            StopReason::LeaseRanOut,
            StopReason::Lost,
            StopReason::Asked,
            StopReason::MaxRun,
            StopReason::CallerGone,
            StopReason::GuardGone,
            StopReason::WatcherGone,
        ];
        events.extend(reasons.map(|reason| Event::Stopping { reason }));
        for event in events {
            assert_eq!(decode(&encode(&event)), Some(event));
        }
    }

    #[test]
    fn truncated_message_is_rejected() {
        let whole = encode(&Order::Start(vec![(b"A".to_vec(), Some(b"1".to_vec()))]));
        assert!((2..whole.len()).all(|end| decode::<Order>(&whole[..end]).is_none()));
        assert_eq!(decode::<Event>(b""), None);
    }
}
