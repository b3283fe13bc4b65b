//! The numbers of a record: what they are, and checks of those, and of the counts, that other
//! programs could have spoiled. (Texts and tokens are bounded by their types.)

use crate::lock::{Mode, SLOTS_MAX};
use crate::rules::{Absence, Lock, REFUSALS_KEPT, Record, Waiter};

/// Upper bound of times and fences, so that adding to them does not overflow.
pub const NUMBER_MOST: u64 = 1 << 60;

/// Most waiters of a record: ten times [`crate::rules::QUEUE_MAX`], which does not count suspended
/// ones.
const WAITERS_MOST: usize = 10_000;

/// What a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// A time in microseconds.
    Micros,
    /// A time in milliseconds, or 0 if there is none.
    Millis,
    /// A fence or a span.
    Other,
}

/// Passes each number of the record to `each`. Leaves out the queue, which repeats the tickets of
/// waiters.
pub fn each_number(record: &mut Record, mut each: impl FnMut(&mut u64, Number)) {
    use Number::{Micros, Millis, Other};
    each(&mut record.fence, Other);
    match &mut record.lock {
        Lock::Free | Lock::Foreign { until: None } => {}
        Lock::Exclusive { until, .. }
        | Lock::Shared { until }
        | Lock::Slots { until, .. }
        | Lock::Cooling { until }
        | Lock::Revoked { until }
        | Lock::Foreign { until: Some(until) } => each(&mut until.0, Millis),
    }
    for hold in record.holds.values_mut() {
        each(&mut hold.fence, Other);
        each(&mut hold.since.0, Micros);
        each(&mut hold.until.0, Millis);
        each(&mut hold.cool.0, Millis);
        each(&mut hold.waited, Other);
    }
    for waiter in record.waiters.values_mut() {
        each(&mut waiter.ticket, Micros);
        each(&mut waiter.since.0, Micros);
        each(&mut waiter.stale_at.0, Millis);
        each(&mut waiter.forget.0, Millis);
    }
    let Absence { heard, from, back, back_before } = &mut record.absence;
    let tombstones = record.tombstones.values_mut().map(|tombstone| &mut tombstone.until);
    let dues = [heard, from, back, back_before].into_iter().chain(tombstones);
    dues.chain(record.watchers.values_mut()).for_each(|due| each(&mut due.0, Millis));
    if let Some(newest) = &mut record.newest {
        each(&mut newest.came.0, Micros);
    }
    if let Some(pause) = &mut record.paused {
        each(&mut pause.since, Millis);
        each(&mut pause.until, Millis);
    }
    if let Some(expected) = &mut record.expected {
        each(&mut expected.since, Millis);
    }
    if let Some(success) = &mut record.success {
        each(&mut success.fence.0, Other);
        each(&mut success.since, Millis);
        each(&mut success.ended, Millis);
    }
    for refusal in &mut record.refusals {
        each(&mut refusal.at, Millis);
        each(&mut refusal.waited, Other);
    }
    record.announced.values_mut().for_each(|mark| each(&mut mark.at, Millis));
}

pub fn check_number(number: u64) -> Result<(), &'static str> {
    if number > NUMBER_MOST { Err("a number is too great") } else { Ok(()) }
}

pub fn check(record: &mut Record) -> Result<(), &'static str> {
    let mut numbers = Ok(());
    each_number(record, |number, _| numbers = numbers.and(check_number(*number)));
    numbers?;
    if matches!(record.lock, Lock::Slots { slots, .. } if slots > SLOTS_MAX) {
        return Err("it has too many slots");
    }
    if record.waiters.len().max(record.queue.len()) > WAITERS_MOST {
        return Err("it has too many waiters");
    }
    record.waiters.values().try_for_each(check_waiter)?;
    record.queue.iter().try_for_each(|(ticket, _)| check_number(*ticket))?;
    if record.refusals.len() > REFUSALS_KEPT {
        return Err("it has too many refusals");
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
