//! A run inside a job that holds the requested lock: it starts at once under that hold, after the
//! store has confirmed the hold.

use crate::support::dlock::{BINARY, Dlock};
use crate::support::masters::Masters;
use crate::support::proc;
use crate::support::redis::Redis;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::{Value, json};

on_every_store!(
    a_nested_run_starts_at_once_and_releases_nothing,
    runs_nest_at_any_depth_through_scripts,
    the_environment_is_that_of_the_hold,
    nested_runs_do_not_exclude_each_other,
    a_nested_run_needs_a_mode_that_the_hold_covers,
    keys_that_are_not_held_are_acquired,
    a_min_hold_is_ignored,
    a_stale_dlock_held_is_not_believed,
    a_forged_dlock_held_is_not_believed,
    another_prefix_or_store_is_another_lock,
    a_nested_run_ends_as_its_command_does,
    a_nested_run_stops_its_own_job_and_no_other,
    a_killed_nested_run_ends_its_own_job_and_no_other,
    a_nested_run_killed_as_the_command_keeps_the_lock_until_its_job_is_dead,
    a_signal_reaches_the_command,
    a_loss_outside_ends_everything_inside,
    a_report_says_that_it_was_nested,
);

/// A run whose script finds dlock as `$D`.
fn outer<'w>(world: &'w World, options: &[&str], script: &str) -> Dlock<'w> {
    world.run("k", options, script).env("D", BINARY)
}

fn a_nested_run_starts_at_once_and_releases_nothing(backend: Backend) {
    let world = World::new(backend);
    let script = "$D run -k k -- echo one; $D run -k k -w -- echo two; $D run -k k -w 10m -- echo three
        $D status --json k > during; $D run -k k -c 'echo four; echo up >> log; until [ -e go ]; do sleep 0.1; done'";
    let run = outer(&world, &[], script).stdout("one\ntwo\nthree\nfour\n").spawn();
    world.wait_for_log("up");
    let status = world.status("k");
    assert_eq!(status["holders"].as_array().map(Vec::len), Some(1), "not counted: {status}");
    assert_eq!(status["holders"][0]["pid"], run.pid());
    assert_eq!(status["waiters"], json!([]));
    let during: Value = serde_json::from_str(&world.read("during")).expect("JSON");
    assert_eq!(during[0]["holders"][0]["fence"], status["holders"][0]["fence"], "the same hold all the time");
    world.run("k", &[], "true").status(75).any_stderr().run();
    world.write("go", "");
    run.finish();
    assert_eq!(world.state("k"), "free");
    assert_eq!(world.status("k")["last_run"]["pid"], status["holders"][0]["pid"]);
}

fn runs_nest_at_any_depth_through_scripts(backend: Backend) {
    let world = World::new(backend);
    world.script(
        "deeper",
        "#!/bin/sh\n[ $1 = 0 ] && { echo deep; exit; }\nsetsid -w $D run -k k -- ./deeper $(($1 - 1))\n",
    );
    outer(&world, &[], "./deeper 6").stdout("deep\n").run();
    // The same with another lock in between.
    let script = "$D run -k l -- sh -c '$D run -k k -- $D run -k l -w -- $D run -k k -k l -w -- echo deep'";
    outer(&world, &[], script).stdout("deep\n").run();
    assert_eq!((world.state("k"), world.state("l")), ("free".into(), "free".into()));
}

fn the_environment_is_that_of_the_hold(backend: Backend) {
    let world = World::new(backend);
    let told = "env | grep ^DLOCK_ | sort";
    let script = format!("{told} > outer; $D run -k k -n 3 -- sh -c '{told}' > inner");
    outer(&world, &["-n", "3"], &script).run();
    assert_eq!(world.read("inner"), world.read("outer"));
    assert!(world.read("inner").contains("DLOCK_SLOT=0\n"));
    // With another lock in between, the outer hold still covers the inner run.
    let script = format!("{told} > outer; $D run -k l -- $D run -k k -- sh -c '{told}' > inner");
    outer(&world, &[], &script).run();
    let line = |file: &str, name: &str| {
        let text = world.read(file);
        text.lines().find(|line| line.starts_with(&format!("{name}="))).expect(name).to_owned()
    };
    for name in ["DLOCK_KEY", "DLOCK_KEYS", "DLOCK_TOKEN", "DLOCK_FENCE"] {
        assert_eq!(line("inner", name), line("outer", name));
    }
    let held: Value =
        serde_json::from_str(&line("inner", "DLOCK_HELD")["DLOCK_HELD=".len()..]).expect("JSON");
    assert_eq!(held.as_array().map(Vec::len), Some(2), "every hold of the tree");
    // The requested key comes first, so that a script sees by DLOCK_KEY that it runs inside.
    let script = "$D run -k b -- sh -c 'echo $DLOCK_KEY; printf \"%s\\n\" \"$DLOCK_KEYS\"'";
    world
        .dlock(["run", "-k", "a", "-k", "b", "--", "sh", "-c", script])
        .env("D", BINARY)
        .stdout("b\nb\n")
        .run();
}

fn nested_runs_do_not_exclude_each_other(backend: Backend) {
    let world = World::new(backend);
    let both = "echo in >> log; until [ $(grep -c in log) = 2 ]; do sleep 0.1; done";
    let script = format!("$D run -k k -c '{both}' & $D run -k k -c '{both}'; wait");
    outer(&world, &[], &script).run();
}

fn a_nested_run_needs_a_mode_that_the_hold_covers(backend: Backend) {
    let world = World::new(backend);
    let modes = [&["-x"][..], &["-s"], &["-n2"], &["-n3"]];
    for held in modes {
        for wanted in modes {
            for patience in ["", "-w", "-w 10m"] {
                let goes = held == wanted || (held == ["-x"] && wanted == ["-s"]);
                let script =
                    format!("$D run -k k {} {patience} -- echo ran; echo $? > status", wanted.concat());
                let run = outer(&world, held, &script);
                if goes {
                    run.stdout("ran\n").run();
                } else {
                    let refused =
                        r"dlock: this dlock runs inside a job that holds k in .*; the command did not run\n";
                    run.stderr_like(refused).run();
                }
                let status = if goes { "0\n" } else { "64\n" };
                assert_eq!(world.read("status"), status, "{wanted:?} in {held:?} {patience}");
            }
        }
    }
}

fn keys_that_are_not_held_are_acquired(backend: Backend) {
    let world = World::new(backend);
    let inner = "echo in >> log; echo $DLOCK_KEY $DLOCK_FENCE > inner; until [ -e go ]; do sleep 0.1; done";
    let script =
        format!("$D run -k l -k k -k m -c '{inner}'; echo out >> log; until [ -e end ]; do sleep 0.1; done");
    let run = outer(&world, &[], &script).spawn();
    world.wait_for_log("in");
    for key in ["k", "l", "m"] {
        assert_eq!(world.status(key)["holders"].as_array().map(Vec::len), Some(1), "{key}");
    }
    assert_eq!(world.read("inner"), format!("l {}\n", world.fence("l")), "the innermost hold's");
    assert!(world.fence("l") == world.fence("m") && world.fence("k") != world.fence("l"));
    world.write("go", "");
    world.wait_for_log("out");
    let states = ["k", "l", "m"].map(|key| world.state(key));
    assert_eq!(states, ["held", "free", "free"], "given back is what was taken");
    world.write("end", "");
    run.finish();
    // A waiter that holds another lock may deadlock, so its wait needs a limit.
    let unbound = r"dlock: this dlock runs inside a job .*-w 10m.*; the command did not run\n";
    let status = "-- echo ran; echo $? > status";
    outer(&world, &[], &format!("$D run -k k -k l -w {status}")).stderr_like(unbound).run();
    assert_eq!(world.read("status"), "64\n");
    outer(&world, &[], &format!("$D run -k k -k l -w 10m {status}")).stdout("ran\n").run();
    outer(&world, &[], &format!("$D run -k k -k l {status}")).stdout("ran\n").run();
    let other = world.run("l", &[], "echo other >> log; until [ -e other ]; do sleep 0.1; done").spawn();
    world.wait_for_log("other");
    outer(&world, &[], &format!("$D run -k k -k l {status}")).stderr_like("dlock: l .* is busy.*\n").run();
    assert_eq!(world.read("status"), "75\n");
    outer(&world, &[], &format!("$D run -k k -k l -w 100ms {status}")).stderr_like("dlock: l .*\n").run();
    assert_eq!(world.read("status"), "75\n");
    world.write("other", "");
    other.finish();
}

fn a_min_hold_is_ignored(backend: Backend) {
    let world = World::new(backend);
    outer(&world, &[], "$D run -k k --min-hold 1m -- echo ran; $D run -k l -k k --min-hold 1m -- echo ran")
        .stdout("ran\nran\n")
        .stderr_like(
            "(dlock: the surrounding job holds .*, so this has no effect here: --min-hold; give .*\n){2}",
        )
        .run();
    let script = "$D run -k k --pause-on-failure 1h --once-per 1h -- false; $D run -k l -k k --pause-on-failure 1h -- false";
    let said = "dlock: .* no effect here: --once-per, --pause-on-failure; .*\ndlock: .* job holds k in .* no effect here: --pause-on-failure; .*\n";
    outer(&world, &[], script).status(1).stderr_like(said).run();
    assert_eq!((world.state("k"), world.state("l")), ("free".into(), "free".into()));
}

/// DLOCK_HELD names a hold that has ended.
fn a_stale_dlock_held_is_not_believed(backend: Backend) {
    let world = World::new(backend);
    outer(&world, &[], "printf %s \"$DLOCK_HELD\" > held").run();
    let held = world.read("held");
    assert!(held.contains("token"));
    // A free lock is acquired as usual.
    let stale = |options: &[&str], script: &str| world.run("k", options, script).env("DLOCK_HELD", &held);
    let run = stale(&[], "echo up >> log; until [ -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    assert_eq!(world.status("k")["holders"][0]["pid"], run.pid());
    // If another run holds the lock, the run is busy, and with --wait it waits.
    stale(&[], "echo ran >> log").status(75).any_stderr().run();
    let waits = stale(&["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    run.finish();
    waits.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

fn a_forged_dlock_held_is_not_believed(backend: Backend) {
    let world = World::new(backend);
    let keep = "printf %s \"$DLOCK_HELD\" > held; echo up >> log; until [ -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &[], keep).spawn();
    world.wait_for_log("up");
    let held: Value = serde_json::from_str(&world.read("held")).expect("JSON");
    let token = held[0]["token"].as_str().expect("a token").to_owned();
    let other = token.chars().map(|digit| if digit == '0' { '1' } else { '0' }).collect::<String>();
    let text = held.to_string();
    for forged in [
        text.replace(&token, &other),
        text.replace(&token, &token.to_uppercase()).replace('f', "F"),
        text.replace(&token, "*"),
        text.replace(&token, ""),
        text.replace("\"k\"", "\"l\""),
        text.replace("\"k\"", ""),
        text[..text.len() - 1].to_owned(),
        text[1..text.len() - 1].to_owned(),
        "[]".into(),
        "k".into(),
        String::new(),
        "\u{1}[[[[[[".into(),
    ] {
        let ran = world.run("k", &[], "echo ran >> log").env("DLOCK_HELD", &forged);
        ran.status(75).stderr_like("dlock: k .*\n").run();
    }
    // A valid token with another key added does not make that key held.
    let wider = text.replace("\"k\"", "\"k\",\"l\"");
    let run = world.run(
        "l",
        &[],
        "printf %s \"$DLOCK_HELD\" > mine; echo l >> log; until [ -e go ]; do sleep 0.1; done",
    );
    let run = run.env("DLOCK_HELD", &wider).spawn();
    world.wait_for_log("l");
    assert_eq!(world.status("l")["holders"][0]["pid"], run.pid());
    // The unchanged variable is believed.
    world.run("k", &[], "echo inside >> log").env("DLOCK_HELD", &text).run();
    // One that the store does not confirm hides no other lock of the same hold.
    let partly = text.replace("\"k\"", "\"k\",\"m\"");
    world.run("k", &["-k", "m"], "echo both >> log").env("DLOCK_HELD", &partly).run();
    world.write("go", "");
    holder.finish();
    run.finish();
    assert_eq!(world.log(), ["up", "l", "inside", "both"]);
}

fn another_prefix_or_store_is_another_lock(backend: Backend) {
    let world = World::new(backend);
    let script = format!(
        "$D run --prefix other: -k k -- sh -c 'echo in >> log; until [ -e go ]; do sleep 0.1; done' &
        $D run --store file:{} -k k -- sh -c 'echo in >> log; until [ -e go ]; do sleep 0.1; done' & wait",
        world.path("elsewhere").display()
    );
    std::fs::create_dir(world.path("elsewhere")).expect("a directory");
    let run = outer(&world, &[], &script).spawn();
    world.wait_for_lines("in", 2);
    world.run("k", &["--prefix", "other:"], "true").status(75).any_stderr().run();
    let elsewhere = format!("file:{}", world.path("elsewhere").display());
    world.run("k", &["--store", &elsewhere], "true").status(75).any_stderr().run();
    world.write("go", "");
    run.finish();
}

fn a_nested_run_ends_as_its_command_does(backend: Backend) {
    let world = World::new(backend);
    for (inner, status) in [
        ("-c 'exit 7'", 7),
        ("-c 'kill -9 $$'", 137),
        ("-- /nonexistent", 127),
        ("-- /", 126),
        ("--max-run 100ms -- sleep 1000", 124),
        ("--tree -c 'exit 3'", 3),
    ] {
        let script = format!("$D run -k k {inner}; echo $?");
        let output = outer(&world, &[], &script).stdout(&format!("{status}\n")).any_stderr().run();
        let said = output.stderr.lines().filter(|line| line.starts_with("dlock: ")).count();
        assert_eq!(said, usize::from([124, 126, 127].contains(&status)), "{}", output.stderr);
        assert!(!output.stderr.contains("given back"), "{}", output.stderr);
    }
    // With --tree the run waits for all processes of its job, as usual.
    outer(&world, &[], "$D run -k k --tree -c '{ sleep 0.3; echo last; } &'; echo then")
        .stdout("last\nthen\n")
        .run();
}

fn a_nested_run_stops_its_own_job_and_no_other(backend: Backend) {
    let world = World::new(backend);
    let script = "sleep 1000 & echo $! > beside.pid
        $D run -k k --max-run 1s -c 'setsid sleep 1000 & echo $! > inside.pid; wait'
        echo stopped >> log; until [ -e go ]; do sleep 0.1; done; kill $(cat beside.pid)";
    let run = outer(&world, &[], script).any_stderr().spawn();
    world.wait_for_log("stopped");
    assert!(!proc::alive(world.wait_for_pid("inside.pid")), "all of the inner job is stopped");
    assert!(proc::alive(world.wait_for_pid("beside.pid")), "and nothing of the job around");
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    run.finish();
}

/// Its guard takes a while to stop its job. The outer guard must not take that job for processes
/// that the command left behind.
fn a_nested_run_killed_as_the_command_keeps_the_lock_until_its_job_is_dead(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'echo asked >> log' TERM; cut -d' ' -f4 /proc/$PPID/stat > dlock.pid; echo up >> log; \
        until [ -e go ]; do sleep 0.1; done; echo down >> log";
    let inner = [BINARY, "run", "-k", "k", "--grace", "60s", "--", "sh", "-c", job];
    let run = world.dlock(["run", "-k", "k", "--"]).args(inner).dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    let killed = world.wait_for_pid("dlock.pid");
    assert_ne!(killed, run.pid(), "it is the one inside");
    proc::signal(killed, Signal::KILL);
    world.wait_for_log("asked");
    wait_until("it was noticed outside", || proc::name(killed).is_empty());
    for _ in 0..20 {
        world.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    }
    world.write("go", "");
    run.finish();
    assert_eq!(world.log(), ["up", "asked", "down"]);
    assert_eq!(world.state("k"), "free");
}

fn a_killed_nested_run_ends_its_own_job_and_no_other(backend: Backend) {
    let world = World::new(backend);
    let script = "sleep 1000 & echo $! > beside.pid
        sh -c 'echo $$ > dlock.pid; exec $D run -k k --grace 100ms -c \"echo \\$\\$ > inside.pid; sleep 1000\"'
        echo killed >> log; until [ -e go ]; do sleep 0.1; done; kill $(cat beside.pid)";
    let run = outer(&world, &[], script).any_stderr().spawn();
    let inside = world.wait_for_pid("inside.pid");
    proc::signal(world.wait_for_pid("dlock.pid"), Signal::KILL);
    world.wait_for_log("killed");
    wait_until("the inner job is stopped", || !proc::alive(inside));
    wait_until("it is said", || run.messages().contains("the surrounding job still holds k"));
    assert!(proc::alive(world.wait_for_pid("beside.pid")));
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    run.finish();
    assert_eq!(world.state("k"), "free");
}

fn a_signal_reaches_the_command(backend: Backend) {
    let world = World::new(backend);
    let script = "sh -c 'echo $$ > dlock.pid; exec $D run -k k -- sh signalled'; echo $?";
    world.write(
        "signalled",
        "trap 'echo usr1 >> log' USR1; trap 'echo term >> log; exit 9' TERM; echo up >> log
        while :; do sleep 0.1; done",
    );
    let run = outer(&world, &[], script).stdout("9\n").any_stderr().spawn();
    world.wait_for_log("up");
    let dlock = world.wait_for_pid("dlock.pid");
    proc::signal(dlock, Signal::USR1);
    world.wait_for_log("usr1");
    proc::signal(dlock, Signal::TERM);
    world.wait_for_log("term");
    run.finish();
}

/// The inner jobs are dead before the outer lock is granted again, including a job under another
/// lock.
fn a_loss_outside_ends_everything_inside(backend: Backend) {
    let world = World::new(backend);
    world.write("deaf", "trap '' TERM; echo $$ > $1.pid; while :; do sleep 0.1; done");
    let script = "$D run -k k -- sh deaf same & $D run -k l -t 8s -- sh deaf other & wait";
    let run = outer(&world, &["-t", "8s", "--grace", "100ms"], script).status(79).any_stderr().spawn();
    let jobs = ["same.pid", "other.pid"].map(|file| world.wait_for_pid(file));
    let next =
        format!("for pid in {} {}; do kill -0 $pid && echo overlap; done; echo next", jobs[0], jobs[1]);
    world.dlock(["release", "k", "--force"]).any_stderr().run();
    world.run("k", &["-w"], &next).stdout("next\n").any_stderr().run();
    run.finish();
    assert!(jobs.iter().all(|job| !proc::alive(*job)));
    wait_until("the inner lock ends with its lease", || world.state("l") == "free");
}

fn a_report_says_that_it_was_nested(backend: Backend) {
    let world = World::new(backend);
    outer(
        &world,
        &["--report", "outer.json"],
        "$D run -k k --report inner.json -c 'exit 3'; $D run -k k -k l --report part.json -- true",
    )
    .run();
    let read = |file: &str| -> Value { serde_json::from_str(&world.read(file)).expect("JSON") };
    let (outer, inner, part) = (read("outer.json"), read("inner.json"), read("part.json"));
    assert_eq!(
        (&outer["nested"], &inner["nested"], &part["nested"]),
        (&json!(false), &json!(true), &json!(true))
    );
    assert_eq!((&inner["outcome"], &inner["status"], &inner["key"]), (&json!("ran"), &json!(3), &json!("k")));
    assert_eq!(inner["fence"], outer["fence"]);
    assert_ne!(part["fence"], outer["fence"]);
    assert!(inner["held_ms"].is_u64() && inner["waited_ms"].is_u64(), "{inner}");
}

/// Only the store can tell whether DLOCK_HELD is true.
#[test]
fn a_store_that_does_not_answer_confirms_no_hold() {
    let mut world = World::new(Backend::Redis);
    outer(&world, &[], "printf %s \"$DLOCK_HELD\" > held").run();
    let held = world.read("held");
    let url = world.url();
    world.redis_mut().kill();
    let run = world.run("k", &[], "echo ran").env("DLOCK_HELD", &held).env("DLOCK_STORE", &url);
    run.status(69).stderr_like("dlock: .*; the command did not run\n").run();
}

/// Two paths to one directory are one store.
#[test]
fn a_link_to_the_directory_is_the_same_store() {
    let world = World::without_redis();
    std::os::unix::fs::symlink(world.path("locks"), world.path("link")).expect("a link");
    let link = format!("file:{}", world.path("link").display());
    outer(&world, &[], r#"$D run --store "$LINK" -k k -w -- echo inside"#)
        .env("LINK", link)
        .stdout("inside\n")
        .run();
}

/// The store tells by the token that it is the same, however it is named.
#[test]
fn another_spelling_of_the_store_is_the_same_store() {
    let world = World::new(Backend::Redis);
    let other = world.url().replace("127.0.0.1", "localhost");
    for (store, prefix, key) in [(&other, "dlock:", "k"), (&world.url(), "", "dlock:k")] {
        let script = r#"$D run -k $K -w -- echo inside; $D run -k $K -k l -w 1s -- echo both
            $D wait $K; echo $?; $D acquire -k $K -w; echo $?; $D run -k m -- echo else
            $D check $K; echo $?; $D check --store $DLOCK_STORE $K; echo $?; $D release -y --store $DLOCK_STORE $K; echo $?
            $D acquire -k $K 2>&1 | grep -c 'this process itself runs under it'"#;
        let script = format!("export DLOCK_STORE={store} DLOCK_PREFIX={prefix} K={key}; {script}");
        outer(&world, &[], &script).stdout("inside\nboth\n64\n64\nelse\n0\n0\n64\n1\n").any_stderr().run();
    }
    // Another lock of that key, in another store, is none of its business.
    let script = "$D run --store file:$PWD/other -k k -w -- $D status --store file:$PWD/other k --json";
    let said = outer(&world, &[], script).any_stdout().run().stdout;
    assert!(said.contains(r#""state": "held""#) || said.contains(r#""state":"held""#), "{said}");
}

/// A member alone may lose the hold while the quorum goes on.
#[test]
fn a_member_of_a_quorum_is_another_store() {
    let masters = Masters::aged(3);
    let script = format!("$D run --store {} -k k -- echo inside; echo $?", masters.at(2).url());
    masters.run("k", &[], &script).env("D", BINARY).stdout("75\n").any_stderr().run();
}

#[test]
fn another_store_does_not_learn_the_token() {
    let world = World::new(Backend::Redis);
    std::fs::create_dir(world.path("other")).expect("a directory");
    let other =
        Redis::start(&world.path("other"), &["--slowlog-log-slower-than", "0", "--slowlog-max-len", "999"]);
    let script = format!(
        "export DLOCK_STORE={}; $D run -k k -- true; $D wait k; $D check --store $DLOCK_STORE k; printf %s $DLOCK_TOKEN > token",
        other.url()
    );
    outer(&world, &[], &script).any_stderr().run();
    let asked = format!("{:?}", other.ask::<redis::Value>(&["SLOWLOG", "GET", "-1"]));
    assert!(asked.contains("dlock:k") && !asked.contains(&world.read("token")), "{asked}");
}

#[test]
fn the_process_that_asks_the_store_ends_with_dlock() {
    let world = World::new(Backend::Redis);
    outer(&world, &[], "printf %s \"$DLOCK_HELD\" > held").run();
    world.redis().pause();
    let run = world.run("k", &["--op-timeout", "60s"], "true").env("DLOCK_HELD", world.read("held"));
    let run = run.dies_of(9).spawn();
    let asking = || proc::children(run.pid()).first().copied();
    let asking = wait_for("it asks", asking);
    run.signal(Signal::KILL);
    run.finish();
    wait_until("the process that asks has ended", || !proc::alive(asking));
    world.redis().resume();
}

/// It is asked whether it is the store of the job.
#[test]
fn an_outage_of_another_store_is_waited_out() {
    let world = World::without_redis();
    std::fs::create_dir(world.path("other")).expect("a directory");
    let mut other = Redis::start(&world.path("other"), &[]);
    let script = format!("echo up >> log; $D wait --store {} -w 60s k; echo $?", other.url());
    other.kill();
    let run = outer(&world, &[], &script).stdout("0\n").any_stderr().spawn();
    world.wait_for_log("up");
    wait_until("it waits", || run.messages().contains("still waiting for k"));
    other.restart();
    run.finish();
}
