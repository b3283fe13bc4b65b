//! Watches locks, without polling them where the store can wake a watcher. The store wakes it for a
//! while only, so the watch is renewed again and again. The end of a lease wakes nobody, so the
//! observer reads the lock at that time. The caller decides what to look for, and what to report.

use super::retry::Retry;
use super::{RIDE_OUT_PAUSE, Until};
use crate::clock::Moment;
use crate::lock::{Name, Token};
use crate::rules::WATCH_KEPT;
use crate::store::net::interrupt;
use crate::store::{Error, Listener, Store, Subscription, View};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often a watch is renewed. It lasts three times as long, so two renewals in a row may fail.
pub const WATCH_EVERY: Duration = Duration::from_secs(WATCH_KEPT.as_secs() / 3);
/// Shortest time to listen, because a subscription may have to connect first. A read may be late by
/// this much.
pub const LISTEN_AT_LEAST: Duration = Duration::from_millis(250);
/// Added to the end of a lease: it is over only when its last millisecond is.
const AFTER_LEASE: Duration = Duration::from_millis(5);

/// A watcher of locks.
pub struct Observer {
    store: Box<dyn Store>,
    token: Token,
    budgets: Budgets,
    prepared: bool,
    answered: bool,
    retry: Retry,
    watched: BTreeMap<Name, Due>,
    subscription: Option<Box<dyn Subscription>>,
}

/// How long a read may take, and how often to read what wakes nobody.
#[derive(Debug, Clone, Copy)]
pub struct Budgets {
    /// Limit for one request.
    pub question: Duration,
    /// How often to read a lock that is not dlock's: its changes wake nobody.
    pub foreign: Duration,
}

/// When to read a lock and to renew its watch, if nothing is heard of it before.
#[derive(Clone, Copy)]
struct Due {
    look_at: Moment,
    watch_at: Moment,
}

impl Observer {
    /// An observer without locks. The store wakes it by this token.
    pub fn new(store: Box<dyn Store>, token: Token, budgets: Budgets) -> Self {
        let (watched, retry) = (BTreeMap::new(), Retry::after(RIDE_OUT_PAUSE));
        Self { store, token, budgets, prepared: false, answered: false, retry, watched, subscription: None }
    }

    /// The store, for other requests.
    pub fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// Watches these locks from now on, and no others. New ones are due at once.
    pub fn watch(&mut self, names: &BTreeSet<Name>) {
        let before = self.watched.len();
        self.watched.retain(|name, _| names.contains(name));
        let mut has_changed = self.watched.len() != before;
        let now = Moment::now();
        for name in names {
            self.watched.entry(name.clone()).or_insert_with(|| {
                has_changed = true;
                Due { look_at: now, watch_at: now }
            });
        }
        if has_changed {
            self.subscription = None;
        }
    }

    /// The locks that must be read now.
    pub fn due(&self) -> Vec<Name> {
        let now = Moment::now();
        let due = self.watched.iter().filter(|(_, due)| due.look_at.min(due.watch_at) <= now);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Reads a lock. If the watch is due, it is renewed before, so that no change between the two
    /// is missed.
    pub fn look(&mut self, name: &Name, deadline: Moment) -> Result<View, Error> {
        let due = self.watched.get(name).copied();
        let watches = due.is_some_and(|due| due.watch_at.passed());
        let watch_next = Moment::now().after(WATCH_EVERY);
        if watches {
            if !self.prepared {
                self.store.prepare(&self.token)?;
                self.prepared = true;
            }
            self.store.watch(name, &self.token, deadline)?;
        }
        let view = self.store.inspect(name, deadline)?;
        self.answered = true;
        self.retry.succeeded();
        let look_at = self.look_again_at(&view);
        if let Some(due) = self.watched.get_mut(name) {
            due.look_at = look_at;
            if watches {
                due.watch_at = watch_next;
            }
        }
        Ok(view)
    }

    /// When to read again for what wakes nobody, such as the end of a lease.
    fn look_again_at(&self, view: &View) -> Moment {
        // A hold without a lease left is kept only by its min-hold.
        let leases = view.holders.iter().map(|holder| holder.lease).filter(|lease| !lease.is_zero());
        let foreign = view.foreign.as_ref().map(|_| self.budgets.foreign);
        let first = leases.chain(view.left).chain(foreign).min();
        Moment::now().after(first.map_or(WATCH_EVERY, |first| first + AFTER_LEASE))
    }

    /// Puts off the next read and the watch by [`WATCH_EVERY`].
    pub fn postpone(&mut self, name: &Name) {
        let later = Moment::now().after(WATCH_EVERY);
        if let Some(due) = self.watched.get_mut(name) {
            *due = Due { look_at: later, watch_at: later };
        }
    }

    /// After a failure: reads every lock again, on new connections, and renews every watch.
    pub fn start_over(&mut self) {
        self.store.reset();
        (self.subscription, self.prepared) = (None, false);
        self.watch_all_again();
    }

    fn watch_all_again(&mut self) {
        let now = Moment::now();
        self.watched.values_mut().for_each(|due| due.watch_at = now);
    }

    /// Listens until a lock must be read, or until `until`. Returns an error only if listening
    /// again would not help.
    pub fn listen(&mut self, until: Moment) -> Result<(), Error> {
        let dues = self.watched.values().map(|due| due.look_at.min(due.watch_at));
        let Some(due) = dues.min() else {
            interrupt::sleep_until(until);
            return Ok(());
        };
        let subscription = match &mut self.subscription {
            Some(subscription) => subscription,
            none => {
                let names: Vec<Name> = self.watched.keys().cloned().collect();
                none.insert(self.store.subscribe(&names, &self.token, Listener::Watcher))
            }
        };
        match subscription.sleep(due.max(Moment::now().after(LISTEN_AT_LEAST)).min(until)) {
            Ok(true) => {
                let now = Moment::now();
                match subscription.about().and_then(|name| self.watched.get_mut(name)) {
                    Some(due) => due.look_at = now,
                    None => self.watched.values_mut().for_each(|due| due.look_at = now),
                }
            }
            Ok(false) => {}
            // The store may have lost the watch with the connection. The subscription pauses before
            // it tries again, and the reads tell whether the store is gone.
            Err(error) if error.is_transient() => self.watch_all_again(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether to go on after a failed read. A store that has never answered may never have existed.
    pub fn rides_out(&self, error: &Error, until: Until) -> bool {
        !until.is_over()
            && if self.answered { error.is_transient() } else { self.retry.rides_out(error, until) }
    }

    /// Pauses after a failed read.
    pub fn pause(&mut self) {
        let pause = self.retry.pause(self.token.secret());
        interrupt::sleep_until(Moment::now().after(pause));
    }

    /// The deadline of a read.
    pub fn deadline(&self, until: Until) -> Moment {
        let now = Moment::now();
        let deadline = now.after(self.budgets.question);
        match until {
            Until::At(end) if self.answered => deadline.min(end.max(now.after(RIDE_OUT_PAUSE))),
            _ => deadline,
        }
    }
}
