//! The store in a directory, as it is used: other users, limits, a process stopped at the wrong
//! moment, and many clients at once.

mod time_namespaces;

use crate::support::dlock::{BINARY, finish_all};
use crate::support::proc;
use crate::support::storm::Dice;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::{Signal, geteuid};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;

pub const NOBODY: u32 = 65534;
pub const AS_NOBODY: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];

fn locks(world: &World, owner: u32, mode: u32) {
    let path = world.path("locks");
    chown(&path, Some(owner), Some(NOBODY)).expect("root may");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
}

/// Whether the test can become another user.
pub fn is_root(world: &World) -> bool {
    world.open_to_all();
    let may = geteuid().is_root()
        && world
            .dlock(["--version"])
            .under(&AS_NOBODY)
            .any_stdout()
            .any_stderr()
            .spawn()
            .output()
            .status
            .success();
    if !may {
        println!("skipped: this user cannot become another one");
    }
    may
}

/// Root's access must not leave files that other users cannot use.
#[test]
fn a_record_keeps_its_owner() {
    let world = World::new(Backend::File);
    if !is_root(&world) {
        return;
    }
    locks(&world, 0, 0o2770);
    let theirs = world.run("k", &[], "echo up >> log; sleep 1000").under(&AS_NOBODY).any_stderr().spawn();
    wait_until("the job runs", || world.state("k") == "held");
    world.run("k", &[], "true").status(75).any_stderr().run();
    let owners: Vec<u32> = fs::read_dir(world.path("locks"))
        .expect("a directory")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".json"))
        // A refusal is counted in a file that belongs to the refused user.
        .filter(|entry| !is_of_refusals(&entry.path()))
        .map(|entry| entry.metadata().expect("a file").uid())
        .collect();
    assert!(owners.iter().all(|owner| *owner == NOBODY), "{owners:?}");
    world.run("k", &[], "true").under(&AS_NOBODY).status(75).any_stderr().run();
    theirs.signal(Signal::TERM);
    theirs.output();
    world.run("k", &[], "true").run();
    world.run("k", &[], "true").under(&AS_NOBODY).run();
}

/// A long record belongs to the last user who wrote it, and the group may write it.
#[test]
fn users_of_a_group_wait_in_one_queue() {
    let world = World::new(Backend::File);
    if !is_root(&world) {
        return;
    }
    locks(&world, 0, 0o2770);
    let job = "while ! [ -e end ]; do sleep 0.1; done";
    let mut runs = vec![world.run("k", &[], job).spawn()];
    wait_until("the job runs", || world.state("k") == "held");
    for number in 1..=20 {
        let run = world.run("k", &["-w"], "true").any_stderr();
        runs.push(if number % 2 == 0 { run.spawn() } else { run.under(&AS_NOBODY).spawn() });
        world.wait_for_waiters("k", number);
    }
    world.write("end", "");
    finish_all(runs);
}

fn is_of_refusals(record: &Path) -> bool {
    let bytes = fs::read(record).expect("a record");
    bytes.windows(14).any(|text| text == b"dlock.refused:")
}

#[test]
fn a_directory_of_another_user_is_refused_by_name() {
    let world = World::new(Backend::File);
    if !is_root(&world) {
        return;
    }
    for (owner, mode, says) in [
        (NOBODY, 0o700, "belongs to user 65534"),
        (0, 0o777, "every user"),
        (0, 0o1777, "every user"),
        (0, 0o3770, "chmod -t"),
    ] {
        locks(&world, owner, mode);
        let output = world.run("k", &[], "true").status(78).any_stderr().run();
        let named = output.stderr.contains(&world.url()) && output.stderr.contains(says);
        assert!(named, "{mode:o}: {}", output.stderr);
        let output = world.dlock(["status"]).status(78).any_stderr().run();
        assert!(output.stderr.contains(says), "{}", output.stderr);
    }
}

/// The attack: `swept` is a link when root cleans up the directory.
#[test]
fn root_is_not_led_to_another_file() {
    let world = World::new(Backend::File);
    if !is_root(&world) {
        return;
    }
    locks(&world, 0, 0o2770);
    world.write("precious", "precious");
    symlink(world.path("precious"), world.path("locks/swept")).expect("a link");
    world.run("k", &[], "true").run();
    assert_eq!(world.read("precious"), "precious");
}

/// A link of another user could lead root's locks into any directory of root's.
#[test]
fn no_link_of_another_user_leads_to_the_directory() {
    let world = World::without_redis();
    if !is_root(&world) {
        return;
    }
    fs::set_permissions(world.path("locks"), fs::Permissions::from_mode(0o700)).expect("permissions");
    fs::create_dir(world.path("private")).expect("a directory");
    for (target, name) in [("locks", "link"), ("nothing", "dangling"), (".", "up")] {
        symlink(target, world.path(name)).expect("a link");
        let at = |name: &str| format!("file:{}", world.path(name).display());
        let run = |name: &str| world.run("k", &["--store", &at(name)], "echo ran >> log");
        if target == "locks" {
            run(name).run();
        }
        lchown(world.path(name), Some(NOBODY), None).expect("root may");
        let name = if name == "up" { "up/private" } else { name };
        let said = "dlock: .*is a link that belongs to another user \\(65534\\).*\n";
        run(name).status(78).stderr_like(said).run();
        world.dlock(["status", "--store", &at(name)]).status(78).stderr_like(said).run();
    }
    assert_eq!(world.log(), ["ran"]);
    assert!(!world.path("nothing").exists());
    assert_eq!(fs::read_dir(world.path("private")).expect("a directory").count(), 0);
}

#[test]
fn a_limit_on_files_is_reported_and_kills_nobody() {
    let world = World::new(Backend::File);
    let mut shell = world.command("sh");
    shell.args(["-c", "ulimit -f 0; \"$0\" run -k k -- true 2>&1 | cat", BINARY]);
    let output = shell.env("DLOCK_STORE", world.url()).output().expect("sh");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("(ulimit -f)"), "{said}");
    // The same where the message itself would go to such a file.
    let mut shell = world.command("sh");
    shell.args(["-c", "ulimit -f 0; exec \"$0\" run -k k -- true 2> limited", BINARY]);
    let status = shell.env("DLOCK_STORE", world.url()).status().expect("sh");
    assert_eq!(status.code(), Some(69), "{status}");
    world.run("k", &[], "true").run();
    // A limit below the length of a record cuts no record.
    for blocks in 0..=7 {
        let script = format!("ulimit -f {blocks}; \"$0\" run -k k -- true 2>&1 | cat");
        let mut shell = world.command("sh");
        let output =
            shell.args(["-c", &script, BINARY]).env("DLOCK_STORE", world.url()).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("(ulimit -f)"), "{blocks}: {said}");
        world.run("k", &[], "true").run();
    }
}

/// A FIFO in place of one lock's files: an error for that lock, at once, and the others go on.
#[test]
fn a_fifo_in_the_place_of_a_file_hangs_nobody() {
    let world = World::new(Backend::File);
    world.run("k", &[], "true").run();
    for file in fs::read_dir(world.path("locks")).expect("a directory").flatten() {
        let path = file.path();
        if path.extension().is_some() {
            fs::remove_file(&path).expect("a file");
            assert!(world.command("mkfifo").arg(&path).status().is_ok_and(|status| status.success()));
        }
    }
    let output = world.run("k", &[], "true").status(69).any_stderr().run();
    assert!(output.stderr.contains("is not a regular file"), "{}", output.stderr);
    world.run("other", &[], "true").run();
    world.dlock(["status"]).any_stdout().run();
}

/// A process stopped with the mutex keeps others from the lock, and they say so; the holder's job
/// goes on.
#[test]
fn a_stopped_process_with_the_mutex_kills_no_job() {
    let world = World::new(Backend::File);
    // When the command has ended, the record is to show what it left behind.
    let rest = "(until [ -e end ]; do echo on >> log; sleep 0.1; done) &";
    let job = format!("echo up >> log; until [ -e go ]; do sleep 0.1; done; {rest}");
    let holder = world.run("k", &["-t", "2s", "--tree"], &job).spawn();
    world.wait_for_log("up");
    let mutex = fs::read_dir(world.path("locks")).expect("a directory").flatten();
    let mutex = mutex.map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "mutex"));
    let script = "echo $$ > stopped.tmp; mv stopped.tmp stopped.pid; exec sleep 1000";
    let mut stopped = world.command("flock");
    stopped.arg(mutex.expect("a mutex")).args(["sh", "-c", script]);
    let mut stopped = stopped.spawn().expect("flock");
    let pid = world.wait_for_pid("stopped.pid");
    proc::signal(i32::try_from(stopped.id()).expect("a process id"), Signal::STOP);
    let output = world
        .run("k", &["--connect-timeout", "2s", "--op-timeout", "2s"], "true")
        .status(69)
        .any_stderr()
        .run();
    assert!(output.stderr.contains(&format!("process {}", stopped.id())), "{}", output.stderr);
    world.write("go", "");
    // For two leases at least.
    wait_until("the rest of the job runs on", || world.log().len() > 40);
    proc::signal(pid, Signal::KILL);
    proc::signal(i32::try_from(stopped.id()).expect("a process id"), Signal::KILL);
    stopped.wait().expect("it is our child");
    world.write("end", "");
    holder.finish();
}

/// Many locks are held, and each waiter waits for two of them: no lease is lost, no client reports
/// an unreachable store, and all leave when they are told to.
#[test]
fn waiters_across_many_locks_harm_nobody() {
    let (holders, waiters) = if is_soak() { (100, 150) } else { (20, 40) };
    let world = World::new(Backend::File);
    let mut dice = Dice(7);
    let job = "echo up >> log; while ! [ -e end ]; do sleep 0.2; done";
    let held: Vec<_> =
        (0..holders).map(|key| world.run(&format!("k{key}"), &["-t", "10s"], job).spawn()).collect();
    wait_until("all hold", || world.log().len() == holders);
    let mut waiting = Vec::new();
    for _ in 0..waiters {
        let key = dice.roll(holders as u64);
        let (one, other) =
            (format!("k{key}"), format!("k{}", (key + 1 + dice.roll(holders as u64 - 1)) % holders as u64));
        waiting.push(world.run(&one, &["-k", &other, "-w"], "true").dies_of(15).any_stderr().spawn());
    }
    let places = || {
        let status = world.dlock(["status", "--json"]).any_stdout().run().stdout;
        let locks: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let lengths = locks
            .as_array()
            .expect("locks")
            .iter()
            .map(|lock| lock["waiters"].as_array().map_or(0, Vec::len));
        lengths.sum::<usize>()
    };
    wait_until("all wait", || places() == 2 * waiters);
    waiting.iter().for_each(|one| one.signal(Signal::TERM));
    finish_all(waiting);
    wait_until("nobody waits", || places() == 0);
    world.write("end", "");
    finish_all(held);
}

/// A long queue is served in order, and the holder does not notice.
#[test]
fn a_long_queue_is_served_in_order() {
    let waiters = if is_soak() { 1000 } else { 60 };
    let world = World::new(Backend::File);
    let job = "echo up >> log; while ! [ -e end ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "10s"], job).spawn();
    world.wait_for_log("up");
    let mut queue = Vec::new();
    for number in 0..waiters {
        queue.push(world.run("k", &["-w"], &format!("echo {number} >> log")).any_stderr().spawn());
        // Each waiter is in the queue before the next one starts.
        if waiters < 100 || number % 50 == 0 {
            world.wait_for_waiters("k", number + 1);
        }
    }
    world.wait_for_waiters("k", waiters);
    world.write("end", "");
    holder.finish();
    finish_all(queue);
    let served: Vec<usize> = world.log()[1..].iter().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(served.len(), waiters);
    assert!(is_soak() || served.is_sorted(), "{served:?}");
}

/// Whether `./test --soak` runs this.
fn is_soak() -> bool {
    std::env::var_os("DLOCK_SOAK").is_some()
}

/// The last ends, which `history` shows, do not fit on the disk: the lock is released all the same.
#[test]
fn on_a_full_disk_a_lock_is_given_back() {
    let world = World::without_redis();
    if !is_root(&world) {
        eprintln!("skipped: only root can make a file system");
        return;
    }
    let small = Small::mount(&world.path("small"));
    let store = format!("file:{}", small.0.display());
    let run = |script: &str| world.run("k", &["--store", &store, "-t", "10m"], script);
    for ends in [0, 7, 8, 9, 10] {
        for entry in fs::read_dir(&small.0).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        (0..ends).for_each(|_| drop(run("true").run()));
        let fill = "dd if=/dev/zero of=small/fill bs=4k 2>/dev/null; true";
        run(fill).run();
        run("true").run();
        fs::remove_file(small.0.join("fill")).unwrap();
        run("true").run();
        let state = world.dlock(["status", "--json", "k", "--store", &store]).any_stdout().run().stdout;
        assert!(state.contains("\"free\""), "{state}");
    }
}

/// A small file system of its own, gone when it is dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(place: &Path) -> Self {
        fs::create_dir(place).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"]).arg(place);
        assert!(mount.status().unwrap().success());
        Self(place.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}
