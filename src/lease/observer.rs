//! How does one see locks change without asking all the time? The store wakes whoever watches, for a while, so that has to
//! be said again and again; and when a lease ends nobody need notice, so one looks by oneself then. What is looked for, and
//! what is told of it, is the caller's affair.

use super::RIDE_OUT_PAUSE;
use crate::clock::{Moment, sleep_until};
use crate::lock::{Name, Token};
use crate::rules::WATCH_KEPT;
use crate::store::{Error, Listener, Store, Subscription, View};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often it is said that one watches. Two of three may be late.
pub const WATCH_EVERY: Duration = Duration::from_secs(WATCH_KEPT.as_secs() / 3);
/// A subscription has at least so long, or it could not even connect over a long way; what is due may be looked at so late.
pub const LISTEN_AT_LEAST: Duration = Duration::from_millis(250);
/// A lease is over when its last millisecond is.
const AFTER_LEASE: Duration = Duration::from_millis(5);

/// One who looks on.
pub struct Observer {
    store: Box<dyn Store>,
    token: Token,
    budgets: Budgets,
    prepared: bool,
    answered: bool,
    watched: BTreeMap<Name, Due>,
    subscription: Option<Box<dyn Subscription>>,
}

/// What looking may cost.
#[derive(Debug, Clone, Copy)]
pub struct Budgets {
    /// How long one question may take.
    pub question: Duration,
    /// How often to look at what is not dlock's, of which there is no news.
    pub foreign: Duration,
}

/// When something is to be done about a lock, whether it is heard of or not.
#[derive(Clone, Copy)]
struct Due {
    look_at: Moment,
    watch_at: Moment,
}

/// What a failure means before the store has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The end.
    Counts,
    /// An outage, that is waited out.
    RiddenOut,
}

/// What there is to say while one waits for something to be seen.
#[derive(Debug)]
pub enum Remark {
    /// The store does not answer any more.
    Trouble(Error),
    Recovered,
}

impl Observer {
    /// One who watches nothing yet; the token is what is woken.
    pub fn new(store: Box<dyn Store>, token: Token, budgets: Budgets) -> Self {
        let watched = BTreeMap::new();
        Self { store, token, budgets, prepared: false, answered: false, watched, subscription: None }
    }

    /// The store, for what there is to do beside.
    pub fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// Watches these locks from now on, and no others. New ones are to be looked at now.
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

    /// The locks that are to be looked at now.
    pub fn due(&self) -> Vec<Name> {
        let now = Moment::now();
        let due = self.watched.iter().filter(|(_, due)| due.look_at.min(due.watch_at) <= now);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// A look, after it was said that one watches if it is time to: so nothing comes between.
    pub fn look(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let due = self.watched.get(name).copied();
        let watches = due.is_some_and(|due| due.watch_at.passed());
        let watch_next = Moment::now().after(WATCH_EVERY);
        if watches {
            if !self.prepared {
                self.store.prepare(&self.token)?;
                self.prepared = true;
            }
            self.store.watch(name, &self.token, by)?;
        }
        let view = self.store.inspect(name, by)?;
        self.answered = true;
        let look_at = self.look_again_at(&view);
        if let Some(due) = self.watched.get_mut(name) {
            due.look_at = look_at;
            if watches {
                due.watch_at = watch_next;
            }
        }
        Ok(view)
    }

    /// When something changes that nobody is woken for.
    fn look_again_at(&self, view: &View) -> Moment {
        // One whose lease is over and that is still there is kept by its min-hold.
        let leases = view.holders.iter().map(|holder| holder.lease).filter(|lease| !lease.is_zero());
        let foreign = view.foreign.as_ref().map(|_| self.budgets.foreign);
        let first = leases.chain(view.left).chain(foreign).min();
        Moment::now().after(first.map_or(WATCH_EVERY, |first| first + AFTER_LEASE))
    }

    /// Leaves a lock alone until it is time to say again that one watches.
    pub fn postpone(&mut self, name: &Name) {
        let later = Moment::now().after(WATCH_EVERY);
        if let Some(due) = self.watched.get_mut(name) {
            *due = Due { look_at: later, watch_at: later };
        }
    }

    /// After a failure: everything is looked at, on new connections, and the store told again that one watches.
    pub fn start_over(&mut self) {
        self.store.reset();
        (self.subscription, self.prepared) = (None, false);
        self.watch_all_again();
    }

    fn watch_all_again(&mut self) {
        let now = Moment::now();
        self.watched.values_mut().for_each(|due| due.watch_at = now);
    }

    /// Listens until there is something to look at, at most until `until`. An error is one that listening again does not
    /// mend.
    pub fn listen(&mut self, until: Moment) -> Result<(), Error> {
        let dues = self.watched.values().map(|due| due.look_at.min(due.watch_at));
        let Some(due) = dues.min() else {
            sleep_until(until);
            return Ok(());
        };
        let subscription = match &mut self.subscription {
            Some(subscription) => subscription,
            none => {
                let names: Vec<Name> = self.watched.keys().cloned().collect();
                none.insert(self.store.subscribe(&names, &self.token, Listener::Watcher)?)
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
            // What was said to the store may be lost with the connection. It rests before it tries again, and
            // whether the store is gone the looks tell.
            Err(error) if error.is_transient() => self.watch_all_again(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Looks at a lock until `looked_for` finds something, at most until `end`, and once in any case. Nothing: the time is
    /// over.
    pub fn wait_for<T>(
        &mut self,
        name: &Name,
        end: Option<Moment>,
        first: First,
        mut looked_for: impl FnMut(View) -> Option<T>,
        mut remark: impl FnMut(Remark),
    ) -> Result<Option<T>, Error> {
        let is_over = || end.is_some_and(Moment::passed);
        let only = BTreeSet::from([name.clone()]);
        let mut troubled = false;
        loop {
            match self.look(name, self.by(end)) {
                Ok(view) => {
                    if std::mem::take(&mut troubled) {
                        remark(Remark::Recovered);
                    }
                    if let Some(it) = looked_for(view) {
                        return Ok(Some(it));
                    }
                    if is_over() {
                        return Ok(None);
                    }
                    // The first look is for one who finds at once what is looked for. The next one misses nothing.
                    self.watch(&only);
                }
                Err(error) if self.rides_out(&error, first) && !is_over() => {
                    self.start_over();
                    self.watch(&only);
                    if !std::mem::replace(&mut troubled, true) {
                        remark(Remark::Trouble(error));
                    }
                    sleep_until(Moment::now().after(RIDE_OUT_PAUSE));
                }
                Err(error) => return Err(error),
            }
            while self.due().is_empty() && !is_over() {
                let until = end.unwrap_or_else(|| Moment::now().after(WATCH_EVERY));
                if self.listen(until).is_err() {
                    // Without it, looking now and then has to do.
                    sleep_until(until.min(Moment::now().after(RIDE_OUT_PAUSE)));
                    break;
                }
            }
        }
    }

    fn rides_out(&self, error: &Error, first: First) -> bool {
        match (self.answered, first) {
            (true, _) => error.is_transient(),
            (false, First::RiddenOut) => error.is_outage(),
            (false, First::Counts) => false,
        }
    }

    fn by(&self, end: Option<Moment>) -> Moment {
        let now = Moment::now();
        let by = now.after(self.budgets.question);
        match end {
            Some(end) if self.answered => by.min(end.max(now.after(RIDE_OUT_PAUSE))),
            _ => by,
        }
    }
}
