//! A subscription over a connection that may fail: begun anew at the next sleep, after a pause.

use crate::clock::Moment;
use crate::store::net::interrupt;
use crate::store::{BACKOFF, Error, Subscription};

/// What a store listens to.
pub trait Source: Send {
    /// Subscribes, if it has not, and sleeps until there is news (true) or until `until` (false).
    /// May return false earlier.
    fn hear(&mut self, until: Moment) -> Result<bool, Error>;

    /// Drops the connection after a failure.
    fn reset(&mut self);
}

/// A subscription to a source.
pub struct Resumed<S> {
    source: S,
    backoff_until: Moment,
}

impl<S> Resumed<S> {
    pub fn new(source: S) -> Self {
        Self { source, backoff_until: Moment::now() }
    }
}

impl<S: Source> Subscription for Resumed<S> {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        interrupt::sleep_until(until.min(self.backoff_until));
        while !until.passed() && !interrupt::is_raised() {
            match self.source.hear(until) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    self.source.reset();
                    if until.passed() {
                        return Ok(false);
                    }
                    self.backoff_until = Moment::now().after(BACKOFF);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }
}
