//! The recipes of docs/hold.md, run as they are written.

use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::Signal;
use std::process::{Child, Command};

fn recipe(heading: &str, language: &str) -> &'static str {
    recipes(heading, language)[0]
}

fn recipes(heading: &str, language: &str) -> Vec<&'static str> {
    blocks(include_str!("../../docs/hold.md"), heading, language)
}

/// The first fenced block of a language after a heading.
pub(super) fn block(page: &'static str, heading: &str, language: &str) -> &'static str {
    blocks(page, heading, language)[0]
}

fn blocks(page: &'static str, heading: &str, language: &str) -> Vec<&'static str> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect("a heading");
    let fence = format!("```{language}\n");
    let blocks = section.split(&fence).skip(1).filter_map(|block| block.split("```").next());
    blocks.collect()
}

/// A world with dlock in PATH, and with two steps that log that they run and wait for a file.
pub(super) fn world() -> World {
    let world = World::without_redis();
    std::os::unix::fs::symlink(BINARY, world.path("dlock")).expect("a link");
    for step in ["fetch", "load", "build.sh", "deploy.sh"] {
        let script = format!(
            "#!/bin/sh\necho {step} >> log\nuntil [ -e go ] || [ {step} = fetch ] || [ {step} = build.sh ]; do sleep 0.1; done\n"
        );
        world.script(step, &script);
    }
    world
}

pub(super) fn start(world: &World, program: &str, arguments: &[&str]) -> Child {
    let path = format!("{}:{}", world.path("").display(), std::env::var("PATH").expect("PATH"));
    let mut command: Command = world.command(program);
    command.args(arguments).env("PATH", path).env("DLOCK_STORE", world.url());
    command.spawn().expect("a program")
}

/// Expects that the program holds the lock while it works, and no longer.
pub(super) fn holds_while_it_works(world: &World, key: &str, mut program: Child, last: &str) {
    world.wait_for_log(last);
    assert_eq!(world.state(key), "held");
    let next = world.run(key, &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters(key, 1);
    world.write("go", "");
    assert!(program.wait().expect("our child").success());
    next.finish();
    assert_eq!(world.log().last().map(String::as_str), Some("next"));
}

/// Expects that the program is stopped when an operator asks for the lock.
fn is_stopped(world: &World, key: &str, mut program: Child, last: &str) {
    world.wait_for_lines(last, 2);
    world.dlock(["release", key, "-y"]).any_stderr().run();
    assert!(!program.wait().expect("our child").success());
}

pub(super) fn works(world: &World, key: &str, last: &str, start: impl Fn() -> Child) {
    holds_while_it_works(world, key, start(), last);
    std::fs::remove_file(world.path("go")).expect("a file");
    is_stopped(world, key, start(), last);
    // If the lock is busy, the program does nothing.
    world.write("log", "");
    let holder = world.run(key, &[], "echo other >> log; until [ -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("other");
    let busy = start().wait().expect("our child");
    assert_eq!(busy.code(), Some(75));
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["other"]);
}

/// The lock is one part of a longer program: a loop, work after it, an error that is caught, two locks
/// at once. A turn that is not free again when the program goes on is busy in the next one.
const PYTHON: &str = r#"
def log(word):
    with open("log", "a") as file: file.write(word + "\n")

for turn in "12":
    with lock("import"): log("turn" + turn)
with lock("a") as one, lock("b") as two: log("both")
try:
    with lock("import"): raise ValueError
except ValueError: log("caught")
try:
    with lock("a"), lock("a"): log("twice")
except SystemExit as end: log("busy%d" % end.code)
with lock("a"): log("end")
sys.exit(3)
"#;

const NODE: &str = r#"
const log = (word) => require('node:fs').appendFileSync('log', word + '\n');

(async () => {
  for (const turn of '12') await lock('import', [], async () => log('turn' + turn));
  await lock('a', [], () => lock('b', [], async () => log('both')));
  try { await lock('import', [], async () => { throw new Error('x'); }); } catch (error) { log('caught'); }
  try { await lock('a', [], () => lock('a', [], async () => log('twice'))); } catch (error) { log('busy' + error.status); }
  await lock('a', [], async () => log('end'));
  process.exitCode = 3;
})();
"#;

fn is_a_part_of_a_program(world: &World, interpreter: &str, name: &str, program: &str) {
    world.write("log", "");
    world.write(name, program);
    let status = start(world, interpreter, &[name]).wait().expect("our child");
    assert_eq!(world.log(), ["turn1", "turn2", "both", "caught", "busy75", "end"]);
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_shell_script() {
    let scripts = recipes("Shell scripts", "sh");
    assert_eq!(scripts.len(), 2, "without and with the variables of the hold");
    for script in scripts {
        let world = world();
        world.script("import", &script.replace("-w 10m ", ""));
        works(&world, "import", "load", || start(&world, "./import", &[]));
    }
}

#[test]
fn a_python_program() {
    let world = world();
    let program = recipe("Python", "python");
    world.write("import.py", &program.replace(", \"-w\", \"10m\"", ""));
    works(&world, "import", "load", || start(&world, "python3", &["import.py"]));
    let (lock, _) = program.split_once("with lock(\"import\"").expect("the definition of lock");
    is_a_part_of_a_program(&world, "python3", "part.py", &format!("{lock}{PYTHON}"));
}

#[test]
fn a_node_program() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: no node");
        return;
    }
    let world = world();
    let program = recipe("Node", "javascript");
    world.write("import.js", &program.replace("['-w', '10m']", "[]"));
    works(&world, "import", "load", || start(&world, "node", &["import.js"]));
    let (lock, _) = program.split_once("lock('import'").expect("the definition of lock");
    is_a_part_of_a_program(&world, "node", "part.js", &format!("{lock}{NODE}"));
}

/// What the programs of *By a pipe* do with the function of the page: a busy lock, two locks at once,
/// one of them again, and all the while whatever the test does to them.
const PIPE_PYTHON: &str = r#"
import os, time

def log(word):
    with open("log", "a") as file: file.write(word + "\n")

def take(key):
    return hold(key, lambda event: log(f"{key} lost: {event}"), "-t", "6s", "--grace", "1s")

try: take("other")
except BlockingIOError as error: log("busy%d" % error.errno)
one = take("a")
two = take("b")
log("held")
while not os.path.exists("go"): time.sleep(0.05)
two()
take("b")()
one()
log("end")
"#;

const PIPE_NODE: &str = r#"
const fs = require('node:fs');
const log = (word) => fs.appendFileSync('log', word + '\n');
const take = (key) => hold(key, (event) => log(`${key} lost: ${event}`), '-t', '6s', '--grace', '1s');

(async () => {
  try { await take('other'); } catch (error) { log('busy' + error.status); }
  const one = await take('a');
  const two = await take('b');
  log('held');
  while (!fs.existsSync('go')) await new Promise((resolve) => setTimeout(resolve, 50));
  await two();
  await (await take('b'))();
  await one();
  log('end');
})();
"#;

const PIPE_GO: &str = r#"package main

import ("encoding/json"; "errors"; "fmt"; "os"; "os/exec"; "strconv"; "sync/atomic"; "time")

HOLD
func log(word string) {
	file, _ := os.OpenFile("log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	file.WriteString(word + "\n")
	file.Close()
}

func take(key string) (func() error, error) {
	return hold(key, func(event string) { log(key + " lost: " + event) }, "-t", "6s", "--grace", "1s")
}

func main() {
	if _, err := take("other"); err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		log("busy" + strconv.Itoa(exit.ExitCode()))
	}
	one, _ := take("a")
	two, _ := take("b")
	log("held")
	for _, err := os.Stat("go"); err != nil; _, err = os.Stat("go") {
		time.Sleep(50 * time.Millisecond)
	}
	two()
	again, _ := take("b")
	again()
	one()
	log("end")
}
"#;

/// The program works with its locks; is killed; loses them, while it does not read; and while the
/// store is away.
fn by_a_pipe(world: &mut World, start: impl Fn(&World) -> Child) {
    let other = world.run("other", &[], "echo up > up; exec sleep 1000").spawn();
    wait_until("one lock is busy", || world.path("up").exists());
    let begin = |world: &World| {
        drop(std::fs::remove_file(world.path("go")));
        world.write("log", "");
        let program = start(world);
        world.wait_for_log("held");
        assert_eq!((world.state("a"), world.state("b")), ("held".into(), "held".into()));
        (i32::try_from(program.id()).expect("a process id"), program)
    };
    let ends = |world: &World, mut program: Child| {
        world.write("go", "");
        assert!(program.wait().expect("our child").success(), "{:?}", world.log());
        ["a", "b"].iter().for_each(|key| world.wait_for_state(key, "free"));
    };

    let (_, program) = begin(world);
    ends(world, program);
    assert_eq!(world.log(), ["busy75", "held", "end"]);

    let (_, mut program) = begin(world);
    program.kill().expect("it lives");
    program.wait().expect("our child");
    ["a", "b"].iter().for_each(|key| world.wait_for_state(key, "free"));

    // Who stops all of a service, or ^C, does not free the lock while the program cleans up.
    let (pid, program) = begin(world);
    for dlock in proc::children(pid) {
        [Signal::INT, Signal::TERM].into_iter().for_each(|signal| proc::signal(dlock, signal));
    }
    assert_eq!((world.state("a"), world.state("b")), ("held".into(), "held".into()));
    ends(world, program);

    // A program that reads nothing does not keep an operator from getting the lock.
    let (pid, program) = begin(world);
    proc::signal(pid, Signal::STOP);
    world.dlock(["release", "a", "-y"]).any_stderr().run();
    assert_eq!((world.state("a"), world.state("b")), ("free".into(), "held".into()));
    proc::signal(pid, Signal::CONT);
    world.wait_for_log("a lost: asked");
    world.dlock(["release", "b", "--force", "-y"]).any_stderr().run();
    world.wait_for_log("b lost: lost");
    ends(world, program);

    let (_, program) = begin(world);
    world.redis().pause();
    ["a", "b"].iter().for_each(|key| world.wait_for_log(&format!("{key} lost: lost")));
    world.redis().resume();
    ends(world, program);
    other.signal(Signal::TERM);
}

/// The program that consists of the function of the page and this one.
fn piped(world: &World, language: &str, name: &str, program: &str) {
    let function = recipe("By a pipe", language);
    let body = function.lines().skip_while(|line| !line.contains("hold("));
    assert!(body.count() <= 17, "{language}: short");
    let program = match program.contains("HOLD") {
        true => program.replace("HOLD", function),
        false => format!("{function}{program}"),
    };
    world.write(name, &program);
    std::os::unix::fs::symlink(BINARY, world.path("dlock")).expect("a link");
}

#[test]
fn a_python_program_by_a_pipe() {
    let mut world = World::with_redis(&[]);
    piped(&world, "python", "pipe.py", PIPE_PYTHON);
    by_a_pipe(&mut world, |world| start(world, "python3", &["pipe.py"]));
}

#[test]
fn node_by_a_pipe() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: no node");
        return;
    }
    let mut world = World::with_redis(&[]);
    piped(&world, "javascript", "pipe.js", PIPE_NODE);
    by_a_pipe(&mut world, |world| start(world, "node", &["pipe.js"]));
}

#[test]
fn a_go_program_by_a_pipe() {
    if Command::new("go").arg("version").output().is_err() {
        println!("skipped: no go");
        return;
    }
    let mut world = World::with_redis(&[]);
    piped(&world, "go", "pipe.go", PIPE_GO);
    let mut build = world.command("go");
    build.args(["build", "-o", "pipe", "pipe.go"]).env("GOPROXY", "off").env("GO111MODULE", "off");
    assert!(build.status().expect("go").success());
    by_a_pipe(&mut world, |world| start(world, "./pipe", &[]));
}

/// The script as `ExecStart=` of a unit with `Type=oneshot`, in a session of its own: systemd sends TERM and CONT to all
/// processes of the unit when the script has ended and has left one behind, and when the unit is
/// stopped. The lock is held until the last one has cleaned up, and none is left for systemd's KILL.
#[test]
fn a_oneshot_unit_of_systemd() {
    let load = "#!/bin/sh
        (trap 'until [ -e go ]; do sleep 0.05; done; echo cleaned >> log; exit' TERM
            echo up > up; while :; do sleep 0.05; done) &
        [ -e leaves ] || wait";
    for is_stopped in [false, true] {
        let world = world();
        world.script("load", load);
        world.script("import", recipe("Shell scripts", "sh"));
        if !is_stopped {
            world.write("leaves", "");
        }
        let invocation = format!("INVOCATION_ID={}", world.path("").display());
        let unit = || {
            let all = proc::pids().into_iter();
            let is_member = |pid: &i32| proc::has_in_environment(*pid, invocation.as_bytes());
            all.filter(|pid| proc::acts(*pid) && is_member(pid)).collect::<Vec<_>>()
        };
        let mut script = start(&world, "setsid", &["env", &invocation, "./import"]);
        wait_until("it loads", || world.path("up").exists());
        let stop = || {
            let members = unit();
            for signal in [Signal::TERM, Signal::CONT] {
                members.iter().for_each(|pid| proc::signal(*pid, signal));
            }
            members
        };
        let stopped = is_stopped.then(stop);
        assert_eq!(script.wait().expect("our child").success(), !is_stopped);
        let members = stopped.unwrap_or_else(stop);
        let dlock = members.into_iter().find(|pid| proc::name(*pid) == "dlock").expect("a hold");
        wait_until("dlock has read it", || !proc::awaits(dlock, Signal::TERM.as_raw()));
        let next = world.run("import", &["-w"], "echo next >> log").any_stderr().spawn();
        world.wait_for_waiters("import", 1);
        assert_eq!(world.state("import"), "held");
        world.write("go", "");
        next.finish();
        assert_eq!(world.log(), ["fetch", "cleaned", "next"], "{is_stopped}");
        wait_until("nothing is left", || unit().is_empty());
        let history = world.dlock(["history", "import"]).any_stdout().run().stdout;
        assert!(history.contains("ended") && !history.contains("expired"), "{history}");
    }
}

#[test]
fn a_daemon_by_its_pid_file() {
    let world = world();
    let line = recipe("A daemon that is started elsewhere", "sh").replace("/run/daemon.pid", "daemon.pid");
    let mut first = world.command("sleep").arg("1000").spawn().expect("a daemon");
    let mut second = world.command("sleep").arg("1000").spawn().expect("another");
    for (daemon, stays) in [(&mut first, true), (&mut second, false)] {
        world.write("daemon.pid", &format!("{}\n", daemon.id()));
        assert!(start(&world, "sh", &["-c", &line]).wait().expect("our child").success());
        if stays {
            assert_eq!(world.state("leader"), "held");
        } else {
            daemon.wait().expect("it was told to end");
        }
    }
    proc::signal(i32::try_from(first.id()).expect("a process id"), Signal::KILL);
    first.wait().expect("our child");
    wait_until("the lock is free", || world.state("leader") == "free");
}

#[test]
fn hosts_that_reboot_keep_a_lease() {
    let world = world();
    let section = recipe("A host that reboots", "sh").replace("/var/lib/", "");
    let before = section.lines().next().expect("a line").replace("-w ", "");
    let end = include_str!("../../docs/hold.md").rsplit("```sh\n").next().expect("a block");
    let after = end.split("```").next().expect("its end").replace("/var/lib/", "");
    for (host, status) in [("a", 0), ("b", 0), ("c", 75)] {
        let line = before.replace("reboot-token", &format!("{host}-token"));
        let status_of = start(&world, "sh", &["-c", &line]).wait().expect("our child").code();
        assert_eq!(status_of, Some(status), "{host}");
    }
    let line = after.replace("reboot-token", "a-token");
    assert!(start(&world, "sh", &["-c", &line]).wait().expect("our child").success());
    let line = before.replace("reboot-token", "c-token");
    assert!(start(&world, "sh", &["-c", &line]).wait().expect("our child").success());
}
