//! What the lock rules must never do, and must do in the end: one rule a test. Random histories are
//! in `tests/histories.rs`.

use super::view::View;
use super::*;
use crate::lock::{Key, Mode, Owner};

mod ends;
mod expected;
mod explored;
mod histories;
mod modes;
mod observer;
mod order;
mod pauses;
mod refusals;
mod replace;
mod silence;
mod ticks;
mod totals;
mod weeks;

fn name(key: &str) -> Name {
    let name = Key::new(key).and_then(|key| Name::new("", &key));
    name.unwrap_or_else(|why| unreachable!("{key:?} is a good name: {why}"))
}

fn token(number: u32) -> Token {
    let token = Token::parse(&format!("{number:032x}"));
    token.unwrap_or_else(|why| unreachable!("32 hex digits: {why}"))
}

const TTL: Duration = Duration::from_secs(30);
const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const RAN: End = End { ran: Ran::Yes, job: None, once_per: false, fence: None, pause: None };

/// A table and a clock. A caller is a number (`who`), a lock a letter.
struct Scene {
    table: LockTable,
    now: Time,
    ttl: Duration,
    min_hold: Duration,
    terms: Terms,
    waited: Duration,
    has_waited: bool,
}

impl Scene {
    fn new() -> Self {
        let now = Time(1_800_000_000_000_000);
        let (table, terms) = (LockTable::default(), Terms::default());
        Self {
            table,
            now,
            ttl: TTL,
            min_hold: Duration::ZERO,
            terms,
            waited: Duration::ZERO,
            has_waited: false,
        }
    }

    fn names(locks: &str) -> Names {
        let mut names = locks.chars().map(|lock| name(&lock.to_string()));
        names.next().map_or_else(|| unreachable!("no lock is named"), |first| Names::new(first, names))
    }

    fn pass(&mut self, ms: u64) {
        self.now = Time(self.now.0 + ms * 1000);
    }

    fn acquire(&mut self, who: u32, locks: &str, mode: Mode, patience: Patience) -> Acquired {
        self.now = Time(self.now.0 + 1);
        let (ttl, min_hold) = (self.ttl, self.min_hold);
        let owner = Owner { pid: who, ttl: Some(ttl), once_per: self.terms.once_per, ..Owner::default() };
        let (terms, waited, has_waited) = (self.terms.clone(), self.waited, self.has_waited);
        let ask = Ask { token: token(who), mode, ttl, min_hold, owner, patience, terms, waited, has_waited };
        self.table.acquire(self.now, &Self::names(locks), &ask)
    }

    /// Acquires, waiting in the queue. Returns whether it was granted.
    fn queue(&mut self, who: u32, locks: &str, mode: Mode) -> bool {
        matches!(self.acquire(who, locks, mode, Patience::Queue), Acquired::Granted(_))
    }

    /// Acquires without waiting. Returns whether it was granted.
    fn ask(&mut self, who: u32, locks: &str, mode: Mode) -> bool {
        matches!(self.acquire(who, locks, mode, Patience::None), Acquired::Granted(_))
    }

    fn slot(&mut self, who: u32, locks: &str, slots: u32) -> Option<u32> {
        match self.acquire(who, locks, Mode::Slots(slots), Patience::Queue) {
            Acquired::Granted(grant) => grant.slot,
            _ => None,
        }
    }

    fn next(&mut self, who: u32, locks: &str, mode: Mode) -> Option<Duration> {
        match self.acquire(who, locks, mode, Patience::Queue) {
            Acquired::Waiting(waiting) => Some(waiting.next),
            _ => None,
        }
    }

    fn renew(&mut self, who: u32, locks: &str) -> Renewal {
        self.table.renew(
            self.now,
            &Self::names(locks),
            &Renew { token: &token(who), fence: None, ttl: self.ttl, rest: None },
        )
    }

    fn leave(&mut self, who: u32, locks: &str) -> Left {
        self.table.leave(self.now, &Self::names(locks), &token(who), &RAN)
    }

    fn revoke(&mut self, lock: &str, when: When) -> Revoked {
        self.table.revoke(self.now, &name(lock), &Revoke { when, by: Owner::default() })
    }

    fn record(&mut self, lock: &str) -> &mut Record {
        self.table.records.entry(lock.into()).or_default()
    }

    fn seen(&mut self, lock: &str) -> View {
        let now = self.now;
        self.record(lock).inspect(&name(lock), now)
    }
}

const GONE: Left = Left::Released { cooling: Duration::ZERO };
