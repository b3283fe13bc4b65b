//! The locks that the runs of a night ask for.

use super::super::judge::{Kind, SECOND};
use dlock::lock::Mode;

/// The keys of a run, as letters, and how it takes them.
pub struct Wish {
    pub keys: &'static str,
    pub mode: Mode,
    pub kind: Kind,
    /// Share of the runs, in percent.
    pub share: u64,
}

pub const fn wish(keys: &'static str, mode: Mode, kind: Kind, share: u64) -> Wish {
    Wish { keys, mode, kind, share }
}

/// The wish of runs whose jobs outlast a lease, with keys of their own: each such key has a holder
/// and a waiter on another host, so a holder that is cut off for longer than a lease and goes on is
/// found.
pub const LONG: Wish = wish("l", Mode::Exclusive, Kind::Plain, 0);

/// For stores with a queue.
pub const WISHES: [Wish; 15] = [
    wish("a", Mode::Exclusive, Kind::Plain, 14),
    wish("b", Mode::Exclusive, Kind::Plain, 10),
    wish("ab", Mode::Exclusive, Kind::Plain, 5),
    wish("cbd", Mode::Exclusive, Kind::Plain, 4),
    wish("c", Mode::Exclusive, Kind::Plain, 6),
    wish("s", Mode::Shared, Kind::Plain, 12),
    wish("s", Mode::Exclusive, Kind::Plain, 4),
    wish("n", Mode::Slots(3), Kind::Plain, 14),
    wish("n", Mode::Exclusive, Kind::Plain, 2),
    wish("m", Mode::Exclusive, Kind::MinHold(SECOND / 2), 6),
    wish("o", Mode::Exclusive, Kind::OncePer(2 * SECOND), 6),
    wish("r", Mode::Exclusive, Kind::Replace, 5),
    wish("x", Mode::Exclusive, Kind::Nested, 6),
    wish("e", Mode::Exclusive, Kind::Script, 6),
    LONG,
];

/// For several masters.
pub const PLAIN_WISHES: [Wish; 8] = [
    wish("a", Mode::Exclusive, Kind::Plain, 25),
    wish("b", Mode::Exclusive, Kind::Plain, 25),
    wish("m", Mode::Exclusive, Kind::MinHold(SECOND / 2), 10),
    wish("o", Mode::Exclusive, Kind::OncePer(2 * SECOND), 10),
    wish("r", Mode::Exclusive, Kind::Replace, 10),
    wish("x", Mode::Exclusive, Kind::Nested, 10),
    wish("e", Mode::Exclusive, Kind::Script, 10),
    LONG,
];

/// What every tool can do.
pub const EXCLUSIVE_WISHES: [Wish; 4] = [
    wish("a", Mode::Exclusive, Kind::Plain, 40),
    wish("b", Mode::Exclusive, Kind::Plain, 30),
    wish("c", Mode::Exclusive, Kind::Plain, 30),
    LONG,
];
