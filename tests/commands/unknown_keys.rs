//! A key that the store does not know is named as such, with the nearest key that it knows.

use crate::support::world::{Backend, World, on_every_store};

on_every_store!(a_mistyped_key_is_named_with_the_nearest);

fn a_mistyped_key_is_named_with_the_nearest(backend: Backend) {
    let world = World::new(backend);
    world.run("nightly-report", &[], "true").run();
    let near = "not known here; did you mean 'nightly-report'\\?\n";
    let says = |words: &[&str], text: &str| {
        let like = format!("dlock: nightly-reprt in .*{text}{near}");
        world.dlock(words).stderr_like(&like).run();
    };
    let key = "nightly-reprt";
    says(&["release", key], " is free; nothing to release; ");
    says(&["release", "--force", key], " is free; nothing to release; ");
    says(&["wait", key], " is ");
    says(&["forget", key], "nothing to forget, no successful run on record; ");
    says(&["resume", key], " was not paused; ");
    says(&["pause", key, "--for", "3d", "--reason", "why"], " is paused for 3d: no new holder until then; ");
    assert_eq!(world.state(key), "paused");
    world.dlock(["resume", key]).stderr_like("dlock: nightly-reprt in .* is not paused any more\n").run();
    for command in ["status", "history"] {
        let shown = world.dlock([command, key]).any_stdout().run().stdout;
        assert!(shown.starts_with("no record of nightly-reprt"), "{shown}");
        assert!(shown.ends_with("; did you mean 'nightly-report'?\n"), "{shown}");
        let both = world.dlock([command, key, "nightly-report"]).any_stdout();
        both.stderr_like(&format!("dlock: nightly-reprt in .*: {near}")).run();
    }
    // A program has the field `known` of a status, and history has nothing to put one in.
    world.dlock(["status", key, "--json"]).any_stdout().run();
    let like = format!("dlock: nightly-reprt in .*: {near}");
    world.dlock(["history", key, "--json"]).stdout("[]\n").stderr_like(&like).run();
    world.dlock(["history", "-q", key, "--json"]).stdout("[]\n").run();
    let none = "dlock: .* has no key that matches z\\*\n";
    for command in ["status", "history", "metrics"] {
        world.dlock([command, "z*", "nightly-*"]).any_stdout().stderr_like(none).run();
    }
    for command in ["status", "history"] {
        world.dlock([command, "z*", "--json"]).stdout("[]\n").stderr_like(none).run();
        world.dlock([command, "z*"]).stdout_like(".* no key that matches z\\*.*\n|no key that .*\n").run();
    }
    let known = |key: &str| world.status(key)["known"].as_bool();
    assert_eq!((known(key), known("nightly-report")), (Some(false), Some(true)));
    let like = format!("dlock: nightly-reprt in .* is {near}dlock: .* \\(no success is known\\), .*\n");
    world.dlock(["wait", "--done", "day", "-w", "0", key]).stderr_like(&like).status(75).run();
    world.dlock(["resume", "zebra"]).stderr_like("dlock: zebra in .* was not paused; not known here\n").run();
    world.dlock(["wait", "nightly-report"]).run();
    world.dlock(["forget", "nightly-*"]).any_stderr().run();
}

/// A search must not load a Redis that has many other keys, nor delay a release.
#[test]
fn a_suggestion_costs_ten_scans_at_most_and_a_release_none() {
    let world = World::with_redis(&[]);
    let redis = world.redis();
    world.dlock(["doctor"]).any_stdout().run();
    let like = "dlock: dlock.identiti in .* is free; nothing to release; not known here\n";
    world.dlock(["release", "dlock.identiti"]).stderr_like(like).run();
    assert_eq!(redis.ask::<String>(&["CONFIG", "RESETSTAT"]), "OK");
    let fill = "for i = 1, 30000 do redis.call('SET', 'other:' .. i, 1) end";
    redis.ask::<()>(&["EVAL", fill, "0"]);
    let scans = || {
        let stats = redis.ask::<String>(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_scan:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls.map_or(0, |calls| calls.parse::<u32>().expect("a number"))
    };
    let holder = world.run("k", &[], "echo up >> log; exec sleep 60").status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.dlock(["release", "-y", "k"]).any_stderr().run();
    holder.finish();
    assert_eq!(scans(), 0);
    let unknown = "dlock: zebra in .* is free; nothing to release; not known here\n";
    world.dlock(["release", "zebra"]).stderr_like(unknown).run();
    assert!((1..=10).contains(&scans()), "{}", scans());
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-scan"]);
    world.dlock(["release", "zebra"]).stderr_like(unknown).run();
}
