//! Every event between two views is reported once, and in order.

use super::*;
use crate::lock::Key;

const NOW: u64 = 1_800_000_000_000;

fn name() -> Name {
    let name = Key::new("k").and_then(|key| Name::new("", &key));
    name.unwrap_or_else(|why| unreachable!("a good name: {why}"))
}

fn owner(pid: u32) -> Owner {
    Owner { pid, ..Owner::default() }
}

/// A view this many milliseconds after the beginning; the last grant had this fence.
fn view(after: u64, fence: u64) -> View {
    View { now: NOW + after, fence: (fence > 0).then_some(Fence(fence)), ..unused(name()) }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl View {
    /// Holders with these fences. A fence is also the start of its hold, in milliseconds after the
    /// beginning, and the holder's process id.
    fn held(mut self, fences: &[u64]) -> Self {
        self.state = State::Held;
        self.mode = Some(Mode::Exclusive);
        self.holders = fences
            .iter()
            .map(|fence| Holder {
                owner: owner(u32::try_from(*fence).unwrap_or(0)),
                fence: Fence(*fence),
                since: NOW + fence,
                held: ms(self.now.saturating_sub(NOW + fence)),
                waited: Duration::ZERO,
                lease: ms(1000),
                slot: None,
                asked: None,
                superseded: false,
                during_pause: false,
                confirmed: true,
            })
            .collect();
        self
    }

    fn unaware(mut self) -> Self {
        self.holders.iter_mut().for_each(|holder| holder.confirmed = false);
        self
    }

    /// Ends, newest first: fence, time, outcome.
    fn log(mut self, ends: &[(u64, u64, Outcome)]) -> Self {
        self.log = ends
            .iter()
            .map(|(fence, ended, outcome)| LoggedEnd {
                outcome: *outcome,
                owner: owner(u32::try_from(*fence).unwrap_or(0)),
                fence: Fence(*fence),
                since: NOW + fence,
                ended: NOW + ended,
                waited: 0,
                job: None,
                by: None,
                during_pause: false,
            })
            .collect();
        self
    }

    /// Waiters: process id and time of arrival.
    fn waiters(mut self, waiters: &[(u32, u64)]) -> Self {
        self.waiters = waiters
            .iter()
            .map(|(pid, since)| Waiter {
                owner: owner(*pid),
                mode: Mode::Exclusive,
                replaces: true,
                during_pause: false,
                waiting: ms(self.now.saturating_sub(NOW + since)),
            })
            .collect();
        self
    }

    fn busy(mut self, busy: u64) -> Self {
        self.stat.busy = busy;
        self
    }

    fn grants(mut self, grants: u64) -> Self {
        self.stat.grants = grants;
        self
    }

    fn state(mut self, state: State) -> Self {
        self.state = state;
        self
    }
}

/// The events: kind, process id, time.
fn reported(old: &View, new: &View) -> Vec<(EventKind, Option<u32>, u64)> {
    assert_eq!(between(new, new), [], "nothing is reported twice");
    let short = |event: Event| (event.kind, event.owner.map(|owner| owner.pid), event.at - NOW);
    between(old, new).into_iter().map(short).collect()
}

#[test]
fn a_hold_comes_and_goes() {
    let (free, held) = (view(0, 0), view(20, 10).held(&[10]));
    assert_eq!(reported(&free, &held), [(EventKind::Granted, Some(10), 10)]);
    let over = view(60, 10).log(&[(10, 50, Outcome::Released)]);
    assert_eq!(reported(&held, &over), [(EventKind::Over(Outcome::Released), Some(10), 50)]);
    for (outcome, kind) in [
        (Outcome::Expired, EventKind::Over(Outcome::Expired)),
        (Outcome::Lost, EventKind::Over(Outcome::Lost)),
        (Outcome::Forced, EventKind::Over(Outcome::Forced)),
    ] {
        assert_eq!(reported(&held, &view(60, 10).log(&[(10, 50, outcome)]))[0].0, kind);
    }
}

#[test]
fn holds_between_two_views_are_reported_in_order() {
    let old = view(15, 10).held(&[10]).log(&[(5, 6, Outcome::Released)]);
    let log = [
        (30, 40, Outcome::Expired),
        (20, 20, Outcome::Released),
        (10, 20, Outcome::Forced),
        (5, 6, Outcome::Released),
    ];
    let new = view(60, 40).held(&[40]).log(&log);
    assert_eq!(
        reported(&old, &new),
        [
            (EventKind::Over(Outcome::Forced), Some(10), 20),
            (EventKind::Granted, Some(20), 20),
            (EventKind::Over(Outcome::Released), Some(20), 20),
            (EventKind::Granted, Some(30), 30),
            (EventKind::Over(Outcome::Expired), Some(30), 40),
            (EventKind::Granted, Some(40), 40),
        ]
    );
}

#[test]
fn a_wait_is_remembered_until_its_grant_is_reported() {
    let mut seen = view(20, 10).held(&[10]).waiters(&[(30, 15)]);
    assert_eq!(advance(&mut seen, view(31, 30).held(&[30]).unaware()).len(), 1);
    assert_eq!(advance(&mut seen, view(32, 30).held(&[30]).unaware()), []);
    let reported = advance(&mut seen, view(33, 30).held(&[30]));
    assert_eq!((reported.len(), reported[0].kind, reported[0].waited), (1, EventKind::Granted, Some(ms(15))));
    assert_eq!(advance(&mut seen, view(34, 30).held(&[30])), []);
    // A waiter that never confirms is remembered until its leaving is reported.
    let mut seen = view(20, 10).held(&[10]).waiters(&[(30, 15)]);
    advance(&mut seen, view(31, 30).held(&[30]).unaware());
    let reported = advance(&mut seen, view(99, 30));
    assert_eq!((reported.len(), reported[0].kind, reported[0].waited), (1, EventKind::Left, Some(ms(84))));
}

#[test]
fn a_grant_is_reported_when_it_is_confirmed() {
    let waiting = view(20, 10).held(&[10]).waiters(&[(30, 15)]);
    let log = [(10, 30, Outcome::Released)];
    let woken = view(31, 30).held(&[30]).unaware().log(&log);
    assert_eq!(reported(&waiting, &woken), [(EventKind::Over(Outcome::Released), Some(10), 30)]);
    let there = view(32, 30).held(&[30]).log(&log);
    assert_eq!(reported(&woken, &there), [(EventKind::Granted, Some(30), 30)]);
    assert_eq!(reported(&waiting, &there).last(), Some(&(EventKind::Granted, Some(30), 30)));
    assert_eq!(between(&waiting, &there).last().and_then(|event| event.waited), Some(ms(15)));
    // A waiter that died before it confirmed has left.
    let gone = view(99, 30).log(&log);
    assert_eq!(reported(&woken, &gone), [(EventKind::Left, Some(30), 99)]);
    // A waiter that lost one of several locks before it confirmed is back at its place in the
    // queue.
    let back = view(99, 30).log(&log).waiters(&[(30, 15)]);
    assert_eq!(reported(&woken, &back), []);
}

#[test]
fn waiters_come_and_leave() {
    let none = view(10, 5).held(&[5]);
    let two = view(20, 5).held(&[5]).waiters(&[(7, 11), (8, 12)]);
    assert_eq!(reported(&none, &two), [(EventKind::Waiting, Some(7), 11), (EventKind::Waiting, Some(8), 12)]);
    let one = view(30, 5).held(&[5]).waiters(&[(8, 12)]);
    assert_eq!(reported(&two, &one), [(EventKind::Left, Some(7), 30)]);
    assert_eq!(between(&two, &one)[0].waited, Some(ms(19)));
    // The same process again: a script that gave up and tries again.
    let again = view(40, 5).held(&[5]).waiters(&[(8, 35)]);
    assert_eq!(reported(&one, &again), [(EventKind::Waiting, Some(8), 35), (EventKind::Left, Some(8), 40)]);
}

#[test]
fn refusals_are_counted() {
    let (old, new) = (view(10, 5).busy(3), view(20, 5).busy(5));
    assert_eq!(reported(&old, &new), [(EventKind::Busy, None, 20)]);
    assert_eq!(between(&old, &new)[0].count, 2);
    assert_eq!(between(&new, &view(30, 5).busy(1))[0].count, 1, "the counter was lost");
}

#[test]
fn a_revoked_holder_is_reported_once() {
    let held = view(20, 10).held(&[10]);
    let revoked = view(30, 10).held(&[10]).state(State::Revoked).log(&[(10, 30, Outcome::Forced)]);
    assert_eq!(reported(&held, &revoked), [(EventKind::Over(Outcome::Forced), Some(10), 30)]);
    assert_eq!(reported(&revoked, &view(40, 10).log(&[(10, 30, Outcome::Forced)])), []);
}

#[test]
fn holds_missing_in_the_log_are_reported() {
    let held = view(20, 10).held(&[10]);
    // No job ran under it.
    assert_eq!(reported(&held, &view(30, 10)), [(EventKind::Ended, Some(10), 30)]);
    // The store was restarted, or failed over to a server that is behind.
    assert_eq!(reported(&held, &view(30, 0)), [(EventKind::Over(Outcome::Lost), Some(10), 30)]);
    assert_eq!(reported(&held, &view(30, 9)), [(EventKind::Over(Outcome::Lost), Some(10), 30)]);
    // The same, and a waiter was granted the lock there.
    let known = held.clone().grants(3);
    let (lost, granted) =
        ((EventKind::Over(Outcome::Lost), Some(10), 40), (EventKind::Granted, Some(30), 30));
    let next = |grants| view(40, 30).held(&[30]).grants(grants);
    assert_eq!(reported(&known, &next(1)), [granted, lost]);
    assert_eq!(reported(&known, &next(3)), [granted, lost]);
    let over = view(40, 30).log(&[(30, 35, Outcome::Released)]).grants(1);
    assert_eq!(reported(&known, &over)[2], lost);
    // The store knows of the earlier grants: no job ran under the hold.
    assert_eq!(reported(&known, &next(4)), [granted, (EventKind::Ended, Some(10), 40)]);
    // The lease expired during the min-hold. The log gets the end after that, and it is no news
    // then.
    let cooling = view(2000, 10).state(State::Cooling);
    assert_eq!(reported(&held, &cooling), [(EventKind::Over(Outcome::Expired), Some(10), 1020)]);
    assert_eq!(reported(&cooling, &view(9000, 10).log(&[(10, 1020, Outcome::Expired)])), []);
    // More holds have ended since than the log keeps.
    let many: Vec<_> = (100..164).rev().map(|fence| (fence, fence, Outcome::Released)).collect();
    let later = reported(&held, &view(200, 163).log(&many).grants(64));
    assert_eq!(later.len(), 2 * 64 + 1);
    assert_eq!(later.last(), Some(&(EventKind::Ended, Some(10), 200)));
}

#[test]
fn a_store_that_is_behind_repeats_no_events() {
    let log = [(10, 20, Outcome::Released), (5, 6, Outcome::Released)];
    let old = view(30, 10).log(&log);
    assert_eq!(reported(&old, &view(40, 5).log(&log[1..])), []);
    assert_eq!(reported(&view(30, 10).log(&log[..1]), &view(40, 10).log(&log)), []);
}
