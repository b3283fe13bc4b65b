//! What happened to a lock between two views of it, as events in order of time. A hold that began
//! and ended in between is found in the log, by its fence. Refusals are only counted, so their
//! owners are not known. Pure: polling and printing are elsewhere.

use super::{View, Waiter};
use crate::exit::Ended;
use crate::lock::{Fence, Mode, Name, Owner};
use crate::rules::{Holder, LoggedEnd, Outcome, Record, State, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// The kinds of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventKind {
    /// A waiter joined the queue.
    Waiting,
    /// A waiter left the queue without the lock, or became stale.
    Left,
    /// A waiter was superseded by a later one.
    Superseded,
    /// A caller that does not wait was refused.
    Busy,
    /// A caller was refused because its --once-per job had been done.
    Done,
    /// An operator has paused the lock.
    Paused,
    /// The lock is no longer paused.
    Resumed,
    /// A waiter or caller has confirmed its grant.
    Granted,
    /// A hold ended with this outcome.
    Over(Outcome),
    /// A hold ended, and the log no longer has its outcome.
    #[default]
    Ended,
}

/// An event. What is not known is None.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// Time by the store's clock, in milliseconds since 1970. If nothing records it, that of the
    /// later view.
    pub at: u64,
    pub owner: Option<Owner>,
    /// Mode of the wait or the hold.
    pub mode: Option<Mode>,
    /// Slot of the hold, for a lock with slots.
    pub slot: Option<u32>,
    pub fence: Option<Fence>,
    pub waited: Option<Duration>,
    /// Length of the hold.
    pub held: Option<Duration>,
    pub job: Option<Ended>,
    /// The owner who forced the end or asked for it.
    pub by: Option<Owner>,
    /// Number of refusals; 1 for all other events.
    pub count: u64,
}

impl Event {
    fn new(kind: EventKind, at: u64) -> Self {
        Self { kind, at, count: 1, ..Self::default() }
    }

    /// Sorts events of the same moment: first new waiters, then changes of the lock in the order of
    /// grants.
    fn order(&self) -> (u64, u8, Option<Fence>, bool) {
        let class = match self.kind {
            EventKind::Waiting => 0,
            EventKind::Left | EventKind::Superseded => 2,
            EventKind::Busy | EventKind::Done => 3,
            _ => 1,
        };
        (self.at, class, self.fence, self.kind != EventKind::Granted)
    }
}

/// The view of a lock that was never used.
pub fn unused(name: Name) -> View {
    Record::default().inspect(&name, Time(0))
}

/// The view of a lock at `since`, as far as the current view tells.
pub fn before(now: &View, since: u64) -> View {
    let log: Vec<_> = now.log.iter().filter(|end| end.ended < since).cloned().collect();
    let holders: Vec<_> = now.holders.iter().filter(|holder| holder.since < since).cloned().collect();
    let arrived_before = |waiter: &&Waiter| self::since(now, waiter) < since;
    let fences = log.iter().map(|end| end.fence).chain(holders.iter().map(|holder| holder.fence));
    View {
        now: since,
        fence: fences.max(),
        waiters: now.waiters.iter().filter(arrived_before).cloned().collect(),
        log,
        holders,
        ..now.clone()
    }
}

/// The events since `seen`, which then becomes `now`, so that no event is reported twice.
pub fn advance(seen: &mut View, mut now: View) -> Vec<Event> {
    let events = between(seen, &now);
    // A waiter with an unconfirmed grant stays in the view as a waiter. Otherwise its waiting time
    // would be lost.
    for holder in now.holders.iter().filter(|holder| !holder.confirmed) {
        let is_same = |waiter: &&Waiter| waiter.owner == holder.owner;
        if let Some(waiter) = seen.waiters.iter().find(is_same)
            && !now.waiters.iter().any(|waiter| is_same(&waiter))
        {
            let waiting = Duration::from_millis(now.now.saturating_sub(since(seen, waiter)));
            now.waiters.push(Waiter { waiting, ..waiter.clone() });
        }
    }
    *seen = now;
    events
}

fn between(old: &View, new: &View) -> Vec<Event> {
    let mut events: Vec<Event> = ends(old, new).collect();
    events.extend(vanished(old, new));
    let mut unmatched = pending(old);
    events.extend(newcomers(&mut unmatched, new));
    events.extend(grants(old, new, &mut unmatched));
    // Only one waiter with --replace can wait at a time, and it rarely leaves by itself.
    let superseded = new.stat.superseded > old.stat.superseded;
    events.extend(unmatched.into_iter().map(|waiter| {
        let kind = if superseded && waiter.replaces { EventKind::Superseded } else { EventKind::Left };
        Event {
            owner: Some(waiter.owner.clone()),
            mode: waiter.mode,
            waited: waiter.since.map(|since| Duration::from_millis(new.now.saturating_sub(since))),
            ..Event::new(kind, new.now)
        }
    }));
    for (kind, before, after) in
        [(EventKind::Busy, old.stat.busy, new.stat.busy), (EventKind::Done, old.stat.done, new.stat.done)]
    {
        // A smaller counter than before was lost, and has started again at 0.
        let count = after.checked_sub(before).unwrap_or(after);
        if count > 0 {
            events.push(Event { count, ..Event::new(kind, new.now) });
        }
    }
    match (&old.paused, &new.paused) {
        (before, Some(pause)) if before.as_ref() != Some(pause) => {
            let by = Some(pause.by.clone());
            events.push(Event { owner: by, ..Event::new(EventKind::Paused, pause.since) });
        }
        (Some(pause), None) => {
            events.push(Event::new(EventKind::Resumed, pause.until.min(new.now)));
        }
        _ => {}
    }
    events.sort_by_key(Event::order);
    events
}

fn logged(view: &View, fence: Fence) -> Option<&LoggedEnd> {
    view.log.iter().find(|end| end.fence == fence)
}

fn held(view: &View, fence: Fence) -> Option<&Holder> {
    view.holders.iter().find(|holder| holder.fence == fence)
}

/// Whether a grant came after the view.
fn is_later(view: &View, fence: Fence) -> bool {
    view.fence.is_none_or(|last| fence > last)
}

/// Whether the store lost its records after the older view. The last fence may be greater all the same,
/// because a waiter was granted the lock since. Then the totals lack grants.
fn has_forgotten(old: &View, new: &View) -> bool {
    let ended = new.log.iter().map(|end| end.fence);
    let held = new.holders.iter().filter(|holder| holder.confirmed).map(|holder| holder.fence);
    let since: u64 = ended.chain(held).filter(|fence| is_later(old, *fence)).map(|_| 1).sum();
    new.fence < old.fence || new.stat.grants < old.stat.grants.saturating_add(since)
}

/// Ends in the log.
fn ends<'a>(old: &'a View, new: &'a View) -> impl Iterator<Item = Event> + 'a {
    let is_news = |end: &&LoggedEnd| {
        logged(old, end.fence).is_none() && (held(old, end.fence).is_some() || is_later(old, end.fence))
    };
    new.log.iter().filter(is_news).map(|end| Event {
        owner: Some(end.owner.clone()),
        slot: held(old, end.fence).and_then(|holder| holder.slot),
        mode: held(old, end.fence).and(old.mode),
        fence: Some(end.fence),
        waited: Some(Duration::from_millis(end.waited)),
        held: Some(Duration::from_millis(end.ended.saturating_sub(end.since))),
        job: end.job,
        by: end.by.clone(),
        ..Event::new(EventKind::Over(end.outcome), end.ended)
    })
}

/// Ended holds that are missing in the log.
fn vanished<'a>(old: &'a View, new: &'a View) -> impl Iterator<Item = Event> + 'a {
    let is_over = |holder: &&Holder| {
        let fence = holder.fence;
        holder.confirmed
            && held(new, fence).is_none()
            && logged(new, fence).is_none()
            && logged(old, fence).is_none()
    };
    let has_forgotten = has_forgotten(old, new);
    old.holders.iter().filter(is_over).map(move |holder| {
        let lease_end = old.now.saturating_add(crate::rules::millis(holder.lease));
        let (kind, at) = match new.state {
            _ if has_forgotten || new.foreign.is_some() => (EventKind::Over(Outcome::Lost), new.now),
            // The log gets this end when the min-hold is over.
            State::Cooling => (EventKind::Over(Outcome::Expired), lease_end.min(new.now)),
            // The log has turned over, or no job ran under the hold, which is then not logged.
            _ => (EventKind::Ended, new.now),
        };
        Event {
            owner: Some(holder.owner.clone()),
            mode: old.mode,
            slot: holder.slot,
            fence: Some(holder.fence),
            held: Some(Duration::from_millis(at.saturating_sub(holder.since))),
            ..Event::new(kind, at)
        }
    })
}

/// A waiter, or a holder with an unconfirmed grant.
struct Pending<'a> {
    owner: &'a Owner,
    mode: Option<Mode>,
    since: Option<u64>,
    replaces: bool,
}

fn since(view: &View, waiter: &Waiter) -> u64 {
    view.now.saturating_sub(crate::rules::millis(waiter.waiting))
}

fn pending(view: &View) -> Vec<Pending<'_>> {
    let waiters = view.waiters.iter().map(|waiter| Pending {
        owner: &waiter.owner,
        mode: Some(waiter.mode),
        since: Some(since(view, waiter)),
        replaces: waiter.replaces,
    });
    let waits = |holder: &&Holder| view.waiters.iter().any(|waiter| waiter.owner == holder.owner);
    let unaware = view.holders.iter().filter(|holder| !holder.confirmed).filter(move |holder| !waits(holder));
    waiters
        .chain(unaware.map(|holder| Pending {
            owner: &holder.owner,
            mode: view.mode,
            since: None,
            replaces: false,
        }))
        .collect()
}

/// Removes and returns one of the waiters.
fn take<'a>(unmatched: &mut Vec<Pending<'a>>, is: impl Fn(&Pending<'a>) -> bool) -> Option<Pending<'a>> {
    unmatched.iter().position(is).map(|at| unmatched.remove(at))
}

/// New waiters. Waiters that are in both views are removed from `unmatched`.
fn newcomers(unmatched: &mut Vec<Pending<'_>>, new: &View) -> Vec<Event> {
    let mut arrived = Vec::new();
    for now in pending(new) {
        let same = |before: &Pending<'_>| {
            let at = before.since.zip(now.since);
            before.owner == now.owner && at.is_none_or(|(before, now)| before == now)
        };
        // A grant without a known wait is reported when it is confirmed.
        if let (None, Some(since)) = (take(unmatched, same), now.since) {
            arrived.push(Event {
                owner: Some(now.owner.clone()),
                mode: now.mode,
                waited: Some(Duration::from_millis(new.now.saturating_sub(since))),
                ..Event::new(EventKind::Waiting, since)
            });
        }
    }
    arrived
}

/// Grants since the old view, also of holds that have ended. Their waiters are removed from
/// `unmatched`.
fn grants(old: &View, new: &View, unmatched: &mut Vec<Pending<'_>>) -> Vec<Event> {
    let is_news = |fence: Fence| {
        let before = held(old, fence);
        logged(old, fence).is_none()
            && before.is_none_or(|holder| !holder.confirmed)
            && (before.is_some() || is_later(old, fence))
    };
    let mut grants = BTreeMap::new();
    for end in new.log.iter().filter(|end| is_news(end.fence)) {
        grants.insert(
            end.fence,
            Event {
                owner: Some(end.owner.clone()),
                waited: Some(Duration::from_millis(end.waited)),
                ..Event::new(EventKind::Granted, end.since)
            },
        );
    }
    for holder in new.holders.iter().filter(|holder| holder.confirmed && is_news(holder.fence)) {
        let grant =
            grants.entry(holder.fence).or_insert_with(|| Event::new(EventKind::Granted, holder.since));
        grant.owner = Some(holder.owner.clone());
        (grant.mode, grant.slot) = (new.mode, holder.slot);
    }
    for (fence, grant) in &mut grants {
        grant.fence = Some(*fence);
        let waited = take(unmatched, |waiter| Some(waiter.owner) == grant.owner.as_ref());
        if let Some(since) = waited.and_then(|waited| waited.since)
            && grant.waited.is_none()
        {
            grant.waited = Some(Duration::from_millis(grant.at.saturating_sub(since)));
        }
    }
    grants.into_values().collect()
}

#[cfg(test)]
mod tests;
