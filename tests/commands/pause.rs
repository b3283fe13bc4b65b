//! `dlock pause` and `resume`: during a pause no run is granted the lock, holders go on, and the
//! pause ends by itself.

use crate::support::dlock::{BINARY, End, Running, finish_all};
use crate::support::pty::Terminal;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    a_paused_lock_is_granted_to_nobody,
    a_holder_goes_on,
    a_holder_is_asked_to_end,
    a_pause_ends_by_itself,
    a_pattern_means_the_keys_that_are_known,
    a_pattern_that_nothing_matches_is_an_error,
    a_key_with_a_star_is_named,
    a_pattern_shortens_no_pause,
    one_paused_key_of_several_is_in_the_way,
    a_pause_in_the_middle_of_a_crowd,
    a_waiter_that_was_just_granted_the_lock_is_asked_to_end,
);

const REFUSED: &str = "dlock: k in .* is busy: paused by .*@.* \\(pid \\d+\\) \\(freeze\\), for 59m.* more; \
    the command did not run; -w waits for it\n";

fn a_paused_lock_is_granted_to_nobody(backend: Backend) {
    paused_and_resumed(&World::new(backend));
}

#[test]
fn a_quorum_and_a_cluster_are_paused() {
    for world in [World::on_a_quorum(), World::on_a_cluster()] {
        patterns_of_known_keys(&world);
        world.write("log", "");
        paused_and_resumed(&world);
    }
}

/// The reason is shown even if the table has no room for its column.
#[test]
fn a_narrow_terminal_shows_the_reason_of_a_pause() {
    let world = World::without_redis();
    world.dlock(["pause", "k", "l", "--reason", "the tables are migrated"]).any_stderr().run();
    // Its columns take the room.
    let holder = world.run("m", &[], "echo up >> log; exec sleep 1000").dies_of(15).spawn();
    world.wait_for_log("up");
    for command in ["dlock status", "dlock status --all"] {
        let mut terminal = Terminal::with_size(&world, "xterm", 24, 80);
        terminal.type_line(command);
        let shown = terminal.expect("l is paused by ");
        assert!(
            shown.contains("k is paused by ") && shown.contains("(the tables are migrated), until "),
            "{command}: {shown}"
        );
        terminal.close();
    }
    let piped = world.dlock(["status"]).any_stdout().run().stdout;
    assert!(!piped.contains("is paused by"), "{piped}");
    holder.signal(Signal::TERM);
    holder.finish();
}

fn paused_and_resumed(world: &World) {
    world.dlock(["resume", "k"]).stderr_like("dlock: k in .* was not paused; not known here\n").run();
    let said = "dlock: k in .* is paused for 1h: no new holder until then; not known here\n";
    world.dlock(["pause", "k", "--reason", "freeze"]).stderr_like(said).run();
    world.run("k", &[], "echo ran >> log").stderr_like(REFUSED).status(75).run();
    world.run("k", &["-q", "-w", "200ms"], "echo ran >> log").status(75).run();
    world.dlock(["wait", "k", "-q", "-w", "0"]).status(75).run();
    let status = world.status("k");
    assert_eq!((&status["state"], &status["paused"]["reason"]), (&"paused".into(), &"freeze".into()));
    // A paused lock is listed even if no key is given.
    let all = world.dlock(["status"]).any_stdout().run().stdout;
    assert!(all.contains("  paused  ") && all.contains("paused by ") && all.contains("(freeze)"), "{all}");
    let history = world.dlock(["history", "k"]).any_stdout().run().stdout;
    assert!(history.starts_with("k is paused by ") && history.contains(" (freeze), until "), "{history}");
    let metrics = world.dlock(["metrics", "k"]).any_stdout().run().stdout;
    assert!(metrics.contains("dlock_paused{key=\"k\"} 1\n"), "{metrics}");
    let waiter = world.run("k", &["-w"], "echo ran >> log").any_stderr().spawn();
    if !world.url().contains("quorum") {
        world.wait_for_waiters("k", 1);
    }
    assert_eq!(world.log(), [""; 0]);
    world.dlock(["resume", "k"]).stderr_like("dlock: k in .* is not paused any more\n").run();
    waiter.finish();
    assert_eq!(world.log(), ["ran"]);
    world.run("k", &[], "echo again >> log").run();
    assert_eq!(world.lines("again"), 1);
}

fn hold(world: &World) -> Running {
    let holder = world.run("k", &[], "echo up >> log; until [ -e end ]; do sleep 0.1; done").any_stderr();
    let holder = holder.spawn();
    world.wait_for_log("up");
    holder
}

fn a_holder_goes_on(backend: Backend) {
    let world = World::new(backend);
    let inside = format!("{BINARY} run -k k -- sh -c 'echo inside >> log'");
    let job = format!("echo up >> log; until [ -e go ]; do sleep 0.1; done; {inside}; echo over >> log");
    let holder = world.run("k", &["-t", "4s"], &job).spawn();
    world.wait_for_log("up");
    let said = "dlock: k in .* is paused for 1m: no new holder until then; .*@.* \\(pid \\d+\\) goes on\n";
    world.dlock(["pause", "k", "--for", "1m", "--reason", "r"]).stderr_like(said).run();
    // Waits until the hold was renewed several times.
    let lease = || world.status("k")["holders"][0]["held_ms"].as_u64();
    wait_until("it outlives its lease", || lease().is_some_and(|held| held > 4500));
    let besides =
        "dlock: k in .* is busy: held by .*; also paused by .* \\(r\\); the command did not run; .*\n";
    world.run("k", &[], "true").stderr_like(besides).status(75).run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "inside", "over"]);
    assert_eq!(world.state("k"), "paused");
}

fn a_holder_is_asked_to_end(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world);
    let said =
        "dlock: k in .* is paused for 1h: no new holder until then; .*@.* \\(pid \\d+\\) is asked to end\n";
    world.dlock(["pause", "k", "--stop", "--reason", "r"]).stderr_like(said).run();
    assert_eq!(holder.output().status.code(), Some(79));
    assert_eq!(world.state("k"), "paused");
}

/// A waiter that was granted the lock but has not confirmed yet starts later, so `pause` must name
/// it.
fn a_waiter_that_was_just_granted_the_lock_is_asked_to_end(backend: Backend) {
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
        // A grant that is not confirmed lapses after some seconds, which may be too short on a busy
        // machine.
        said.contains("was granted the lock just before and is asked to end")
    };
    assert!((0..5).any(|_| is_known()), "nobody was told of");
}

fn a_pause_ends_by_itself(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["pause", "-q", "k", "--for", "1s", "--reason", "r"]).run();
    world.run("k", &["-w"], "echo ran >> log").any_stderr().run();
    assert_eq!(world.log(), ["ran"]);
    assert_eq!(world.state("k"), "free");
}

fn a_pattern_means_the_keys_that_are_known(backend: Backend) {
    patterns_of_known_keys(&World::new(backend));
}

fn patterns_of_known_keys(world: &World) {
    for key in ["deploy-web", "deploy-db", "other"] {
        world.run(key, &[], "true").run();
    }
    // The locks are named even if the output is no terminal.
    let said = "dlock: deploy-db in .* is paused for 1h: no new holder until then\n\
        dlock: deploy-web in .* is paused for 1h: no new holder until then\n";
    world.dlock(["pause", "deploy-*", "--reason", "freeze"]).stderr_like(said).run();
    for (key, state) in [("deploy-web", "paused"), ("deploy-db", "paused"), ("other", "free")] {
        assert_eq!(world.state(key), state, "{key}");
    }
    let refused =
        "dlock: deploy-web in .* is busy: paused by .*@.* \\(pid \\d+\\) \\(freeze\\), for 59m.* more; .*\n";
    world.run("deploy-web", &[], "echo ran >> log").stderr_like(refused).status(75).run();
    // A key that was never used does not match.
    world.run("deploy-new", &[], "echo new >> log").run();
    assert_eq!(world.log(), ["new"]);
    let said =
        "dlock: deploy-db in .* is not paused any more\ndlock: deploy-web in .* is not paused any more\n";
    world.dlock(["resume", "deploy-*"]).stderr_like(said).run();
    assert_eq!(world.state("deploy-db"), "free");
    let said = "dlock: no lock that matches deploy-\\* in .* was paused\n";
    world.dlock(["resume", "deploy-*"]).stderr_like(said).run();
    let said = "dlock: no lock that matches deploy-\\* in .* has a successful run on record\n";
    world.dlock(["forget", "deploy-*"]).stderr_like(&format!("(dlock: .* is due again: .*\n)+|{said}")).run();
}

/// `pause` and `resume` fail and change nothing.
fn a_pattern_that_nothing_matches_is_an_error(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], "true").run();
    let said = "dlock: .* has no key that matches x\\*; nothing was changed\n";
    for words in [&["pause", "k", "x*", "--reason", "r"][..], &["resume", "k", "x*"], &["forget", "k", "x*"]]
    {
        world.dlock(words).stderr_like(said).status(64).run();
    }
    assert_eq!(world.state("k"), "free");
}

/// A backslash makes the star part of one key.
fn a_key_with_a_star_is_named(backend: Backend) {
    let world = World::new(backend);
    for key in ["a*", "ab"] {
        world.run(key, &[], "true").run();
    }
    world.dlock(["pause", r"a\*", "--reason", "r"]).stderr_like("dlock: a\\* in .* is paused for .*\n").run();
    assert_eq!(world.state("ab"), "free");
    world.run("a*", &[], "true").any_stderr().status(75).run();
    world.dlock(["wait", "-q", "-w", "0", r"a\*"]).status(75).run();
    world.dlock(["resume", "-q", r"a\*"]).run();
    world.run("a*", &[], "true").run();
}

fn a_pattern_shortens_no_pause(backend: Backend) {
    let world = World::new(backend);
    world.run("deploy-a", &[], "true").run();
    world.dlock(["pause", "deploy-a", "--for", "40h", "--reason", "audit"]).any_stderr().run();
    let said = "dlock: deploy-a in .* stays paused for 1d15h.*, by .*@.* \\(audit\\)\n";
    world.dlock(["pause", "deploy-*", "--for", "1h", "--reason", "freeze"]).stderr_like(said).run();
    assert_eq!(world.status("deploy-a")["paused"]["reason"], "audit");
}

/// A client with write access to the store may forge a pause, but only a valid record within the
/// longest pause counts.
#[test]
fn an_invalid_pause_stops_nobody() {
    let world = World::new(Backend::Redis);
    let now: u64 = world.redis().ask::<Vec<u64>>(&["TIME"])[0] * 1000;
    let by = r#"{"host":"h"}"#;
    let forged = |by: &str, until: &str| format!(r#"{{"by":{by},"since":1,"until":"{until}"}}"#);
    let long = (now + 41 * 24 * 3_600_000).to_string();
    for until in ["99999999999999", "1e308", "nan", "-1", "", &long] {
        world.redis().ask::<()>(&["SET", "dlock.pause:{dlock:k}:dlock:k", &forged(by, until)]);
        world.run("k", &[], "true").run();
        assert_eq!(world.state("k"), "free", "{until}");
    }
    let soon = (now + 60_000).to_string();
    world.redis().ask::<()>(&["SET", "dlock.pause:{dlock:k}:dlock:k", &forged("\"nobody\"", &soon)]);
    let said = "dlock: k in .* is busy: paused by \\?@\\? .*\n";
    world.run("k", &[], "true").stderr_like(said).status(75).run();
    assert_eq!(world.state("k"), "paused");
    world.dlock(["resume", "-q", "k"]).run();
    assert_eq!(world.state("k"), "free");
}

fn one_paused_key_of_several_is_in_the_way(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["pause", "-q", "l", "--reason", "freeze"]).run();
    let both = world.run("k", &["-k", "l"], "echo both >> log");
    both.stderr_like("dlock: l in .* \\(wanted together with k\\) is busy: paused by .*\n").status(75).run();
    let waiter = world.run("k", &["-k", "l", "-w"], "echo both >> log").any_stderr().spawn();
    world.wait_for_waiters("l", 1);
    world.dlock(["resume", "-q", "l"]).run();
    waiter.finish();
    assert_eq!(world.log(), ["both"]);
}

/// Many runs request the lock all the time. After `pause` has returned and before `resume` is
/// called, no run starts.
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
        world.dlock(["pause", "-q", "k", "--reason", "r"]).run();
        // The holder at the time of the pause has ended.
        wait_until("the last one has ended", || world.state("k") == "paused");
        let before = world.lines("ran");
        wait_until("all wait", || world.waiters("k") == workers.len());
        assert_eq!(world.lines("ran"), before, "one ran in a pause");
        world.dlock(["resume", "-q", "k"]).run();
    }
    world.write("end", "");
    finish_all(workers);
    assert_eq!(world.lines("failed"), 0);
}

/// The moment is the next such in the machine's zone, and what was understood is printed.
#[test]
fn a_pause_until_a_moment() {
    let world = World::without_redis();
    world.run("k", &[], "true").run();
    let pause = |until: &str| {
        let pause = world.dlock(["pause", "k", "--reason", "r", "--until", until]);
        pause.env("TZ", "IST-5:30")
    };
    let said = "dlock: k in .* is paused until 20\\d\\d-\\d\\d-\\d\\d 03:00:00 IST, for .*: no new holder until then\n";
    pause("03:00").stderr_like(said).run();
    let until = world.status("k")["paused"]["until"].as_str().expect("a time").to_owned();
    assert!(until.contains("T21:30:0"), "{until}");
    pause("yesterday").status(64).stderr_like("dlock: --until is in the past\n").run();
    pause("2999-01-01")
        .status(64)
        .stderr_like("dlock: --until is 2999-01-01 .*: a pause lasts 40 days at most\n")
        .run();
    pause("03:00").args(["--for", "1h"]).status(64).any_stderr().run();
}
