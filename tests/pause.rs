//! `dlock pause` and `resume`: nobody is granted the lock meanwhile, whoever holds it goes on, and it ends by itself.

use crate::support::cluster::Cluster;
use crate::support::dlock::{BINARY, Running, finish_all};
use crate::support::masters::Masters;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};

on_every_store!(
    nobody_is_granted_what_is_paused,
    who_holds_it_goes_on,
    who_holds_it_is_asked_to_end,
    a_pause_ends_by_itself,
    every_lock_that_looks_like_it_is_paused,
    one_paused_key_of_several_is_in_the_way,
    a_pause_in_the_middle_of_a_crowd,
);

const REFUSED: &str = "dlock: k in .* is busy: paused by .*@.* \\(pid \\d+\\) \\(freeze\\), for 59m.* more; \
    the command did not run; -w waits for it\n";

fn nobody_is_granted_what_is_paused(backend: Backend) {
    paused_and_resumed(&World::new(backend));
}

#[test]
fn a_quorum_is_paused() {
    let mut masters = Masters::aged(3);
    masters.use_own_store();
    paused_and_resumed(masters.world());
}

#[test]
fn a_cluster_is_paused() {
    let mut world = World::without_redis();
    let cluster = Cluster::start(&world, 2);
    world.use_store(cluster.url(&[0]));
    paused_and_resumed(&world);
}

fn paused_and_resumed(world: &World) {
    world.dlock(["resume", "-v", "k"]).stderr_like("dlock: k in .* was not paused\n").run();
    let said = "dlock: k in .* is paused for 1h: nobody is granted it\n";
    world.dlock(["pause", "-v", "k", "--reason", "freeze"]).stderr_like(said).run();
    world.run("k", &[], "echo ran >> log").stderr_like(REFUSED).status(75).run();
    world.run("k", &["-q", "-w", "200ms"], "echo ran >> log").status(75).run();
    world.dlock(["wait", "k", "-q", "-w", "0"]).status(75).run();
    let status = world.status("k");
    assert_eq!((&status["state"], &status["paused"]["reason"]), (&"paused".into(), &"freeze".into()));
    // Also where nobody asks for it by name.
    let all = world.dlock(["status"]).any_stdout().run().stdout;
    assert!(all.contains("paused"), "{all}");
    let metrics = world.dlock(["metrics", "k"]).any_stdout().run().stdout;
    assert!(metrics.contains("dlock_paused{key=\"k\"} 1\n"), "{metrics}");
    let waiter = world.run("k", &["-w"], "echo ran >> log").any_stderr().spawn();
    if !world.url().contains("quorum") {
        world.wait_for_waiters("k", 1);
    }
    assert_eq!(world.log(), [""; 0]);
    world.dlock(["resume", "-v", "k"]).stderr_like("dlock: k in .* is not paused any more\n").run();
    waiter.finish();
    assert_eq!(world.log(), ["ran"]);
    world.run("k", &[], "echo again >> log").run();
    assert_eq!(world.lines("again"), 1);
}

fn hold(world: &World) -> Running {
    let holder = world.run("k", &[], "echo up >> log; until [ -e end ]; do sleep 0.02; done").any_stderr();
    let holder = holder.spawn();
    world.wait_for_log("up");
    holder
}

fn who_holds_it_goes_on(backend: Backend) {
    let world = World::new(backend);
    let inside = format!("{BINARY} run -k k -- sh -c 'echo inside >> log'");
    let job = format!("echo up >> log; until [ -e go ]; do sleep 0.02; done; {inside}; echo over >> log");
    let holder = world.run("k", &["-t", "4s"], &job).spawn();
    world.wait_for_log("up");
    let said = "dlock: k in .* is paused for 1m: nobody is granted it; .*@.* \\(pid \\d+\\) goes on\n";
    world.dlock(["pause", "-v", "k", "--for", "1m", "--reason", "r"]).stderr_like(said).run();
    // It is renewed some times.
    let lease = || world.status("k")["holders"][0]["held_ms"].as_u64();
    wait_until("it outlives its lease", || lease().is_some_and(|held| held > 4500));
    let besides = "dlock: k in .* is busy: held by .*; besides, .* has paused it \\(r\\); the command did not run; .*\n";
    world.run("k", &[], "true").stderr_like(besides).status(75).run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "inside", "over"]);
    assert_eq!(world.state("k"), "paused");
}

fn who_holds_it_is_asked_to_end(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world);
    let said =
        "dlock: k in .* is paused for 1h: nobody is granted it; .*@.* \\(pid \\d+\\) is asked to end\n";
    world.dlock(["pause", "-v", "k", "--stop", "--reason", "r"]).stderr_like(said).run();
    assert_eq!(holder.output().status.code(), Some(79));
    assert_eq!(world.state("k"), "paused");
}

fn a_pause_ends_by_itself(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["pause", "k", "--for", "1s", "--reason", "r"]).run();
    world.run("k", &["-w"], "echo ran >> log").any_stderr().run();
    assert_eq!(world.log(), ["ran"]);
    assert_eq!(world.state("k"), "free");
}

fn every_lock_that_looks_like_it_is_paused(backend: Backend) {
    let world = World::new(backend);
    for key in ["deploy-web", "deploy-db", "other"] {
        world.run(key, &[], "true").run();
    }
    world.dlock(["pause", "deploy-*", "--reason", "r"]).run();
    for (key, state) in [("deploy-web", "paused"), ("deploy-db", "paused"), ("other", "free")] {
        assert_eq!(world.state(key), state, "{key}");
    }
    world.dlock(["resume", "deploy-*"]).run();
    assert_eq!(world.state("deploy-db"), "free");
    let said = "dlock: .* knows no lock like nothing-\\*; a pattern means .*\n";
    world.dlock(["pause", "nothing-*", "--reason", "r"]).stderr_like(said).status(75).run();
    world.dlock(["resume", "nothing-*"]).stderr_like(said).run();
}

/// Who may write to the store may pause a lock: for as long as anybody may, and in words that can be read.
#[test]
fn what_is_no_pause_stops_nobody() {
    let world = World::new(Backend::Redis);
    let now: u64 = world.redis().ask::<Vec<u64>>(&["TIME"])[0] * 1000;
    let by = "{\\\"host\\\":\\\"h\\\"}";
    let forged = |by: &str, until: &str| format!("[\"{by}\",\"1\",\"{until}\"]");
    let long = (now + 41 * 24 * 3_600_000).to_string();
    for until in ["99999999999999", "1e308", "nan", "-1", "", &long] {
        world.redis().ask::<()>(&["SET", "dlock.pause:{dlock:k}:dlock:k", &forged(by, until)]);
        world.run("k", &[], "true").run();
        assert_eq!(world.state("k"), "free", "{until}");
    }
    let soon = (now + 60_000).to_string();
    world.redis().ask::<()>(&["SET", "dlock.pause:{dlock:k}:dlock:k", &forged("nobody", &soon)]);
    let said = "dlock: k in .* is busy: paused by \\?@\\? .*\n";
    world.run("k", &[], "true").stderr_like(said).status(75).run();
    assert_eq!(world.state("k"), "paused");
    world.dlock(["resume", "k"]).run();
    assert_eq!(world.state("k"), "free");
}

fn one_paused_key_of_several_is_in_the_way(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["pause", "l", "--reason", "freeze"]).run();
    let both = world.run("k", &["-k", "l"], "echo both >> log");
    both.stderr_like("dlock: l in .* \\(wanted together with k\\) is busy: paused by .*\n").status(75).run();
    let waiter = world.run("k", &["-k", "l", "-w"], "echo both >> log").any_stderr().spawn();
    world.wait_for_waiters("l", 1);
    world.dlock(["resume", "l"]).run();
    waiter.finish();
    assert_eq!(world.log(), ["both"]);
}

/// Many ask all the time. From the moment when `pause` has returned until that at which `resume` is called nobody begins.
fn a_pause_in_the_middle_of_a_crowd(backend: Backend) {
    let world = World::new(backend);
    let worker = format!(
        "i=0; until [ -e end ]; do {BINARY} run -q -k k -w -- sh -c 'echo ran >> log' || echo failed >> log; done"
    );
    let workers: Vec<Running> = (0..6)
        .map(|_| world.dlock([""; 0]).after_shell(&worker).any_stderr().any_stdout())
        .map(|dlock| dlock.status(64).spawn())
        .collect();
    for round in 1..=3 {
        wait_until("the crowd works", || world.lines("ran") > 10 * round);
        world.dlock(["pause", "k", "--reason", "r"]).run();
        // Whoever held it then has ended.
        wait_until("the last one has ended", || world.state("k") == "paused");
        let before = world.lines("ran");
        wait_until("all wait", || world.waiters("k") == workers.len());
        assert_eq!(world.lines("ran"), before, "one ran in a pause");
        world.dlock(["resume", "k"]).run();
    }
    world.write("end", "");
    finish_all(workers);
    assert_eq!(world.lines("failed"), 0);
}
