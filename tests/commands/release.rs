//! `dlock release`: one's own hold is given back, somebody's is asked for, and by force anybody's is taken away.

use crate::support::dlock::{BINARY, Running};
use crate::support::pty::{CTRL_C, Terminal};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    a_free_lock_is_released_already,
    a_pattern_is_refused,
    a_token_gives_back_its_own_hold_only,
    what_a_script_acquired_is_given_back,
    a_script_that_lost_its_lock_asks_nobody_else,
    what_the_run_around_holds_ends_with_its_job,
    without_a_terminal_nobody_is_asked_by_accident,
    a_holder_that_is_asked_stops_its_job_and_gives_back,
    who_ended_it_is_named_and_why,
    a_person_says_yes_or_no,
    the_next_holder_is_not_asked,
    a_bound_runs_out_and_the_holder_stays_asked,
    a_signal_ends_the_watching_only,
    several_holders_are_asked_together_or_by_slot,
    a_script_is_waited_for_until_its_lease_ends,
    where_nobody_holds_it_there_is_nothing_to_ask,
    force_says_what_it_did,
    force_asks_the_person_at_the_terminal,
    both_jobs_may_run_only_after_a_yes,
    what_goes_as_it_should_is_told_to_a_terminal_only,
    force_takes_a_lock_from_several,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";

/// A run that would last for ever, and is asked to stop.
fn endless(world: &World, key: &str, options: &[&str]) -> Running {
    let before = world.lines("up");
    let run = world.run(key, options, "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_lines("up", before + 1);
    run
}

fn a_free_lock_is_released_already(backend: Backend) {
    let world = World::new(backend);
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
        "dlock: deploy\\* is a pattern, and release takes one key: 'dlock status 'deploy\\*'' shows .*\n";
    for options in [&[][..], &["-y"], &["--force", "-y"]] {
        world.dlock(["release", "deploy*"]).args(options).stderr_like(said).status(64).run();
    }
    let holder =
        world.run("a*", &["-t", "6s"], "echo up >> log; exec sleep 1000").any_stderr().status(79).spawn();
    world.wait_for_log("up");
    world.dlock(["release", "-y", r"a\*"]).any_stderr().run();
    holder.finish();
}

fn a_token_gives_back_its_own_hold_only(backend: Backend) {
    let world = World::new(backend);
    let job = "echo $DLOCK_TOKEN > token.tmp; mv token.tmp token; while [ ! -e go ]; do sleep 0.02; done";
    let holder = world.run("k", &["-t", "6s"], job).status(79).any_stderr().spawn();
    wait_until("the job runs", || !world.read("token").is_empty());
    world.write("strange", "00000000000000000000000000000000\n");
    world.dlock(["release", "k", "--token-file", "strange"]).status(79).stderr_like("dlock: .*\n").run();
    world.dlock(["release", "k", "--token-file", "-"]).stdin("no token\n").status(78).any_stderr().run();
    world.dlock(["release", "k", "--token-file", "absent"]).status(78).any_stderr().run();
    assert_eq!(world.state("k"), "held");
    world.dlock(["release", "k", "--token-file", "token"]).any_stderr().any_stdout().run();
    // Given back is given back: the dlock that held it learns that it is lost.
    holder.finish();
    assert_eq!(world.state("k"), "free");
    let again = world.dlock(["release", "k", "--token-file", "-"]).stdin(&world.read("token"));
    again.any_stderr().any_stdout().run();
}

fn what_a_script_acquired_is_given_back(backend: Backend) {
    let world = World::new(backend);
    let job = "eval \"$($D acquire -q --export -k k -k l)\"; $D release k -v; $D release l -v; $D release k";
    let sh = world.dlock([""; 0]).under(&["sh", "-c", job]).env("D", BINARY);
    sh.stderr_like("dlock: k and l in .* is given back\ndlock: k and l in .* was given back before\n").run();
    assert_eq!((world.state("k").as_str(), world.state("l").as_str()), ("free", "free"));
    // Inside of a run of another key, and of the same one shared.
    let job = "eval \"$($D acquire -q --export -k k -s)\"; $D release -q k; $D release -v k; echo $?";
    let run = world.run("k", &["-s"], job).env("D", BINARY).stdout("0\n");
    run.stderr_like("dlock: k in .* was given back before\n").run();
}

fn a_script_that_lost_its_lock_asks_nobody_else(backend: Backend) {
    let world = World::new(backend);
    let acquire = "eval \"$($D acquire -q --export -k k -t 500ms)\"; echo \"$DLOCK_HELD\" > held";
    world.dlock([""; 0]).under(&["sh", "-c", acquire]).env("D", BINARY).run();
    world.wait_for_state("k", "free");
    let other = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    for options in [&[][..], &["-y"]] {
        let release =
            world.dlock(["release", "k"]).args(options).env("DLOCK_HELD", world.read("held").trim());
        release.status(79).stderr_like("dlock: the token holds nothing: k in .*\n").run();
    }
    world.write("go", "");
    other.finish();
}

fn what_the_run_around_holds_ends_with_its_job(backend: Backend) {
    let world = World::new(backend);
    let job = "echo \"$DLOCK_HELD\" > held; $D release k; echo $?; $D release k -y; echo $?";
    let run = world.run("k", &[], job).env("D", BINARY).stdout("64\n64\n");
    run.stderr_like("(dlock: k in .* ends with its job.*\n){2}").run();
    let late = world.dlock(["release", "k", "-y"]).env("DLOCK_HELD", world.read("held").trim());
    late.status(79).stderr_like("dlock: k in .* is not held any more .*\n").run();
}

fn without_a_terminal_nobody_is_asked_by_accident(backend: Backend) {
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

fn a_holder_that_is_asked_stops_its_job_and_gives_back(backend: Backend) {
    let world = World::new(backend);
    // At the next heartbeat it would be minutes.
    let holder = endless(&world, "k", &["-t", "1h", "--report", "report"]);
    let status = world.status("k");
    wait_until("it has held for more than a second", || {
        world.status("k")["holders"][0]["held_ms"].as_u64().is_some_and(|held| held > 1000)
    });
    let release = world.dlock(["release", "k", "-y", "-v"]).any_stderr().run();
    assert_eq!(world.state("k"), "free", "it returns when that hold has ended");
    let steps = ["asked", "gave it back; its job died of signal 15"];
    assert!(steps.iter().all(|step| release.stderr.contains(step)), "{}", release.stderr);
    holder.finish();
    let log = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    let log: serde_json::Value = serde_json::from_str(&log).expect("JSON");
    assert_eq!(log[0]["fence"], status["fence"]);
    assert!(world.read("report").contains("\"asked\""), "{}", world.read("report"));
}

/// The job's own message, its report, `history` (on a terminal too) and `status` say who it was, and why.
fn who_ended_it_is_named_and_why(backend: Backend) {
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

fn a_person_says_yes_or_no(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let mut terminal = Terminal::open(&world);
    for (answer, status) in [("\n", 75), ("n\n", 75), ("yess\n", 75), ("\x04", 75)] {
        terminal.type_line("dlock release k; echo STATUS $?");
        let shown = terminal.expect("stopped and given back? [y/N] ");
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

/// What was shown is what is asked, by its fence, however long the answer takes.
fn the_next_holder_is_not_asked(backend: Backend) {
    let world = World::new(backend);
    let first = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock release k; echo STATUS $?");
    terminal.expect("[y/N] ");
    let second = world.run("k", &["-w"], "echo second >> log; until [ -e end ]; do sleep 0.02; done").spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    first.finish();
    world.wait_for_log("second");
    let fence = world.fence("k");
    terminal.press("y\n");
    terminal.expect("has given it back meanwhile");
    terminal.expect("STATUS 0");
    assert_eq!((world.state("k").as_str(), world.fence("k")), ("held", fence));
    terminal.close();
    world.write("end", "");
    // Nobody asked it: it ends as its job does.
    second.finish();
}

fn a_bound_runs_out_and_the_holder_stays_asked(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'echo term >> log; [ -e go ] && exit' TERM; echo up >> log; while :; do sleep 0.02; done";
    let holder = world.run("k", &["-t", "6s", "--grace", "1h"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let release = world.dlock(["release", "k", "-y", "--timeout", "0.3"]).status(75).any_stderr().run();
    assert!(release.stderr.contains("is still held by"), "{}", release.stderr);
    world.wait_for_log("term");
    // A second one waits for the same end.
    let again = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    world.dlock(["release", "k", "-q", "--force"]).run();
    again.finish();
    holder.finish();
}

fn a_signal_ends_the_watching_only(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'echo term >> log' TERM; echo up >> log; until [ -e go ]; do sleep 0.02; done";
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
    // Nothing is wrong, and nobody looks on.
    world.dlock(["release", "k", "-y", "--slot", "1"]).run();
    assert!(held(2));
    let slots = world.status("k")["holders"].to_string();
    assert!(!slots.contains("\"slot\":1") && slots.contains("\"slot\":2"), "{slots}");
    let refused = world.dlock(["release", "k"]).status(64).any_stderr().run().stderr;
    assert_eq!(refused.matches("sleep 1000").count(), 2, "all are shown: {refused}");
    let said = world.dlock(["release", "k", "-yv"]).any_stderr().run().stderr;
    assert_eq!(said.matches("gave it back").count(), 2, "{said}");
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
    for part in ["acquired by a script", "--force", "let its lease end"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let token = world.dlock(["acquire", "-q", "-k", "k", "-t", "1h"]).any_stdout().run().stdout;
    let release = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    wait_until("it has asked", || release.messages().contains("is a script"));
    world.dlock(["release", "k", "-q", "--token-file", "-"]).stdin(&token).run();
    release.finish();
}

fn where_nobody_holds_it_there_is_nothing_to_ask(backend: Backend) {
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
    // The store is not dlock's alone.
    if backend == Backend::Redis {
        let () = world.redis().ask(&["SET", "dlock:foreign", "x"]);
        world.dlock(["release", "foreign", "-y"]).status(64).stderr_like("dlock: .*did not write.*\n").run();
        assert_eq!(world.redis().get("dlock:foreign").as_deref(), Some("x"));
    }
}

fn force_says_what_it_did(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let output = world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    let said = output.stdout + &output.stderr;
    assert!(said.contains(&holder.pid().to_string()) && said.contains('k'), "it names whose it was: {said}");
    holder.finish();
    wait_until("it is free", || world.state("k") == "free");
    let last = world.status("k")["last_run"].to_string();
    assert!(last.contains("forced"), "the log knows: {last}");
}

fn force_takes_a_lock_from_several(backend: Backend) {
    let world = World::new(backend);
    let holders: Vec<Running> = (0..2).map(|_| endless(&world, "k", &["-t", "6s", "-s"])).collect();
    let said = world.dlock(["release", "k", "--force"]).any_stderr().run().stderr;
    assert!(holders.iter().all(|holder| said.contains(&format!("pid {}", holder.pid()))), "{said}");
    holders.into_iter().for_each(|holder| drop(holder.finish()));
    wait_for("it is free", || (world.state("k") == "free").then_some(()));
    world.dlock(["acquire", "-q", "-k", "k", "-t", "1h"]).any_stdout().run();
    let said = world.dlock(["release", "k", "--force"]).any_stderr().run().stderr;
    assert!(said.contains("no dlock stops what a script does"), "{said}");
    world.dlock(["release", "k", "--force", "--now", "-y", "-q"]).run();
    assert_eq!(world.state("k"), "free");
}

fn force_asks_the_person_at_the_terminal(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let mut terminal = Terminal::open(&world);
    for (options, question) in
        [("--force", "take it away? [y/N] "), ("--force --now", "may still run? [y/N] ")]
    {
        terminal.type_line(&format!("dlock release k {options}; echo STATUS $?"));
        let shown = terminal.expect(question);
        assert!(shown.contains(&format!("pid {}", holder.pid())) && shown.contains("sleep 1000"), "{shown}");
        terminal.press("n\n");
        terminal.expect("nothing was done");
        terminal.expect("STATUS 75");
        assert_eq!(world.state("k"), "held");
    }
    terminal.type_line("dlock release k --force; echo STATUS $?");
    terminal.expect("[y/N] ");
    terminal.press("y\n");
    terminal.expect("is taken away from");
    terminal.expect("STATUS 0");
    holder.finish();
    world.wait_for_state("k", "free");
    // Nothing to ask of a free one, and no question with -y.
    terminal.type_line("dlock release k --force; dlock release k --force --now; echo STATUS $?");
    let shown = terminal.expect("STATUS 0");
    assert_eq!(shown.matches("is free; nothing to release").count(), 2, "{shown}");
    let holder = endless(&world, "k", &["-t", "6s"]);
    terminal.type_line("dlock release k --force -y; echo STATUS $?");
    let shown = terminal.expect("STATUS 0");
    assert!(!shown.contains("[y/N]"), "{shown}");
    holder.finish();
    terminal.close();
}

fn both_jobs_may_run_only_after_a_yes(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let release =
        world.dlock(["release", "k", "--force", "--now"]).stdin("y\n").status(64).any_stderr().run();
    for part in [&format!("pid {}", holder.pid()), "No terminal", "-y"] {
        assert!(release.stderr.contains(part), "{part}: {}", release.stderr);
    }
    assert_eq!(world.state("k"), "held");
    let release = world.dlock(["release", "k", "--force", "--now", "-y"]).any_stderr().run();
    assert!(release.stderr.contains("may run until that is noticed"), "{}", release.stderr);
    holder.finish();
}

fn what_goes_as_it_should_is_told_to_a_terminal_only(backend: Backend) {
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
