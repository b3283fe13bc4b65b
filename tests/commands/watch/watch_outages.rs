//! `dlock watch` while the store is away, or its records are gone or damaged.

use super::{HOLD, end, wait_for_events, watch, words};
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::Signal;

/// The server is killed with all its records: the outage and its end are reported once, and the
/// held lock is lost.
#[test]
fn a_server_that_starts_anew() {
    let mut world = World::new(Backend::Redis);
    for arguments in [&["k", "--json"][..], &["--json"]] {
        let holder = world.run("k", &["-t", "6s"], HOLD).any_stderr().status(79).spawn();
        world.wait_for_log("up");
        let watch = watch(&world, arguments);
        world.redis_mut().kill();
        wait_until("it says that it is cut off", || watch.messages().contains("no events until"));
        world.redis_mut().restart();
        wait_until("it says that it is back", || watch.messages().contains("answers again"));
        wait_for_events(&watch, 1);
        holder.finish();
        world.run("k", &[], "exit 5").status(5).run();
        wait_for_events(&watch, 3);
        let said = watch.messages();
        let told = end(watch);
        assert_eq!(words(&told), ["lost", "granted", "released"]);
        assert_eq!(said.lines().count(), 3, "watching, cut off, back: {said}");
        world.write("log", "");
    }
}

/// Only the connection is gone, so the events of the outage are read from the log.
#[test]
fn events_of_an_outage_are_caught_up() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let watch = world.dlock(["watch", "k", "--json", "-v", "--op-timeout", "300ms"]);
    let watch = watch.env("DLOCK_STORE", proxy.url()).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    world.run("k", &[], "exit 1").status(1).run();
    wait_for_events(&watch, 2);
    proxy.begin_outage();
    world.run("k", &[], "exit 2").status(2).run();
    wait_until("it says that it is cut off", || watch.messages().contains("no events until"));
    world.run("k", &[], "exit 3").status(3).run();
    proxy.end_outage();
    let told = wait_for_events(&watch, 6);
    let statuses: Vec<_> = told.iter().filter_map(|event| event["exit_status"].as_u64()).collect();
    assert_eq!(statuses, [1, 2, 3]);
    wait_until("it says that it is back", || watch.messages().contains("answers again"));
    assert_eq!(end(watch).len(), 6);
}

#[test]
fn a_lock_that_vanishes_is_lost() {
    let world = World::new(Backend::Redis);
    let watch = watch(&world, &["k", "--json"]);
    let holder = world.run("k", &["-t", "6s"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<()>(&["DEL", "dlock:k"]);
    holder.finish();
    wait_for_events(&watch, 2);
    assert_eq!(words(&end(watch)), ["granted", "lost"]);
}

/// At first contact a store that is away is an error, as with other commands.
#[test]
fn no_store_to_begin_with() {
    let world = World::without_redis();
    let output = world.dlock(["watch", "k"]).env("DLOCK_STORE", "redis://127.0.0.1:1").status(69);
    assert_eq!(output.stderr_like("dlock: cannot reach .*\n").run().stdout, "");
}

/// A foreign value under the key of the watchers disturbs nobody.
#[test]
fn a_foreign_value_in_place_of_the_watchers() {
    let world = World::new(Backend::Redis);
    let strange = "dlock.watch:{dlock:k}:dlock:k";
    world.redis().ask::<()>(&["SET", strange, "x"]);
    world.run("k", &[], "true").run();
    let watch = world.dlock(["watch", "-v", "k"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    world.run("k", &[], "true").run();
    wait_until("the run is told", || watch.printed().contains("released k"));
    watch.signal(Signal::TERM);
    watch.finish();
}
