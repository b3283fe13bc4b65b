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

/// Who has waited gets the lock before who comes new; who waits no more delays nobody for long.
#[test]
fn who_has_waited_is_preferred() {
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
    // It has come a moment later, and has waited for less.
    let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
    assert!(matches!(comer.acquire(&names, &comes, by()), Ok(Acquired::Waiting(_))));
    assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Granted(_))));
    // The waiter who is gone now was the only one: the other is served when the masters notice.
    waiter.leave(&names, &waits.token, &NOT_RUN, by()).unwrap();
    wait_until("who asks no more is forgotten", || {
        matches!(comer.acquire(&names, &comes, by()), Ok(Acquired::Granted(_)))
    });
}

/// Two that have waited long reach one master each, and neither can ever win. The lock is not theirs for ever.
#[test]
fn who_reaches_no_majority_blocks_nobody_for_ever() {
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

/// One that has waited for long and dies is preferred for 1.5 s more. Two that go on asking, and never win, are preferred for
/// 3 s after the lock was refused to somebody.
#[test]
fn who_cannot_win_is_preferred_for_some_seconds_only() {
    let masters = Masters::aged(3);
    let (names, ttl) = (names(), Duration::from_secs(30));
    let by = || Moment::now().after(Duration::from_secs(20));
    let new = || store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let (mut holder, mut comer) = (new(), new());
    // How long after then, or after it was refused first, one that comes asks for the last time without being granted it.
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
    // A master counts in whole milliseconds of its own clock.
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
    // From then on it is a matter of luck: at times each of them has what it cannot keep.
    assert!(refused < Duration::from_secs(5), "{refused:?} after it was refused");
}

/// Of six who ask again at once, nobody is passed over and over.
#[test]
fn waiters_come_to_their_turn() {
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
                let (began, before) = (Instant::now(), grants.load(Ordering::Relaxed));
                loop {
                    match store.acquire(&names(), &ask, by()) {
                        Ok(Acquired::Granted(_)) => break,
                        Ok(Acquired::Waiting(waiting)) => sleep(waiting.next),
                        other => println!("{other:?}"),
                    }
                }
                let passed = grants.fetch_add(1, Ordering::Relaxed) - before;
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
    // By turns and not by time, for this machine may be busy with something else.
    let most = waits.iter().map(|(_, passed)| *passed).max().unwrap();
    assert!(most <= 15, "{most} of five others went before one that waited");
}
