//! The record of one lock (holders, waiters, history), and the changes that concern one lock only:
//! how a hold is confirmed, renewed and ended, and how its min-hold begins.
//! [`super::LockTable`] does what concerns several locks at once.
//!
//! Invariants between two operations:
//! - `holds` is what dlock knows of the holders; `lock` is the truth (I12). A hold that `lock`
//!   contradicts has ended, and the next operation logs that.
//! - A waiter is in `queue` while its heartbeats arrive. A stale waiter is *suspended*: out of the
//!   queue, but its ticket is retained for [`super::TICKET_KEPT`], so that it can return to its old
//!   place. A waiter that was granted the lock is suspended too, until it confirms; if it never
//!   does, the next waiter is granted the lock.
//! - A waiter whose ticket is forgotten keeps its place in the middle of the queue until it is the
//!   head, and the waiters behind it count it. To find it earlier, each heartbeat on Redis would
//!   have to read the whole queue.

use super::answer::{LoggedEnd, Pause, Success, is_not};
use super::expected::Expected;
use super::operation::{Ask, Terms};
use super::refusal::{Mark, Missed, Refusal};
use super::stat::{Stat, count};
use super::time::{Due, Time, millis, ms};
use super::{ABSENCE, EXPECTED_KEPT, HISTORY_KEPT, SILENCE, SPENT_KEPT};
use crate::lock::{Fence, Mode, ONCE_PER_MOST, Owner, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub(super) mod ends;
mod operator;

/// Everything stored about one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// What the lock key says.
    pub lock: Lock,
    /// The holds: held, cooling or revoked.
    pub holds: BTreeMap<Token, Hold>,
    /// Tickets of the waiters that are not suspended, in the order in which they are granted.
    pub queue: BTreeSet<(u64, Token)>,
    /// All waiters, including suspended ones.
    pub waiters: BTreeMap<Token, Waiter>,
    /// When heartbeats arrived, and the last gaps between them.
    pub absence: Absence,
    /// The last fence given out.
    pub fence: u64,
    #[serde(alias = "spent")]
    pub tombstones: BTreeMap<Token, Tombstone>,
    /// The last ends, newest first.
    pub log: VecDeque<LoggedEnd>,
    /// The last successful hold that was acquired with [`Terms::once_per`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<Success>,
    /// How often a run is to succeed, if a run has said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// The pause, if the lock is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// The newest caller with `--replace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest: Option<Newest>,
    /// Callers that were refused, newest first. They are in a record of their own beside that of
    /// the lock, so that a refusal changes nothing that a holder has to write.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub refusals: VecDeque<Refusal>,
    /// What was announced because of refusals, beside them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub announced: BTreeMap<Missed, Mark>,
    /// Tokens to wake when something changes, and until when.
    pub watchers: BTreeMap<Token, Due>,
    pub stat: Stat,
}

/// What the lock key says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lock {
    #[default]
    Free,
    /// Held by one token.
    Exclusive {
        token: Token,
        /// When its lease and its min-hold are both over.
        until: Due,
    },
    /// A marker: shared by all that are in `holds`.
    Shared {
        /// The end of the last of them, or later.
        until: Due,
    },
    /// A marker: held in slots, each by one of `holds`.
    Slots {
        /// Number of slots.
        slots: u32,
        /// The end of the last of them, or later.
        until: Due,
    },
    /// A marker: an exclusive lock given back, kept for the rest of a min-hold.
    Cooling {
        /// The end of the min-hold.
        until: Due,
    },
    /// A marker: an exclusive lock taken away by an operator while the old job may live.
    Revoked {
        /// The end of the old lease.
        until: Due,
    },
    /// A value that dlock did not write.
    Foreign {
        /// When it expires, if it does.
        until: Option<Due>,
    },
}

/// What is stored about a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Whether it is held, cooling or revoked.
    pub phase: Phase,
    /// Its slot, if the lock has slots.
    pub slot: Option<u32>,
    pub fence: u64,
    pub since: Time,
    /// The end of its lease.
    pub until: Due,
    /// The end of its min-hold; the past if it has none.
    pub cool: Due,
    /// Whether the holder knows of the grant.
    pub confirmed: bool,
    /// How long it waited, in whole milliseconds: its run arrived that long before the grant.
    pub waited: u64,
    /// Who asked it to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Owner>,
    /// Whether a newer run with `--replace` asked, not an operator.
    #[serde(default, skip_serializing_if = "is_not")]
    pub superseded: bool,
    /// Whether a run with `--replace` may not ask it to end (`--no-replace`).
    #[serde(default, skip_serializing_if = "is_not", alias = "stays")]
    pub not_replaceable: bool,
    /// If its lease runs out, nobody is granted the lock for this long.
    #[serde(default, with = "ms", skip_serializing_if = "Option::is_none")]
    pub pause_on_failure: Option<Duration>,
    /// Whether a hold with `pause_on_failure` was renewed. Only then does the end of its lease count
    /// as a failure: an `acquire` that arrives late may be granted a lock under which nothing runs.
    #[serde(default, skip_serializing_if = "is_not")]
    pub renewed: bool,
    /// Whether it was granted while the lock was paused (`--during-pause`).
    #[serde(default, skip_serializing_if = "is_not")]
    pub during_pause: bool,
    pub owner: Owner,
}

/// The newest caller with `--replace`, whatever has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    pub token: Token,
    pub came: Time,
    pub owner: Owner,
}

/// What has become of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Held,
    /// Given back, and kept for the rest of a min-hold. An exclusive lock has no such hold: its
    /// lock key says so.
    Cooling,
    /// Taken away by an operator while the job may live; its end is already logged.
    Revoked,
}

impl Hold {
    /// Whether its end must be logged. An unconfirmed grant leaves no trace, and an end is logged
    /// once.
    fn must_be_logged(&self) -> bool {
        self.confirmed && self.phase == Phase::Held
    }

    /// When it stops keeping the lock.
    pub(super) fn due(&self) -> Due {
        match self.phase {
            Phase::Held => self.until.max(self.cool),
            Phase::Cooling => self.cool,
            Phase::Revoked => self.until,
        }
    }
}

/// What is stored about a waiter, in the record of each of its locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its place, the same in all its queues: the lowest ticket is granted first.
    pub ticket: u64,
    /// When it came.
    pub since: Time,
    /// When it becomes stale.
    #[serde(alias = "silent")]
    pub stale_at: Due,
    /// When its ticket is forgotten.
    pub forget: Due,
    /// The mode that it wants.
    pub mode: Mode,
    /// The full names of all locks that it waits for.
    pub names: Vec<String>,
    pub owner: Owner,
    #[serde(default, skip_serializing_if = "Terms::is_plain")]
    pub terms: Terms,
}

/// When heartbeats of waiters arrived, and the last gaps between them: see [`super::ABSENCE`]. In
/// whole milliseconds; zero if there was no such gap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// When the last heartbeat arrived.
    pub heard: Due,
    /// When the last heartbeat before the gap arrived.
    pub from: Due,
    /// When the end of the gap was noticed.
    pub back: Due,
    /// When the end of the gap before that one was noticed.
    #[serde(default)]
    pub back_before: Due,
}

/// What is stored about a token that was given back, revoked or superseded. It cannot acquire any
/// more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Whether its owner gave back a hold.
    pub released: bool,
    /// Whether a newer run with `--replace` superseded it.
    #[serde(default, skip_serializing_if = "is_not")]
    pub superseded: bool,
    /// When this is forgotten.
    pub until: Due,
}

/// A grant to write into the records.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) slot: Option<u32>,
    pub(super) fence: u64,
    /// When its run arrived.
    pub(super) came: Time,
    pub(super) terms: Terms,
    pub(super) owner: Owner,
}

impl Record {
    pub(super) fn is_held_by(&self, token: &Token) -> bool {
        match &self.lock {
            Lock::Exclusive { token: holder, .. } => holder == token && self.holds.contains_key(token),
            Lock::Shared { .. } | Lock::Slots { .. } => {
                self.holds.get(token).is_some_and(|hold| hold.phase == Phase::Held)
            }
            Lock::Free | Lock::Cooling { .. } | Lock::Revoked { .. } | Lock::Foreign { .. } => false,
        }
    }

    /// Whether the token has no hold, or one of the grant with this fence. A late `acquire` may have
    /// been granted another one after that had ended.
    pub(super) fn is_of_grant(&self, token: &Token, fence: Option<Fence>) -> bool {
        self.holds.get(token).zip(fence).is_none_or(|(hold, fence)| hold.fence == fence.0)
    }

    pub(super) fn is_revoked_from(&self, token: &Token) -> bool {
        self.holds.get(token).is_some_and(|hold| hold.phase == Phase::Revoked)
    }

    /// The mode in which the lock is held, cooling or revoked; None if it is free or foreign.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.lock {
            Lock::Free | Lock::Foreign { .. } => None,
            Lock::Exclusive { .. } | Lock::Cooling { .. } | Lock::Revoked { .. } => Some(Mode::Exclusive),
            Lock::Shared { .. } => Some(Mode::Shared),
            Lock::Slots { slots, .. } => Some(Mode::Slots(slots)),
        }
    }

    /// Whether one more token may hold the lock in this mode on these terms, regardless of the queue.
    pub(super) fn admits(&self, mode: Mode, terms: &Terms) -> bool {
        (self.paused.is_none() || terms.during_pause) && self.has_room(mode)
    }

    /// Like [`Self::admits`], regardless of a pause. If the lock key says that several hold the
    /// lock and no hold is recorded, the server has lost the holds: nobody is admitted before the
    /// key itself expires.
    fn has_room(&self, mode: Mode) -> bool {
        match (&self.lock, mode) {
            (Lock::Free, _) => true,
            (Lock::Shared { .. }, Mode::Shared) => !self.holds.is_empty(),
            (Lock::Slots { slots, .. }, Mode::Slots(wanted)) => {
                *slots == wanted && !self.holds.is_empty() && self.holds.len() < *slots as usize
            }
            _ => false,
        }
    }

    /// Whether this token waits and is not stale.
    pub(super) fn is_waiting(&self, now: Time, token: &Token) -> bool {
        self.waiters.get(token).is_some_and(|waiter| self.is_live_waiter(now, waiter))
    }

    pub(super) fn is_live_waiter(&self, now: Time, waiter: &Waiter) -> bool {
        !self.stale_at(waiter).passed(now) && !waiter.forget.is_strictly_past(now)
    }

    /// When a waiter becomes stale. A waiter that was not stale when a gap began, and sent no
    /// heartbeat since, has a whole [`SILENCE`] from the end of the gap. This does not apply if its
    /// ticket is forgotten before that, or if its last heartbeat is older than the end of the gap
    /// before that one.
    pub(super) fn stale_at(&self, waiter: &Waiter) -> Due {
        let Absence { from, back, back_before, .. } = self.absence;
        let silence = millis(SILENCE);
        let again = Due(back.0.saturating_add(silence));
        let heard = waiter.stale_at.0.saturating_sub(silence);
        let was_heard = waiter.stale_at > from && (back_before.0..=from.0).contains(&heard);
        if was_heard && again <= waiter.forget { waiter.stale_at.max(again) } else { waiter.stale_at }
    }

    /// Notices a gap in the heartbeats. Must be called before waiters are checked for being stale.
    /// A gap is noticed only once; otherwise dead waiters would never become stale.
    pub(super) fn notice_absence(&mut self, now: Time) {
        let Absence { heard, from, back, .. } = self.absence;
        if heard.0 > 0 && heard != from && now.millis().saturating_sub(heard.0) > millis(ABSENCE) {
            self.absence = Absence { heard, from: heard, back: Due(now.millis()), back_before: back };
        }
    }

    /// Removes a waiter and its place. Returns whether there was one.
    pub(super) fn remove_waiter(&mut self, token: &Token) -> bool {
        let waiter = self.waiters.remove(token);
        if let Some(waiter) = &waiter {
            self.queue.remove(&(waiter.ticket, token.clone()));
        }
        if self.waiters.is_empty() {
            self.absence = Absence::default();
        }
        waiter.is_some()
    }

    /// The slots in use, also by cooling holds.
    pub(super) fn taken(&self) -> impl Iterator<Item = u32> {
        self.holds.values().filter_map(|hold| hold.slot)
    }

    /// How long the history outlives the lock's last use.
    pub const fn history_kept(&self) -> Duration {
        if self.expected.is_some() { EXPECTED_KEPT } else { HISTORY_KEPT }
    }

    /// When a server's record is removed, after its last use. A lock whose history is forgotten is shown
    /// as unused long before.
    pub fn removed_after(&self) -> Duration {
        self.history_kept().max(2 * HISTORY_KEPT)
    }

    /// Drops what need not be remembered any more.
    pub(super) fn forget(&mut self, now: Time) {
        self.tombstones.retain(|_, tombstone| !tombstone.until.is_strictly_past(now));
        self.waiters.retain(|_, waiter| !waiter.forget.is_strictly_past(now));
        self.watchers.retain(|_, until| !until.is_strictly_past(now));
        self.success.take_if(|success| now.millis().saturating_sub(success.since) > millis(ONCE_PER_MOST));
        self.newest
            .take_if(|newest| now.millis().saturating_sub(newest.came.millis()) > millis(HISTORY_KEPT));
    }

    /// If the last success is enough for a run with `--once-per span` that arrived at `came`: how
    /// long it will be enough for a run that arrives later. It is enough if its own run arrived less
    /// than `span` before, or if it was granted after this run arrived: a waiter never repeats the run
    /// that it waited for. A success in the future counts only if it is less than `span` ahead: a
    /// clock that was set back a little must not let the job run twice, and one that was years ahead
    /// must not block it for years.
    pub(super) fn done_for(&self, now: Time, came: Time, span: Duration) -> Option<Duration> {
        let until = self.success.as_ref()?.counts_until(now.millis(), came.millis(), span)?;
        Some(Duration::from_millis(until.saturating_sub(now.millis())))
    }

    pub(super) fn spend(&mut self, now: Time, token: Token, released: bool) {
        let until = Due::after(now, SPENT_KEPT);
        self.tombstones.insert(token, Tombstone { released, superseded: false, until });
    }

    /// Records that a newer run with `--replace` superseded this token.
    pub(super) fn mark_superseded(&mut self, now: Time, token: Token) {
        count(&mut self.stat.superseded);
        let until = Due::after(now, SPENT_KEPT);
        self.tombstones.insert(token, Tombstone { released: false, superseded: true, until });
    }

    /// The newer run that supersedes a caller that came at `came`. One that came in the future does
    /// not count: the clock was set back since.
    pub(super) fn superseded_by(&self, now: Time, token: &Token, came: Time) -> Option<&Newest> {
        self.newest
            .as_ref()
            .filter(|newest| newest.token != *token && newest.came > came && newest.came <= now)
    }

    pub(super) fn grant(&mut self, now: Time, lease: Duration, granted: &Granted) {
        let until = Due::after(now, lease);
        self.fence = granted.fence;
        self.lock = match granted.mode {
            Mode::Exclusive => Lock::Exclusive { token: granted.token.clone(), until },
            Mode::Shared => Lock::Shared { until },
            Mode::Slots(slots) => Lock::Slots { slots, until },
        };
        let hold = Hold {
            phase: Phase::Held,
            slot: granted.slot,
            fence: granted.fence,
            since: now,
            until,
            cool: Due(0),
            confirmed: false,
            waited: now.millis().saturating_sub(granted.came.millis()),
            asked: None,
            superseded: false,
            not_replaceable: granted.terms.not_replaceable,
            pause_on_failure: granted.terms.pause_on_failure,
            renewed: false,
            during_pause: self.paused.is_some(),
            owner: granted.owner.clone(),
        };
        self.holds.insert(granted.token.clone(), hold);
        self.outlast();
    }

    /// Confirms a grant. From now on the hold has the lease and the min-hold that its caller asked
    /// for.
    pub(super) fn confirm(&mut self, now: Time, ask: &Ask) {
        if let Some(hold) = self.holds.get_mut(&ask.token) {
            hold.owner = ask.owner.clone();
            // An older dlock may have granted it, which does not know the option.
            hold.pause_on_failure = ask.terms.pause_on_failure;
            if !ask.min_hold.is_zero() {
                hold.cool = Due::after(hold.since, ask.min_hold);
            }
        }
        self.extend(now, &ask.token, ask.ttl);
    }

    /// Extends the lease of a hold for its holder.
    pub(super) fn renew(&mut self, now: Time, token: &Token, ttl: Duration, rest: Option<&str>) {
        if let Some(hold) = self.holds.get_mut(token) {
            if let Some(rest) = rest {
                hold.owner.rest = Some(rest.into());
            }
            hold.renewed = hold.pause_on_failure.is_some();
        }
        self.extend(now, token, ttl);
    }

    /// Extends the lease. A first extension also confirms the grant, and removes the waiter.
    fn extend(&mut self, now: Time, token: &Token, ttl: Duration) {
        let Some(hold) = self.holds.get_mut(token) else { return };
        let is_new = !std::mem::replace(&mut hold.confirmed, true);
        hold.until = Due::after(now, ttl);
        if is_new {
            self.stat.grant(hold.waited);
            self.remove_waiter(token);
        }
        self.outlast();
    }

    /// Extends a lease whose new end the holder wrote outside the record, where only the store sees
    /// it.
    pub fn lasts(&mut self, token: &Token, until: Due) {
        let Some(hold) = self.holds.get_mut(token) else { return };
        hold.until = hold.until.max(until);
        if let (Phase::Revoked, Lock::Revoked { until }) = (hold.phase, &mut self.lock) {
            *until = hold.until.max(*until);
        }
        self.outlast();
    }

    /// Sets the ends of all leases, for a store that knows by itself which ones are over, whatever
    /// the record says. `lives` returns how long a hold lasts from now on, or None if it is over.
    /// For a grant that is not confirmed it returns how long the waiter lives, which can only
    /// shorten the grant.
    pub fn judge(&mut self, now: Time, mut lives: impl FnMut(&Token, &Hold) -> Option<Duration>) {
        let is_idle = !self.queue.iter().any(|(_, token)| self.is_waiting(now, token));
        for (token, hold) in self.holds.iter_mut().filter(|(_, hold)| hold.phase != Phase::Cooling) {
            let left = lives(token, hold);
            let until = Due::after(now, left.unwrap_or_default());
            let has_own_lease = hold.confirmed || hold.phase == Phase::Revoked;
            hold.until = if has_own_lease { until } else { hold.until.min(until) };
            // Nobody knows since when the lease is over. It may be long ago, if nobody waits.
            let was_long_ago =
                |span| is_idle && now.millis() >= hold.since.millis().saturating_add(millis(span));
            if left.is_none() {
                hold.pause_on_failure.take_if(|span| was_long_ago(*span));
            }
        }
        let revoked = self.holds.values().filter(|hold| hold.phase == Phase::Revoked);
        if let (Lock::Revoked { until }, Some(last)) = (&mut self.lock, revoked.map(|hold| hold.until).max())
        {
            *until = last;
        }
        self.outlast();
    }

    /// Makes the lock key last as long as the last hold.
    fn outlast(&mut self) {
        let last = self.holds.values().map(Hold::due).max();
        if let Lock::Exclusive { until, .. } | Lock::Shared { until } | Lock::Slots { until, .. } =
            &mut self.lock
            && let Some(last) = last
        {
            *until = last;
        }
    }

    /// Whether only history is left. A hold whose recorded end has passed still counts: a store may
    /// keep a later end elsewhere.
    pub fn is_vacant(&self, now: Time) -> bool {
        let is_free = match self.lock {
            Lock::Free => true,
            Lock::Cooling { until } => until.passed(now),
            _ => false,
        };
        let is_over = |hold: &Hold| hold.phase == Phase::Cooling && hold.cool.passed(now);
        let is_unpaused = self.paused.as_ref().is_none_or(|pause| pause.until <= now.millis());
        is_free && self.holds.values().all(is_over) && is_unpaused
    }

    /// Whether the lock may admit a token in at least one mode, regardless of a pause.
    pub fn has_room_for_some(&self) -> bool {
        match self.mode() {
            None => self.lock == Lock::Free,
            Some(mode) => self.has_room(mode),
        }
    }
}
