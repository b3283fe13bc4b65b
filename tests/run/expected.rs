//! `--expect`: what should have run is known on every store, shown, and kept for 400 days.

use crate::support::dlock::BINARY;
use crate::support::world::{Backend, World, on_every_store};
use serde_json::Value;

on_every_store!(what_a_run_expects_is_known);

const DAY: u64 = 24 * 60 * 60 * 1000;

fn what_a_run_expects_is_known(backend: Backend) {
    known(&World::new(backend));
}

#[test]
fn a_quorum_knows_what_is_expected() {
    known(&World::on_a_quorum());
}

fn known(world: &World) {
    let expects = || {
        let status = world.status("k");
        (status["expect_ms"].clone(), status["overdue"].clone())
    };
    world.run("k", &[], "true").run();
    assert_eq!(expects(), (Value::Null, Value::Null));
    world.run("k", &["--once-per", "1h"], "true").run();
    assert_eq!(expects().0, Value::Null, "a duration is no period");
    world.run("k", &["--once-per", "day", "-q"], "true").run();
    assert_eq!(expects(), (DAY.into(), false.into()), "a run that is done says it, too");
    world.run("k", &["--once-per", "day", "-q", "--expect", "3d"], "true").run();
    assert_eq!(expects(), ((3 * DAY).into(), false.into()));
    world
        .dlock(["status", "k"])
        .stdout_like("(?s).*\nexpected +a success each 3d, the last one ended \\d+m?s ago\n.*")
        .run();
    for keys in [&["k"][..], &["k*"], &[]] {
        world.dlock([&["status", "--overdue"], keys].concat()).run();
    }
    let nothing = "dlock: no run of other is expected in .*; name what is expected: .*\n";
    world.dlock(["status", "-q", "--overdue", "k", "other"]).stderr_like(nothing).status(75).run();
    let none = "dlock: .* has no key that matches o\\* and expects a run; .*\n";
    world.dlock(["status", "--overdue", "o*", "k"]).stderr_like(none).status(75).run();
    // A nested run changes nothing, and says so.
    let inside = format!("{BINARY} run -k k --expect 2d -- true");
    let said = "dlock: the surrounding job holds k in .*, so this has no effect here: --expect; .*\n";
    world.run("k", &[], &inside).stderr_like(said).run();
    assert_eq!(expects().0, Value::from(3 * DAY));
    world
        .dlock(["forget", "-v", "--retire", "k"])
        .stderr_like("dlock: no run of k in .* is expected any more, .*\n")
        .run();
    world.dlock(["forget", "--retire", "k"]).stderr_like("dlock: k in .*: nothing to retire, .*\n").run();
    world.dlock(["status", "--overdue", "k"]).any_stderr().status(75).run();
    world.run("k", &["--expect", "minute"], "true").run();
    assert_eq!(expects().0, Value::from(60_000));
    world.run("k", &["--expect", "0"], "false").status(1).run();
    assert_eq!(expects(), (Value::Null, Value::Null));
}

/// Redis forgets each key by itself, so that of the expectation must outlast the job as well as what
/// shows its last run.
#[test]
fn a_job_that_should_have_run_is_shown_for_400_days() {
    let world = World::new(Backend::Redis);
    let key = |kind: &str| format!("dlock.{kind}:{{dlock:nightly}}:dlock:nightly");
    let days = |kind: &str| world.redis().ask::<i64>(&["PTTL", &key(kind)]) / 86_400_000;
    world.run("usual", &[], "true").run();
    world.run("nightly", &[], "true").run();
    assert_eq!(["stat", "fence", "log"].map(days), [39; 3]);
    world.run("nightly", &["--once-per", "day"], "exit 3").status(3).run();
    assert_eq!(["expect", "stat", "fence", "log"].map(days), [399; 4]);
    world.run("nightly", &[], "exit 3").status(3).run();
    assert_eq!(["expect", "stat", "fence", "log"].map(days), [399; 4]);
    world.dlock(["status"]).stdout_like("no lock is held, .*\n").run();
    // The last success was two days ago.
    let last = [0, 2 * 86_400].map(|ago| world.redis().ask::<Vec<u64>>(&["TIME"])[0] - ago);
    let last = (last[1] * 1000).to_string();
    world.redis().ask::<i64>(&["HSET", &key("stat"), "last-job.succeeded", &last]);
    let line = "nightly is overdue: a success each 1d, the last one ended 2d ago; last run exit 3 .* ago, .*, by .*@.*\n";
    for keys in [&["nightly"][..], &["n*", "nightly"], &[]] {
        world.dlock([&["status", "--overdue"], keys].concat()).stdout_like(line).status(75).run();
    }
    let json = world.dlock(["status", "--json", "--overdue"]).status(75).any_stdout().run().stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((json[0]["key"].as_str(), json[0]["overdue"].as_bool()), (Some("nightly"), Some(true)));
    assert_eq!(json.as_array().map(Vec::len), Some(1));
    world
        .dlock(["status"])
        .stdout_like("(?s).*nightly .*overdue: a success each 1d, the last one ended 2d ago\n")
        .run();
    let page = world.dlock(["metrics"]).any_stdout().run().stdout;
    assert!(
        page.contains("\ndlock_overdue{key=\"nightly\"} 1\n") && !page.contains("overdue{key=\"usual"),
        "{page}"
    );
    let ahead = (world.redis().ask::<Vec<u64>>(&["TIME"])[0] + 1000 * 86_400) * 1000;
    world.redis().ask::<i64>(&["HSET", &key("stat"), "last-job.succeeded", &ahead.to_string()]);
    let line = "nightly is overdue: a success each 1d, the last one was recorded by a clock that was \\d+d.* ahead; last run .*\n";
    world.dlock(["status", "--overdue", "nightly"]).stdout_like(line).status(75).run();
    world.run("nightly", &["--once-per", "day"], "true").run();
    world.dlock(["status", "--overdue", "nightly"]).run();
    let page = world.dlock(["metrics"]).any_stdout().run().stdout;
    assert!(page.contains("\ndlock_overdue{key=\"nightly\"} 0\n"), "{page}");
    world.dlock(["forget", "--retire", "nightly"]).run();
    assert_eq!(["expect", "stat", "fence", "log"].map(days), [0, 39, 39, 39]);
}
