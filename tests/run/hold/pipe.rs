//! A program, or a person at a terminal, holds a lock by the stdin of `dlock hold`.

use super::LONG;
use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::pty::Terminal;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};

on_every_store!(
    a_program_holds_a_lock_by_a_pipe,
    a_program_gets_events_of_a_request_and_of_a_loss,
    hold_on_a_pipe_killed,
    hold_on_a_pipe_stopped,
);

/// A program that holds a lock by a pipe to `dlock hold`.
struct Piped {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Piped {
    fn new(world: &World, options: &[&str]) -> Self {
        let mut command = world.command("setsid");
        command.args([BINARY, "hold", "-k", "k", "--json", "--op-timeout", "10s"]).args(options);
        command.env("DLOCK_STORE", world.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("dlock");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Reads the next event, which must be `event`.
    #[track_caller]
    fn hear(&mut self, event: &str) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        assert_eq!(value["event"], event, "{line:?}");
        value
    }

    /// Expects the end of stdout.
    #[track_caller]
    fn hear_nothing(&mut self) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("the end");
        assert_eq!(rest, "");
    }

    fn close(&mut self) {
        drop(self.child.stdin.take());
    }

    fn status(&mut self) -> Option<i32> {
        self.child.wait().expect("our child").code()
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn a_program_holds_a_lock_by_a_pipe(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", LONG], "until [ -e go ]; do sleep 0.1; done").any_stderr().spawn();
    world.wait_for_state("k", "held");
    let mut program = Piped::new(&world, &["-w", "-t", LONG]);
    assert_eq!(program.hear("waiting")["ahead"], 0);
    world.write("go", "");
    let granted = program.hear("granted");
    holder.finish();
    assert_eq!(granted["fence"], world.fence("k"));
    assert_eq!((granted["keys"][0].as_str(), granted["lease_ms"].as_u64()), (Some("k"), Some(600_000)));
    world.dlock(["check", "k", "--token-file", "token"]).status(78).any_stderr().run();
    world.write("token", granted["token"].as_str().expect("a token"));
    world.dlock(["check", "k", "--token-file", "token"]).run();
    program.close();
    program.hear("released");
    program.hear_nothing();
    assert_eq!(program.status(), Some(0));
    world.run("k", &[], "").run();
}

fn a_program_gets_events_of_a_request_and_of_a_loss(backend: Backend) {
    let world = World::new(backend);
    let mut program = Piped::new(&world, &["-t", LONG]);
    program.hear("granted");
    let release = world.dlock(["release", "k", "-y", "--reason", "upgrade"]).any_stderr().spawn();
    assert_eq!(program.hear("asked")["by"]["reason"], "upgrade");
    program.hear_nothing();
    // The lock is held until the program closes the pipe.
    assert_eq!(world.state("k"), "held");
    program.close();
    assert_eq!(program.status(), Some(79));
    release.finish();

    let mut program = Piped::new(&world, &["-t", "4s"]);
    program.hear("granted");
    world.dlock(["release", "k", "--force", "-y"]).any_stderr().run();
    assert_eq!(program.hear("lost")["how"], "forced");
    program.hear_nothing();
    program.close();
    assert_eq!(program.status(), Some(79));
}

fn hold_on_a_pipe_killed(backend: Backend) {
    let world = World::new(backend);
    let mut program = Piped::new(&world, &["-t", LONG]);
    program.hear("granted");
    let next = world.run("k", &["--wait"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(program.pid(), Signal::KILL);
    program.hear_nothing();
    assert_eq!(world.state("k"), "held", "the program may still be at work");
    program.close();
    next.finish();
}

/// dlock is stopped and can write no event, but the program sees the end of stdout.
fn hold_on_a_pipe_stopped(backend: Backend) {
    let world = World::new(backend);
    let mut program = Piped::new(&world, &["-t", "5s"]);
    program.hear("granted");
    let next = world.run("k", &["--wait"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(program.pid(), Signal::STOP);
    program.hear_nothing();
    assert_eq!(world.log(), [""; 0], "it hears of it before another has the lock");
    next.finish();
    proc::signal(program.pid(), Signal::CONT);
    assert_eq!(program.status(), Some(79));
}

#[test]
fn a_program_gets_events_of_trouble_and_of_a_lease_that_runs_out() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let mut command = world.command("setsid");
    command.args([BINARY, "hold", "-k", "k", "--json", "-t", "6s"]).env("DLOCK_STORE", proxy.url());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("dlock");
    let lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut program = Piped { child, lines };
    program.hear("granted");
    proxy.begin_outage();
    program.hear("trouble");
    proxy.end_outage();
    program.hear("recovered");
    proxy.begin_outage();
    program.hear("trouble");
    let lost = program.hear("lost");
    assert_eq!(lost["how"], "expired");
    assert!(lost["left_ms"].as_u64().is_some_and(|left| left > 0), "it is told before: {lost}");
    program.hear_nothing();
    assert_eq!(program.status(), Some(79), "also where the program does not let go");
}

#[test]
fn a_program_gets_events_while_it_waits_or_does_not() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &[], "until [ -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_state("k", "held");
    let mut refused = Piped::new(&world, &[]);
    let busy = refused.hear("busy");
    assert!(busy["holder"]["pid"].is_u64() && busy["status"] == 75, "{busy}");
    refused.hear_nothing();
    assert_eq!(refused.status(), Some(75));
    let proxy = Proxy::before(world.redis().port());
    let mut waiter = Piped::new(&world, &["-w", "--store", &proxy.url(), "--op-timeout", "500ms"]);
    waiter.hear("waiting");
    proxy.begin_outage();
    assert_eq!(waiter.hear("trouble")["left_ms"], Value::Null);
    proxy.end_outage();
    waiter.hear("recovered");
    world.write("go", "");
    holder.finish();
    waiter.hear("granted");
    waiter.close();
    waiter.hear("released");
}

#[test]
fn a_terminal_ends_a_hold_by_its_keys() {
    let world = World::without_redis();
    let mut terminal = Terminal::open(&world);
    for (key, status) in [("\x04", "ends-0"), ("\x03", "ends-0")] {
        terminal.type_line("dlock hold -k k; echo ends-$?");
        world.wait_for_state("k", "held");
        terminal.press(key);
        terminal.expect(status);
        terminal.expect("READY> ");
        assert_eq!(world.state("k"), "free");
    }
    terminal.close();
}

/// Nobody has learned that the lock is held.
#[test]
fn a_grant_that_cannot_be_written_is_given_back() {
    let world = World::without_redis();
    let script = "sleep 2 | $D hold -k k --json > /dev/full; echo ${PIPESTATUS[1]}";
    let mut bash = world.command("bash");
    bash.args(["-c", script]).env("D", BINARY).env("DLOCK_STORE", world.url());
    let output = bash.output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "74\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write to standard output: the lock is given back"), "{said}");
    assert_eq!(world.state("k"), "free");
}
