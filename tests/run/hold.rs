//! `dlock hold`: a lock for what dlock did not start. A process, by its number, or the program on stdin. Whatever becomes of
//! dlock and its guard, what the lock was held for is dead before anybody else has it.

use crate::support::deadline::{dead_in_time, end_of_last_lease, now};
use crate::support::dlock::{BINARY, Dlock, End};
use crate::support::job;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::pty::Terminal;
use crate::support::storm::is_soak;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::{Signal, geteuid};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

on_every_store!(
    a_lock_is_held_until_the_process_ends,
    a_process_that_becomes_another_program_is_the_same,
    hold_killed,
    hold_stopped,
    its_guard_killed,
    its_guard_stopped,
    both_stopped,
    an_operator_has_the_process_stopped,
    a_lost_lock_stops_the_process,
    a_program_holds_a_lock_by_a_pipe,
    a_program_is_told_of_a_request_and_of_a_loss,
    hold_on_a_pipe_killed,
    hold_on_a_pipe_stopped,
    who_has_the_token_gives_the_lock_back,
    a_script_holds_a_lock_in_the_background,
    nothing_is_left_of_many,
);

const LONG: &str = "10m";

/// Those of [`FAMILY`].
const MEMBERS: [&str; 6] = ["leader", "session", "naked", "stranger", "deaf", "frozen"];

const FAMILY: &str = r"
setsid sh member session &
env -i sh member naked &
env -i setsid sh member stranger &
sh member deaf &
sh member frozen &
exec sh member leader
";

/// Something that dlock did not start. Dropping it kills it.
struct Target(Child);

impl Target {
    fn sh(world: &World, script: &str) -> Self {
        Self(world.command("sh").args(["-c", script]).spawn().expect("a process"))
    }

    /// A process whose descendants try to get away.
    fn family(world: &World) -> Self {
        job::prepare(world);
        let target = Self::sh(world, FAMILY);
        for name in MEMBERS {
            world.wait_for_pid(&format!("{name}.pid"));
        }
        let frozen = world.wait_for_pid("frozen.pid");
        wait_until("the frozen one stops", || proc::stopped(frozen));
        target
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a process id")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn survivors(world: &World) -> Vec<&'static str> {
    MEMBERS.into_iter().filter(|name| proc::acts(world.wait_for_pid(&format!("{name}.pid")))).collect()
}

fn hold<'w>(world: &'w World, key: &str, options: &[&str], target: &Target) -> Dlock<'w> {
    world.dlock(["hold", "-k", key, "--pid", &target.pid().to_string()]).args(options)
}

fn next_is_alone(world: &World) {
    wait_until("the next one runs", || world.log().contains(&"next".into()));
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

fn a_lock_is_held_until_the_process_ends(backend: Backend) {
    let world = World::new(backend);
    let mut target = Target::sh(&world, "exec sleep 1000");
    wait_until("it sleeps", || proc::arguments(target.pid()).starts_with("sleep"));
    let holder = hold(&world, "k", &["-t", LONG, "--reason", "why"], &target).spawn();
    world.wait_for_state("k", "held");
    let shown = &world.status("k")["holders"][0];
    assert_eq!(
        (shown["pid"].as_i64(), shown["command"].as_str(), shown["reason"].as_str()),
        (Some(target.pid().into()), Some("sleep 1000"), Some("why"))
    );
    world.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    hold(&world, "k", &[], &target).status(75).any_stderr().run();
    let next = world.run("k", &["--wait"], "echo next >> log").spawn();
    world.wait_for_waiters("k", 1);
    target.0.kill().expect("it lives");
    holder.finish();
    next.finish();
    assert_eq!(world.log(), ["next"]);
}

/// What it left behind is left alone, as with `run`.
fn a_process_that_becomes_another_program_is_the_same(backend: Backend) {
    let world = World::new(backend);
    let script = "until [ -e go ]; do sleep 0.02; done; sleep 1000 & echo $! > left.pid; \
                  exec sh -c 'echo again >> log; until [ -e stop ]; do sleep 0.02; done'";
    let target = Target::sh(&world, script);
    let holder = hold(&world, "k", &["-t", LONG], &target).spawn();
    world.wait_for_state("k", "held");
    world.write("go", "");
    world.wait_for_log("again");
    world.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    world.write("stop", "");
    holder.finish();
    assert!(proc::alive(world.wait_for_pid("left.pid")), "what it left behind");
    world.run("k", &[], "").run();
    proc::signal(world.wait_for_pid("left.pid"), Signal::KILL);
}

fn hold_killed(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder =
        hold(&world, "k", &["-t", LONG, "--grace", "500ms"], &target).dies_of(9).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::KILL);
    holder.finish();
    next.finish();
    next_is_alone(&world);
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    assert!(world.log().contains(&"thawed".into()), "with TERM comes CONT");
    assert_eq!(survivors(&world), [""; 0]);
}

fn hold_stopped(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "10s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::STOP);
    next.finish();
    next_is_alone(&world);
    holder.signal(Signal::CONT);
    holder.finish();
    drop(target);
}

fn its_guard_killed(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder =
        hold(&world, "k", &["-t", LONG, "--grace", "500ms"], &target).status(70).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(holder.guard(), Signal::KILL);
    next.finish();
    let output = holder.finish();
    assert!(
        output.stderr.contains("the guard process was killed; the process it is held for"),
        "{}",
        output.stderr
    );
    next_is_alone(&world);
    assert_eq!(survivors(&world), [""; 0]);
    drop(target);
}

fn its_guard_stopped(backend: Backend) {
    let world = World::new(backend);
    let mut target = Target::sh(&world, "exec sleep 1000");
    let holder = hold(&world, "k", &["-t", "5s"], &target).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let guard = holder.guard();
    proc::signal(guard, Signal::STOP);
    wait_until("the guard stops", || proc::stopped(guard));
    // Longer than the lease, by a clock of its own: the lock is somebody's all the time.
    world.run("k", &["-w", "6s"], "echo overlap >> log").status(75).any_stderr().run();
    target.0.kill().expect("it lives");
    holder.finish();
    world.run("k", &["-w", "20s"], "echo next >> log").any_stderr().run();
    assert_eq!(world.log(), ["next"]);
}

/// With both of them stopped nobody acts. When they go on it is too late, and all of it is killed.
fn both_stopped(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "3s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let guard = holder.guard();
    for pid in [holder.pid(), guard] {
        proc::signal(pid, Signal::STOP);
        wait_until("it stops", || proc::stopped(pid));
    }
    world.run("k", &["--wait"], "echo next >> log").any_stderr().run();
    for pid in [guard, holder.pid()] {
        proc::signal(pid, Signal::CONT);
    }
    holder.finish();
    assert_eq!(survivors(&world), [""; 0]);
    drop(target);
}

fn an_operator_has_the_process_stopped(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", LONG, "--grace", "500ms"], &target).status(79);
    let holder = holder
        .stderr_like("dlock: .*asked for k in .* back; the process it is held for is being stopped\n")
        .spawn();
    world.wait_for_state("k", "held");
    world.dlock(["release", "k", "-y", "--reason", "upgrade"]).any_stderr().run();
    assert_eq!(survivors(&world), [""; 0], "it returns when the hold has ended");
    let output = holder.finish();
    assert!(output.stderr.contains("(upgrade)"), "{}", output.stderr);
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    drop(target);
}

fn a_lost_lock_stops_the_process(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "6s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "--force", "-y"]).any_stderr().run();
    next.finish();
    next_is_alone(&world);
    holder.finish();
    drop(target);
}

/// A program that holds a lock by a pipe.
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

    /// The next event, which is to be this one.
    #[track_caller]
    fn hear(&mut self, event: &str) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        assert_eq!(value["event"], event, "{line:?}");
        value
    }

    /// stdout ends.
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
    let holder = world.run("k", &["-t", LONG], "until [ -e go ]; do sleep 0.02; done").any_stderr().spawn();
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

fn a_program_is_told_of_a_request_and_of_a_loss(backend: Backend) {
    let world = World::new(backend);
    let mut program = Piped::new(&world, &["-t", LONG]);
    program.hear("granted");
    let release = world.dlock(["release", "k", "-y", "--reason", "upgrade"]).any_stderr().spawn();
    assert_eq!(program.hear("asked")["by"]["reason"], "upgrade");
    program.hear_nothing();
    // It is held until the program has let go.
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

/// The program hears of it although dlock cannot say anything.
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

/// Also where the release cannot tell the hold itself, as from another machine.
fn who_has_the_token_gives_the_lock_back(backend: Backend) {
    let world = World::new(backend);
    let mut target = Target::sh(&world, "exec sleep 1000");
    let options = ["-t", "4s", "--json"];
    let holder =
        hold(&world, "k", &options, &target).stdout_like("(?s).*\"released\".*").any_stderr().spawn();
    wait_until("it is granted", || holder.printed().contains("granted"));
    let printed = holder.printed();
    let line = printed.lines().find(|line| line.contains("granted")).expect("a line");
    let granted: Value = serde_json::from_str(line).expect("JSON");
    world.write("token", granted["token"].as_str().expect("a token"));
    world.dlock(["release", "k", "--token-file", "token"]).any_stderr().run();
    let next = world
        .run("k", &["-w"], "echo next >> log; until [ -e go ]; do sleep 0.02; done")
        .any_stderr()
        .spawn();
    world.wait_for_log("next");
    holder.finish();
    assert_eq!(target.0.try_wait().expect("our child"), None, "nothing is lost");
    world.write("go", "");
    next.finish();
}

/// In place of `exec 9>f; flock 9`.
fn a_script_holds_a_lock_in_the_background(backend: Backend) {
    let world = World::new(backend);
    let script = r#"
        eval "$("$DLOCK" hold -k k -t 10m --pid $$ --background --export --env-file env)" || exit
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
        eval "$("$DLOCK" hold -k k -t 10m --pid $$ --background --export)" || exit 21
        out=$("$DLOCK" hold -k more --pid $$ --background -v 2>&1 3>&1) || exit 22
        case $out in *"got more in"*"more in"*"is held until process $$ ends"*) ;; *) echo "$out"; exit 23 ;; esac
        echo held >> log
        until [ -e go ]; do sleep 0.02; done
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
    let next = world.run("k", &["--wait"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    assert!(script.wait().expect("our child").success());
    // No descriptor of the caller is kept: the pipe ends with the script.
    let mut rest = String::new();
    BufReader::new(stdout).read_to_string(&mut rest).expect("the end");
    next.finish();
    assert_eq!(world.log(), ["inside", "deep", "held", "next"]);
}

/// Starts and ends at a time: of processes that end, holds that get a signal, and processes that are asked for the lock.
fn nothing_is_left_of_many(backend: Backend) {
    let world = World::new(backend);
    let each = if is_soak() { 50 } else { 6 };
    thread::scope(|scope| {
        for worker in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for turn in 0..each {
                    one_of_many(world, worker, turn);
                }
            });
        }
    });
    wait_within(Duration::from_secs(60), "nothing is left", || {
        let ours = |pid: &i32| ["dlock", "dlock-guard", "dlock-watch"].contains(&&*proc::name(*pid));
        let here = |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|at| at == world.path("").canonicalize().expect("a path"))
        };
        (!proc::pids().iter().any(|pid| ours(pid) && here(pid))).then_some(())
    });
    for key in ["k0", "k1"] {
        assert_eq!(world.state(key), "free");
    }
}

fn one_of_many(world: &World, worker: usize, turn: usize) {
    let key = format!("k{}", worker % 2);
    let mut target = Target::sh(world, "exec sleep 1000");
    let pid = target.pid().to_string();
    let options = ["hold", "-k", &key, "-w", "-t", "60s", "--pid", &pid];
    match turn % 3 {
        0 => {
            world.dlock(options).args(["--background"]).any_stderr().run();
            target.0.kill().expect("it lives");
        }
        1 => {
            let holder = world.dlock(options).any_stderr().spawn();
            if turn.is_multiple_of(2) {
                wait_until("it is held", || world.status(&key)["holders"][0]["pid"] == target.pid());
                holder.signal(Signal::TERM);
                // In the instant of the grant it still ends as one that waits.
                assert!([End::Status(0), End::Signal(15)].contains(&holder.output().end()));
                assert_eq!(target.0.try_wait().expect("our child"), None, "it goes on");
            } else {
                // At whatever moment, also while it waits.
                target.0.kill().expect("it lives");
                let status = holder.output().status.code();
                assert!([Some(0), Some(64), Some(75)].contains(&status), "{status:?}");
            }
        }
        _ => {
            let holder = world.dlock(options).any_stderr().status(79).spawn();
            wait_until("it is held", || world.status(&key)["holders"][0]["pid"] == target.pid());
            world.dlock(["release", &key, "-y"]).any_stderr().run();
            holder.finish();
            assert!(target.0.try_wait().expect("our child").is_some(), "it was stopped");
        }
    }
}

/// The store is away for half a lease, and then for good.
#[test]
fn an_outage_of_half_the_lease_disturbs_nothing_and_a_longer_one_ends_in_time() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "8s"], &target).env("DLOCK_STORE", proxy.url()).status(79);
    let holder = holder.any_stderr().spawn();
    world.wait_for_state("k", "held");
    world.redis().after_renewal("dlock:k");
    proxy.begin_outage();
    // The outage itself: half of the lease.
    thread::sleep(Duration::from_secs(4));
    proxy.end_outage();
    wait_until("it is renewed again", || holder.messages().contains("answers again"));
    assert_eq!(survivors(&world), MEMBERS);
    let expires = world.redis().after_renewal("dlock:k");
    proxy.begin_outage();
    let end = end_of_last_lease(expires, now(), Duration::from_secs(8));
    dead_in_time(|| now() >= end, || survivors(&world));
    holder.finish();
    drop(target);
}

#[test]
fn a_program_is_told_of_trouble_and_of_a_lease_that_runs_out() {
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
fn what_cannot_keep_a_lock_is_refused() {
    let world = World::without_redis();
    for (after, why) in [
        ("exec < /dev/null", "stdin is no pipe, socket or terminal"),
        ("exec <&-", "stdin is no pipe, socket or terminal"),
        ("echo > file; exec < file", "stdin is no pipe, socket or terminal"),
    ] {
        let pattern = format!("dlock: {why}.*\n");
        world.dlock(["hold", "-k", "k"]).after_shell(after).status(64).stderr_like(&pattern).run();
    }
    let gone = world.command("true").spawn().map(|mut child| {
        child.wait().expect("our child");
        child.id().to_string()
    });
    let gone = gone.expect("a process");
    let like = format!("dlock: --pid: there is no process {gone}\n");
    world.dlock(["hold", "-k", "k", "--pid", &gone]).status(64).stderr_like(&like).run();
    for words in [
        &["--background"][..],
        &["--pid", "0"],
        &["--pid", "1", "--export"],
        &["--pid", "1", "--env-file", "f"],
    ] {
        world.dlock(["hold", "-k", "k"]).args(words).status(64).any_stderr().any_stdout().run();
    }
    let env = ["--background", "--env-file", "no/such/file"];
    world.dlock(["hold", "-k", "k", "--pid", "1"]).args(env).status(78).any_stderr().run();
    assert_eq!(world.state("k"), "free");
}

/// DLOCK_HELD may be anybody's: a process that it names and that is no dlock gets no signal. And a file of variables that ends
/// in the middle of a line keeps that line.
#[test]
fn what_dlock_held_says_of_a_stranger_is_not_believed() {
    let world = World::without_redis();
    world.write("env", "A=1");
    let script = r#"
        sleep 1000 & victim=$!
        eval "$("$DLOCK" hold -k k -t 10m --pid $$ --background --export --env-file env)" || exit
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

/// busy-exit-code = 0 in a file would have a script go on without the lock.
#[test]
fn a_file_does_not_let_a_script_go_on_without_the_lock() {
    let world = World::without_redis();
    world.write("dlock.toml", "busy-exit-code = 0\n");
    let said = "dlock: busy-exit-code is 0 in the configuration, .*; add -E 75\n";
    let words = ["hold", "-k", "k", "--pid", &std::process::id().to_string(), "--background", "--export"];
    world
        .dlock(words)
        .env("DLOCK_CONFIG", world.path("dlock.toml").display().to_string())
        .stdout("(exit 78)\n")
        .status(78)
        .stderr_like(said)
        .run();
}

/// A process that has ended and that nobody has reaped is none.
#[test]
fn a_zombie_is_no_process() {
    let world = World::without_redis();
    let mut target = Target::sh(&world, "exit");
    wait_until("it has ended", || !proc::alive(target.pid()));
    hold(&world, "k", &[], &target).status(64).stderr_like("dlock: --pid: there is no process \\d+\n").run();
    target.0.wait().expect("our child");
}

/// INT, TERM and HUP give the lock back, and what it was held for goes on.
#[test]
fn a_signal_gives_the_lock_back() {
    let world = World::without_redis();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut target = Target::sh(&world, "exec sleep 1000");
        let holder =
            hold(&world, "k", &["-t", LONG, "--json"], &target).stdout_like("(?s).*\"released\".*").spawn();
        wait_until("it is granted", || holder.printed().contains("granted"));
        holder.signal(signal);
        holder.finish();
        world.run("k", &[], "").run();
        assert_eq!(target.0.try_wait().expect("our child"), None);
    }
}

#[test]
fn on_lost_warn_only_says_so() {
    let world = World::new(Backend::Redis);
    let mut target = Target::sh(&world, "exec sleep 1000");
    let holder =
        hold(&world, "k", &["-t", "2s", "--on-lost", "warn"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    world.dlock(["release", "k", "--force", "-y"]).any_stderr().run();
    wait_until("it says so", || holder.messages().contains("runs on without it"));
    assert_eq!(target.0.try_wait().expect("our child"), None);
    target.0.kill().expect("it lives");
    holder.finish();
}

/// What is not ours to signal is named, and the lock is kept until it ends.
#[test]
fn a_process_of_another_user_is_named_and_waited_for() {
    if !geteuid().is_root() {
        println!("skipped: this takes root");
        return;
    }
    let world = World::new(Backend::Redis);
    world.open_to_all();
    let target = Target::sh(&world, "until [ -e go ]; do sleep 0.02; done");
    let pid = target.pid().to_string();
    let dlock = world.dlock(["hold", "-k", "k", "-t", LONG, "--grace", "200ms", "--pid", &pid]);
    let holder =
        dlock.under(&["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]).status(79);
    let holder = holder.any_stderr().any_stdout().spawn();
    wait_until("it says so", || holder.messages().contains("runs as another user, so it cannot be stopped"));
    world.wait_for_state("k", "held");
    let release = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    wait_until("it says so again", || holder.messages().contains(&format!("process {pid} (sh)")));
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
    release.finish();
}

/// A dlock in the foreground of the script that it holds the lock for descends from it, and is not stopped with it.
#[test]
fn dlock_may_descend_from_what_it_holds_the_lock_for() {
    let world = World::without_redis();
    let script = format!(
        "trap 'echo term >> log; sleep 1; exit' TERM; '{BINARY}' hold -k k -t 10m --pid $$ 2> messages & \
         echo $! > dlock.pid; sleep 1000 & wait"
    );
    let mut command = world.command("sh");
    let child = command.args(["-c", &script]).env("DLOCK_STORE", world.url()).spawn();
    let mut target = Target(child.expect("a process"));
    world.wait_for_state("k", "held");
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    assert!(target.0.wait().is_ok());
    assert_eq!(world.log(), ["term"]);
    let history = world.dlock(["history", "--json", "k"]).any_stdout().run().stdout;
    assert!(history.contains("\"stopped\""), "{history}");
}

/// Also while it is waited for, nobody holds a lock for what is not there any more.
#[test]
fn a_process_that_ends_is_not_waited_for() {
    let world = World::without_redis();
    let holder = world.run("k", &["-t", LONG], "until [ -e go ]; do sleep 0.02; done").spawn();
    world.wait_for_state("k", "held");
    let mut target = Target::sh(&world, "exec sleep 1000");
    let waiter = hold(&world, "k", &["-w"], &target).status(75).any_stderr().spawn();
    let background = hold(&world, "k", &["-w", "--background"], &target).status(75).any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    target.0.kill().expect("it lives");
    let said = "what it was to be held for has ended; nothing is held";
    assert!(waiter.finish().stderr.contains(said));
    assert!(background.finish().stderr.contains(said));
    let target = Target::sh(&world, "exec sleep 1000");
    let caller = hold(&world, "k", &["-w", "--background"], &target).dies_of(15).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    caller.signal(Signal::TERM);
    caller.finish();
    wait_until("nobody waits", || world.waiters("k") == 0);
    world.write("go", "");
    holder.finish();
}

/// The process ends at once when it is asked to, and what it started is another's child then.
#[test]
fn what_a_process_leaves_while_it_is_stopped_is_stopped_too() {
    let world = World::without_redis();
    job::prepare(&world);
    let target = Target::sh(&world, "sh member deaf & wait");
    let deaf = world.wait_for_pid("deaf.pid");
    let holder = hold(&world, "k", &["-t", LONG, "--grace", "1s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    next.finish();
    next_is_alone(&world);
    assert!(!proc::acts(deaf));
    holder.finish();
    drop(target);
}

/// What is started while the others are asked to end, or killed, is found.
#[test]
fn a_process_that_goes_on_starting_others_is_stopped_whole() {
    // One that ends of the TERM while a child of it starts others; and one that starts others itself until the KILL.
    for (before, behind) in [("(", ") & wait"), ("trap '' TERM; ", "")] {
        let world = World::without_redis();
        let script = format!(
            "{before}while :; do sleep 1000 & sleep 1000 & sleep 0.001; n=$((n + 1)); [ $n -lt 50 ] || echo up > up; \
             [ $n -lt 1000 ] || exec sleep 1000; done{behind}"
        );
        let target = Target::sh(&world, &script);
        let holder =
            hold(&world, "k", &["-t", LONG, "--grace", "20ms"], &target).status(79).any_stderr().spawn();
        wait_until("many are there", || world.path("up").exists());
        world.wait_for_state("k", "held");
        world.dlock(["release", "k", "-y"]).any_stderr().run();
        holder.finish();
        let home = world.path("").canonicalize().expect("a path");
        let here = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at == home);
        let left: Vec<i32> = proc::pids().into_iter().filter(|pid| here(pid) && proc::acts(*pid)).collect();
        assert_eq!(left, [0; 0], "{before}");
        drop(target);
    }
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

#[test]
fn the_watcher_killed_is_as_the_guard_killed() {
    let world = World::without_redis();
    let target = Target::family(&world);
    let holder =
        hold(&world, "k", &["-t", LONG, "--grace", "500ms"], &target).status(70).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let guard = holder.guard();
    let watcher = proc::children(guard).into_iter().find(|pid| proc::name(*pid) == "dlock-watch");
    proc::signal(watcher.expect("a watcher"), Signal::KILL);
    next.finish();
    next_is_alone(&world);
    holder.finish();
    drop(target);
}
