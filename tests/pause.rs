//! `dlock pause` and `resume`: nobody is granted the lock meanwhile, whoever holds it goes on, and it ends by itself.

use crate::support::cluster::Cluster;
use crate::support::dlock::{BINARY, End, Running, finish_all};
use crate::support::masters::Masters;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    nobody_is_granted_what_is_paused,
    who_holds_it_goes_on,
    who_holds_it_is_asked_to_end,
    a_pause_ends_by_itself,
    every_lock_that_looks_like_it_is_paused,
    one_paused_key_of_several_is_in_the_way,
    a_pause_in_the_middle_of_a_crowd,
    what_is_used_later_is_paused_by_a_pattern,
    a_pattern_ends_by_itself,
    what_a_pattern_pauses_is_not_opened_by_its_name,
    nothing_new_gets_past_a_pattern,
    there_are_patterns_enough,
    a_longer_pause_outlasts_a_pattern,
    who_was_granted_it_just_before_is_asked_to_end,
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

/// Whoever was granted the lock and has not come for it yet begins later, and is to be known of.
fn who_was_granted_it_just_before_is_asked_to_end(backend: Backend) {
    let is_known = || {
        let world = World::new(backend);
        let holder = hold(&world);
        let options = ["-w", "20s", "-t", "1m", "--grace", "100ms"];
        let waiter = world.run("k", &options, "exec sleep 1000").any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        waiter.signal(Signal::STOP);
        world.write("end", "");
        holder.finish();
        let said = world.dlock(["pause", "k", "--stop", "-v", "--reason", "now"]).any_stderr().run().stderr;
        waiter.signal(Signal::CONT);
        let end = waiter.output().end();
        assert!(matches!(end, End::Status(75 | 79)), "{end:?}");
        // A grant lasts for some seconds, which is short on a busy machine.
        said.contains("was granted it just before and is asked to end")
    };
    assert!((0..5).any(|_| is_known()), "nobody was told of");
}

fn a_longer_pause_outlasts_a_pattern(backend: Backend) {
    let world = World::new(backend);
    world.run("deploy-a", &[], "true").run();
    world.dlock(["pause", "deploy-a", "--for", "40h", "--reason", "audit"]).any_stderr().run();
    let said = world
        .dlock(["pause", "deploy-*", "--for", "1h", "-v", "--reason", "freeze"])
        .any_stderr()
        .run()
        .stderr;
    assert!(said.contains("deploy-a in ") && said.contains(" stays paused for "), "{said}");
    assert_eq!(world.status("deploy-a")["paused"]["reason"], "audit");
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
    let said = "dlock: .* knows no lock like nothing-\\*, and nobody has paused that; .*\n";
    world.dlock(["resume", "nothing-*"]).stderr_like(said).run();
}

fn what_is_used_later_is_paused_by_a_pattern(backend: Backend) {
    paused_before_it_was_used(&World::new(backend));
}

#[test]
fn what_is_used_later_is_paused_by_a_pattern_on_a_quorum() {
    let mut masters = Masters::aged(3);
    masters.use_own_store();
    paused_before_it_was_used(masters.world());
}

#[test]
fn what_is_used_later_is_paused_by_a_pattern_on_a_cluster() {
    let mut world = World::without_redis();
    let cluster = Cluster::start(&world, 3);
    world.use_store(cluster.url(&[0]));
    paused_before_it_was_used(&world);
}

fn paused_before_it_was_used(world: &World) {
    let said = "dlock: deploy-\\* in .* is paused for 1h: nobody is granted what looks like it\n\
        dlock: .* knows no lock like deploy-\\* yet\n";
    world.dlock(["pause", "-v", "deploy-*", "--reason", "freeze"]).stderr_like(said).run();
    // Nobody has asked for it yet.
    let status = world.status("deploy-0");
    assert_eq!((&status["state"], &status["paused"]["pattern"]), (&"paused".into(), &"deploy-*".into()));
    // Keys that lie in several slots of a cluster; each is asked for more than once.
    for key in ["deploy-1", "deploy-2", "deploy-3", "deploy-4"] {
        for _ in 0..2 {
            let refused = format!(
                "dlock: {key} in .* is busy: paused as one of deploy-\\* by .*@.* \\(pid \\d+\\) \\(freeze\\), for 59m.* more; \
                 the command did not run; -w waits for it\n"
            );
            world.run(key, &[], "echo ran >> log").stderr_like(&refused).status(75).run();
        }
        assert_eq!(world.state(key), "paused");
    }
    world.run("other", &[], "echo other >> log").run();
    let waiters: Vec<Running> = ["deploy-1", "deploy-new"]
        .map(|key| world.run(key, &["-w"], "echo waited >> log").any_stderr().spawn())
        .into();
    if !world.url().contains("quorum") {
        world.wait_for_waiters("deploy-new", 1);
        world.wait_for_waiters("deploy-1", 1);
    }
    let all: serde_json::Value =
        serde_json::from_str(&world.dlock(["status", "--json"]).any_stdout().run().stdout).unwrap();
    let shown = all.as_array().unwrap().iter().filter(|lock| lock["key"] == "deploy-*").count();
    assert_eq!(shown, 1, "{all}");
    let table = world.dlock(["status", "dep*"]).any_stdout().run().stdout;
    assert!(table.contains("every lock like it"), "{table}");
    let metrics = world.dlock(["metrics"]).any_stdout().run().stdout;
    assert!(metrics.contains("\ndlock_paused_patterns 1\n"), "{metrics}");
    let offered = "deploy-\\*\n";
    world.dlock(["complete-keys", "bash", "dlock resume deploy-\\*", "deploy-\\*"]).stdout(offered).run();
    assert_eq!(world.log(), ["other"]);
    world.dlock(["resume", "deploy-*"]).run();
    finish_all(waiters);
    world.run("deploy-0", &[], "echo free >> log").run();
    assert_eq!((world.lines("waited"), world.lines("free")), (2, 1));
    assert_eq!(world.dlock(["status", "--json"]).any_stdout().run().stdout, "[]\n");
}

fn a_pattern_ends_by_itself(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["pause", "-q", "k*", "--for", "2s", "--reason", "r"]).run();
    world.run("k", &[], "echo early >> log").any_stderr().status(75).run();
    world.run("k", &["-w"], "echo ran >> log").any_stderr().run();
    world.run("k2", &[], "echo ran >> log").run();
    assert_eq!(world.log(), ["ran", "ran"]);
}

fn what_a_pattern_pauses_is_not_opened_by_its_name(backend: Backend) {
    let world = World::new(backend);
    world.run("deploy-a", &[], "true").run();
    world.dlock(["pause", "-q", "deploy-*", "--reason", "freeze", "--for", "2h"]).run();
    let stays = "dlock: deploy-. in .* stays paused for 1h.*: .*@.* \\(pid \\d+\\) has paused deploy-\\* \\(freeze\\); \
        'dlock resume 'deploy-\\*'' ends that\n";
    for key in ["deploy-a", "deploy-b"] {
        world.dlock(["resume", key]).stderr_like(stays).status(75).run();
        assert_eq!(world.state(key), "paused");
        // One that ends sooner does not take its place.
        let said = "dlock: deploy-. in .* is paused for 1h.* by deploy-\\*: nobody is granted it\n";
        world.dlock(["pause", "-v", key, "--for", "1m", "--reason", "r"]).stderr_like(said).run();
        assert_eq!(world.status(key)["paused"]["reason"], "freeze");
    }
    world.dlock(["pause", "-q", "dep*", "--reason", "incident", "--for", "1h"]).run();
    assert_eq!(world.status("deploy-a")["paused"]["reason"], "freeze");
    world.dlock(["resume", "deploy-*"]).any_stderr().status(75).run();
    assert_eq!(world.status("deploy-a")["paused"]["reason"], "incident");
    assert_eq!(world.status("deploy-c")["paused"]["reason"], "incident");
    world.dlock(["resume", "dep*"]).run();
    for key in ["deploy-a", "deploy-b", "deploy-c"] {
        world.run(key, &[], "echo ran >> log").run();
    }
    assert_eq!(world.lines("ran"), 3);
}

/// Many take locks that nobody has taken before. From the moment when `pause` has returned nobody is granted one: what is
/// granted has a smaller number than a lock that was taken after that.
fn nothing_new_gets_past_a_pattern(backend: Backend) {
    new_ones_and_a_pattern(&World::new(backend));
}

#[test]
fn nothing_new_gets_past_a_pattern_on_a_quorum() {
    let mut masters = Masters::aged(3);
    masters.use_own_store();
    new_ones_and_a_pattern(masters.world());
}

#[test]
fn nothing_new_gets_past_a_pattern_on_a_cluster() {
    let mut world = World::without_redis();
    let cluster = Cluster::start(&world, 3);
    world.use_store(cluster.url(&[0]));
    new_ones_and_a_pattern(&world);
}

fn new_ones_and_a_pattern(world: &World) {
    let worker = |at: usize| {
        format!(
            "i=0; until [ -e end ]; do i=$((i+1)); {BINARY} run -q -k new-{at}-$i -- sh -c 'echo $DLOCK_FENCE >> fences'; echo tried >> log; sleep 0.1; done"
        )
    };
    let workers: Vec<Running> = (0..3)
        .map(|at| world.dlock([""; 0]).after_shell(&worker(at)).any_stderr().any_stdout().status(64).spawn())
        .collect();
    let granted = || world.read("fences").lines().count();
    world.write("fences", "");
    for round in 1..=3 {
        let before = granted();
        wait_until("they work", || granted() > before + 3);
        world.dlock(["pause", "-q", "new-*", "--reason", "r"]).run();
        let paused =
            world.dlock(["run", "-k", "marker", "--", "sh", "-c", "echo $DLOCK_FENCE"]).any_stdout().run();
        let paused: u64 = paused.stdout.trim().parse().unwrap();
        let tried = world.lines("tried");
        wait_until("all have tried", || world.lines("tried") > tried + 6);
        let late =
            world.read("fences").lines().filter(|fence| fence.parse::<u64>().unwrap() > paused).count();
        assert_eq!(late, 0, "granted in a pause, in round {round}");
        world.dlock(["resume", "-q", "new-*"]).run();
    }
    world.write("end", "");
    finish_all(workers);
}

fn there_are_patterns_enough(backend: Backend) {
    let world = World::new(backend);
    let pause = |patterns: &[String]| {
        world.dlock(["pause", "--reason", "r"].into_iter().chain(patterns.iter().map(String::as_str)))
    };
    let patterns: Vec<String> = (0..64).map(|at| format!("p{at}-*")).collect();
    pause(&patterns).any_stderr().run();
    let full = "dlock: q\\* in .* is not paused: 64 patterns are in force there already, .*\n";
    pause(&["q*".into()]).stderr_like(full).status(75).run();
    // Each may be said anew.
    pause(&patterns[63..]).any_stderr().run();
    world.run("p63-x", &[], "true").any_stderr().status(75).run();
    world.run("q", &[], "true").run();
    world.dlock(["resume", "-q", "p3-*"]).run();
    pause(&["q*".into()]).any_stderr().run();
    assert_eq!(world.state("q"), "paused");
}

/// Who may write to the store may write there what is no pattern.
#[test]
fn what_is_no_pattern_stops_nobody() {
    let world = World::new(Backend::Redis);
    let soon = world.redis().ask::<Vec<u64>>(&["TIME"])[0] * 1000 + 60_000;
    let by = "{\\\"host\\\":\\\"h\\\"}";
    let forged = [
        "no json".to_owned(),
        "7".into(),
        "{}".into(),
        "[7,{},[],[\"x\"]]".into(),
        format!("[[\"{by}\",\"1\",\"99999999999999\",\"*\"]]"),
        format!("[[\"{by}\",\"1\",\"{soon}\"]]"),
        format!("[[\"{by}\",\"1\",\"{soon}\",7]]"),
        format!("[[\"{by}\",\"1\",\"{soon}\",\"other*\"]]"),
    ];
    for (at, text) in forged.iter().enumerate() {
        world.redis().ask::<()>(&["SET", "dlock.patterns:dlock:", text]);
        world.run(&format!("k{at}"), &[], "true").run();
        world.dlock(["status"]).any_stdout().run();
    }
    world.redis().ask::<()>(&["DEL", "dlock.patterns:dlock:"]);
    world.redis().ask::<()>(&["LPUSH", "dlock.patterns:dlock:", "x"]);
    world.run("k", &[], "true").run();
    world.dlock(["pause", "-q", "new*", "--reason", "r"]).run();
    world.run("new", &[], "true").any_stderr().status(75).run();
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
