//! `dlock hold --background`: a shell script holds a lock for itself, and goes on.

use super::{Target, hold};
use crate::support::dlock::BINARY;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufReader, Read as _};
use std::process::Stdio;

on_every_store!(a_script_holds_a_lock_in_the_background);

/// Replaces `exec 9>f; flock 9`.
fn a_script_holds_a_lock_in_the_background(backend: Backend) {
    let world = World::new(backend);
    let script = r#"
        lock=$("$DLOCK" hold -k k -t 10m --pid $$ --background --export --env-file env) || exit; eval "$lock"
        [ "$DLOCK_KEY" = k ] || exit 10
        "$DLOCK" check || exit 11
        "$DLOCK" renew || exit 12
        "$DLOCK" run -k k -- sh -c 'echo inside >> log' || exit 13
        "$DLOCK" run -k other -w -- "$DLOCK" run -k k -- sh -c 'echo deep >> log' || exit 14
        "$DLOCK" hold -k k --pid $$ --background 2> /dev/null; [ $? = 75 ] || exit 15
        "$DLOCK" hold -k k --pid $$ -w --background 2> /dev/null; [ $? = 64 ] || exit 16
        (unset DLOCK_HELD; "$DLOCK" run -k k -- true 2> /dev/null); [ $? = 75 ] || exit 17
        "$DLOCK" release k || exit 18
        (unset DLOCK_HELD; "$DLOCK" run -k k -- true) || exit 19
        "$DLOCK" check 2> /dev/null; [ $? = 79 ] || exit 20
        lock=$("$DLOCK" hold -k k -t 10m --pid $$ --background --export) || exit 21; eval "$lock"
        out=$("$DLOCK" hold -k more --pid $$ --background -v 2>&1 3>&1) || exit 22
        case $out in *"got more in"*"more in"*"is held until process $$ ends"*) ;; *) echo "$out"; exit 23 ;; esac
        echo held >> log
        until [ -e go ]; do sleep 0.1; done
    "#;
    let mut command = world.command("sh");
    command.args(["-c", script]).env("DLOCK", BINARY).env("DLOCK_STORE", world.url());
    let mut script = command.env("DLOCK_OP_TIMEOUT", "10s").stdout(Stdio::piped()).spawn().expect("sh");
    let stdout = script.stdout.take().expect("a pipe");
    wait_until("it holds the lock again", || {
        assert_eq!(script.try_wait().expect("our child").map(|status| status.code()), None);
        world.log().contains(&"held".into())
    });
    let env = world.read("env");
    assert!(env.lines().all(|line| line.starts_with("DLOCK_")) && env.contains("DLOCK_KEY=k\n"), "{env}");
    assert!(env.contains("DLOCK_SLOT=\n"), "the slot of an earlier file does not stay: {env}");
    let next = world.run("k", &["--wait"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    assert!(script.wait().expect("our child").success());
    // The dlock in the background has no descriptor of the caller: the pipe ends with the script.
    let mut rest = String::new();
    BufReader::new(stdout).read_to_string(&mut rest).expect("the end");
    next.finish();
    assert_eq!(world.log(), ["inside", "deep", "held", "next"]);
}

/// A signal while dlock waits is the status of the script that evaluates what it prints, and leaves
/// the queue.
#[test]
fn a_signal_while_it_waits_prints_its_status() {
    let world = World::without_redis();
    let holder = world.run("k", &[], "until [ -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_state("k", "held");
    let pid = std::process::id().to_string();
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1), (Signal::QUIT, 3)] {
        let waiter = world.dlock(["hold", "-k", "k", "-w", "--pid", &pid, "--background", "--export"]);
        let waiter = waiter.stdout(&format!("exit {}\n", 128 + number)).dies_of(number).spawn();
        world.wait_for_waiters("k", 1);
        waiter.signal(signal);
        waiter.finish();
        wait_until("nobody waits", || world.waiters("k") == 0);
    }
    world.write("go", "");
    holder.finish();
}

/// A run in the script that waits for the script's hold, because it has not got the variables, says
/// so.
#[test]
fn a_run_inside_that_waits_for_its_own_script_says_so() {
    let world = World::without_redis();
    let script = r#"
        "$DLOCK" hold -k k --pid $$ --background || exit
        "$DLOCK" run -k k -- true
        "$DLOCK" run -k k -w 1 -- true
        "$DLOCK" acquire -q -k k -w 1
        lock=$("$DLOCK" acquire --export -k l) || exit
        "$DLOCK" run -q -k l -w 1 -- true
        exit 0
    "#;
    let mut command = world.command("sh");
    command.args(["-c", script]).env("DLOCK", BINARY).env("DLOCK_STORE", world.url());
    let output = command.output().expect("sh");
    let said = String::from_utf8(output.stderr).expect("text");
    let [once, warning, busy, acquiring] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(once.ends_with("; this process itself runs under it"), "{said}");
    assert!(warning.contains("k in ") && warning.contains("is held for process "), "{said}");
    assert!(busy.contains("was busy for all of --wait"), "{said}");
    assert!(acquiring.contains("k in ") && acquiring.contains(", which this one descends from: "), "{said}");
    // The same record, seen from elsewhere.
    let script = r#""$DLOCK" hold -k k -w --pid $$ --background && echo up > up && until [ -e go ]; do sleep 0.1; done"#;
    let mut command = world.command("sh");
    command.args(["-c", script]).env("DLOCK", BINARY).env("DLOCK_STORE", world.url());
    let mut holder = command.spawn().expect("sh");
    wait_until("it is held", || world.path("up").exists());
    let output = world.run("k", &["-w", "1"], "true").status(75).any_stderr().run();
    assert!(!output.stderr.contains("descends"), "{}", output.stderr);
    world.write("go", "");
    assert!(holder.wait().expect("our child").success());
}

/// DLOCK_HELD may be forged: if the process that it names is no dlock, it gets no signal. And if
/// the last line of an env file has no newline, that line is kept.
#[test]
fn a_foreign_process_named_by_dlock_held_gets_no_signal() {
    let world = World::without_redis();
    world.write("env", "A=1");
    let script = r#"
        sleep 1000 & victim=$!
        lock=$("$DLOCK" hold -k k -t 10m --pid $$ --background --export --env-file env) || exit; eval "$lock"
        started=$(sed 's/.*) //' /proc/$victim/stat | cut -d ' ' -f 20)
        DLOCK_HELD=$(printf %s "$DLOCK_HELD" |
            sed "s/\"pid\":[0-9]*,\"started\":[0-9]*/\"pid\":$victim,\"started\":$started/")
        case $DLOCK_HELD in *"\"pid\":$victim,\"started\":$started"*) ;; *) echo "$DLOCK_HELD"; exit 9 ;; esac
        "$DLOCK" release k || exit 10
        kill -0 $victim || exit 11
        kill $victim
        grep -qx A=1 env && grep -qx DLOCK_KEY=k env || exit 12
    "#;
    let mut command = world.command("sh");
    command.args(["-c", script]).env("DLOCK", BINARY).env("DLOCK_STORE", world.url());
    let output = command.output().expect("sh");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    wait_until("it is free", || world.state("k") == "free");
}

/// With busy-exit-code = 0 in a file a script would go on without the lock, so it is refused.
#[test]
fn a_config_file_does_not_let_a_script_go_on_without_the_lock() {
    let world = World::without_redis();
    world.write("dlock.toml", "busy-exit-code = 0\n");
    let said = "dlock: busy-exit-code is 0 in the configuration, .*; add -E 75\n";
    let words = ["hold", "-k", "k", "--pid", &std::process::id().to_string(), "--background", "--export"];
    world
        .dlock(words)
        .env("DLOCK_CONFIG", world.path("dlock.toml").display().to_string())
        .stdout("exit 78\n")
        .status(78)
        .stderr_like(said)
        .run();
}

/// What a hold in the background has to say is in its log, and its end in the report.
#[test]
fn a_loss_in_the_background_is_in_the_log_and_the_report() {
    let world = World::new(Backend::Redis);
    let target = Target::sh(&world, "exec sleep 1000");
    let hold = |more: &[&str]| {
        hold(&world, "k", &["-t", "2s", "--on-lost", "warn", "--background"], &target).args(more).any_stderr()
    };
    let refused = hold(&[]).status(64).run().stderr;
    assert!(refused.contains("add --log FILE or --report FILE"), "{refused}");
    assert_eq!(world.state("k"), "free");
    hold(&["--report", "report", "--log", "log"]).run();
    hold(&["--report", "busy"]).status(75).run();
    let report = |name: &str| serde_json::from_str::<Value>(&world.read(name)).expect("JSON");
    assert_eq!((&report("busy")["outcome"], &report("busy")["started"]), (&"busy".into(), &false.into()));
    world.dlock(["release", "k", "--force", "-y"]).any_stderr().run();
    wait_until("the log says so", || world.read("log").contains("runs on without it"));
    drop(target);
    wait_until("there is a report", || world.path("report").exists());
    let lost = report("report");
    assert_eq!(
        (&lost["outcome"], &lost["status"], &lost["keys"][0]),
        (&"lost".into(), &79.into(), &"k".into())
    );
    let target = Target::sh(&world, "exec sleep 1000");
    super::hold(&world, "k", &["--background", "--report", "ended"], &target).run();
    drop(target);
    wait_until("there is a report", || world.path("ended").exists());
    let ended = report("ended");
    assert_eq!((&ended["outcome"], &ended["exit_status"]), (&"ended".into(), &Value::Null));
}
