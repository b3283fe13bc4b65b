//! `dlock release`: the caller's own hold is released; another holder is asked to stop; with
//! --force any hold is taken away.

mod force;
mod own_lock;

use crate::support::dlock::Running;
use crate::support::pty::{CTRL_C, Terminal};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    a_free_lock_is_released_already,
    a_pattern_is_refused,
    without_a_terminal_no_holder_is_asked_by_accident,
    a_holder_that_is_asked_stops_its_job_and_releases_the_lock,
    the_operator_and_the_reason_are_named,
    a_person_answers_yes_or_no,
    the_next_holder_is_not_asked,
    a_timeout_runs_out_and_the_request_to_stop_remains,
    a_signal_ends_the_watching_only,
    several_holders_are_asked_together_or_by_slot,
    a_script_is_waited_for_until_its_lease_ends,
    a_lock_without_a_live_holder_gets_no_request,
    success_is_reported_on_a_terminal_only,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

/// Starts a run that would last for ever, and will be stopped.
fn endless(world: &World, key: &str, options: &[&str]) -> Running {
    let before = world.lines("up");
    let run = world.run(key, options, "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_lines("up", before + 1);
    run
}

fn a_free_lock_is_released_already(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], "true").run();
    for options in [&[][..], &["-y"], &["--force"], &["--force", "--now", "-y"]] {
        let like = "dlock: k in .* is free; nothing to release\n";
        world.dlock(["release", "k"]).args(options).stderr_like(like).run();
        world.dlock(["release", "k", "-q"]).args(options).run();
        let release = world.dlock(["release", "k", "--log-format", "json"]).args(options);
        release.stderr_like("\\{.*is free; nothing to release\",.*\"key\":\"k\".*\\}\n").run();
    }
}

fn a_pattern_is_refused(backend: Backend) {
    let world = World::new(backend);
    let said =
        "dlock: deploy\\* is a pattern, and release takes one key: `dlock status 'deploy\\*'` shows .*\n";
    for options in [&[][..], &["-y"], &["--force", "-y"]] {
        world.dlock(["release", "deploy*"]).args(options).stderr_like(said).status(64).run();
    }
    let holder =
        world.run("a*", &["-t", "6s"], "echo up >> log; exec sleep 1000").any_stderr().status(79).spawn();
    world.wait_for_log("up");
    world.dlock(["release", "-y", r"a\*"]).any_stderr().run();
    holder.finish();
}

fn without_a_terminal_no_holder_is_asked_by_accident(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["--reason", "month's end"], HOLD).spawn();
    world.wait_for_log("up");
    let release = world.dlock(["release", "k"]).stdin("y\n").status(64).any_stderr().run();
    for part in [&format!("pid {}", holder.pid()), "month's end", "No terminal", "-y"] {
        assert!(release.stderr.contains(part), "{part}: {}", release.stderr);
    }
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
}

fn a_holder_that_is_asked_stops_its_job_and_releases_the_lock(backend: Backend) {
    let world = World::new(backend);
    // The next heartbeat would come only after minutes.
    let holder = endless(&world, "k", &["-t", "1h", "--report", "report"]);
    let status = world.status("k");
    wait_until("it has held for more than a second", || {
        world.status("k")["holders"][0]["held_ms"].as_u64().is_some_and(|held| held > 1000)
    });
    let release = world.dlock(["release", "k", "-y", "-v"]).any_stderr().run();
    assert_eq!(world.state("k"), "free", "it returns when that hold has ended");
    let steps = ["asked", "gave the lock back; its job died of signal 15"];
    assert!(steps.iter().all(|step| release.stderr.contains(step)), "{}", release.stderr);
    holder.finish();
    let log = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    let log: serde_json::Value = serde_json::from_str(&log).expect("JSON");
    assert_eq!(log[0]["fence"], status["fence"]);
    assert!(world.read("report").contains("\"asked\""), "{}", world.read("report"));
}

/// The message of the run, its report, `history` and `status` name the operator and the reason.
fn the_operator_and_the_reason_are_named(backend: Backend) {
    let world = World::new(backend);
    let who = |pid: i32| format!("@.* \\(pid {pid}\\) \\(deploy at noon\\)");
    let cases = [
        (&["-y"][..], "asked for k in .* back"),
        (&["--force"], "took k in .* away"),
        (&["--force", "--now", "-y"], "took k in .* away"),
    ];
    for (options, what) in cases {
        let holder = endless(&world, "k", &["-t", "4s", "--report", "report"]);
        let release = world.dlock(["release", "k", "--reason", "deploy at noon"]).args(options);
        let release = release.any_stderr().spawn();
        let said = format!("dlock: .+{} {what}; the command is being stopped\n", who(release.pid()));
        let pid = release.pid();
        release.finish();
        let output = holder.finish();
        let said = regex_lite::Regex::new(&said).expect("an expression");
        assert!(said.is_match(&output.stderr), "{said} in {}", output.stderr);
        let report: serde_json::Value = serde_json::from_str(&world.read("report")).expect("a report");
        let log = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
        let log: serde_json::Value = serde_json::from_str(&log).expect("JSON");
        for by in [&report["forced_by"], &log[0]["forced_by"]] {
            assert_eq!(
                (&by["pid"], &by["reason"]),
                (&pid.into(), &"deploy at noon".into()),
                "{report} {log}"
            );
        }
        world.wait_for_state("k", "free");
    }
    let status = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(status.contains("  ended by ") && status.contains("(deploy at noon)"), "{status}");
    for (columns, said) in [(160, "ENDED BY"), (80, "    ended by ")] {
        let mut terminal = Terminal::with_size(&world, "xterm", 24, columns);
        terminal.type_line("NO_COLOR=1 dlock history k");
        terminal.expect(said);
        terminal.expect("(deploy at noon)");
        terminal.close();
    }
}

fn a_person_answers_yes_or_no(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let mut terminal = Terminal::open(&world);
    for (answer, status) in [("\n", 75), ("n\n", 75), ("yess\n", 75), ("\x04", 75)] {
        terminal.type_line("dlock release k; echo STATUS $?");
        let shown = terminal.expect("give the lock back? [y/N] ");
        assert!(shown.contains(&format!("pid {}", holder.pid())) && shown.contains("sleep 1000"), "{shown}");
        terminal.press(answer);
        terminal.expect("nothing was done");
        terminal.expect(&format!("STATUS {status}"));
        assert_eq!(world.state("k"), "held");
    }
    terminal.type_line("dlock release k; echo STATUS $?");
    terminal.expect("[y/N] ");
    terminal.press(CTRL_C);
    terminal.expect("READY> ");
    terminal.type_line("echo STATUS $?");
    terminal.expect("STATUS 130");
    assert_eq!(world.state("k"), "held");
    terminal.type_line("dlock release k -q; echo STATUS $?");
    terminal.expect("[y/N] ");
    terminal.press("y\n");
    terminal.expect("STATUS 0");
    terminal.close();
    holder.finish();
    assert_eq!(world.state("k"), "free");
}

/// Only the holder that was shown is asked, identified by its fence, however long the answer takes.
fn the_next_holder_is_not_asked(backend: Backend) {
    let world = World::new(backend);
    let first = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock release k; echo STATUS $?");
    terminal.expect("[y/N] ");
    let second = world.run("k", &["-w"], "echo second >> log; until [ -e end ]; do sleep 0.1; done").spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    first.finish();
    world.wait_for_log("second");
    let fence = world.fence("k");
    terminal.press("y\n");
    terminal.expect("has given the lock back already");
    terminal.expect("STATUS 0");
    assert_eq!((world.state("k").as_str(), world.fence("k")), ("held", fence));
    terminal.close();
    world.write("end", "");
    // The second run was not asked, so it ends with its job.
    second.finish();
}

fn a_timeout_runs_out_and_the_request_to_stop_remains(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'echo term >> log; [ -e go ] && exit' TERM; echo up >> log; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "6s", "--grace", "1h"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let release = world.dlock(["release", "k", "-y", "--timeout", "0.3"]).status(75).any_stderr().run();
    assert!(release.stderr.contains("is still held by"), "{}", release.stderr);
    world.wait_for_log("term");
    // A second release waits for the same end.
    let again = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    world.dlock(["release", "k", "-q", "--force"]).run();
    again.finish();
    holder.finish();
}

fn a_signal_ends_the_watching_only(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'echo term >> log' TERM; echo up >> log; until [ -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "6s", "--grace", "1h"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let release = world.dlock(["release", "k", "-y"]).dies_of(15).any_stderr().spawn();
    world.wait_for_log("term");
    release.signal(Signal::TERM);
    release.finish();
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
}

fn several_holders_are_asked_together_or_by_slot(backend: Backend) {
    let world = World::new(backend);
    let options = ["-t", "6s", "-n", "3"];
    let holders: Vec<Running> = (0..3).map(|_| endless(&world, "k", &options)).collect();
    let held = |count: usize| world.status("k")["holders"].as_array().map(Vec::len) == Some(count);
    assert!(held(3));
    world.dlock(["release", "k", "-y", "--slot", "7"]).stderr_like("dlock: k in .* slot 7; .*\n").run();
    // Success prints nothing without a terminal.
    world.dlock(["release", "k", "-y", "--slot", "1"]).run();
    assert!(held(2));
    let slots = world.status("k")["holders"].to_string();
    assert!(!slots.contains("\"slot\":1") && slots.contains("\"slot\":2"), "{slots}");
    let refused = world.dlock(["release", "k"]).status(64).any_stderr().run().stderr;
    assert_eq!(refused.matches("sleep 1000").count(), 2, "all are shown: {refused}");
    let said = world.dlock(["release", "k", "-yv"]).any_stderr().run().stderr;
    assert_eq!(said.matches("gave the lock back").count(), 2, "{said}");
    assert_eq!(world.state("k"), "free");
    holders.into_iter().for_each(|holder| drop(holder.finish()));
    let alone = endless(&world, "k", &["-t", "6s"]);
    world.dlock(["release", "k", "-y", "--slot", "0"]).status(64).any_stderr().run();
    world.dlock(["release", "k", "-y", "-q"]).run();
    alone.finish();
}

fn a_script_is_waited_for_until_its_lease_ends(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["acquire", "-q", "-k", "k", "-t", "3s"]).any_stdout().run();
    let said = world.dlock(["release", "k", "-yv"]).any_stderr().run().stderr;
    for part in ["acquired by a script", "--force", "did not renew the lock, and its lease ended"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let token = world.dlock(["acquire", "-q", "-k", "k", "-t", "1h"]).any_stdout().run().stdout;
    let release = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    wait_until("it has asked", || release.messages().contains("is a script"));
    world.dlock(["release", "k", "-q", "--token-file", "-"]).stdin(&token).run();
    release.finish();
}

fn a_lock_without_a_live_holder_gets_no_request(backend: Backend) {
    let world = World::new(backend);
    world.run("cools", &["--min-hold", "1h"], "true").run();
    world.dlock(["release", "cools", "-y"]).stderr_like("dlock: cools in .*--min-hold.*--force.*\n").run();
    assert_eq!(world.state("cools"), "cooling");
    let holder = endless(&world, "k", &["-t", "20s"]);
    holder.signal(Signal::STOP);
    world.dlock(["release", "k", "--force", "-q"]).run();
    world.dlock(["release", "k", "-y"]).stderr_like("dlock: k in .* was taken away .*--now.*\n").run();
    holder.signal(Signal::CONT);
    holder.finish();
    // Redis may have values of other programs.
    if backend == Backend::Redis {
        let () = world.redis().ask(&["SET", "dlock:foreign", "x"]);
        world.dlock(["release", "foreign", "-y"]).status(64).stderr_like("dlock: .*did not write.*\n").run();
        assert_eq!(world.redis().get("dlock:foreign").as_deref(), Some("x"));
    }
}

fn success_is_reported_on_a_terminal_only(backend: Backend) {
    let world = World::new(backend);
    let token = world.dlock(["acquire", "-k", "k", "-t", "1h"]).any_stdout().run().stdout;
    world.write("token", &token);
    world.dlock(["release", "k", "--token-file", "token"]).run();
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock acquire -k k -t 1h; echo STATUS $?");
    assert!(terminal.expect("STATUS 0").contains("is acquired until"));
    terminal
        .type_line("dlock acquire -k l -t 1h > token; dlock release l --token-file token; echo STATUS $?");
    let shown = terminal.expect("STATUS 0");
    assert!(!shown.contains("is acquired until") && shown.contains("is given back"), "{shown}");
    terminal.close();
}
