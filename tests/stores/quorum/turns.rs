//! The order of waiters on independent masters, which have no common queue.

use super::{LONG, NOT_RUN, ask, names, store_within};
use crate::support::hole::Black;
use crate::support::masters::Masters;
use crate::support::wait::wait_until;
use dlock::clock::Moment;
use dlock::rules::{Acquired, Ask, Patience};
use dlock::store::Store;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// A waiter gets the lock before a newcomer. A waiter that has gone delays others only for a short
/// time.
#[test]
fn a_longer_wait_is_preferred() {
    let masters = Masters::aged(3);
    let new = || store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ttl) = (names(), Duration::from_secs(30));
    let (mut holder, mut waiter, mut comer) = (new(), new(), new());
    let held = ask(ttl);
    assert!(matches!(holder.acquire(&names, &held, by()), Ok(Acquired::Granted(_))));
    let waits = Ask { patience: Patience::Queue, ..ask(ttl) };
    let began = Moment::now();
    while began.after(Duration::from_millis(500)) > Moment::now() {
        assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Waiting(_))));
        sleep(Duration::from_millis(50));
    }
    holder.leave(&names, &held.token, &NOT_RUN, by()).unwrap();
    let refused = comer.acquire(&names, &ask(ttl), by());
    let Ok(Acquired::Busy(blocker)) = refused else { panic!("it overtakes: {refused:?}") };
    assert_eq!(blocker.holder, None);
    // The newcomer came later, so it has waited for less time.
    let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
    assert!(matches!(comer.acquire(&names, &comes, by()), Ok(Acquired::Waiting(_))));
    assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Granted(_))));
    // The waiter that leaves was the only one: the newcomer is granted the lock when the masters
    // notice.
    waiter.leave(&names, &waits.token, &NOT_RUN, by()).unwrap();
    wait_until("who asks no more is forgotten", || {
        matches!(comer.acquire(&names, &comes, by()), Ok(Acquired::Granted(_)))
    });
}

/// Two waiters that have waited for long reach one master each, so neither can ever win. They must
/// not block the lock for ever.
#[test]
fn waiters_without_a_majority_block_nobody_for_ever() {
    let masters = Masters::aged(3);
    let by = |ms| Moment::now().after(Duration::from_millis(ms));
    let (names, ttl) = (names(), Duration::from_secs(30));
    let hole = Black::new();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for at in [0, 1] {
            let ports = [masters.at(at).port(), hole.port(), hole.port()];
            let (names, over) = (&names, &over);
            scope.spawn(move || {
                let waits = Ask { patience: Patience::Queue, ..ask(ttl) };
                let mut store = store_within(&ports, LONG, Duration::from_millis(100));
                while !over.load(Ordering::Relaxed) {
                    let _ = store.acquire(names, &waits, by(200));
                    sleep(Duration::from_millis(50));
                }
            });
        }
        let asked = |at: usize| masters.at(at).ask::<i64>(&["EXISTS", "dlock.turn:{dlock:k}:dlock:k"]) == 1;
        wait_until("both ask", || asked(0) && asked(1));
        sleep(Duration::from_millis(500));
        let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
        let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
        wait_until("it is granted", || {
            sleep(Duration::from_millis(20));
            matches!(store.acquire(&names, &comes, by(2000)), Ok(Acquired::Granted(_)))
        });
        over.store(true, Ordering::Relaxed);
    });
}

/// A long waiter that dies is preferred for 1.5 s more. Two waiters that keep asking and never win
/// are preferred for 3 s after another client was refused.
#[test]
fn a_waiter_that_cannot_win_is_preferred_for_some_seconds_only() {
    let masters = Masters::aged(3);
    let (names, ttl) = (names(), Duration::from_secs(30));
    let by = || Moment::now().after(Duration::from_secs(20));
    let new = || store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let (mut holder, mut comer) = (new(), new());
    // Returns how long after `since`, or else after the first refusal, a newcomer was refused for
    // the last time.
    let mut comes = |since: Option<Moment>| {
        let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
        let (mut refused, mut since) = (Duration::ZERO, since);
        loop {
            let asked = Moment::now();
            match comer.acquire(&names, &comes, by()) {
                Ok(Acquired::Granted(_)) => break,
                _ => refused = asked.since(*since.get_or_insert_with(Moment::now)),
            }
            assert!(refused < Duration::from_secs(20), "it is granted it one day");
            sleep(Duration::from_millis(10));
        }
        comer.leave(&names, &comes.token, &NOT_RUN, by()).unwrap();
        refused
    };
    let held = ask(ttl);
    assert!(matches!(holder.acquire(&names, &held, by()), Ok(Acquired::Granted(_))));
    let (waits, mut waiter) = (Ask { patience: Patience::Queue, ..ask(ttl) }, new());
    for _ in 0..2 {
        assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Waiting(_))));
        sleep(Duration::from_millis(300));
    }
    assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Waiting(_))));
    let heard = Moment::now();
    holder.leave(&names, &held.token, &NOT_RUN, by()).unwrap();
    let refused = comes(Some(heard));
    // A master's own clock counts in whole milliseconds.
    assert!(refused < Duration::from_millis(1550), "{refused:?} after the dead one was heard of");

    let over = AtomicBool::new(false);
    let refused = thread::scope(|scope| {
        for at in [0, 1] {
            let (port, names, over) = (masters.at(at).port(), &names, &over);
            scope.spawn(move || {
                let hole = Black::new();
                let waits = Ask { patience: Patience::Queue, ..ask(ttl) };
                let mut store =
                    store_within(&[port, hole.port(), hole.port()], LONG, Duration::from_millis(100));
                while !over.load(Ordering::Relaxed) {
                    let by = Moment::now().after(Duration::from_millis(200));
                    let _ = store.acquire(names, &waits, by);
                    sleep(Duration::from_millis(100));
                }
            });
        }
        let asked = |at: usize| masters.at(at).ask::<i64>(&["EXISTS", "dlock.turn:{dlock:k}:dlock:k"]) == 1;
        wait_until("both ask", || asked(0) && asked(1));
        sleep(Duration::from_millis(500));
        let refused = comes(None);
        over.store(true, Ordering::Relaxed);
        refused
    });
    // After that it is a matter of luck: at times each of the two has a master that it cannot keep.
    assert!(refused < Duration::from_secs(5), "{refused:?} after it was refused");
}

/// Of six clients that ask again at once, none is passed over again and again.
#[test]
fn no_waiter_is_passed_over_again_and_again() {
    let masters = Masters::aged(3);
    let grants = AtomicUsize::new(0);
    let rounds = if std::env::var_os("DLOCK_SOAK").is_some() { 40 } else { 6 };
    let waits: Vec<_> = thread::scope(|scope| {
        let work = || {
            let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
            let by = || Moment::now().after(Duration::from_secs(5));
            let mut waits = Vec::new();
            for _ in 0..rounds {
                let ask = Ask { patience: Patience::Queue, ..ask(Duration::from_secs(30)) };
                let began = Instant::now();
                // Counted from its first answer: on a busy machine its first connections may take a second.
                let mut before = None;
                loop {
                    match store.acquire(&names(), &ask, by()) {
                        Ok(Acquired::Granted(_)) => break,
                        Ok(Acquired::Waiting(waiting)) => {
                            before.get_or_insert(grants.load(Ordering::Relaxed));
                            sleep(waiting.next);
                        }
                        other => println!("{other:?}"),
                    }
                }
                let so_far = grants.fetch_add(1, Ordering::Relaxed);
                let passed = before.map_or(0, |before| so_far - before);
                waits.push((began.elapsed(), passed));
                sleep(Duration::from_millis(20));
                store.leave(&names(), &ask.token, &NOT_RUN, by()).unwrap();
            }
            waits
        };
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let mut spans: Vec<_> = waits.iter().map(|(span, _)| *span).collect();
    spans.sort_unstable();
    println!("median {:?}, longest {:?}", spans[spans.len() / 2], spans[spans.len() - 1]);
    // Counted in turns and not in time, because the machine may be busy.
    let most = waits.iter().map(|(_, passed)| *passed).max().unwrap();
    assert!(most <= 15, "{most} of five others went before one that waited");
}
