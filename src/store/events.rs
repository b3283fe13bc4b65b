//! What happened to a lock between two looks at it? The difference of two views, as events in the order in which they
//! happened. A hold that began and ended between the looks is found in the log, by its fence; of refusals only the
//! counter tells, so it is not known whose they were. Pure: who looks, how often, and what is printed is elsewhere.

use super::{View, Waiter};
use crate::exit::Ended;
use crate::lock::{Fence, Mode, Name, Owner};
use crate::rules::{Holder, LOG_KEPT, LoggedEnd, Outcome, Record, State, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// What can happen to a lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventKind {
    /// Somebody stands in the queue.
    Waiting,
    /// Somebody left the queue without the lock, or fell silent in it.
    Left,
    /// Somebody was sent home from the queue by one that came later.
    SentHome,
    /// Somebody who did not wait was refused.
    Busy,
    /// Somebody found done what it wanted the lock for.
    Done,
    /// An operator has paused it.
    Paused,
    /// It is paused no more.
    Resumed,
    /// Somebody has the lock, and knows.
    Granted,
    /// A hold is over, and this is how.
    Over(Outcome),
    /// A hold is over, and the log that would say how no longer reaches back to it.
    #[default]
    Ended,
}

/// One event. What is not known is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// When, by the store's clock, in milliseconds since 1970; where only the looks tell, that of the later one.
    pub at: u64,
    pub owner: Option<Owner>,
    /// How it wants or has the lock.
    pub mode: Option<Mode>,
    /// Its slot, of a lock with slots.
    pub slot: Option<u32>,
    pub fence: Option<Fence>,
    pub waited: Option<Duration>,
    /// How long it held the lock.
    pub held: Option<Duration>,
    pub job: Option<Ended>,
    /// Who forced the end, or asked for it.
    pub by: Option<Owner>,
    /// How many were refused or found it done; 1 for all other events.
    pub count: u64,
}

impl Event {
    fn new(kind: EventKind, at: u64) -> Self {
        Self { kind, at, count: 1, ..Self::default() }
    }

    /// Of one moment first who comes, then what becomes of the lock, in the order of the grants.
    fn order(&self) -> (u64, u8, Option<Fence>, bool) {
        let class = match self.kind {
            EventKind::Waiting => 0,
            EventKind::Left | EventKind::SentHome => 2,
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

/// What was to be seen of a lock at `since`, as far as what is seen now tells.
pub fn before(now: &View, since: u64) -> View {
    let log: Vec<_> = now.log.iter().filter(|end| end.ended < since).cloned().collect();
    let holders: Vec<_> = now.holders.iter().filter(|holder| holder.since < since).cloned().collect();
    let came_before = |waiter: &&Waiter| self::since(now, waiter) < since;
    let fences = log.iter().map(|end| end.fence).chain(holders.iter().map(|holder| holder.fence));
    View {
        now: since,
        fence: fences.max(),
        waiters: now.waiters.iter().filter(came_before).cloned().collect(),
        log,
        holders,
        ..now.clone()
    }
}

/// What happened since the lock was `seen`, which becomes what is seen `now`, so that nothing is told twice.
pub fn advance(seen: &mut View, mut now: View) -> Vec<Event> {
    let events = between(seen, &now);
    // One that was granted the lock and has not heard of it stands where it stood, or its wait would be forgotten.
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
    let mut stood = standing(old);
    events.extend(newcomers(&mut stood, new));
    events.extend(grants(old, new, &mut stood));
    // Of those that replace others only one can wait, and it does not mostly leave by itself.
    let sent_home = new.stat.superseded > old.stat.superseded;
    events.extend(stood.into_iter().map(|stood| {
        let kind = if sent_home && stood.replaces { EventKind::SentHome } else { EventKind::Left };
        Event {
            owner: Some(stood.owner.clone()),
            mode: stood.mode,
            waited: stood.since.map(|since| Duration::from_millis(new.now.saturating_sub(since))),
            ..Event::new(kind, new.now)
        }
    }));
    for (kind, before, after) in
        [(EventKind::Busy, old.stat.busy, new.stat.busy), (EventKind::Done, old.stat.done, new.stat.done)]
    {
        // A counter that is smaller than before counts from its loss on.
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

/// What the log tells.
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

/// Holds that are over and of which the log says nothing.
fn vanished<'a>(old: &'a View, new: &'a View) -> impl Iterator<Item = Event> + 'a {
    let is_over = |holder: &&Holder| {
        let fence = holder.fence;
        holder.confirmed
            && held(new, fence).is_none()
            && logged(new, fence).is_none()
            && logged(old, fence).is_none()
    };
    let has_forgotten = new.fence < old.fence;
    let is_turned_over = new.log.len() >= LOG_KEPT && new.log.iter().all(|end| is_later(old, end.fence));
    old.holders.iter().filter(is_over).map(move |holder| {
        let lease_end = old.now.saturating_add(crate::rules::millis(holder.lease));
        let (kind, at) = match new.state {
            _ if has_forgotten || new.foreign.is_some() => (EventKind::Over(Outcome::Lost), new.now),
            // The log has it when the min-hold is over, too.
            State::Cooling => (EventKind::Over(Outcome::Expired), lease_end.min(new.now)),
            _ if is_turned_over => (EventKind::Ended, new.now),
            // A hold under which no job ran leaves no trace.
            _ => (EventKind::Over(Outcome::Released), new.now),
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

/// One who stands in the queue, or was granted the lock and has not heard of it.
struct Standing<'a> {
    owner: &'a Owner,
    mode: Option<Mode>,
    since: Option<u64>,
    replaces: bool,
}

fn since(view: &View, waiter: &Waiter) -> u64 {
    view.now.saturating_sub(crate::rules::millis(waiter.waiting))
}

fn standing(view: &View) -> Vec<Standing<'_>> {
    let waiters = view.waiters.iter().map(|waiter| Standing {
        owner: &waiter.owner,
        mode: Some(waiter.mode),
        since: Some(since(view, waiter)),
        replaces: waiter.replaces,
    });
    let waits = |holder: &&Holder| view.waiters.iter().any(|waiter| waiter.owner == holder.owner);
    let unaware = view.holders.iter().filter(|holder| !holder.confirmed).filter(move |holder| !waits(holder));
    waiters
        .chain(unaware.map(|holder| Standing {
            owner: &holder.owner,
            mode: view.mode,
            since: None,
            replaces: false,
        }))
        .collect()
}

/// Takes out one of those who stood.
fn take<'a>(stood: &mut Vec<Standing<'a>>, is: impl Fn(&Standing<'a>) -> bool) -> Option<Standing<'a>> {
    stood.iter().position(is).map(|at| stood.remove(at))
}

/// Who came to wait; those who stood before and still do are taken out.
fn newcomers(stood: &mut Vec<Standing<'_>>, new: &View) -> Vec<Event> {
    let mut came = Vec::new();
    for now in standing(new) {
        let same = |before: &Standing<'_>| {
            let at = before.since.zip(now.since);
            before.owner == now.owner && at.is_none_or(|(before, now)| before == now)
        };
        // A grant that was not seen to be waited for is told when it is confirmed.
        if let (None, Some(since)) = (take(stood, same), now.since) {
            came.push(Event {
                owner: Some(now.owner.clone()),
                mode: now.mode,
                waited: Some(Duration::from_millis(new.now.saturating_sub(since))),
                ..Event::new(EventKind::Waiting, since)
            });
        }
    }
    came
}

/// Who has the lock since, or had it in between; they stand in the queue no more.
fn grants(old: &View, new: &View, stood: &mut Vec<Standing<'_>>) -> Vec<Event> {
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
        let waited = take(stood, |stood| Some(stood.owner) == grant.owner.as_ref());
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
