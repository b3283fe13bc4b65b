//! The herd at 03:00: each run asks for one of a few locks without waiting, gives it back at once,
//! and ends. All of them begin within a second, each with connections of its own.

use crate::worker::{Obtained, Worker};
use anyhow::{Context as _, Result};
use dlock::clock::{Moment, sleep_until};
use dlock::exit::{Ended, Exit};
use dlock::lease::{Lease, Until};
use dlock::rules::{Blocker, End, Ran, Refusal};
use std::thread;
use std::time::Duration;

/// Number of locks that the herd asks for.
const KEYS: usize = 50;
/// The time within which all runs begin.
const WITHIN: Duration = Duration::from_secs(1);

enum Ending {
    Got,
    Busy,
    Failed(Exit, String),
}

/// Starts this worker's runs, of a herd of `all`, and waits for their end.
pub fn run(worker: &Worker, all: usize) -> Result<()> {
    let began = Moment::now();
    thread::scope(|scope| {
        for number in worker.numbers() {
            sleep_until(began.after(WITHIN.mul_f64(number as f64 / all.max(1) as f64)));
            let run = move || {
                let started = Moment::now();
                let ending = one(worker, &format!("herd-{}", number % KEYS));
                let (over_after, took) = (Moment::now().since(began), Moment::now().since(started));
                worker.count(|tally| {
                    match ending {
                        Ending::Got => tally.herd.got += 1,
                        Ending::Busy => tally.herd.busy += 1,
                        Ending::Failed(exit, why) => {
                            *tally.herd.failed.entry(exit.code()).or_default() += 1;
                            tally.remark(format!("a run of the herd failed: {why}"));
                        }
                    }
                    tally.herd.longest = tally.herd.longest.max(took);
                    tally.herd.over_after = tally.herd.over_after.max(over_after);
                });
            };
            thread::Builder::new().spawn_scoped(scope, run).context("a thread for a run")?;
        }
        Ok(())
    })
}

/// `dlock run -k KEY true`, without the job.
fn one(worker: &Worker, key: &str) -> Ending {
    let lease = match worker.lease(key, Until::No, |_, _| {}) {
        Ok(lease) => lease,
        Err(error) => return Ending::Failed(Exit::Internal, format!("{error:#}")),
    };
    match worker.obtain(&lease, || {}) {
        Obtained::Lock(_) => {
            let end =
                End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false, fence: None, pause: None };
            match lease.give_back(&end) {
                Ok(_) => Ending::Got,
                // The status is the job's; the guard goes on trying.
                Err(error) => {
                    worker.count(|tally| tally.remark(format!("a lock was not given back: {error}")));
                    Ending::Got
                }
            }
        }
        Obtained::Busy(blocker) => {
            note(&lease, &blocker);
            Ending::Busy
        }
        Obtained::Failed(error) => Ending::Failed(error.exit(), error.to_string()),
    }
}

fn note(lease: &Lease, blocker: &Blocker) {
    lease.note(blocker.at, &Refusal::busy(lease.owner(), blocker, None));
}
