//! Is everything told that happened between two looks, once, and in its order?

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

/// A view of a lock whose last grant had this fence, so many milliseconds after the beginning.
fn view(after: u64, fence: u64) -> View {
    View { now: NOW + after, fence: (fence > 0).then_some(Fence(fence)), ..unused(name()) }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl View {
    /// Held by the grants with these fences, each since its fence in milliseconds after the beginning, by the process
    /// of the same number.
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
                lease: ms(1000),
                slot: None,
                asked: None,
                superseded: false,
                confirmed: true,
            })
            .collect();
        self
    }

    fn unaware(mut self) -> Self {
        self.holders.iter_mut().for_each(|holder| holder.confirmed = false);
        self
    }

    /// The newest first: fence, when it ended, how.
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
            })
            .collect();
        self
    }

    /// Process, and when it came.
    fn waiters(mut self, waiters: &[(u32, u64)]) -> Self {
        self.waiters = waiters
            .iter()
            .map(|(pid, since)| Waiter {
                owner: owner(*pid),
                mode: Mode::Exclusive,
                replaces: true,
                waiting: ms(self.now.saturating_sub(NOW + since)),
            })
            .collect();
        self
    }

    fn busy(mut self, busy: u64) -> Self {
        self.stat.busy = busy;
        self
    }

    fn state(mut self, state: State) -> Self {
        self.state = state;
        self
    }
}

/// What happened, to whom, and when.
fn told(old: &View, new: &View) -> Vec<(EventKind, Option<u32>, u64)> {
    assert_eq!(between(new, new), [], "nothing is told twice");
    let short = |event: Event| (event.kind, event.owner.map(|owner| owner.pid), event.at - NOW);
    between(old, new).into_iter().map(short).collect()
}

#[test]
fn a_hold_comes_and_goes() {
    let (free, held) = (view(0, 0), view(20, 10).held(&[10]));
    assert_eq!(told(&free, &held), [(EventKind::Granted, Some(10), 10)]);
    let over = view(60, 10).log(&[(10, 50, Outcome::Released)]);
    assert_eq!(told(&held, &over), [(EventKind::Over(Outcome::Released), Some(10), 50)]);
    for (outcome, kind) in [
        (Outcome::Expired, EventKind::Over(Outcome::Expired)),
        (Outcome::Lost, EventKind::Over(Outcome::Lost)),
        (Outcome::Forced, EventKind::Over(Outcome::Forced)),
    ] {
        assert_eq!(told(&held, &view(60, 10).log(&[(10, 50, outcome)]))[0].0, kind);
    }
}

#[test]
fn holds_between_two_looks_are_told_in_their_order() {
    let old = view(15, 10).held(&[10]).log(&[(5, 6, Outcome::Released)]);
    let log = [
        (30, 40, Outcome::Expired),
        (20, 20, Outcome::Released),
        (10, 20, Outcome::Forced),
        (5, 6, Outcome::Released),
    ];
    let new = view(60, 40).held(&[40]).log(&log);
    assert_eq!(
        told(&old, &new),
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
fn a_wait_is_remembered_until_its_grant_is_told() {
    let mut seen = view(20, 10).held(&[10]).waiters(&[(30, 15)]);
    assert_eq!(advance(&mut seen, view(31, 30).held(&[30]).unaware()).len(), 1);
    assert_eq!(advance(&mut seen, view(32, 30).held(&[30]).unaware()), []);
    let told = advance(&mut seen, view(33, 30).held(&[30]));
    assert_eq!((told.len(), told[0].kind, told[0].waited), (1, EventKind::Granted, Some(ms(15))));
    assert_eq!(advance(&mut seen, view(34, 30).held(&[30])), []);
    // And of one that never comes, until it is told that it left.
    let mut seen = view(20, 10).held(&[10]).waiters(&[(30, 15)]);
    advance(&mut seen, view(31, 30).held(&[30]).unaware());
    let told = advance(&mut seen, view(99, 30));
    assert_eq!((told.len(), told[0].kind, told[0].waited), (1, EventKind::Left, Some(ms(84))));
}

#[test]
fn a_grant_is_told_when_its_holder_knows() {
    let waiting = view(20, 10).held(&[10]).waiters(&[(30, 15)]);
    let log = [(10, 30, Outcome::Released)];
    let woken = view(31, 30).held(&[30]).unaware().log(&log);
    assert_eq!(told(&waiting, &woken), [(EventKind::Over(Outcome::Released), Some(10), 30)]);
    let there = view(32, 30).held(&[30]).log(&log);
    assert_eq!(told(&woken, &there), [(EventKind::Granted, Some(30), 30)]);
    assert_eq!(told(&waiting, &there).last(), Some(&(EventKind::Granted, Some(30), 30)));
    assert_eq!(between(&waiting, &there).last().and_then(|event| event.waited), Some(ms(15)));
    // One that was dead by then has left, in whatever it was last seen.
    let gone = view(99, 30).log(&log);
    assert_eq!(told(&woken, &gone), [(EventKind::Left, Some(30), 99)]);
    // And one that lost one of several locks before it knew is back in the queue, where it was.
    let back = view(99, 30).log(&log).waiters(&[(30, 15)]);
    assert_eq!(told(&woken, &back), []);
}

#[test]
fn waiters_come_and_leave() {
    let none = view(10, 5).held(&[5]);
    let two = view(20, 5).held(&[5]).waiters(&[(7, 11), (8, 12)]);
    assert_eq!(told(&none, &two), [(EventKind::Waiting, Some(7), 11), (EventKind::Waiting, Some(8), 12)]);
    let one = view(30, 5).held(&[5]).waiters(&[(8, 12)]);
    assert_eq!(told(&two, &one), [(EventKind::Left, Some(7), 30)]);
    assert_eq!(between(&two, &one)[0].waited, Some(ms(19)));
    // The same process, once more: a script that gave up and tries again.
    let again = view(40, 5).held(&[5]).waiters(&[(8, 35)]);
    assert_eq!(told(&one, &again), [(EventKind::Waiting, Some(8), 35), (EventKind::Left, Some(8), 40)]);
}

#[test]
fn refusals_are_counted() {
    let (old, new) = (view(10, 5).busy(3), view(20, 5).busy(5));
    assert_eq!(told(&old, &new), [(EventKind::Busy, None, 20)]);
    assert_eq!(between(&old, &new)[0].count, 2);
    assert_eq!(between(&new, &view(30, 5).busy(1))[0].count, 1, "the counter was lost");
}

#[test]
fn a_revoked_holder_is_told_of_once() {
    let held = view(20, 10).held(&[10]);
    let revoked = view(30, 10).held(&[10]).state(State::Revoked).log(&[(10, 30, Outcome::Forced)]);
    assert_eq!(told(&held, &revoked), [(EventKind::Over(Outcome::Forced), Some(10), 30)]);
    assert_eq!(told(&revoked, &view(40, 10).log(&[(10, 30, Outcome::Forced)])), []);
}

#[test]
fn a_hold_without_a_trace() {
    let held = view(20, 10).held(&[10]);
    // No job ran under it.
    assert_eq!(told(&held, &view(30, 10)), [(EventKind::Over(Outcome::Released), Some(10), 30)]);
    // The store was started anew; or failed over to one that is behind.
    assert_eq!(told(&held, &view(30, 0)), [(EventKind::Over(Outcome::Lost), Some(10), 30)]);
    assert_eq!(told(&held, &view(30, 9)), [(EventKind::Over(Outcome::Lost), Some(10), 30)]);
    // Its lease ran out and its min-hold did not; the log has it when that is over, and then it is no news.
    let cooling = view(2000, 10).state(State::Cooling);
    assert_eq!(told(&held, &cooling), [(EventKind::Over(Outcome::Expired), Some(10), 1020)]);
    assert_eq!(told(&cooling, &view(9000, 10).log(&[(10, 1020, Outcome::Expired)])), []);
    // More ended since than the log keeps.
    let many: Vec<_> = (100..164).rev().map(|fence| (fence, fence, Outcome::Released)).collect();
    let later = told(&held, &view(200, 163).log(&many));
    assert_eq!(later.len(), 2 * 64 + 1);
    assert_eq!(later.last(), Some(&(EventKind::Ended, Some(10), 200)));
}

#[test]
fn a_store_that_is_behind_repeats_nothing() {
    let log = [(10, 20, Outcome::Released), (5, 6, Outcome::Released)];
    let old = view(30, 10).log(&log);
    assert_eq!(told(&old, &view(40, 5).log(&log[1..])), []);
    assert_eq!(told(&view(30, 10).log(&log[..1]), &view(40, 10).log(&log)), []);
}
