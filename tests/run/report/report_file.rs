//! How the file of a report is written: checked first, replaced by a rename, and never through
//! another user's link.

use super::reported;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

on_every_store!(a_report_that_cannot_be_written_changes_nothing);

/// The refusal comes before the lock is requested.
#[test]
fn a_place_that_cannot_be_written_is_refused_first() {
    let world = World::new(Backend::Redis);
    fs::create_dir(world.path("directory")).expect("a directory");
    fs::create_dir(world.path("closed")).expect("a directory");
    fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o555)).expect("permissions");
    world.write("file", "");
    assert!(world.command("mkfifo").arg("pipe").status().expect("mkfifo").success());
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    world.open_to_all();
    let drops = world.dlock(["--version"]).under(&nobody).any_stdout().any_stderr().spawn().output();
    for path in
        ["missing/r.json", "directory", "pipe", "/dev/zero", "file/r.json", "missing/", "..", "closed/r"]
    {
        let call = world.run("k", &["--report", path], "touch ran").stderr_like("dlock: .*\n").status(78);
        let output = match path {
            // Root may write anywhere, so this case runs as another user.
            "closed/r" if drops.status.success() => call.under(&nobody).run(),
            "closed/r" => continue,
            _ => call.run(),
        };
        assert!(output.stderr.contains(path), "{}", output.stderr);
    }
    assert_eq!(world.redis().keys(), [""; 0]);
    assert!(!world.path("ran").exists());
    // A relative path needs no right to what is above.
    fs::create_dir_all(world.path("above/open")).expect("directories");
    fs::set_permissions(world.path("above/open"), fs::Permissions::from_mode(0o777)).expect("permissions");
    fs::set_permissions(world.path("above"), fs::Permissions::from_mode(0o700)).expect("permissions");
    if drops.status.success() {
        let inside = [&["sh", "-c", "cd above/open && exec \"$@\"", "sh"][..], &nobody].concat();
        world.run("k", &["--report", "r.json"], "true").under(&inside).run();
        assert!(world.read("above/open/r.json").contains("\"status\":0"));
    }
    assert!(fs::metadata("/dev/null").is_ok_and(|null| !null.is_file()));
}

fn a_report_that_cannot_be_written_changes_nothing(backend: Backend) {
    let world = World::new(backend);
    fs::create_dir(world.path("d")).expect("a directory");
    let call = world.run("k", &["--report", "d/r.json"], "rmdir d; exit 5");
    let output = call.status(5).stderr_like("dlock: the report could not be written to .*\n").run();
    assert!(output.stderr.contains("d/r.json"), "{}", output.stderr);
    assert_eq!(world.state("k"), "free");
    // If the rename fails, the temporary file is removed.
    fs::create_dir(world.path("d")).expect("a directory");
    let call = world.run("k", &["--report", "d/r.json"], "mkdir d/r.json; exit 6");
    call.status(6).stderr_like("dlock: the report .*\n").run();
    assert_eq!(fs::read_dir(world.path("d")).expect("a directory").count(), 1);
    fs::remove_dir_all(world.path("d")).expect("it is ours");
    // The error is printed even with -q, and dlock still dies of CMD's signal.
    fs::create_dir(world.path("d")).expect("a directory");
    let call = world.run("k", &["-q", "--report", "d/r.json"], "rmdir d; kill -9 $$");
    call.dies_of(9).stderr_like("dlock: the report .*\n").run();
}

/// A reader sees the old report or the new one, never a part. No other file is left in the
/// directory.
#[test]
fn the_file_is_replaced_by_a_rename() {
    let world = World::new(Backend::Redis);
    fs::create_dir(world.path("d")).expect("a directory");
    let call = |script: &str| world.run("k", &["--report", "d/r.json"], script);
    call("exit 1").status(1).after_shell("umask 027").run();
    let path = world.path("d/r.json");
    let mode = |path: &Path| fs::metadata(path).expect("a report").permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o640);
    // A process that has the old file open goes on reading it.
    call("exit 2").after_shell("umask 002; exec 3< d/r.json").status(2).run();
    assert_eq!(mode(&path), 0o664);
    assert!(world.read("d/r.json").contains("\"status\":2"));
    fs::hard_link(&path, world.path("old")).expect("a second name");
    call("exit 3").status(3).run();
    assert!(world.read("old").contains("\"status\":2") && world.read("d/r.json").contains("\"status\":3"));
    // A link is followed.
    symlink("d/r.json", world.path("link")).expect("a link");
    world.run("k", &["--report", "link"], "exit 4").status(4).run();
    assert!(world.read("d/r.json").contains("\"status\":4"));
    assert!(fs::symlink_metadata(world.path("link")).is_ok_and(|link| link.is_symlink()));
    let names = fs::read_dir(world.path("d")).expect("a directory").count();
    assert_eq!(names, 1, "no temporary file is left");
}

/// root runs dlock in a directory where others may make links. The kernel's protected_symlinks
/// covers only sticky directories, and does not cover readlink.
#[test]
fn no_link_of_another_user_is_followed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::without_redis();
    fs::create_dir(world.path("private")).expect("a directory");
    fs::create_dir(world.path("open")).expect("a directory");
    world.write("private/file", "kept");
    let is_theirs = |name: &str, target: &Path| {
        symlink(target, world.path(name)).expect("a link");
        std::os::unix::fs::lchown(world.path(name), Some(65534), None).expect("we are root");
    };
    is_theirs("open/r.json", &world.path("private/file"));
    is_theirs("open/new.json", &world.path("private/new"));
    is_theirs("open/directory", &world.path("private"));
    symlink("open/r.json", world.path("mine")).expect("a link");
    for path in
        ["open/r.json", "open/new.json", "open/directory/file", "open/directory/../private/file", "mine"]
    {
        let call = world.run("k", &["--report", path], "touch ran").status(78);
        call.stderr_like("dlock: no report .*is a link that belongs to another user.*\n").run();
    }
    assert!(!world.path("ran").exists());
    // A link that is put there while the job runs is not followed either.
    symlink(world.path("private"), world.path("later")).expect("a link");
    let swap = "rm later; ln -s $PWD/private later; chown -h 65534 later";
    world.run("k", &["--report", "later/file"], swap).stderr_like("dlock: the report .*not followed\n").run();
    let swap = "ln -s ../private/file open/late.json; chown -h 65534 open/late.json";
    let run = world.run("k", &["--report", "open/late.json"], swap);
    run.stderr_like("dlock: the report .*not followed\n").run();
    assert_eq!(world.read("private/file"), "kept");
    assert_eq!(fs::read_dir(world.path("private")).expect("a directory").count(), 1);
    // Links of root are followed.
    symlink("../private/file", world.path("open/own.json")).expect("a link");
    world.run("k", &["--report", "open/own.json"], "exit 3").status(3).run();
    assert!(world.read("private/file").contains("\"status\":3"));
}

/// While the job runs the last report stays.
#[test]
fn a_killed_dlock_leaves_the_last_report() {
    let world = World::new(Backend::Redis);
    world.write("r.json", "old");
    let holder = reported(&world, "k", &["--grace", "1s"], "echo up >> log; exec sleep 1000");
    let holder = holder.dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    assert_eq!(world.read("r.json"), "old");
    holder.signal(Signal::KILL);
    holder.finish();
    wait_until("the guard gives the lock back", || world.state("k") == "free");
    assert_eq!(world.read("r.json"), "old");
}

/// In a directory where others may write, a file of another user stays.
#[test]
fn a_report_replaces_no_file_of_another_user() {
    let world = World::without_redis();
    // Two devices may be named in place of a file.
    world.run("k", &["--report", "/dev/null"], "exit 3").status(3).run();
    let report = world.run("k", &["--report", "/dev/stderr"], "exit 3").status(3);
    report.stderr_like("\\{.*\"status\":3.*\\}\n").run();
    assert!(fs::metadata("/dev/null").is_ok_and(|null| !null.is_file()));
    if !rustix::process::geteuid().is_root() {
        println!("skipped: this user cannot give a file away");
        return;
    }
    for (directory, owner, mode) in [("shared", 0, 0o777), ("theirs", 1001, 0o755)] {
        let file = format!("{directory}/r.json");
        world.write(&file, "kept");
        for name in [&*file, directory] {
            std::os::unix::fs::chown(world.path(name), Some(1001), Some(1001)).expect("we are root");
        }
        std::os::unix::fs::chown(world.path(directory), Some(owner), None).expect("we are root");
        fs::set_permissions(world.path(directory), fs::Permissions::from_mode(mode)).expect("permissions");
        let call = world.run("k", &["--report", &file], "exit 3");
        match directory {
            "shared" => call.status(78).stderr_like("dlock: .*belongs to another user \\(1001\\)\n").run(),
            _ => call.status(3).run(),
        };
        assert_eq!(world.read(&file) == "kept", directory == "shared");
    }
}
