//! What ends the sleep of a waiter, and of an observer.

use super::{Memory, RELEASED, Stage, World, deadline, name};
use dlock::clock::Moment;
use dlock::rules::HEARTBEAT;
use dlock::store::net::interrupt;
use dlock::store::{Listener, Slept};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

on_all!(with a queue:
    an_observer_is_woken,
    a_sleep_ends_on_an_interrupt,
    a_read_before_a_sleep_misses_nothing,
);

/// When a sleep must be over by itself. At the next heartbeat a waiter may wake without a reason.
fn before_a_heartbeat() -> Moment {
    Moment::now().after(HEARTBEAT / 2)
}

/// An interrupt ends the sleep of a waiter, and no wake-up is missed by it.
fn a_sleep_ends_on_an_interrupt(stage: &Stage) {
    let (mut holder, mut waiter) = (stage.one(), stage.one());
    holder.holds();
    waiter.waits(0);
    let (quiet, _open) = &UnixStream::pair().expect("sockets");
    let (loud, ring) = &UnixStream::pair().expect("sockets");
    (&*ring).write_all(b"!").expect("a word");
    let mut sleeps = |alarm: &UnixStream| {
        let end = before_a_heartbeat();
        let slept = interrupt::armed(alarm.as_fd(), || waiter.store.sleep(&waiter.names, &waiter.token, end));
        assert!(!end.passed(), "{slept:?}");
        slept
    };
    // Interrupted requests may have failed.
    let _ = sleeps(loud);
    assert_eq!(holder.leaves(), RELEASED);
    assert_eq!(sleeps(quiet), Ok(Slept::Woken));
    waiter.is_served();
}

/// A waiter that reads the state before it sleeps is woken by changes before that read.
fn a_read_before_a_sleep_misses_nothing(stage: &Stage) {
    let (mut holder, mut waiter) = (stage.one(), stage.one());
    holder.holds();
    waiter.waits(0);
    assert_eq!(holder.leaves(), RELEASED);
    let end = before_a_heartbeat();
    waiter.store.inspect(&waiter.names.as_slice()[0], end).expect("a look");
    let slept = waiter.store.sleep(&waiter.names, &waiter.token, end).expect("a sleep");
    assert_eq!((slept, end.passed()), (Slept::Woken, false));
    waiter.is_served();
}

fn an_observer_is_woken(stage: &Stage) {
    let mut watcher = stage.one();
    watcher.store.watch(&name("k"), &watcher.token, deadline()).expect("a watch");
    let mut subscription = watcher.store.subscribe(&[name("k")], &watcher.token, Listener::Watcher);
    let mut one = stage.one();
    one.holds();
    assert!(subscription.sleep(deadline()).expect("a subscription"), "a grant is news");
    one.leaves();
    assert!(subscription.sleep(deadline()).expect("a subscription"), "and so is an end");
}
