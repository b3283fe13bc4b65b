//! Masters that answer late or never, and requests that arrive late.

use super::{LONG, NOT_RUN, ask, names, store, store_within};
use crate::support::masters::{Masters, url};
use crate::support::proxy::{Fault, Proxy};
use crate::support::wait::{wait_until, wait_within};
use dlock::clock::Moment;
use dlock::rules::{Acquired, Ask, Patience, Renew, Renewal};
use dlock::store::{Error, Store};
use std::sync::mpsc;
use std::thread::{self};
use std::time::Duration;

/// An operation ends at its deadline, however long the masters take to answer.
#[test]
fn silent_masters_do_not_lengthen_an_operation() {
    let masters = Masters::aged(3);
    let proxies: Vec<_> = masters.ports().into_iter().map(Proxy::before).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let silenced = |silent: usize| {
        for (at, proxy) in proxies.iter().enumerate() {
            if at < silent { proxy.begin_outage() } else { proxy.end_outage() }
        }
    };
    for silent in [2, 3] {
        silenced(silent);
        let (said, heard) = mpsc::channel();
        let ports = ports.clone();
        thread::spawn(move || {
            let mut store = store(&ports, LONG);
            let by = || Moment::now().after(Duration::from_millis(300));
            let ask = ask(Duration::from_secs(30));
            let errors = [
                store.acquire(&names(), &ask, by()).err(),
                store
                    .renew(
                        &names(),
                        &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None },
                        by(),
                    )
                    .err(),
                store.leave(&names(), &ask.token, &NOT_RUN, by()).err(),
                store.prove(&names(), &ask.token, None, by()).err(),
                store.inspect(names().first(), by()).err(),
            ];
            drop(said.send(errors));
        });
        let errors = wait_within(Duration::from_secs(40), "they end", || heard.try_recv().ok());
        for error in errors {
            assert!(matches!(error, Some(Error::Overloaded(_))), "{silent} silent: {error:?}");
        }
    }
}

/// A majority whose answers come too late is none: on the first of its masters the lease may have
/// ended.
#[test]
fn a_majority_that_answers_too_late_holds_nothing() {
    let masters = Masters::aged(3);
    let proxies: Vec<_> = masters.ports().into_iter().map(Proxy::before).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let mut store = store(&ports, LONG);
    let by = || Moment::now().after(Duration::from_secs(20));
    // The masters have cached the scripts, so each request has one answer.
    let warm = ask(Duration::from_secs(20));
    assert!(matches!(store.acquire(&names(), &warm, by()), Ok(Acquired::Granted(_))));
    store.leave(&names(), &warm.token, &NOT_RUN, by()).unwrap();
    for proxy in &proxies {
        proxy.plan(99, Fault::Late);
        proxy.delay_replies(Duration::from_millis(600));
    }
    let late = thread::spawn(move || {
        let ask = ask(Duration::from_millis(1500));
        let answer = store.acquire(&names(), &ask, by());
        (answer, store)
    });
    wait_until("phase one", || proxies.iter().all(|proxy| proxy.seen() > 0));
    // The answers of the first phase are under way; the next ones take longer than the lease.
    for proxy in &proxies {
        proxy.delay_replies(Duration::from_secs(3));
    }
    let (answer, _store) = late.join().unwrap();
    assert!(matches!(answer, Err(Error::Unavailable(_) | Error::Overloaded(_))), "{answer:?}");
}

/// Two masters have the lock, the third has not, and one of the two is slow. The renewal waits for
/// it.
#[test]
fn a_slow_master_that_decides_is_waited_for() {
    let masters = Masters::aged(3);
    let slow = Proxy::before(masters.at(1).port());
    let by = || Moment::now().after(Duration::from_secs(60));
    let ask = ask(Duration::from_secs(60));
    masters.at(2).ask::<()>(&["SET", "dlock:k", "somebody's"]);
    let granted = store(&masters.ports(), LONG).acquire(&names(), &ask, by());
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    masters.at(2).ask::<()>(&["DEL", "dlock:k"]);
    slow.delay_replies(Duration::from_secs(1));
    let ports = [masters.at(0).port(), slow.port(), masters.at(2).port()];
    let renewed = store(&ports, LONG).renew(
        &names(),
        &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None },
        by(),
    );
    assert!(matches!(renewed, Ok(Renewal::Renewed)), "{renewed:?}");
}

/// Of three masters one forgot the lock, one never had it, and the third, which has it, is slow.
/// Its answer lets the others have the lock again.
#[test]
fn a_slow_master_that_vouches_is_waited_for() {
    let masters = Masters::aged(3);
    let slow = Proxy::before(masters.at(1).port());
    let ports = [masters.at(0).port(), slow.port(), masters.at(2).port()];
    let (mut store, ask) = (store(&ports, LONG), ask(Duration::from_secs(60)));
    let by = || Moment::now().after(Duration::from_secs(20));
    masters.at(2).ask::<()>(&["SET", "dlock:k", "somebody's"]);
    let granted = store.acquire(&names(), &ask, by());
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    masters.at(2).ask::<()>(&["DEL", "dlock:k"]);
    masters.at(0).ask::<()>(&["FLUSHALL"]);
    slow.delay_replies(Duration::from_secs(1));
    let renewed =
        store.renew(&names(), &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None }, by());
    assert!(matches!(renewed, Ok(Renewal::Renewed)), "{renewed:?}");
    assert_eq!(masters.at(0).get("dlock:k"), Some(ask.token.secret().to_owned()), "it was won back");
}

/// A restarted master answers at once but does not count, so the far one is needed.
#[test]
fn a_far_master_is_waited_for_where_a_near_one_does_not_count() {
    let (masters, new) = (Masters::aged(2), Masters::fresh(1));
    let far = Proxy::before(masters.at(1).port());
    far.delay_replies(Duration::from_secs(1));
    let store = url(&[masters.at(0).port(), far.port(), new.at(0).port()]);
    masters.run("k", &["--op-timeout", "20s"], "true").env("DLOCK_STORE", store).run();
}

/// The holder has released the lock on a majority, and one master does not know yet. Then one of
/// the others is lost.
#[test]
fn a_lock_released_just_now_is_not_busy() {
    let masters = Masters::aged(3);
    let proxies = [1, 2].map(|at| Proxy::before(masters.at(at).port()));
    let by = || Moment::now().after(Duration::from_secs(60));
    let ports = [masters.at(0).port(), masters.at(1).port(), proxies[1].port()];
    let mut first = store_within(&ports, LONG, Duration::from_millis(500));
    let ask_first = ask(Duration::from_secs(60));
    assert!(matches!(first.acquire(&names(), &ask_first, by()), Ok(Acquired::Granted(_))));
    proxies[1].plan(1, Fault::Late);
    first.leave(&names(), &ask_first.token, &NOT_RUN, by()).unwrap();
    assert!(masters.at(2).get("dlock:k").is_some(), "it is under way to this one");
    proxies[0].begin_outage();
    let ports = [masters.at(0).port(), proxies[0].port(), masters.at(2).port()];
    let mut next = store_within(&ports, LONG, Duration::from_millis(500));
    let next = thread::spawn(move || next.acquire(&names(), &ask(Duration::from_secs(60)), by()));
    wait_until("it has asked, and asks again", || proxies[0].seen() > 3);
    proxies[1].deliver();
    let answer = next.join().unwrap();
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
}

/// The withdrawal of a failed attempt arrives after the next attempt of the same token has
/// succeeded.
#[test]
fn a_late_withdrawal_undoes_no_newer_grant() {
    let masters = Masters::aged(3);
    let proxy = Proxy::before(masters.at(1).port());
    let ports = [masters.at(0).port(), proxy.port(), masters.at(2).port()];
    let mut store = store_within(&ports, LONG, Duration::from_millis(500));
    let by = || Moment::now().after(Duration::from_secs(20));
    let warm = ask(Duration::from_secs(20));
    assert!(matches!(store.acquire(&names(), &warm, by()), Ok(Acquired::Granted(_))));
    store.leave(&names(), &warm.token, &NOT_RUN, by()).unwrap();
    for at in [0, 2] {
        masters.at(at).ask::<()>(&["SET", "dlock:k", "somebody's"]);
    }
    proxy.plan(2, Fault::Late);
    let ask = Ask { patience: Patience::Queue, ..ask(Duration::from_secs(60)) };
    assert!(matches!(store.acquire(&names(), &ask, by()), Ok(Acquired::Waiting(_))));
    for at in [0, 2] {
        masters.at(at).ask::<()>(&["DEL", "dlock:k"]);
    }
    let token = Some(ask.token.secret().to_owned());
    wait_until("all masters are ours", || {
        matches!(store.acquire(&names(), &ask, by()), Ok(Acquired::Granted(_))) && proxy.seen() > 4
    });
    assert_eq!(masters.at(1).get("dlock:k"), token);
    proxy.deliver();
    assert_eq!(masters.at(1).get("dlock:k"), token);
}

/// Requests to a far master arrive after dlock has ended and no longer reads the answers.
#[test]
fn a_far_master_learns_of_the_release() {
    let masters = Masters::aged(3);
    let proxy = Proxy::before(masters.at(2).port());
    let store = url(&[masters.at(0).port(), masters.at(1).port(), proxy.port()]);
    proxy.go_far(Duration::from_millis(50));
    for (nth, job) in ["true", "sleep 0.3", "sleep 0.7"].into_iter().enumerate() {
        let key = format!("k{nth}");
        let run = masters.run(&key, &["-t", "4m"], job).env("DLOCK_STORE", &store);
        run.any_stderr().run();
        let far = masters.at(2);
        wait_until("it is told", || {
            !far.ask::<Vec<String>>(&["KEYS", &format!("dlock.spent*{key}:*")]).is_empty()
        });
        assert_eq!(far.get(&format!("dlock:{key}")), None, "{job}");
    }
}
