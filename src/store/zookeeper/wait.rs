//! Waiting for a write to this process's own session node: in a queue, for the turn, and as a
//! holder, for a request to end. A waiter also watches for the end of its predecessor's session
//! node, and writes its heartbeats.

use super::jute::Ask;
use super::{Znodes, node};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use crate::store::net::failure::Failure;
use crate::store::net::interrupt;
use std::cell::Cell;

/// The session node of another process.
pub struct Watch {
    pub(super) path: String,
    /// The number of the connection that the watch is on.
    pub(super) connection: Cell<u64>,
}

impl Znodes {
    /// Sets the watches again after a reconnect. Returns whether one of the nodes has gone
    /// meanwhile.
    fn arm(&mut self, watches: &[&Watch]) -> Result<bool, Failure> {
        let connection = self.session.connections;
        let unarmed: Vec<&&Watch> =
            watches.iter().filter(|watch| watch.connection.get() != connection).collect();
        if unarmed.is_empty() {
            return Ok(false);
        }
        let asks: Vec<Ask> = unarmed.iter().map(|watch| Ask::WatchEnd(watch.path.clone())).collect();
        let answers = self.ask(&asks, self.soon())?;
        for watch in &unarmed {
            watch.connection.set(self.session.connections);
        }
        Ok(answers.iter().any(Result::is_err))
    }

    /// Whether this process's session node is still watched. If not, a write to it may have been
    /// missed.
    pub(super) fn is_watched(&self) -> bool {
        let numbers = (self.session.sessions, self.session.connections);
        self.session.is_connected()
            && self.life.is_some_and(|life| (life.session, life.connection) == numbers)
    }

    /// Sleeps until one of the watches or a write to this process's session node wakes it (true),
    /// or until `until` (false).
    pub(super) fn listen(
        &mut self,
        token: &Token,
        watches: &[&Watch],
        until: Moment,
    ) -> Result<bool, Failure> {
        if self.arm(watches)? || !self.is_watched() {
            return Ok(true);
        }
        let mine = self.life_path(token);
        loop {
            let heard = self.session.listen(until)?;
            let concerns = |path: &String| *path == mine || watches.iter().any(|watch| watch.path == *path);
            if self.session.events().iter().any(concerns) {
                return Ok(true);
            }
            if !heard || until.passed() {
                return Ok(false);
            }
        }
    }

    /// Sleeps until a write to this holder's session node (true), or until `until` or an interrupt
    /// (false). If the watch is lost, the next renewal brings the request.
    pub(super) fn listen_for_request(&mut self, token: &Token, until: Moment) -> bool {
        let heard = self.is_watched().then(|| self.listen(token, &[], until)).and_then(Result::ok);
        if heard != Some(false) {
            // The next renewal must read, and so watch again.
            self.remembered = None;
        }
        if heard.is_none() {
            interrupt::sleep_until(until);
        }
        heard.unwrap_or(false)
    }

    /// Writes a heartbeat in each of these locks. Returns whether all heartbeat nodes are still
    /// there and no watch has reported anything.
    pub(super) fn beat(&mut self, names: &Names, token: &Token, deadline: Moment) -> Result<bool, Failure> {
        let paths = names.iter().map(|name| node::beat_path(&self.lock_path(name.as_str()), token));
        let asks: Vec<Ask> = paths.map(Ask::touch).collect();
        let answers = self.ask(&asks, deadline)?;
        Ok(answers.iter().all(Result::is_ok) && self.is_watched() && self.session.events().is_empty())
    }
}
