//! Limits how many connections a server sees that it does not serve. More of them do not help a
//! server that fails, is full or hangs up. So in any ten seconds a dlock and its guard make at most
//! 25 such connections to one address, whatever they do: up to 14 for any purpose, and 9 more for
//! renewals. A connection on which the server has answered a request does not count, so a server
//! that serves is never kept waiting.
//!
//! The count is by address, in memory that dlock and its guard [`share`]. This memory also records
//! that dlock has sent a request: a lock that was never asked for need not be given back.

use super::interrupt;
use crate::clock::Moment;
use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A limit: so many connections at once, and then one in each interval.
struct Rate {
    at_once: u64,
    /// In nanoseconds.
    interval: u64,
}

/// At most 14 in any ten seconds. One a second finds a server that is back soon enough.
const COMMON: Rate = Rate { at_once: 5, interval: 1_050_000_000 };
/// At most 9 more in any ten seconds, for renewals. With the common ones, a holder can begin as many
/// attempts as [`crate::rules::schedule`] plans in an outage of half a lease, however short the
/// lease is.
const RESERVED: Rate = Rate { at_once: 7, interval: 3_500_000_000 };
/// Most addresses that are told apart. If there are more, some share a count.
const SERVERS: usize = 64;
/// Number of cells of a server: a hash of its address, and for each of the two rates the time at
/// which all connections so far would have been made at one in each interval (GCRA).
const EACH: usize = 3;
/// Index of the note that nothing was sent.
const UNSENT: usize = SERVERS * EACH;
/// Index of the time of the last failed password.
const PASSWORD: usize = UNSENT + 1;

/// The counts of all servers.
pub type Counts = [AtomicU64; PASSWORD + 1];

/// The counts of a process without a guard.
static OWN: Counts = [const { AtomicU64::new(0) }; PASSWORD + 1];
static SHARED: OnceLock<&Counts> = OnceLock::new();
/// Whether this process is exempt from the limits: see [`limit_nothing`].
static IS_CROWD: AtomicBool = AtomicBool::new(false);

thread_local! {
    static PURPOSE: Cell<Purpose> = const { Cell::new(Purpose::Any) };
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Any,
    Renewal,
}

/// Counts in this memory from now on. Call it before the guard is forked.
pub fn share(counts: &'static Counts) {
    // A process has one guard.
    let _ = SHARED.set(counts);
}

/// This process does the work of thousands (`./bench size`), each of which would count for itself.
pub fn limit_nothing() {
    IS_CROWD.store(true, Ordering::Relaxed);
}

fn counts() -> &'static Counts {
    SHARED.get().copied().unwrap_or(&OWN)
}

/// Notes that a request is about to be sent, after the login. An answer that refuses it does not undo
/// that: another master may have granted the lock, and a Redis that refuses AUTH or SELECT runs the
/// command that came with it.
pub fn note_sent() {
    counts()[UNSENT].store(0, Ordering::Release);
}

/// Notes that nothing was sent so far. Call it before the first request that asks for the lock.
pub fn note_unsent() {
    counts()[UNSENT].store(1, Ordering::Release);
}

/// Whether dlock has sent nothing to its store since [`note_unsent`]. False if that was never called.
pub fn is_nothing_sent() -> bool {
    counts()[UNSENT].load(Ordering::Acquire) != 0
}

/// When a password command or the login with its output failed last.
pub fn password_failed_at() -> Moment {
    Moment::from_boot(Duration::from_nanos(counts()[PASSWORD].load(Ordering::Acquire)))
}

/// Notes that a password command or the login with its output has failed now.
pub fn note_failed_password() {
    counts()[PASSWORD].fetch_max(nanos(Moment::now()), Ordering::AcqRel);
}

/// What the connections of this thread are for now.
pub fn purpose() -> Purpose {
    PURPOSE.get()
}

/// Runs `work`, whose connections on this thread have that purpose.
pub fn with<T>(purpose: Purpose, work: impl FnOnce() -> T) -> T {
    let before = PURPOSE.replace(purpose);
    let done = work();
    PURPOSE.set(before);
    done
}

impl Rate {
    /// Counts a connection at `now`, or returns when the next one may be made.
    fn count(&self, cell: &AtomicU64, now: u64) -> Result<(), u64> {
        if IS_CROWD.load(Ordering::Relaxed) {
            return Ok(());
        }
        let counted = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |at| {
            let at = at.max(now);
            (at <= now + self.interval * (self.at_once - 1)).then_some(at + self.interval)
        });
        counted.map(drop).map_err(|at| at - self.interval * (self.at_once - 1))
    }
}

/// A connection that counts.
#[derive(Debug)]
pub struct Counted {
    cell: &'static AtomicU64,
    interval: u64,
}

impl Counted {
    /// The server has answered a request on it: it does not count any more.
    pub fn answered(self) {
        let less = |at: u64| Some(at.saturating_sub(self.interval));
        let _ = self.cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// Counts a connection to this address, which the caller makes next. If there were too many, waits
/// until it may be made. Fails at once if that is later than the deadline.
pub fn count(address: &impl Hash, deadline: Moment) -> io::Result<Counted> {
    let [_, common, reserved] = cells_of(counts(), address);
    let rates = match purpose() {
        Purpose::Any => &[(&COMMON, common)][..],
        Purpose::Renewal => &[(&RESERVED, reserved), (&COMMON, common)],
    };
    loop {
        let (now, mut next) = (nanos(Moment::now()), u64::MAX);
        for (rate, cell) in rates {
            match rate.count(cell, now) {
                Ok(()) => return Ok(Counted { cell, interval: rate.interval }),
                Err(at) => next = next.min(at),
            }
        }
        let next = Moment::from_boot(Duration::from_nanos(next));
        if next > deadline {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        interrupt::sleep_until(next);
        if interrupt::is_raised() {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

/// The cells of this address.
fn cells_of(counts: &'static Counts, address: &impl Hash) -> &'static [AtomicU64; EACH] {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    let name = hasher.finish().max(1);
    let (cells, _) = counts.as_chunks::<EACH>();
    let first = usize::try_from(name % SERVERS as u64).unwrap_or_default();
    let is_its = |cells: &&[AtomicU64; EACH]| {
        let taken = cells[0].compare_exchange(0, name, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(name)
    };
    let mut order = cells[first..SERVERS].iter().chain(&cells[..first]);
    order.find(is_its).unwrap_or(&cells[first])
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_nanos()).unwrap_or(u64::MAX)
}
