//! Checks the numbers and counts in a record that other programs could have spoiled. (Texts and
//! tokens are bounded by their types.)

use crate::lock::{Mode, SLOTS_MAX};
use crate::rules::{Lock, REFUSALS_KEPT, Record, Waiter};

/// Upper bound of times and fences, so that adding to them does not overflow.
pub const NUMBER_MOST: u64 = 1 << 60;

pub fn check_number(number: u64) -> Result<(), &'static str> {
    if number > NUMBER_MOST { Err("a number is too great") } else { Ok(()) }
}

/// Most waiters of a record: ten times [`crate::rules::QUEUE_MAX`], which does not count suspended
/// ones.
const WAITERS_MOST: usize = 10_000;

pub fn check(record: &Record) -> Result<(), &'static str> {
    check_number(record.fence)?;
    match &record.lock {
        Lock::Free | Lock::Foreign { until: None } => {}
        Lock::Exclusive { until, .. }
        | Lock::Shared { until }
        | Lock::Slots { until, .. }
        | Lock::Cooling { until }
        | Lock::Revoked { until }
        | Lock::Foreign { until: Some(until) } => check_number(until.0)?,
    }
    if matches!(record.lock, Lock::Slots { slots, .. } if slots > SLOTS_MAX) {
        return Err("it has too many slots");
    }
    for hold in record.holds.values() {
        for number in [hold.fence, hold.since.0, hold.until.0, hold.cool.0, hold.waited] {
            check_number(number)?;
        }
    }
    if record.waiters.len().max(record.queue.len()) > WAITERS_MOST {
        return Err("it has too many waiters");
    }
    record.waiters.values().try_for_each(check_waiter)?;
    record.queue.iter().try_for_each(|(ticket, _)| check_number(*ticket))?;
    if let Some(pause) = &record.paused {
        check_number(pause.since.max(pause.until))?;
    }
    if let Some(newest) = &record.newest {
        check_number(newest.came.0)?;
    }
    if let Some(success) = &record.success {
        check_number(success.since.max(success.ended).max(success.fence.0))?;
    }
    if record.refusals.len() > REFUSALS_KEPT {
        return Err("it has too many refusals");
    }
    for refusal in &record.refusals {
        check_number(refusal.at.max(refusal.waited))?;
    }
    for until in record.watchers.values().chain(record.tombstones.values().map(|tombstone| &tombstone.until))
    {
        check_number(until.0)?;
    }
    Ok(())
}

pub fn check_waiter(waiter: &Waiter) -> Result<(), &'static str> {
    for number in [waiter.ticket, waiter.since.0, waiter.stale_at.0, waiter.forget.0] {
        check_number(number)?;
    }
    match waiter.mode {
        Mode::Slots(slots) if slots > SLOTS_MAX => Err("a waiter wants too many slots"),
        _ => Ok(()),
    }
}
