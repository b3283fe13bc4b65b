//! What do dlock and the guard say to each other? One message is one datagram: a letter, then numbers of eight bytes
//! and texts. Both ends are the same program at the same version, so nothing here is a format to keep.

use super::{Ended, Event, NotStarted, Process, Reached, StopReason};
use crate::clock::Moment;
use std::time::Duration;

/// No message is longer. A single variable of the environment may have 128 KiB (MAX_ARG_STRLEN).
pub(super) const LONGEST: usize = 192 * 1024;

/// A change of CMD's environment: a variable and its value, or none if it is to be unset.
pub(super) type Change = (Vec<u8>, Option<Vec<u8>>);

/// What dlock says to the guard. That dlock is gone shows on the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// More of CMD's environment; the last part comes with the start.
    Environment(Vec<Change>),
    Start(Vec<Change>),
    /// Pass this signal on to CMD, or to what it left behind.
    Relay(i32, Reached),
    /// The lock is another's: stop the job, by this moment.
    Lost(Moment),
    /// Somebody asked for the job to end: stop it, with its grace.
    Stop,
    /// dlock ends now and leaves the rest to the guard. It has said itself what there was to say.
    Finish,
}

impl Order {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Environment(changes) => encode_changes(b'e', changes),
            Self::Start(changes) => encode_changes(b's', changes),
            Self::Relay(signal, reached) => {
                message(b'r', &[i64::from(*signal), i64::from(*reached == Reached::CallerGroup)])
            }
            Self::Lost(deadline) => {
                message(b'l', &[i64::try_from(deadline.since_boot().as_nanos()).unwrap_or(i64::MAX)])
            }
            Self::Stop => message(b'q', &[]),
            Self::Finish => message(b'f', &[]),
        }
    }

    pub(super) fn decode(datagram: &[u8]) -> Option<Self> {
        let (&letter, rest) = datagram.split_first()?;
        let mut rest = Rest(rest);
        Some(match letter {
            b'e' => Self::Environment(decode_changes(rest)?),
            b's' => Self::Start(decode_changes(rest)?),
            b'r' => {
                let signal = i32::try_from(rest.number()?).ok()?;
                let reached = if rest.number()? == 0 { Reached::Nobody } else { Reached::CallerGroup };
                Self::Relay(signal, reached)
            }
            b'l' => {
                let nanos = u64::try_from(rest.number()?).ok()?;
                Self::Lost(Moment::from_boot(Duration::from_nanos(nanos)))
            }
            b'q' => Self::Stop,
            b'f' => Self::Finish,
            _ => return None,
        })
    }
}

impl Event {
    /// [`Event::Died`] is not said but seen.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::NotStarted(NotStarted::Errno(errno)) => message(b'N', &[i64::from(*errno)]),
            Self::NotStarted(NotStarted::TooLate) => message(b'N', &[0]),
            Self::Stopped { signal } => message(b'T', &[i64::from(*signal)]),
            Self::Continued => message(b'C', &[]),
            Self::Stopping { reason } => message(b'W', &[number_of(Some(*reason))]),
            Self::Refused(process) => {
                let mut datagram = message(b'R', &[i64::from(process.pid)]);
                datagram.extend(process.name.as_bytes());
                datagram
            }
            Self::CommandEnded { status } => message(b'D', &[number_of_status(Some(*status))]),
            Self::Ended { status, reason } => message(b'E', &[number_of_status(*status), number_of(*reason)]),
            Self::Died => Vec::new(),
        }
    }

    pub(super) fn decode(datagram: &[u8]) -> Option<Self> {
        let (&letter, rest) = datagram.split_first()?;
        let mut rest = Rest(rest);
        let small = |number: i64| i32::try_from(number).ok();
        Some(match letter {
            b'N' => Self::NotStarted(match small(rest.number()?)? {
                0 => NotStarted::TooLate,
                errno => NotStarted::Errno(errno),
            }),
            b'T' => Self::Stopped { signal: small(rest.number()?)? },
            b'C' => Self::Continued,
            b'W' => Self::Stopping { reason: reason_of(rest.number()?)? },
            b'R' => {
                let pid = small(rest.number()?)?;
                Self::Refused(Process { pid, name: String::from_utf8_lossy(rest.0).into() })
            }
            b'D' => Self::CommandEnded { status: status_of(rest.number()?)? },
            b'E' => Self::Ended { status: status_of(rest.number()?), reason: reason_of(rest.number()?) },
            _ => return None,
        })
    }
}

const REASONS: [StopReason; 6] = [
    StopReason::LeaseRanOut,
    StopReason::Lost,
    StopReason::Asked,
    StopReason::MaxRun,
    StopReason::CallerGone,
    StopReason::GuardGone,
];

fn number_of(reason: Option<StopReason>) -> i64 {
    let at = REASONS.iter().position(|&one| Some(one) == reason);
    at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)
}

fn reason_of(number: i64) -> Option<StopReason> {
    REASONS.get(usize::try_from(number).ok()?).copied()
}

fn number_of_status(status: Option<Ended>) -> i64 {
    match status {
        None => -1,
        Some(Ended::Code(code)) => i64::from(code),
        Some(Ended::Signal(signal)) => 256 + i64::from(signal),
    }
}

fn status_of(number: i64) -> Option<Ended> {
    match u8::try_from(number) {
        Ok(code) => Some(Ended::Code(code)),
        Err(_) => {
            i32::try_from(number).ok().filter(|&number| number > 0).map(|signal| Ended::Signal(signal - 256))
        }
    }
}

fn message(letter: u8, numbers: &[i64]) -> Vec<u8> {
    let mut datagram = vec![letter];
    for number in numbers {
        datagram.extend(number.to_ne_bytes());
    }
    datagram
}

fn encode_changes(letter: u8, changes: &[Change]) -> Vec<u8> {
    let mut datagram = vec![letter];
    let mut text = |text: &[u8]| {
        datagram.extend(i64::try_from(text.len()).unwrap_or(-1).to_ne_bytes());
        datagram.extend(text);
    };
    for (name, value) in changes {
        text(name);
        match value {
            Some(value) => text(&[b"=", value.as_slice()].concat()),
            None => text(b""),
        }
    }
    datagram
}

fn decode_changes(mut rest: Rest) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    while !rest.0.is_empty() {
        let name = rest.text()?.to_vec();
        let value = rest.text()?.strip_prefix(b"=").map(<[u8]>::to_vec);
        changes.push((name, value));
    }
    Some(changes)
}

/// What is still to be read of a datagram.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn number(&mut self) -> Option<i64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_ne_bytes(*number))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_through() {
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
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
    }

    #[test]
    fn events_come_through() {
        let mut events = vec![
            Event::NotStarted(NotStarted::Errno(2)),
            Event::NotStarted(NotStarted::TooLate),
            Event::Stopped { signal: 20 },
            Event::Continued,
            Event::Refused(Process { pid: 9, name: "a (b) ü".into() }),
            Event::CommandEnded { status: Ended::Code(7) },
            Event::CommandEnded { status: Ended::Signal(9) },
            Event::Ended { status: None, reason: None },
            Event::Ended { status: Some(Ended::Code(255)), reason: Some(StopReason::MaxRun) },
            Event::Ended { status: Some(Ended::Signal(64)), reason: None },
        ];
        events.extend(REASONS.map(|reason| Event::Stopping { reason }));
        for event in events {
            assert_eq!(Event::decode(&event.encode()), Some(event));
        }
    }

    #[test]
    fn what_is_cut_short_is_not_read() {
        let whole = Order::Start(vec![(b"A".to_vec(), Some(b"1".to_vec()))]).encode();
        assert!((2..whole.len()).all(|end| Order::decode(&whole[..end]).is_none()));
        assert_eq!(Event::decode(b""), None);
    }
}
