//! `dlock history`: the last ended runs, including crashed ones, for programs and for people.

use crate::support::masters::Masters;
use crate::support::proc;
use crate::support::pty::Terminal;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::{Value, json};

on_every_store!(
    without_a_key_all_locks_are_shown_together,
    every_kind_of_end,
    a_run_that_was_cut_short_is_no_success,
    nothing_has_ended,
    only_the_last_64_are_kept,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

fn ends(world: &World, key: &str) -> Vec<Value> {
    let output = world.dlock(["history", key, "--json"]).any_stdout().run();
    let json: Value = serde_json::from_str(&output.stdout).expect("history --json prints JSON");
    json.as_array().expect("an array").clone()
}

fn every_kind_of_end(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &["--reason", "why"], "exit 0").run();
    world.run("k", &[], "exit 3").status(3).run();
    world.run("k", &[], "kill -TERM $$").dies_of(15).run();
    // dlock and its guard are dead, so the hold ends with its lease.
    let crashed = world.run("k", &["-t", "5s"], HOLD).any_stderr().spawn();
    world.wait_for_log("up");
    for pid in [crashed.guard(), crashed.pid()] {
        proc::signal(pid, Signal::STOP);
    }
    for pid in [crashed.guard(), crashed.pid()] {
        proc::signal(pid, Signal::KILL);
    }
    wait_until("the crashed one is seen to be gone", || ends(&world, "k").len() == 4);
    let forced = world.run("k", &["-w", "1m"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_lines("up", 2);
    world.dlock(["release", "k", "--force"]).any_stderr().run();
    forced.finish();

    let ends = ends(&world, "k");
    let outcomes = ends.iter().map(|end| end["outcome"].clone()).collect::<Vec<_>>();
    assert_eq!(outcomes, ["forced", "expired", "released", "released", "released"]);
    let [forced, expired, signalled, failed, good] = &ends[..] else { panic!("five: {ends:#?}") };
    assert_eq!((&good["exit_status"], &good["signal"]), (&json!(0), &Value::Null));
    assert_eq!((&failed["exit_status"], &failed["signal"]), (&json!(3), &Value::Null));
    assert_eq!((&signalled["exit_status"], &signalled["signal"]), (&Value::Null, &json!(15)));
    assert_eq!((&expired["exit_status"], &expired["signal"]), (&Value::Null, &Value::Null));
    assert_eq!((&good["reason"], &failed["reason"]), (&json!("why"), &Value::Null));
    assert_eq!(forced["forced_by"]["host"], forced["host"]);
    assert!(ends[1..].iter().all(|end| end["forced_by"].is_null()), "{ends:#?}");
    for end in &ends {
        assert!(end["acquired_at"].as_str() <= end["ended_at"].as_str(), "{end}");
        assert!(end["held_ms"].is_u64() && end["waited_ms"].is_u64() && end["fence"].is_u64(), "{end}");
    }
    // Into a pipe: a plain table with nothing cut.
    let table = world.dlock(["history", "k"]).any_stdout().run().stdout;
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.contains(HOLD) && !table.contains('\x1b') && !table.contains('━'), "{table}");
    for word in ["forced", "expired", "signal 15", "exit 3", " ok ", "(why)"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    // `status` shows the newest of them.
    assert_eq!(world.status("k")["last_run"], *forced);
}

/// A run that something else ended: `history`, `watch` and `metrics` agree on how.
fn a_run_that_was_cut_short_is_no_success(backend: Backend) {
    let world = World::new(backend);
    cut_runs_short(&world, &world.url());
    let mut terminal = Terminal::with_size(&world, "xterm", 24, 80);
    terminal.type_line("NO_COLOR=1 dlock history k");
    for word in ["stopped", "timeout", "crashed"] {
        terminal.expect(word);
    }
    terminal.close();
}

#[test]
fn a_quorum_records_that_a_run_was_cut_short() {
    let masters = Masters::aged(3);
    cut_runs_short(masters.world(), &masters.url());
}

#[track_caller]
fn cut_runs_short(world: &World, store: &str) {
    let dlock = |words: &[&str]| world.dlock(words).env("DLOCK_STORE", store).any_stdout().any_stderr();
    let run = |options: &[&str], script: &str| {
        let run = world.dlock(["run", "-k", "k"]).args(options).args(["--", "sh", "-c", script]);
        run.env("DLOCK_STORE", store).any_stderr()
    };
    let watch = dlock(&["watch", "-v", "k", "--json"]).spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    let told = || watch.printed().lines().filter(|line| !line.contains("\"granted\"")).count();

    let crashed = run(&["-t", "1m"], HOLD).spawn();
    world.wait_for_lines("up", 1);
    proc::signal(crashed.pid(), Signal::KILL);
    wait_until("its guard clears up", || told() == 1);
    // The job exits with 0 after TERM, but that is no success.
    let obeys = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    run(&["--max-run", "200ms"], obeys).status(124).run();
    let stopped = run(&["-t", "1m"], HOLD).status(79).spawn();
    world.wait_for_lines("up", 2);
    dlock(&["release", "k", "-y"]).run();
    stopped.finish();
    run(&[], "exit 0").run();
    wait_until("all is told", || told() == 4);

    let ends: Value = serde_json::from_str(&dlock(&["history", "k", "--json"]).run().stdout).expect("JSON");
    let ends = ends.as_array().expect("an array");
    let read = |end: &Value| (end["outcome"].clone(), end["exit_status"].clone(), end["signal"].clone());
    let expected = [
        (json!("released"), json!(0), Value::Null),
        (json!("stopped"), Value::Null, json!(15)),
        (json!("timeout"), json!(0), Value::Null),
        (json!("crashed"), Value::Null, json!(15)),
    ];
    assert_eq!(ends.iter().map(read).collect::<Vec<_>>(), expected);
    assert!(ends[1]["forced_by"]["pid"].is_u64() && ends[2]["forced_by"].is_null(), "{ends:#?}");

    watch.signal(Signal::TERM);
    let events = watch.finish().stdout;
    let events =
        events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["event"].clone());
    let events: Vec<Value> = events.filter(|event| event != "granted").collect();
    assert_eq!(events, [json!("crashed"), json!("timeout"), json!("stopped"), json!("released")]);

    let metrics = dlock(&["metrics", "k"]).run().stdout;
    for line in [
        "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"crashed\"} ",
        "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"timeout\"} ",
        "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"stopped\"} ",
        "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"released\"} ",
        "dlock_jobs_total{key=\"k\",result=\"failed\"} 3",
        "dlock_jobs_total{key=\"k\",result=\"succeeded\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(line)), "{line}\n{metrics}");
    }
}

/// With `--on-lost warn` the job goes on. The log says that the lock was lost.
#[test]
fn a_job_that_goes_on_without_its_lock_has_lost_it() {
    let world = World::new(Backend::Redis);
    let run = world.run("k", &["-t", "6s", "--on-lost", "warn"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<i64>(&["DEL", "dlock:k"]);
    wait_until("it says so", || run.messages().contains("lost"));
    world.write("go", "");
    run.finish();
    let ends = ends(&world, "k");
    assert_eq!((&ends[0]["outcome"], &ends[0]["exit_status"], ends.len()), (&json!("lost"), &Value::Null, 1));
    let metrics = world.dlock(["metrics", "k"]).any_stdout().run().stdout;
    assert!(metrics.contains("dlock_jobs_total{key=\"k\",result=\"failed\"} 1\n"), "{metrics}");
}

/// One command shows what ran and what did not.
fn without_a_key_all_locks_are_shown_together(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["history"]).stdout_like("no run in .* has ended in the last 40 days\n").run();
    world.dlock(["history", "--json"]).stdout("[]\n").run();
    world.run("a/first", &["--label", "1"], "exit 0").run();
    world.run("b", &["--label", "2"], "exit 3").status(3).run();
    world.run("a/first", &["--label", "3"], "kill $$").dies_of(15).run();
    world.run("b", &["--label", "4"], "exit 0").run();
    let told = |words: &[&str]| {
        let output = world.dlock(["history", "--json"]).args(words).any_stdout().run().stdout;
        let ends: Vec<Value> = serde_json::from_str(&output).expect("JSON");
        let text = |end: &Value, field: &str| end[field].as_str().expect("a text").to_owned();
        ends.iter().map(|end| text(end, "key") + " " + &text(end, "command")).collect::<Vec<_>>()
    };
    assert_eq!(told(&[]), ["b 4", "a/first 3", "b 2", "a/first 1"]);
    assert_eq!(told(&["-n", "2"]), ["b 4", "a/first 3"]);
    assert_eq!(told(&["--failed"]), ["a/first 3", "b 2"]);
    assert_eq!(told(&["--failed", "b"]), ["b 2"]);
    assert_eq!(told(&["a*", "-n1"]), ["a/first 3"]);
    assert_eq!(told(&["--since", "1h"]).len(), 4);
    wait_until("they are long ago", || told(&["--since", "1ms"]).is_empty());
    world
        .dlock(["history", "--since", "1ms", "--failed"])
        .stdout_like("no run in .* has failed in .*\n")
        .run();
    let table = world.dlock(["history"]).any_stdout().run().stdout;
    assert!(table.starts_with("KEY") && table.lines().count() == 5 && table.contains("a/first  "), "{table}");
    // With a key there is no column KEY.
    assert!(world.dlock(["history", "b"]).any_stdout().run().stdout.starts_with("STARTED"));
    world.run("b", &["--label", "5"], "exit 3").status(3).run();
    let status = |words: &[&str]| world.dlock(["status"]).args(words).any_stdout().run().stdout;
    assert!(status(&[]).starts_with("no lock is held"), "{}", status(&[]));
    let all = status(&["--all"]);
    let line = |key: &str| all.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("b").contains("exit 3 ") && line("b").contains("; ok "), "{all}");
    assert!(line("a/first").contains("signal 15 ") && line("a/first").contains("; ok "), "{all}");
    assert_eq!(status(&["--all", "--json"]).matches("\"last_success\": {").count(), 2);
}

fn nothing_has_ended(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["history", "-q", "k", "--json"]).stdout("[]\n").run();
    world
        .dlock(["history", "k"])
        .stdout_like("no record of k in .*: no run in the last 40 days, or the store was restarted, .*\n")
        .run();
    world.run("k", &[], "true").run();
    world.dlock(["history", "q*"]).stdout_like(r".* has no key that matches q\*\n").run();
    world.dlock(["history", "k", "-n", "0"]).stdout("").run();
}

fn only_the_last_64_are_kept(backend: Backend) {
    let world = World::new(backend);
    for number in 0..66 {
        world.run("k", &["--label", &number.to_string()], "exit 0").run();
    }
    let ends = ends(&world, "k");
    let labels = ends.iter().map(|end| end["command"].as_str().expect("a label")).collect::<Vec<_>>();
    let expected = (2..66).rev().map(|number| number.to_string()).collect::<Vec<_>>();
    assert_eq!(labels, expected);
}

/// On a terminal there is a picture, whatever the locale.
#[test]
fn a_terminal_gets_a_picture() {
    let world = World::without_redis();
    world.run("k", &[], "exit 0").run();
    world.run("k", &[], "exit 3").status(3).run();
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock history k --color always");
    let shown = terminal.expect("READY> ");
    assert!(shown.contains("\x1b[31mexit 3\x1b[0m") && shown.contains("\x1b[32mok\x1b[0m"), "{shown:?}");
    assert!(shown.contains(['━', '╺', '╸']), "{shown:?}");
    // The terminal is dumb.
    terminal.type_line("dlock history k");
    let shown = terminal.expect("READY> ");
    assert!(shown.contains(['━', '╺', '╸']) && !shown.contains("\x1b["), "{shown:?}");
    terminal.type_line("NO_COLOR=1 TERM=xterm dlock history k");
    let shown = terminal.expect("READY> ");
    assert!(shown.contains("exit 3") && !shown.contains("\x1b["), "{shown:?}");
    terminal.close();
}

/// Several refusals between two rows are ticks in one line. A single one is shown in full, as all
/// are in a pipe.
#[test]
fn refusals_are_ticks_between_the_rows() {
    let world = World::without_redis();
    world.run("k", &[], "exit 0").run();
    for refusals in [3, 1] {
        let before = world.lines("up");
        let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
        world.wait_for_lines("up", before + 1);
        for _ in 0..refusals {
            world.run("k", &[], "true").status(75).any_stderr().run();
        }
        world.write("go", "");
        holder.finish();
        std::fs::remove_file(world.path("go")).expect("the file");
    }
    let mut terminal = Terminal::open(&world);
    terminal.type_line("LC_ALL=C.UTF-8 TERM=xterm NO_COLOR=1 dlock history k --refused");
    let shown = terminal.expect("READY> ");
    let lines: Vec<&str> = shown.lines().filter(|line| line.contains("refused ")).collect();
    let [one, three] = lines[..] else { panic!("{shown}") };
    assert!(one.contains("busy: held by") && !one.contains('╵'), "{shown}");
    assert!(three.contains("  ╵╵╵ refused 3 busy: ") && three.contains('@'), "{shown}");
    terminal.close();
    let piped = world.dlock(["history", "k", "--refused"]).any_stdout().run().stdout;
    assert_eq!(piped.matches("busy: held by").count(), 4, "{piped}");
}

/// The reader of the output ends early.
#[test]
fn a_broken_pipe_is_no_error() {
    let world = World::without_redis();
    world.run("k", &["--label", &"x".repeat(400)], "exit 0").run();
    for command in ["history k", "history k --json", "status k", "status --json k"] {
        let script = format!("set -o pipefail; dlock {command} | true");
        let mut shell = world.command("bash");
        let bin = std::path::Path::new(crate::support::dlock::BINARY).parent().expect("a directory");
        shell.args(["-c", &script]).env("DLOCK_STORE", world.url());
        let output = shell.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).output().expect("bash");
        assert!(output.status.success() && output.stderr.is_empty(), "{command}: {output:?}");
    }
}

/// A moment is in the machine's zone, and what was understood is printed.
#[test]
fn ends_since_a_moment() {
    let world = World::without_redis();
    world.run("k", &[], "true").run();
    let since = |moment: &str| {
        let history = world.dlock(["history", "k", "--json", "--since", moment]);
        history.env("TZ", "IST-5:30").any_stdout()
    };
    let count = |output: String| serde_json::from_str::<Vec<Value>>(&output).expect("an array").len();
    let midnight = "dlock: since 20\\d\\d-\\d\\d-\\d\\d 00:00:00 IST\n";
    assert_eq!(count(since("yesterday").stderr_like(midnight).run().stdout), 1);
    let said = "dlock: since 2026-01-31 03:00:00 IST\n";
    assert_eq!(count(since("2026-01-31 03:00").stderr_like(said).run().stdout), 1);
    assert_eq!(count(since("1h").run().stdout), 1);
    assert_eq!(count(since("0").run().stdout), 0);
    since("2999-01-01").status(64).stderr_like("dlock: --since is in the future\n").run();
    since("noon").status(64).stderr_like("dlock: .*a moment is like 03:00.*\n").run();
}
