//! A scheduled run (`--once-per`) that ends without a success says so, also with `-q`: one run for the
//! whole fleet. Every other run is silent, and has its status.

use crate::docs::schema::Definitions;
use crate::support::dlock::{Dlock, Running};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use regex_lite::Regex;
use serde_json::Value;

on_every_store!(one_of_a_crowd_that_gives_up_says_so);

const HOLD: &str = "echo up >> log; while ! [ -e go ]; do sleep 0.1; done";

/// What machines say that run this at the same time, a line each. Each ends with this status.
fn said<'w>(machines: usize, status: i32, run: impl Fn() -> Dlock<'w>) -> Vec<String> {
    // A crowd on a busy machine must not take the store for silent.
    let run = || run().env("DLOCK_OP_TIMEOUT", "20s").status(status).any_stderr().spawn();
    let all: Vec<Running> = (0..machines).map(|_| run()).collect();
    let outputs = all.into_iter().map(|run| run.finish().stderr);
    outputs.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Exactly one of them says what matches this.
#[track_caller]
fn one_says(said: &[String], pattern: &str) {
    let pattern = Regex::new(&format!("^{pattern}$")).expect("a pattern");
    assert!(matches!(said, [line] if pattern.is_match(line)), "{said:?}");
}

#[track_caller]
fn none_says(said: &[String]) {
    assert!(said.is_empty(), "{said:?}");
}

/// The job hangs. Twelve machines stand by, and give up; the next ones do the same within the hour.
fn one_of_a_crowd_that_gives_up_says_so(backend: Backend) {
    gives_up(&World::new(backend));
}

#[test]
fn one_of_a_crowd_says_so_on_a_quorum() {
    gives_up(&World::on_a_quorum());
}

fn gives_up(world: &World) {
    let hung = world.run("k", &["-q", "--once-per", "day", "--label", "report"], HOLD).spawn();
    world.wait_for_log("up");
    let stand_bys = |machines| {
        said(machines, 75, || world.run("k", &["-q", "--once-per", "day", "-w", "1s"], "echo ran >> log"))
    };
    let gave_up = format!(
        "dlock: k in \\S+: waited \\S+ and gave up; \\S+@\\S+ \\(pid {}\\) has been running 'report' since \\S+; \
this run did not happen; 'dlock release k' stops it, --max-run bounds such a run",
        hung.pid()
    );
    one_says(&stand_bys(12), &gave_up);
    none_says(&stand_bys(3));
    // A line without -w.
    let busy = |period| said(4, 75, || world.run("k", &["-q", "--once-per", period], "echo ran >> log"));
    none_says(&busy("day"));
    let is_busy = format!(
        r"dlock: k in \S+ is busy; \S+@\S+ \(pid {}\) has been running 'report' since \S+; this run did not happen; .*",
        hung.pid()
    );
    one_says(&busy("1s"), &is_busy);
    none_says(&busy("1s"));
    // Without --once-per it is no scheduled run.
    none_says(&said(2, 75, || world.run("k", &["-q", "-w", "0.1"], "echo ran >> log")));
    world.write("go", "");
    hung.finish();
    assert_eq!(world.log(), ["up"]);
}

/// Without -q the others say what they always say.
#[test]
fn the_others_say_that_it_is_busy() {
    let world = World::new(Backend::File);
    world.dlock(["acquire", "-k", "k", "--label", "vacuum", "-t", "1h"]).any_stdout().run();
    // A script's hold may last as long as it likes, but a run that has given up has not happened.
    none_says(&said(2, 75, || world.run("k", &["-q", "--once-per", "1ms"], "true")));
    let lines = said(3, 75, || world.run("k", &["--once-per", "1h", "-w", "0.5"], "true"));
    let (told, busy): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.contains("gave up"));
    one_says(&told, r"dlock: .* and gave up; \S+ \(pid \d+\) has held it for 'vacuum' since .*");
    assert_eq!(busy.len(), 2, "{busy:?}");
    assert!(busy.iter().all(|line| line.contains("was busy for all of --wait")), "{busy:?}");
}

#[test]
fn one_of_those_that_wait_out_a_pause_says_so() {
    let world = World::new(Backend::Redis);
    world.dlock(["pause", "-q", "k", "--reason", "freeze"]).run();
    let run = |options: &[&str]| {
        said(4, 75, || world.run("k", &[&["-q", "--once-per", "day"], options].concat(), "true"))
    };
    none_says(&run(&[]));
    let pattern = "dlock: k in \\S+: waited \\S+ and gave up; \\S+@\\S+ \\(pid \\d+\\) has paused it \\(freeze\\) since \\S+; \
this run did not happen; 'dlock resume k' ends the pause";
    one_says(&run(&["-w", "0.3"]), pattern);
    none_says(&run(&["-w", "0.3"]));
    world.dlock(["pause", "-q", "k", "--reason", "freeze", "--for", "2h"]).run();
}

/// A run that failed paused the lock, and the others do not wait.
#[test]
fn the_first_that_is_refused_after_a_failure_says_so() {
    let world = World::new(Backend::File);
    let failing = ["-q", "--pause-on-failure", "1h", "--label", "report"];
    world.run("k", &failing, "exit 3").status(3).run();
    let run = |options: &[&str]| said(4, 75, || world.run("k", &[&["-q"], options].concat(), "true"));
    let pattern = "dlock: k in \\S+ is paused because a run failed; the run of \\S+@\\S+ \\(pid \\d+\\) \\(failed on \\S+: exit 3\\) \
                   has paused it since .*, until .*; this run did not happen; 'dlock resume k' ends the pause";
    one_says(&run(&["--once-per", "day"]), pattern);
    none_says(&run(&["--once-per", "day"]));
    none_says(&run(&[]));
    none_says(&run(&["-w", "0.1"]));
    // Its next pause is another one.
    world.dlock(["resume", "-q", "k"]).run();
    wait_until("two seconds have passed", || {
        world.run("k", &failing, "exit 3").status(3).run();
        let told = run(&["-w", "0.1"]).len();
        world.dlock(["resume", "-q", "k"]).run();
        told == 1
    });
}

/// One of two slots still runs when the other one fails.
#[test]
fn a_failure_is_announced_while_another_slot_runs() {
    let world = World::new(Backend::File);
    let other = world.run("k", &["-n", "2"], HOLD).spawn();
    world.wait_for_log("up");
    let run = || said(2, 75, || world.run("k", &["-q", "-n", "2"], "true"));
    world.run("k", &["-q", "-n", "2", "--pause-on-failure", "1h"], "exit 3").status(3).run();
    one_says(
        &run(),
        "dlock: k in .* is paused because a run failed; the run of .*exit 3\\) has paused it since .*",
    );
    none_says(&run());
    world.write("go", "");
    other.finish();
}

/// Sets how long ago the last success arrived.
fn succeeded(world: &World, minutes_ago: u64, fence: u64) {
    let now = world.redis().ask::<Vec<u64>>(&["TIME"])[0] * 1000;
    let (since, waited) = (now - minutes_ago * 60_000, 60_000);
    let success = format!(
        r#"{{"owner":{{"host":"web-1"}},"fence":"{fence}","since":{},"waited":{waited},"ended":{since}}}"#,
        since + waited
    );
    world.redis().ask::<()>(&["SET", "dlock.done:{dlock:k}:dlock:k", &success]);
}

#[test]
fn a_skip_that_should_not_have_been_is_told_by_one() {
    let world = World::new(Backend::Redis);
    let skip = |period, options: &[&str]| {
        said(6, 0, || world.run("k", &[&["-q", "--once-per", period], options].concat(), "echo ran >> log"))
    };
    let too_long = "dlock: k in \\S+: skipped: a run succeeded 23h5[89]m ago; --once-per 1d is as long as the period, \
write --once-per day";
    let another = "dlock: k in \\S+: skipped: a run succeeded 11h ago, at another hour than usual; \
'dlock forget k' lets it run";
    succeeded(&world, 24 * 60 - 1, 1);
    one_says(&skip("1d", &["-w", "1s"]), too_long);
    none_says(&skip("1d", &[]));
    succeeded(&world, 24 * 60 - 1, 2);
    one_says(&skip("24h", &[]), too_long);
    // The line of /etc/cron.daily, on a machine that comes late.
    succeeded(&world, 17 * 60, 8);
    one_says(&skip("20h", &[]), ".* a run succeeded 17h ago; .*, write --once-per day");
    // A skip in the middle shows that DUR is a limit.
    succeeded(&world, 12 * 60, 3);
    none_says(&skip("1d", &[]));
    succeeded(&world, 24 * 60 - 1, 3);
    none_says(&skip("1d", &[]));
    succeeded(&world, 11 * 60, 4);
    one_says(&skip("day", &[]), another);
    none_says(&skip("day", &[]));
    succeeded(&world, 60, 5);
    none_says(&skip("day", &[]));
    assert!(world.log().is_empty(), "{:?}", world.log());
}

/// The JSON form has what the text says as fields.
#[test]
fn what_is_told_has_fields() {
    let world = World::new(Backend::Redis);
    let told = |status, options: &[&str]| -> Value {
        let lines =
            said(1, status, || world.run("k", &[&["-q", "--log-format", "json"], options].concat(), "true"));
        Definitions::read().check("message", &lines[0])
    };
    succeeded(&world, 11 * 60, 1);
    let message = told(0, &["--once-per", "day"]);
    assert_eq!((&message["event"], &message["missed"]["why"]), (&"done".into(), &"other-hour".into()));
    assert_eq!((&message["level"], &message["by"]["host"]), (&"warning".into(), &"web-1".into()));
    let age = message["missed"]["age_ms"].as_u64().expect("an age");
    assert_eq!(age / 60_000, 11 * 60, "{message}");
    let hung = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    let message = told(75, &["--once-per", "1h", "-w", "0.3"]);
    assert_eq!((&message["event"], &message["missed"]["why"]), (&"busy".into(), &"gave-up".into()));
    assert_eq!((&message["holder"]["pid"], &message["status"]), (&hung.pid().into(), &75.into()));
    assert!(message["missed"]["waited_ms"].as_u64() >= Some(300), "{message}");
    world.write("go", "");
    hung.finish();
}

/// A run that counts says until when; one that fails, or has no --once-per, does not.
#[test]
fn a_run_that_counts_says_until_when() {
    let world = World::new(Backend::File);
    let run = |options: &[&str], status, script: &str| {
        world.run("k", &[&["-v"], options].concat(), script).status(status).any_stderr().run().stderr
    };
    let once = ["--once-per", "hour"];
    assert!(!run(&once, 3, "exit 3").contains("counts until"));
    assert!(!run(&[], 0, "true").contains("counts until"));
    let counts = run(&once, 0, "true");
    let line = "dlock: k in file:.*: this run counts until .*\\d\\d:\\d\\d:\\d\\d \\(half an hour\\); \
                'dlock forget k' makes it due again";
    one_says(
        &counts.lines().filter(|line| line.contains("counts")).map(str::to_owned).collect::<Vec<_>>(),
        line,
    );
}
