//! CMD inherits everything as without dlock: each test compares a bare run with a run under dlock,
//! in the same odd surroundings.

use crate::support::wait::{PATIENCE, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;

on_every_store!(
    signals_are_ignored_and_blocked_as_inherited,
    everything_else_is_as_inherited,
    descriptors_are_as_inherited,
    an_ignored_sigchld_hides_no_status,
    the_environment_gains_the_hold_and_nothing_else,
);

/// Commands that set unusual signal masks and dispositions, and execute their arguments.
const SIGNAL_HABITS: [&[&str]; 11] = [
    &["env"],
    &["nohup"],
    &["env", "--ignore-signal=PIPE"],
    &["env", "--ignore-signal=XFSZ"],
    &["env", "--ignore-signal=CHLD"],
    &["env", "--ignore-signal=INT,QUIT"],
    &["env", "--ignore-signal=TERM,HUP,TSTP,TTOU,TTIN,CONT,WINCH,USR1"],
    &["env", "--ignore-signal=RTMIN+3"],
    &["env", "--block-signal=USR1,CHLD,TERM,INT,PIPE"],
    &["env", "--block-signal", "--ignore-signal=ALRM"],
    // As a shell without job control starts its background jobs.
    &["sh", "-c", "\"$@\" & wait $!", "sh"],
];

fn signals_are_ignored_and_blocked_as_inherited(backend: Backend) {
    let world = World::new(backend);
    for habit in SIGNAL_HABITS {
        let job = ["grep", "^Sig[BIC]", "/proc/self/status"];
        let bare = bare(&world, habit, &job);
        assert_eq!(bare.lines().count(), 3, "{bare}");
        world.dlock(["run", "-k", "k", "--"]).args(job).under(habit).stdout(&bare).any_stderr().run();
    }
}

fn everything_else_is_as_inherited(backend: Backend) {
    let world = World::new(backend);
    let job = "umask; nice; pwd; ulimit -a; ulimit -Ha; id; env | grep -v ^DLOCK_ | sort; cat /proc/self/oom_score_adj
        cat /proc/self/cgroup; sed -n '/^NoNewPrivs/p; /^Seccomp/p; /^Cap/p' /proc/self/status";
    let odd = ["sh", "-c", "umask 027; ulimit -n 100; ulimit -c 0; cd /; exec nice -n 3 \"$@\"", "sh"];
    let bare = bare(&world, &odd, &["sh", "-c", job]);
    world.run("k", &[], job).under(&odd).stdout(&bare).run();
}

fn descriptors_are_as_inherited(backend: Backend) {
    let world = World::new(backend);
    let job = ["sh", "-c", "for fd in /proc/$$/fd/*; do echo \"${fd##*/} $(readlink \"$fd\")\"; done"];
    for shape in
        ["", "exec 7< /dev/zero 9> /dev/null", "exec < /dev/zero", "exec <&-", "exec 2>&-", "exec <&- 2>&-"]
    {
        let habit = ["sh", "-c", &format!("{shape}\nexec \"$@\""), "sh"];
        let bare = bare(&world, &habit, &job);
        let output = world.dlock(["run", "-k", "k", "--"]).args(job).under(&habit).any_stdout().run();
        assert_eq!(comparable(&output.stdout), comparable(&bare), "after {shape:?}");
    }
}

/// Leaves out standard output and errors, which differ between two runs, and descriptors of the
/// shell itself.
fn comparable(descriptors: &str) -> Vec<&str> {
    let line = |line| {
        let (number, target): (&str, &str) = str::split_once(line, ' ').unwrap_or((line, ""));
        if ["1", "2"].contains(&number) || target.starts_with("pipe:") { number } else { line }
    };
    descriptors.lines().filter(|line| !line.ends_with(' ')).map(line).collect()
}

fn an_ignored_sigchld_hides_no_status(backend: Backend) {
    let world = World::new(backend);
    let habit = ["env", "--ignore-signal=CHLD"];
    world.run("k", &[], "exit 3").under(&habit).status(3).run();
    world.run("k", &[], "kill -TERM $$").under(&habit).dies_of(15).run();
    let habit = ["env", "--block-signal"];
    world.run("k", &[], "exit 3").under(&habit).status(3).run();
}

fn the_environment_gains_the_hold_and_nothing_else(backend: Backend) {
    let world = World::new(backend);
    let job = "env | grep ^DLOCK_ | sort";
    let run = world.run("some key", &[], job).env("DLOCK_SLOT", "7").env_remove("DLOCK_OP_TIMEOUT");
    let output = run.any_stdout().run();
    let lines = output.stdout.lines().collect::<Vec<_>>();
    let value = |name: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} is set: {lines:?}"))
    };
    assert_eq!(value("DLOCK_KEY"), "some key");
    assert_eq!(value("DLOCK_KEYS"), "some key");
    assert!(value("DLOCK_FENCE").parse::<u64>().is_ok());
    assert!(value("DLOCK_TOKEN").len() >= 32, "128 bits or more");
    assert!(value("DLOCK_HELD").contains(value("DLOCK_FENCE")));
    assert_eq!(value("DLOCK_STORE"), world.url());
    assert!(!output.stdout.contains("DLOCK_SLOT"), "it does not apply here");
    assert_eq!(value("DLOCK_PREFIX"), "dlock:");
    assert_eq!(lines.len(), 7, "{lines:?}");
    let again = world.run("some key", &[], "echo $DLOCK_TOKEN").any_stdout().run();
    assert_ne!(again.stdout.trim(), value("DLOCK_TOKEN"), "each hold has its own");
}

/// The variables by which systemd names the process that it started name CMD, if they named dlock.
#[test]
fn what_systemd_says_to_dlock_is_said_to_the_command() {
    let world = World::without_redis();
    let script =
        "echo $$; echo $LISTEN_PID; echo $SYSTEMD_EXEC_PID; echo $WATCHDOG_PID; echo ${LISTEN_PIDFDID-none}";
    let run = |set: &str| {
        let call = world.dlock(["run", "-k", "k", "--", "sh", "-c", script]).after_shell(set);
        let said = call.any_stdout().run().stdout;
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let said = run("export LISTEN_PID=$$ SYSTEMD_EXEC_PID=$$ WATCHDOG_PID=1");
    assert_eq!(said[1..], [&said[0], &said[0], "1", "none"]);
    let said = run("export LISTEN_PID=$$ LISTEN_PIDFDID=7");
    assert!(said[4] != "7", "not that of dlock: {said:?}");
    let said = run("export LISTEN_PID=1 LISTEN_PIDFDID=7 SYSTEMD_EXEC_PID=1");
    assert_eq!(said[1..], ["1", "1", "", "7"], "another process is meant");
}

/// A job takes the socket of its unit, whose first connection has started dlock.
#[test]
fn a_job_takes_the_socket_of_its_unit() {
    let world = World::without_redis();
    let socket = world.path("door");
    let job = "[ $LISTEN_PID = $$ ] && [ $LISTEN_FDS = 1 ] && readlink /proc/$$/fd/3 > taken";
    let call = world.dlock(["run", "-k", "k", "--", "sh", "-c", job]);
    let door = socket.to_str().expect("UTF-8");
    let store = format!("--setenv=DLOCK_STORE={}", world.url());
    let activated = call.under(&["systemd-socket-activate", "-l", door, &store]).any_stderr().spawn();
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    activated.finish();
    assert!(world.read("taken").starts_with("socket:"), "{}", world.read("taken"));
}

/// What a job says to the manager of its service comes from the job.
#[test]
fn a_job_says_itself_that_it_is_ready() {
    let world = World::without_redis();
    let path = world.path("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    world.run("k", &[], "systemd-notify --ready --no-block").env("NOTIFY_SOCKET", &path).run();
    let mut said = [0; 64];
    let length = manager.recv(&mut said).expect("a message");
    assert!(said[..length].starts_with(b"READY=1"), "{:?}", &said[..length]);
}

/// What the same command prints without dlock.
fn bare(world: &World, habit: &[&str], job: &[&str]) -> String {
    let mut command = world.command(habit[0]);
    command.args(&habit[1..]).args(job).env("DLOCK_STORE", world.url());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let path = world.path("bare");
    let output = std::fs::File::create(&path).expect("a file");
    let status = command.stdout(output).status().expect("the program runs");
    assert!(status.success(), "{habit:?} {job:?}");
    world.read("bare")
}
