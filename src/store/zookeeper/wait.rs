//! Waiting in a queue. The waiter watches for the end of its predecessor's session node and for a
//! write to its own, and writes heartbeats to its nodes in the queues.

use super::jute::{Answer, Ask, Event, Kind};
use super::life::Life;
use super::wire::Failure;
use super::write::Place;
use super::{Again, Znodes};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use std::cell::Cell;

/// The session node of another process.
pub struct Watch {
    pub(super) path: String,
    /// The connection that the watch is on.
    pub(super) dial: Cell<u64>,
}

impl Znodes {
    /// Sets the watches again after a reconnect. Returns whether one of the nodes has gone
    /// meanwhile.
    fn arm<'a>(&self, others: impl Iterator<Item = &'a Watch>) -> Result<bool, Failure> {
        self.session.borrow_mut().connect(self.by.get())?;
        let dial = self.session.borrow().dial();
        let unarmed: Vec<&Watch> = others.filter(|watch| watch.dial.get() != dial).collect();
        if unarmed.is_empty() {
            return Ok(false);
        }
        let asks: Vec<Ask> = unarmed.iter().map(|watch| Ask::WatchEnd { path: watch.path.clone() }).collect();
        let answers = self.ask(&asks, Again::No)?;
        for watch in &unarmed {
            watch.dial.set(dial);
        }
        Ok(answers.iter().any(Result::is_err))
    }

    /// Whether this process's session node is still watched. If not, a write to it may have been
    /// missed.
    fn is_watched(&self) -> bool {
        let session = self.session.borrow();
        let is_same = |life: Life| life.turn == session.turn() && life.dial == session.dial();
        session.is_connected() && self.life.get().is_some_and(is_same)
    }

    pub(super) fn wait<'a>(
        &self,
        token: &Token,
        others: impl Iterator<Item = &'a Watch>,
        until: Moment,
    ) -> Result<bool, Failure> {
        let others: Vec<&Watch> = others.collect();
        if self.life.get().is_none() || self.arm(others.iter().copied())? || !self.is_watched() {
            return Ok(true);
        }
        let mine = self.life_path(token);
        loop {
            let heard = self.session.borrow_mut().listen(until)?;
            let events = self.session.borrow_mut().events();
            let concerns = |event: &Event| {
                let is_other = || others.iter().any(|watch| watch.path == event.path);
                event.path == mine || (event.kind == Kind::Gone && is_other())
            };
            if events.iter().any(concerns) {
                return Ok(true);
            }
            if !heard || until.passed() {
                return Ok(false);
            }
        }
    }

    /// Writes a heartbeat to this process's nodes in the queues. Returns whether all of them are
    /// still there and no watch has reported anything.
    pub(super) fn beat(&self, names: &Names) -> Result<bool, Failure> {
        let mut places = self.places.borrow_mut();
        let known = names.iter().map(|name| places.get(name.as_str()));
        let Some(known) = known.collect::<Option<Vec<_>>>() else { return Ok(false) };
        let said = known.into_iter().map(|Place { path, data, version }| Ask::SetIf {
            path: path.clone(),
            data: data.clone(),
            version: *version,
        });
        let answers = self.ask(&said.collect::<Vec<_>>(), Again::No)?;
        for (name, answer) in names.iter().zip(&answers) {
            let Ok(Answer::Stat(stat)) = answer else { return Ok(false) };
            if let Some(place) = places.get_mut(name.as_str()) {
                place.version = stat.version;
            }
        }
        Ok(self.is_watched() && self.session.borrow_mut().events().is_empty())
    }
}
