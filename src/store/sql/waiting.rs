//! Lets a waiter sleep until its turn: until a notification arrives, or by polling where there are
//! none.

use super::dialect::NEAR;
use super::servers::Again;
use super::{Failure, Tables};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use crate::store::net::interrupt;
use std::time::Duration;

/// Interval at which the next waiter polls if there are no notifications.
pub(super) const POLL: Duration = Duration::from_millis(25);
/// Longest polling interval of the next waiter.
const FIRST_POLL_LONGEST: Duration = Duration::from_millis(250);
/// Until then, its interval is a sixteenth of the time since it became the first. So a hand-over is
/// late by a small part of the wait at most.
const FIRST_POLL_PART: u32 = 16;
/// Longest polling interval of a waiter behind a pooler.
const POLL_LONGEST: Duration = Duration::from_secs(1);

impl Tables {
    /// Whether `token` is in the queues of all these locks, and how many waiters are before it, as
    /// far as [`Dialect::waits`](super::Dialect::waits) says.
    fn place(&mut self, names: &Names, token: &Token) -> Result<Option<usize>, Failure> {
        let waits = self.dialect.waits(&self.list_of(names), token);
        let rows = self.ask(&[waits], Again::Yes, self.soon())?.pop().unwrap_or_default().rows;
        let before = rows.iter().filter(|row| row.bytes(0) == Some(b"0")).count();
        Ok((rows.len() - before == names.as_slice().len()).then_some(before))
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

    /// Sleeps until the waiter is woken or its place in the queue is gone, because it was granted the
    /// lock or has to ask again (true), or until `until` (false).
    pub(super) fn sleep(
        &mut self,
        names: &Names,
        token: &Token,
        ahead: u64,
        until: Moment,
    ) -> Result<bool, Failure> {
        loop {
            let Some(pause) = self.next_look(names, token, ahead)? else { return Ok(true) };
            let Some(line) = &mut self.line else { return Ok(true) };
            if line.link.listen(Moment::now().after(pause).min(until))? {
                // Once it holds the lock, it subscribes anew, and then looks for a request to end.
                line.listens = false;
                return Ok(true);
            }
            if until.passed() || interrupt::is_raised() {
                return Ok(false);
            }
        }
    }

    /// How long the waiter listens before it looks at its place again. None if the place is gone.
    fn next_look(&mut self, names: &Names, token: &Token, ahead: u64) -> Result<Option<Duration>, Failure> {
        let is_new = self.listen(token, self.soon())?;
        let listens = |tables: &Self| tables.line.as_ref().is_some_and(|line| line.listens);
        if listens(self) && !is_new {
            return Ok(Some(Duration::MAX));
        }
        // No notification that came before the subscription is received.
        let Some(before) = self.place(names, token)? else { return Ok(None) };
        Ok(Some(if listens(self) { Duration::MAX } else { self.next_poll(token, ahead, before) }))
    }

    /// When a waiter polls next, if nothing wakes it: the nearer to its turn the sooner. Far from it
    /// never: its heartbeat says whether it still waits.
    fn next_poll(&mut self, token: &Token, ahead: u64, before: usize) -> Duration {
        let now = Moment::now();
        // A server that could notify and is polled is behind a pooler. Then the number of waiters is
        // that of the last read.
        let is_pooled = self.dialect.wake_channel(token).is_some();
        let before = if is_pooled { ahead } else { before as u64 };
        if before == 0 {
            let part = now.since(*self.first_since.get_or_insert(now)) / FIRST_POLL_PART;
            return part.clamp(POLL, FIRST_POLL_LONGEST);
        }
        self.first_since = None;
        let turns = u32::try_from(before.saturating_add(1)).unwrap_or(u32::MAX);
        match before < NEAR as u64 {
            _ if is_pooled => POLL.saturating_mul(turns).min(POLL_LONGEST),
            true => POLL * turns * turns,
            false => Duration::MAX,
        }
    }
}
