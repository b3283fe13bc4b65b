//! Thousands of runs, with kills and outages among them: exclusion holds, fences grow, nothing is left. Only when asked
//! for, by `./test --soak`.

use crate::support::dlock::{End, Running};
use crate::support::storm::Dice;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use std::thread;

on_every_store!(
    #[ignore = "long; ./test --soak"]
    a_crowd_with_random_kills,
);

const WORKERS: u64 = 8;
const RUNS: u64 = 250;

fn a_crowd_with_random_kills(backend: Backend) {
    let world = World::new(backend);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let world = &world;
            scope.spawn(move || {
                let mut dice = Dice(worker + 1);
                for _ in 0..RUNS {
                    one_run(world, &mut dice);
                }
            });
        }
    });
    let log = world.log();
    assert!(!log.iter().any(|line| line.starts_with("overlap")), "two ran at once");
    let fences =
        log.iter().filter_map(|line| line.strip_prefix("fence ")?.parse::<u64>().ok()).collect::<Vec<_>>();
    assert!(fences.len() > 100, "most of them ran: {}", fences.len());
    assert!(fences.is_sorted_by(|a, b| a < b), "fences grow");
    wait_until("the lock is free", || world.state("k") == "free");
    assert_eq!(world.waiters("k"), 0);
    if backend == Backend::Redis {
        let keys = world.redis().keys();
        let records = ["fence", "log", "stat", "spent", "waiter", "queue", "wake"];
        assert!(keys.iter().all(|key| records.iter().any(|kind| key.starts_with(&format!("dlock.{kind}:")))));
        assert!(keys.iter().all(|key| world.redis().ask::<i64>(&["PTTL", key]) != -1), "each has an end");
    }
}

/// A job that logs when another one runs, by a directory that only one can create.
const JOB: &str = "echo fence $DLOCK_FENCE >> log
    mkdir busy || { read -r other < holder; kill -0 $other 2> /dev/null && echo overlap $other >> log; }
    echo $$ > holder; sleep 0.01; rmdir busy";

fn one_run(world: &World, dice: &mut Dice) {
    let patience: &[&str] = match dice.roll(4) {
        0 => &[],
        1 => &["-w", "200ms"],
        _ => &["-w"],
    };
    let options = [patience, &["-t", "2s", "--grace", "100ms"]].concat();
    let mut running: Running = world.run("k", &options, JOB).any_stderr().spawn();
    let fate = dice.roll(5);
    for _ in 0..dice.roll(20) {
        if running.has_ended() {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(3));
    }
    match fate {
        0 => running.signal(Signal::KILL),
        1 => running.signal(Signal::INT),
        2 => {
            running.signal(Signal::STOP);
            thread::sleep(std::time::Duration::from_millis(20));
            running.signal(Signal::CONT);
        }
        _ => {}
    }
    let output = running.output();
    let expected = [End::Status(0), End::Status(75), End::Status(79), End::Signal(2), End::Signal(9)];
    assert!(expected.contains(&output.end()), "fate {fate}, {patience:?}: {output:?}");
}
