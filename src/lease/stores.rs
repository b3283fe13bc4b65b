//! The connections of a holder: one, and for some kinds of store a second one, which is opened only
//! when an answer on the first one takes too long.

use crate::clock::{self, Moment};
use crate::store::{Endurance, Error, Store};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Longest pause between two checks whether a store is no longer in use.
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// A store in use by one thread.
pub type InUse<'a> = MutexGuard<'a, Box<dyn Store>>;

/// The stores of one holder. A thread locks one of them while it uses it.
pub struct Stores {
    stores: Vec<Mutex<Box<dyn Store>>>,
    /// Index of the store that answered last; it is used next.
    current: AtomicUsize,
    /// Whether an attempt gets a long limit, because a retry would need a new connection.
    is_long: bool,
    /// The error to report when a store does not answer in time; `None` if each attempt runs on the
    /// lease thread.
    timeout_error: Option<Error>,
    /// The lock is being given back: no renewal may begin.
    closed: AtomicBool,
}

impl Stores {
    pub fn new(store: Box<dyn Store>) -> Self {
        let (second, timeout_error, is_long) = match store.endurance() {
            Endurance::Short => (None, None, false),
            Endurance::Long => (None, None, true),
            Endurance::Beside { second, timeout_error } => (second, Some(timeout_error), true),
        };
        let stores = [Some(store), second].into_iter().flatten().map(Mutex::new).collect();
        let (current, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { stores, current, is_long, timeout_error, closed }
    }

    /// Waits until the current store is free.
    pub fn lock(&self) -> InUse<'_> {
        self.lock_at(self.current())
    }

    /// Waits until the store with this index is free.
    pub fn lock_at(&self, index: usize) -> InUse<'_> {
        self.stores[index % self.stores.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current store, if no thread uses it.
    pub fn try_lock(&self) -> Option<InUse<'_>> {
        self.try_lock_at(self.current())
    }

    fn try_lock_at(&self, index: usize) -> Option<InUse<'_>> {
        match self.stores[index % self.stores.len()].try_lock() {
            Ok(store) => Some(store),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether no thread uses the current store.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.try_lock().is_some()
    }

    /// Waits until the store is free. If there are two, waits up to `deadline` until one of them
    /// is; for the first half of that time only the current one will do, because its connection is
    /// open.
    pub fn lock_by(&self, deadline: Moment) -> Result<InUse<'_>, Error> {
        let Some(timeout_error) = &self.timeout_error else { return Ok(self.lock()) };
        let half = Moment::now().after(deadline.left() / 2);
        let mut pause = POLL_PAUSE / 16;
        loop {
            let current = self.current();
            let others = if half.passed() { self.stores.len() } else { 1 };
            for index in (0..others).map(|offset| (current + offset) % self.stores.len()) {
                if let Some(store) = self.try_lock_at(index) {
                    return Ok(store);
                }
            }
            if deadline.passed() {
                return Err(timeout_error.clone());
            }
            clock::sleep(pause);
            pause = (2 * pause).min(POLL_PAUSE);
        }
    }

    pub const fn count(&self) -> usize {
        self.stores.len()
    }

    pub fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    pub fn set_current(&self, index: usize) {
        self.current.store(index, Ordering::Release);
    }

    /// The error for a store that does not answer in time; None if each attempt runs on the lease
    /// thread.
    pub const fn timeout_error(&self) -> Option<&Error> {
        self.timeout_error.as_ref()
    }

    /// Whether an attempt gets a long limit, because a retry would need a new connection.
    pub const fn is_long(&self) -> bool {
        self.is_long
    }

    /// Closes the connections of the stores that are not in use.
    pub fn reset(&self) {
        self.stores.iter().filter_map(|store| store.try_lock().ok()).for_each(|mut store| store.reset());
    }

    /// No renewal begins after this. Call it before a store is locked for the release: else a
    /// thread that tries one renewal after the other could keep the store for a whole outage.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
