//! Random holds while masters come and go: no two overlap, and fences grow.

use super::{LONG, NOT_RUN, ask, names, store};
use crate::support::masters::Masters;
use dlock::clock::{Moment, sleep_until};
use dlock::rules::{Acquired, Ask, End, Patience, Ran, Renew, Renewal};
use dlock::store::Store;
use dlock::store::quorum::QuorumStore;
use proptest::prelude::*;
use std::thread::{self, sleep};
use std::time::Duration;

/// What happens to one master.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Pause(usize),
    Resume(usize),
    Restart(usize),
}

/// One client's next hold.
#[derive(Debug, Clone, Copy)]
struct Visit {
    stay: Duration,
    farewell: Farewell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Farewell {
    GivesBack,
    Vanishes,
}

/// A hold as its owner knew it: from when until when the owner could rely on it.
#[derive(Debug)]
struct Stay {
    fence: u64,
    from: Moment,
    until: Moment,
}

fn blows(masters: usize, forget: bool) -> impl Strategy<Value = Vec<(Duration, Blow)>> {
    let blow = (0..10u8, 0..masters).prop_map(move |(kind, at)| match kind {
        0..4 => Blow::Pause(at),
        4..8 => Blow::Resume(at),
        _ if forget => Blow::Restart(at),
        _ => Blow::Resume(at),
    });
    prop::collection::vec(((0..200u64).prop_map(Duration::from_millis), blow), 20..40)
}

fn visits() -> impl Strategy<Value = Vec<Vec<Visit>>> {
    let stay = prop_oneof![5 => Just(0), 1 => 1..900u64];
    let visit = (stay, 0..20u8).prop_map(|(stay, bye)| Visit {
        stay: Duration::from_millis(stay),
        farewell: if bye == 0 { Farewell::Vanishes } else { Farewell::GivesBack },
    });
    prop::collection::vec(prop::collection::vec(visit, 25), 4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    /// The masters' clocks are hours apart, and no master forgets.
    #[test]
    fn holds_follow_each_other_while_masters_come_and_go(blows in blows(3, false), visits in visits()) {
        holds_follow_each_other(Masters::aged(3), LONG, &blows, &visits);
    }

    /// The masters forget everything when they restart.
    #[test]
    fn holds_follow_each_other_while_masters_forget(blows in blows(3, true), visits in visits()) {
        let masters = Masters::fresh(3);
        masters.wait_until_counted(&["-t", "1s", "--max-lease", "1s"]);
        holds_follow_each_other(masters, Duration::from_secs(1), &blows, &visits);
    }
}

/// No two holds overlap, and each fence is greater than all before it.
fn holds_follow_each_other(
    mut masters: Masters,
    max_lease: Duration,
    blows: &[(Duration, Blow)],
    visits: &[Vec<Visit>],
) {
    let ports = masters.ports();
    let mut stays = thread::scope(|scope| {
        let guests: Vec<_> = visits
            .iter()
            .map(|visits| {
                let mut store = store(&ports, max_lease);
                scope.spawn(move || {
                    visits.iter().filter_map(|visit| stay(&mut store, visit, max_lease)).collect::<Vec<_>>()
                })
            })
            .collect();
        for (after, blow) in blows {
            sleep(*after);
            match *blow {
                Blow::Pause(at) => masters.at(at).pause(),
                Blow::Resume(at) => masters.at(at).resume(),
                Blow::Restart(at) => masters.at_mut(at).restart(),
            }
        }
        (0..masters.len()).for_each(|at| masters.at(at).resume());
        guests.into_iter().flat_map(|guest| guest.join().unwrap()).collect::<Vec<_>>()
    });
    stays.sort_by_key(|stay| stay.from);
    println!("{} holds", stays.len());
    for pair in stays.windows(2) {
        assert!(pair[0].until <= pair[1].from, "two at once: {pair:?}");
        assert!(pair[0].fence < pair[1].fence, "not in order: {pair:?}");
    }
}

/// Takes the lock, keeps it for a while, and releases or abandons it.
fn stay(store: &mut QuorumStore, visit: &Visit, max_lease: Duration) -> Option<Stay> {
    let names = names();
    let ttl = Duration::from_millis(800).min(max_lease);
    let by = |span| Moment::now().after(Duration::from_millis(span));
    let give_up = by(2500);
    let ask = Ask { patience: Patience::Queue, ..ask(ttl) };
    let deadline = |sent: Moment| sent.after(ttl - ttl / 100 - Duration::from_millis(2));
    let (fence, from, mut until) = loop {
        let sent = Moment::now();
        match store.acquire(&names, &ask, by(400)) {
            Ok(Acquired::Granted(grant)) => {
                // Reading the clock after the answer shows whether the answer came in time.
                break (grant.fence.0, Moment::now(), deadline(sent));
            }
            Ok(Acquired::Waiting(waiting)) => sleep(waiting.next),
            Ok(_) | Err(_) => sleep(Duration::from_millis(20)),
        }
        if give_up.passed() {
            let _ = store.leave(&names, &ask.token, &NOT_RUN, by(200));
            return None;
        }
    };
    let end = from.after(visit.stay);
    while !end.passed() && !until.passed() {
        let sent = Moment::now();
        match store.renew(&names, &Renew { token: &ask.token, fence: None, ttl, rest: None }, by(100)) {
            Ok(Renewal::Renewed) if !until.passed() => until = deadline(sent),
            // Late, or lost: the hold counts until the previous deadline.
            Ok(_) => break,
            Err(_) => {}
        }
        sleep_until(Moment::now().after(Duration::from_millis(50)).min(until).min(end));
    }
    until = until.min(Moment::now());
    if visit.farewell == Farewell::GivesBack {
        let _ = store.leave(
            &names,
            &ask.token,
            &End { ran: Ran::Yes, job: None, once_per: false, fence: None, pause: None },
            by(200),
        );
    }
    (from <= until).then_some(Stay { fence, from, until })
}
