//! Masters that forget: after a restart without persistence, or because an operator deleted the
//! keys.

use super::{DEAF, LONG, STEADY, ask, names, store, store_within};
use crate::support::masters::{Masters, url};
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use dlock::clock::{Moment, sleep_until};
use dlock::exit::Ended;
use dlock::rules::{Acquired, Ask, End, Left, Ran, Renew, Renewal};
use dlock::store::{Error, Store};
use rustix::process::Signal;
use std::time::Duration;

/// A holder has two of three masters, and one of these forgets it. The third master and the one
/// that forgot must not grant the lock to a second holder.
#[test]
fn a_master_that_restarted_is_not_counted() {
    let mut masters = Masters::fresh(3);
    let lease = ["-t", "6s", "--max-lease", "6s"];
    masters.wait_until_counted(&lease);
    let proxy = Proxy::before(masters.at(2).port());
    proxy.begin_outage();
    let store = url(&[masters.at(0).port(), masters.at(1).port(), proxy.port()]);
    let holder = masters.run("k", &lease, DEAF).env("DLOCK_STORE", store).any_stderr().spawn();
    let job = masters.world().wait_for_pid("job.pid");
    // A stopped dlock wins nothing back; its guard keeps the deadline.
    holder.signal(Signal::STOP);
    masters.at_mut(0).restart();
    // A killed job no longer runs, even if its guard has not reaped it yet.
    let intruder = "grep -qs '^State:.[^ZX]' /proc/$(cat job.pid)/status && echo overlap >> log; exit 0";
    let mut refused = 0;
    while proc::alive(job) {
        let other = masters.run("k", &lease, intruder).any_stderr().spawn().output();
        refused += u32::from(other.stderr.contains("is busy: held by"));
    }
    assert_eq!(masters.world().log(), [""; 0]);
    assert!(refused > 0, "somebody has tried");
    drop(holder);
    // Later the restarted master counts again.
    masters.world().write("lease.toml", "max-lease = '1h'");
    let look = masters.dlock(&["status", "-v", "--config", "lease.toml", "k"]).any_stdout();
    look.stderr_like(
        "(dlock: redis://.* has restarted and may have forgotten locks; it is counted again in .*\n){3}(dlock: k: .*\n)*",
    )
    .run();
    masters.at_mut(1).kill();
    masters.wait_until_counted(&lease);
}

/// A lock that vanished from all masters is lost: a renewal does not create it again.
#[test]
fn a_lock_that_vanished_is_not_won_back() {
    let masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "8s", "--grace", "300ms"], DEAF).status(79).any_stderr().spawn();
    masters.world().wait_for_pid("job.pid");
    for at in 0..3 {
        masters.at(at).ask::<()>(&["DEL", "dlock:k"]);
    }
    holder.finish();
    assert_eq!((0..3).filter_map(|at| masters.at(at).get("dlock:k")).count(), 0);
}

/// After the deadline another client may have held the lock. One master that still has the hold,
/// because of a min-hold, is not enough.
#[test]
fn nothing_is_won_back_after_the_deadline() {
    let masters = Masters::aged(3);
    let mut store = store(&masters.ports(), LONG);
    let by = || Moment::now().after(Duration::from_secs(20));
    let ask = Ask { min_hold: Duration::from_secs(60), ..ask(Duration::from_secs(5)) };
    assert!(matches!(store.acquire(&names(), &ask, by()), Ok(Acquired::Granted(_))));
    let lose = || [0, 1].map(|at| masters.at(at).ask::<()>(&["DEL", "dlock:k"]));
    lose();
    // Before the deadline the one remaining master proves the hold.
    assert_eq!(
        store.renew(&names(), &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None }, by()),
        Ok(Renewal::Renewed)
    );
    assert_eq!(masters.at(0).get("dlock:k").as_deref(), Some(ask.token.secret()));
    lose();
    sleep_until(Moment::now().after(ask.ttl));
    assert_eq!(
        store.renew(&names(), &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None }, by()),
        Ok(Renewal::NotHeld)
    );
    assert_eq!(masters.at(0).get("dlock:k"), None);
}

/// One master that has the hold does not outweigh a majority that has forgotten it.
#[test]
fn a_lock_that_most_have_forgotten_at_the_end_was_lost() {
    let masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "2m"], STEADY).status(79).any_stderr().spawn();
    masters.world().wait_for_log("up");
    for at in [0, 2] {
        masters.at(at).ask::<()>(&["FLUSHALL"]);
    }
    masters.world().write("over", "");
    holder.finish();
    // One master that has forgotten it is no majority.
    let holder = masters.run("k2", &["-t", "2m"], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_lines("up", 2);
    masters.at(1).ask::<()>(&["FLUSHALL"]);
    holder.finish();
}

/// Restarted masters have granted the lock to no other client since, so a hold that they forgot is
/// not lost.
#[test]
fn a_lock_that_young_masters_have_forgotten_at_the_end_was_not_lost() {
    let mut masters = Masters::aged(3);
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(120)));
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
    assert!(matches!(store.acquire(&names, &ask, by()), Ok(Acquired::Granted(_))));
    // A majority is enough for it, so a request to the third may be on its way, and reach it after its restart.
    wait_until("all have the lock", || (0..3).all(|at| masters.at(at).get("dlock:k").is_some()));
    drop(store);
    for at in [0, 1] {
        masters.at_mut(at).restart();
    }
    // By their own clocks the first two masters have been up for one and two hours, and the last
    // for three.
    let longest = Duration::from_secs(9000);
    let mut store = store_within(&masters.ports(), longest, Duration::from_secs(5));
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false, fence: None, pause: None };
    for _ in 0..2 {
        let left = store.leave(&names, &ask.token, &end, by());
        assert!(matches!(left, Err(Error::Unreachable(_))), "{left:?}");
    }
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::NotHeld));
}
