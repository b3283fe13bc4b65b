//! A crowd with random kills while its store is away again and again: killed, restarted, cut off.
//! Nothing promised before is lost.

use super::dlock::End;
use super::storm::{Dice, EXPECTED, JOB, Wish, judge, keys_of, one_run};
use super::wait::{PATIENCE, wait_until};
use super::world::World;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// `workers` make runs with random wishes until there have been enough grants, and the result is
/// checked. Every few seconds `outage` makes and ends an outage of the store.
pub fn storm_through_outages(
    world: &World,
    workers: usize,
    grants: usize,
    wishes: &[Wish],
    mut outage: impl FnMut(),
) {
    world.write("job", JOB);
    let (ran, one_has_ended, began) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
    let is_over = || ran.load(Ordering::Relaxed) >= grants || one_has_ended.load(Ordering::Relaxed);
    let (mut outages, ended) = (0, Mutex::new(BTreeMap::<String, usize>::new()));
    thread::scope(|scope| {
        for worker in 0..workers {
            let (ran, ended, end) = (&ran, &ended, EndOfAll(&one_has_ended));
            scope.spawn(move || {
                let _end = end;
                let mut dice = Dice(u64::try_from(worker).expect("a number") + 1);
                while !is_over() {
                    let output = one_run(world, "5s", dice.of(wishes), &mut dice);
                    let end = output.end();
                    // A run that waits for a short time or not at all may meet the outage.
                    assert!(EXPECTED.contains(&end) || end == End::Status(69), "{output:?}");
                    ran.fetch_add(usize::from(end == End::Status(0)), Ordering::Relaxed);
                    *ended.lock().expect("nobody panics").entry(format!("{end:?}")).or_default() += 1;
                }
            });
        }
        for key in keys_of(wishes) {
            let end = EndOfAll(&one_has_ended);
            scope.spawn(move || {
                let _end = end;
                no_queue_stands_idle(world, key, is_over);
            });
        }
        let _end = EndOfAll(&one_has_ended);
        // In this thread, because a server may end with the thread that started it.
        while !is_over() {
            // The time between two outages, in which the crowd takes the lock.
            sleep(Duration::from_secs(2));
            outage();
            outages += 1;
        }
    });
    let starts = judge(world);
    println!(
        "{starts} grants and {outages} outages in {:?}; runs ended so: {:?}",
        began.elapsed(),
        ended.into_inner()
    );
    for key in keys_of(wishes) {
        wait_until("the lock is free", || world.state(key) == "free");
        wait_until("nobody waits", || world.waiters(key) == 0);
    }
}

/// If one of many threads fails, the others end, too.
pub struct EndOfAll<'a>(pub &'a AtomicBool);

impl Drop for EndOfAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// No waiter may wait for long for a free lock. Clients that just died or cannot reach the store
/// delay the others by some seconds.
fn no_queue_stands_idle(world: &World, key: &str, is_over: impl Fn() -> bool) {
    let mut idle: Option<Instant> = None;
    while !is_over() {
        let look = world.dlock(["status", "--json", key]).any_stdout().any_stderr().spawn().output();
        let seen: Value = serde_json::from_str(&look.stdout).unwrap_or_default();
        let is_idle =
            seen[0]["state"] == "free" && seen[0]["waiters"].as_array().is_some_and(|all| !all.is_empty());
        idle = if is_idle { idle.or(Some(Instant::now())) } else { None };
        assert!(
            idle.is_none_or(|since| since.elapsed() < PATIENCE),
            "a queue stands before a free lock: {seen}"
        );
        sleep(Duration::from_millis(200));
    }
}
