//! Masters whose clocks are hours apart: fences, and the times that are shown.

use super::{ALONE, LONG, ask, fences, names, store_within};
use crate::support::dlock::BINARY;
use crate::support::masters::{Masters, url};
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use dlock::clock::Moment;
use dlock::exit::Ended;
use dlock::lock::Owner;
use dlock::rules::{Acquired, End, Left, Ran, Renew, Renewal, Revoke, Revoked, When};
use dlock::store::Store;
use std::time::Duration;

/// A majority without the master of the fastest clock still knows that master's fence.
#[test]
fn fences_grow_whatever_the_clocks_say() {
    // The clocks are hours apart; the last master's is the fastest.
    let masters = Masters::aged(3);
    for lost in [0, 2, 1, 2, 0, 2] {
        masters.at(lost).pause();
        masters.run("k", &["-t", "10s"], ALONE).run();
        masters.at(lost).resume();
    }
    assert_eq!(fences(&masters).len(), 6);
}

/// The min-hold begins when the last counted master has granted the lock; the others granted it
/// earlier.
#[test]
fn a_min_hold_counts_from_the_grant_of_the_majority() {
    let mut masters = Masters::aged(3);
    let far = Proxy::before(masters.at(1).port());
    far.go_far(Duration::from_millis(300));
    masters.at_mut(2).kill();
    let store = url(&[masters.at(0).port(), far.port(), masters.at(2).port()]);
    let script = "touch up; while [ ! -e go ]; do sleep 0.1; done";
    let run = masters.run("k", &["-t", "20s", "--min-hold", "1m", "--op-timeout", "20s"], script);
    let holder = run.env("DLOCK_STORE", store).any_stderr().spawn();
    wait_until("the job runs", || masters.world().path("up").exists());
    let holds: Vec<String> = masters.at(0).ask(&["HVALS", "dlock.quorum:{dlock:k}:dlock:k"]);
    let hold: serde_json::Value = serde_json::from_str(&holds[0]).expect("a record");
    let since: u64 = hold["since"].as_str().and_then(|since| since.parse().ok()).expect("a time");
    let (since_ms, cool_ms) = (since / 1000, hold["cool"].as_u64().expect("a time"));
    assert!(cool_ms > since_ms + 60_000, "granted at {since_ms} ms, kept until {cool_ms} ms");
    masters.world().write("go", "");
    holder.finish();
}

/// The masters' clocks are hours apart. A refusal, `inspect` and `revoke` take all times of one
/// hold from the same master.
#[test]
fn the_times_of_a_hold_come_from_one_clock() {
    let mut masters = Masters::aged(3);
    // With two masters, both must answer before there is a result.
    masters.at_mut(2).kill();
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
    let by = || Moment::now().after(Duration::from_secs(20));
    for least in [0, 1] {
        let holder = ask(Duration::from_secs(60));
        assert!(matches!(store.acquire(&names(), &holder, by()), Ok(Acquired::Granted(_))));
        // The hold is reported by the master on which it ends first.
        let key = "dlock.quorum:{dlock:k}:dlock:k";
        let record: String = masters.at(least).ask(&["HGET", key, holder.token.secret()]);
        let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
        record["until"] = (record["until"].as_u64().unwrap() - 1000).into();
        masters.at(least).ask::<i64>(&["HSET", key, holder.token.secret(), &record.to_string()]);
        let Ok(Acquired::Busy(blocker)) = store.acquire(&names(), &ask(LONG), by()) else {
            panic!("it is held")
        };
        let since = blocker.holder.expect("a holder").since;
        let view = store.inspect(names().first(), by()).unwrap();
        assert_eq!(view.holders[0].since.abs_diff(since) / 60_000, 0, "{since} and {view:?}");
        assert_eq!(view.now.abs_diff(since) / 60_000, 0, "{since} and {view:?}");
        let revoke = Revoke { when: When::Now, by: Owner::default() };
        let Ok(Revoked::Holds { holders, .. }) = store.revoke(names().first(), &revoke, by()) else {
            panic!("it is held")
        };
        assert_eq!(holders[0].since.abs_diff(since) / 60_000, 0, "{since} and {holders:?}");
    }
}

/// A master with a fast clock whose answer is too late to be counted does not determine the fence.
#[test]
fn a_hold_has_one_fence() {
    let masters = Masters::aged(3);
    // Its clock is the fastest.
    let proxy = Proxy::before(masters.at(2).port());
    let store = url(&[proxy.port(), masters.at(0).port(), masters.at(1).port()]);
    // All masters have cached the scripts.
    masters.run("k", &[], "true").run();
    proxy.go_far(Duration::from_millis(100));
    let look = format!("'{BINARY}' status k --json > status.json");
    let inner = format!("'{BINARY}' run -k k -- sh -c 'echo $DLOCK_FENCE >> inner'");
    let job = format!("echo $DLOCK_FENCE >> outer; sleep 1; {look}; {inner}");
    masters.run("k", &["-t", "20s"], &job).env("DLOCK_STORE", &store).any_stderr().run();
    let world = masters.world();
    let status: serde_json::Value = serde_json::from_str(&world.read("status.json")).unwrap();
    assert_eq!(world.read("inner"), world.read("outer"), "of a run inside");
    assert_eq!(format!("{}\n", status[0]["holders"][0]["fence"]), world.read("outer"), "of status");
    let history = masters.dlock(&["history", "k", "--json"]).any_stdout().run().stdout;
    assert_eq!(history.matches(world.read("outer").trim()).count(), 1, "{history}");
    wait_until("the far one has heard of the end", || masters.at(2).get("dlock:k").is_none());
    // A renewal by another process, which has not seen the grant, also carries the fence to a
    // master with another one.
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    let Ok(Acquired::Granted(grant)) = store.acquire(&names, &ask, by()) else { panic!("the lock is free") };
    let record = "dlock.quorum:{dlock:k}:dlock:k";
    let hold: String = masters.at(2).ask(&["HGET", record, ask.token.secret()]);
    let mut fields: serde_json::Value = serde_json::from_str(&hold).unwrap();
    fields["fence"] = (grant.fence.0 + 3_600_000_000).to_string().into();
    fields["confirmed"] = false.into();
    let hold = fields.to_string();
    masters.at(2).ask::<i64>(&["HSET", record, ask.token.secret(), &hold]);
    let mut other = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    assert_eq!(
        other.prove(&names, &ask.token, None, by()).unwrap().map(|proof| proof.fence),
        Some(grant.fence)
    );
    assert_eq!(
        other.renew(&names, &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None }, by()),
        Ok(Renewal::Renewed)
    );
    wait_until("all masters know the fence", || {
        let hold: String = masters.at(2).ask(&["HGET", record, ask.token.secret()]);
        hold.contains(&format!("\"{}\"", grant.fence.0))
    });
    assert_eq!(store.inspect(names.first(), by()).unwrap().holders[0].fence, grant.fence);
    // What an earlier attempt of this token has sent may be the last that two masters hear.
    fields["fence"] = (grant.fence.0 - 1_000_000).to_string().into();
    fields["confirmed"] = true.into();
    for at in [1, 2] {
        masters.at(at).ask::<i64>(&["HSET", record, ask.token.secret(), &fields.to_string()]);
    }
    let renew = Renew { token: &ask.token, fence: Some(grant.fence), ttl: ask.ttl, rest: None };
    assert_eq!(store.renew(&names, &renew, by()), Ok(Renewal::Renewed));
    wait_until("all masters know the fence again", || {
        let hold: String = masters.at(1).ask(&["HGET", record, ask.token.secret()]);
        hold.contains(&format!("\"{}\"", grant.fence.0))
    });
}

/// The masters' clocks are hours apart; all times of one view come from one of them.
#[test]
fn shown_times_come_from_one_clock() {
    let masters = Masters::aged(3);
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    assert!(matches!(store.acquire(&names, &ask, by()), Ok(Acquired::Granted(_))));
    let view = store.inspect(names.first(), by()).unwrap();
    let near = |time: u64| time.abs_diff(view.now) < 600_000;
    assert!(near(view.holders[0].since), "{view:?}");
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false, fence: None, pause: None };
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Released { cooling: Duration::ZERO }));
    let view = store.inspect(names.first(), by()).unwrap();
    let near = |time: u64| time.abs_diff(view.now) < 600_000;
    assert!(near(view.log[0].since) && near(view.log[0].ended), "{view:?}");
    assert!(view.stat.last.values().all(|time| near(*time)), "{view:?}");
    assert!(view.stat.last_success.is_some_and(near), "{view:?}");
}
