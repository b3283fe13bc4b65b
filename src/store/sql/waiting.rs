//! Lets a waiter sleep until its turn: until a notification arrives; where there are none, at the
//! advisory lock of its predecessor, which the server grants when the predecessor releases the
//! lock; else by polling.

use super::servers::Again;
use super::{Answer, Failure, Tables};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use crate::rules::SILENCE;
use crate::store::Error;
use crate::store::engine::coordinator::Wake;
use crate::store::net::interrupt;
use std::thread;
use std::time::Duration;

/// Interval at which the next waiter polls if there are no notifications.
pub(super) const POLL: Duration = Duration::from_millis(25);
/// Pauses in milliseconds between the reads of a waiter that an advisory lock has woken: the
/// predecessor releases that lock just before it writes the release of the dlock lock.
const LOOKS: [u64; 8] = [0, 1, 1, 1, 2, 4, 8, 16];
/// See [`crate::store::engine::coordinator::Coordinator::CHAIN`]. MySQL and MariaDB take a chain of
/// 32 sessions that sleep at each other's advisory locks for a deadlock. With this number it is at
/// most 23 long in a full queue.
pub(super) const CHAIN: u64 = 16;
/// Longest polling interval of any waiter.
const POLL_LONGEST: Duration = Duration::from_secs(1);

/// How a sleep at the predecessor's advisory lock ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtLock {
    Released,
    /// The time is up, and the lock is still held.
    Through,
    /// The lock is still held, but the server ended the sleep: MySQL rounds its time to seconds.
    Held,
    /// Nobody holds the lock, or this session does not sleep at it.
    NotHeld,
}

impl Tables {
    /// Whether `token` is in the queues of all these locks.
    fn still_waits(&mut self, names: &Names, token: &Token) -> Result<bool, Failure> {
        let waits = self.dialect.waits(&self.list_of(names), token);
        let answers = self.ask(&[waits], Again::Yes, self.soon())?;
        Ok(answers[0].rows.len() == names.as_slice().len())
    }

    /// Subscribes this connection to the notifications of `token`. Returns whether that is new.
    pub(super) fn listen(&mut self, token: &Token, deadline: Moment) -> Result<bool, Failure> {
        if self.line.as_ref().is_none_or(|line| line.listens || line.is_direct != Some(true)) {
            return Ok(false);
        }
        let Some(wake_channel) = self.dialect.wake_channel(token) else { return Ok(false) };
        self.ask(&[wake_channel], Again::Yes, deadline)?;
        if let Some(line) = &mut self.line {
            line.listens = true;
        }
        Ok(true)
    }

    /// SQL to put before a statement, so that this process's advisory lock is held or released as
    /// `is_wanted` says.
    fn advisory_lock(&self, is_wanted: bool) -> Option<String> {
        let mine = self.mine.as_ref().filter(|_| self.has_advisory_locks)?;
        let line = self.line.as_ref().filter(|line| line.is_direct == Some(true))?;
        match (line.has_advisory_lock, is_wanted) {
            (false, true) => self.dialect.take_advisory_lock(mine),
            (true, false) => self.dialect.drop_advisory_lock(),
            _ => None,
        }
    }

    /// Like [`Tables::ask`], with SQL before the statement that takes or releases the advisory lock
    /// if `wants` says so. If the server refuses it, the statement is sent without.
    pub(super) fn ask_with_advisory_lock(
        &mut self,
        statement: String,
        wants: Option<bool>,
        again: Again,
        deadline: Moment,
    ) -> Result<Vec<Answer>, Failure> {
        let sql = wants.and_then(|is_wanted| self.advisory_lock(is_wanted));
        let Some(sql) = sql else { return self.ask(&[statement], again, deadline) };
        match self.ask(&[sql + &statement], again, deadline) {
            // Other failures are not due to the advisory lock, and would only happen again.
            Err(Failure::Refused(Error::Garbled(_) | Error::Denied(_))) => {
                let answers = self.ask(&[statement], again, deadline);
                // If the statement alone fails too, advisory locks are not the cause.
                self.has_advisory_locks = matches!(answers, Err(Failure::Refused(_)));
                answers
            }
            answers => {
                if let (Ok(_) | Err(Failure::Conflict), Some(line)) = (&answers, &mut self.line) {
                    line.has_advisory_lock = wants == Some(true);
                }
                answers
            }
        }
    }

    /// Sleeps at the predecessor's advisory lock, if there is one predecessor.
    fn sleep_at_advisory_lock(&mut self, before: Option<&Token>, until: Moment) -> Result<AtLock, Failure> {
        let is_direct = self.line.as_ref().is_some_and(|line| line.is_direct == Some(true));
        let Some(before) = before.filter(|_| is_direct && self.has_advisory_locks) else {
            return Ok(AtLock::NotHeld);
        };
        // A millisecond more, so that the server's answer comes after `until`.
        let span = until.left() + Duration::from_millis(1);
        let Some(statement) = self.dialect.sleep_at_advisory_lock(before, span) else {
            return Ok(AtLock::NotHeld);
        };
        let slept = match self.ask(&[statement], Again::No, until.after(self.target.op_timeout)) {
            Ok(mut answers) => answers.pop().and_then(|mut answer| answer.rows.pop()).unwrap_or_default(),
            // The server takes the sleep for part of a deadlock.
            Err(Failure::Conflict) => return Ok(AtLock::Held),
            Err(Failure::Refused(_)) => {
                self.has_advisory_locks = false;
                return Ok(AtLock::NotHeld);
            }
            Err(failure) => return Err(failure),
        };
        Ok(match slept.bytes(0) {
            Some(b"1") => AtLock::Released,
            Some(b"0") if until.passed() => AtLock::Through,
            Some(b"0") => AtLock::Held,
            _ => AtLock::NotHeld,
        })
    }

    pub(super) fn sleep(
        &mut self,
        names: &Names,
        token: &Token,
        ahead: u64,
        before: Option<&Token>,
        until: Moment,
    ) -> Result<Wake, Failure> {
        // It reads the lock at its next heartbeat and not at once, when the new holder needs the server.
        if self.line.as_mut().is_some_and(|line| line.link.has_come_near()) {
            return Ok(Wake::Look);
        }
        loop {
            let at_lock = self.sleep_at_advisory_lock(before, until)?;
            match at_lock {
                AtLock::Through => return Ok(Wake::Through),
                // The waiter is far from its turn. It reads the queue, to watch another one.
                AtLock::Released if ahead > CHAIN => return Ok(Wake::Look),
                AtLock::Released => {
                    for pause in LOOKS {
                        thread::sleep(Duration::from_millis(pause));
                        if !self.still_waits(names, token)? {
                            break;
                        }
                    }
                    return Ok(Wake::Woken);
                }
                AtLock::Held | AtLock::NotHeld => {}
            }
            // A notification before the subscription is lost.
            if self.listen(token, self.soon())? && !self.still_waits(names, token)? {
                return Ok(Wake::Woken);
            }
            let Some(line) = &mut self.line else { return Ok(Wake::Woken) };
            let is_listening = line.listens;
            let is_told_of_a_death = is_listening || at_lock == AtLock::Held;
            // The first read on a connection shows whether it is direct.
            if line.read_at.is_none_or(|read| !is_told_of_a_death && read.after(SILENCE).passed()) {
                return Ok(Wake::Look);
            }
            let next = if is_listening { until } else { Moment::now().after(pace(ahead)).min(until) };
            if line.link.listen(next)? {
                // A holder subscribes anew, and then looks for a request that came meanwhile.
                line.listens = false;
                return Ok(Wake::Woken);
            }
            if until.passed() || interrupt::is_raised() {
                return Ok(Wake::Through);
            }
            if !is_listening && !self.still_waits(names, token)? {
                return Ok(Wake::Woken);
            }
        }
    }
}

/// The polling interval at this position in the queue.
fn pace(ahead: u64) -> Duration {
    POLL.saturating_mul(u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX)).min(POLL_LONGEST)
}
