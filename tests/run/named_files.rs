//! Files that a user names: configuration, passwords, tokens, and files that dlock writes. Other
//! users of this machine may be able to write where the name leads.

use crate::stores::file_store::{AS_NOBODY, NOBODY, is_root};
use crate::support::dlock::Dlock;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const CONFIG: &str = "config/dlock.toml";

fn give(world: &World, name: &str, user: u32) {
    lchown(world.path(name), Some(user), Some(user)).expect("root may");
}

fn mode(world: &World, name: &str, mode: u32) {
    fs::set_permissions(world.path(name), fs::Permissions::from_mode(mode)).expect("permissions");
}

fn link(world: &World, target: &str, name: &str) {
    let _none_yet = fs::remove_file(world.path(name));
    symlink(target, world.path(name)).expect("a link");
}

fn fifo(world: &World, name: &str) {
    let _none_yet = fs::remove_file(world.path(name));
    assert!(world.command("mkfifo").arg(name).status().expect("mkfifo").success());
}

/// The prefix in force: that of `file` in the file, else the default.
#[track_caller]
fn reads(dlock: Dlock<'_>, is_read: bool) {
    dlock.stdout(if is_read { "file:\n" } else { "dlock:\n" }).run();
}

fn prefix(world: &World) -> Dlock<'_> {
    world.run("k", &["-q"], "echo $DLOCK_PREFIX")
}

#[test]
fn a_setting_of_one_job_in_a_file_is_refused() {
    let world = World::without_redis();
    let own = std::process::id().to_string();
    for setting in [
        "shared = true",
        "exclusive = true",
        "slots = 3",
        "tree = true",
        "label = 'l'",
        "reason = 'r'",
        "min-hold = '1s'",
        "once-per = 'hour'",
        "expect = 'hour'",
        "pause-on-failure = '1m'",
        "during-pause = true",
        "replace = true",
        "no-replace = true",
        "report = 'r.json'",
    ] {
        world.write(CONFIG, &format!("ttl = '10s'\n{setting}\n"));
        let name = setting.split(' ').next().expect("a name");
        let said = format!(
            "dlock: settings of one job .*belong on the command line: {name} \\(.*dlock.toml line 2\\)\n"
        );
        world.run("k", &["--once-per", "1h"], "touch ran").status(78).stderr_like(&said).run();
        world.dlock(["acquire", "-k", "k"]).status(78).stderr_like(&said).run();
        world.dlock(["hold", "-k", "k", "--pid", &own]).status(78).stderr_like(&said).run();
        // Other commands say it and go on.
        world.dlock(["status", "-q", "k"]).any_stdout().stderr_like(&said).run();
    }
    world.write(CONFIG, "slots = 3\nreport = 'r'\n");
    let both = "dlock: .*: report \\(.* line 2\\), slots \\(.* line 1\\).*\n";
    world.dlock(["wait", "-q", "k"]).stderr_like(both).run();
    assert!(!world.path("ran").exists());
}

#[test]
fn acquire_takes_its_defaults_from_the_file() {
    let world = World::without_redis();
    world.write(CONFIG, "ttl = '77s'\nbusy-exit-code = 9\nwait = '50ms'\n");
    world.dlock(["acquire", "-k", "k", "--json"]).stdout_like("(?s).*\"lease_ms\": ?7[67]\\d{3}.*").run();
    let waited = "dlock: .*busy for all of --wait \\(50ms\\).*\n";
    world.dlock(["acquire", "-k", "k"]).status(9).stderr_like(waited).run();
    world.dlock(["acquire", "-k", "k", "-w0", "-E8"]).status(8).any_stderr().run();
    world.dlock(["acquire", "-k", "k", "--min-hold", "1s"]).status(78).any_stderr().run();
    world.write(CONFIG, "busy-exit-code = 0\n");
    world.dlock(["acquire", "-k", "k"]).status(78).stderr_like("dlock: .*add -E 75\n").run();
}

/// Another user's file is not read, and said, also with -q. That of root or of the caller is read,
/// unless others may write it.
#[test]
fn a_config_is_judged_by_who_may_write_it() {
    let world = World::without_redis();
    world.write(CONFIG, "prefix = 'file:'\n");
    if !is_root(&world) {
        return;
    }
    mode(&world, "locks", 0o700);
    reads(prefix(&world), true);
    give(&world, "config", NOBODY);
    reads(prefix(&world), true);
    mode(&world, CONFIG, 0o664);
    reads(prefix(&world), true);
    for (bits, group) in [(0o666, 0), (0o646, 0), (0o664, 4321)] {
        lchown(world.path(CONFIG), Some(0), Some(group)).expect("root may");
        mode(&world, CONFIG, bits);
        let said = "dlock: .*dlock.toml is not read: other users may write it .*chmod.*\n";
        world.run("k", &["-q"], "touch ran").status(78).stderr_like(said).run();
        world.dlock(["doctor"]).status(78).stderr_like(said).run();
    }
    give(&world, CONFIG, NOBODY);
    mode(&world, CONFIG, 0o644);
    let said = "dlock: .*dlock.toml is not read: it belongs to another user \\(65534\\).*--config.*\n";
    reads(prefix(&world).stderr_like(said), false);
    world.dlock(["status", "-q", "k"]).any_stdout().stderr_like(said).run();
    fifo(&world, CONFIG);
    give(&world, CONFIG, NOBODY);
    reads(prefix(&world).stderr_like(said), false);
    assert!(!world.path("ran").exists());
}

/// A stranger's link can lead to text of the stranger's in a file that the kernel shows as root's, such as the
/// alias of a network interface in a sysfs of the stranger's own.
#[test]
fn a_config_is_not_found_through_a_link_of_a_stranger() {
    let world = World::without_redis();
    world.write("config/own.toml", "prefix = 'file:'\n");
    link(&world, "own.toml", CONFIG);
    reads(prefix(&world), true);
    link(&world, "nowhere", CONFIG);
    let nowhere = "dlock: .*dlock.toml is not read: it is a link that leads nowhere\n";
    world.run("k", &["-q"], "touch ran").status(78).stderr_like(nowhere).run();
    if !is_root(&world) {
        return;
    }
    mode(&world, "locks", 0o700);
    let said = "dlock: .*dlock.toml is not read: 'dlock.toml' is a link that belongs to another user \\(65534\\).*--config.*\n";
    for target in ["own.toml", "nowhere"] {
        link(&world, target, CONFIG);
        give(&world, CONFIG, NOBODY);
        reads(prefix(&world).stderr_like(said), false);
    }
    // A hard link in a directory of the stranger's.
    fs::remove_file(world.path(CONFIG)).expect("a link");
    fs::hard_link(world.path("config/own.toml"), world.path(CONFIG)).expect("a link");
    reads(prefix(&world), true);
    give(&world, "config", NOBODY);
    reads(
        prefix(&world).stderr_like("dlock: .*dlock.toml is not read: it belongs to another user.*\n"),
        false,
    );
    assert!(!world.path("ran").exists());
}

/// A user-private group, as with umask 002.
#[test]
fn the_callers_own_group_may_write_a_config() {
    let world = World::without_redis();
    world.write(CONFIG, "prefix = 'file:'\n");
    if !is_root(&world) {
        return;
    }
    give(&world, "locks", NOBODY);
    let theirs = || prefix(&world).under(&AS_NOBODY);
    reads(theirs(), true);
    give(&world, CONFIG, NOBODY);
    mode(&world, CONFIG, 0o664);
    reads(theirs(), true);
    lchown(world.path(CONFIG), Some(NOBODY), Some(4321)).expect("root may");
    theirs().status(78).any_stderr().run();
    lchown(world.path(CONFIG), Some(4321), Some(4321)).expect("root may");
    mode(&world, CONFIG, 0o600);
    reads(theirs().stderr_like("dlock: .* belongs to another user .*\n"), false);
    // What cannot even be seen is no file of the caller's.
    mode(&world, "config", 0o700);
    reads(theirs(), false);
}

#[test]
fn a_config_is_a_regular_file_of_limited_size() {
    let world = World::without_redis();
    world.write(CONFIG, &format!("{}\nprefix = 'file:'\n", "#".repeat(60_000)));
    reads(prefix(&world), true);
    // Its text would be a valid setting.
    fs::copy("/bin/sleep", world.path("ttl=9")).expect("a program");
    let mut sleep = world.command("sh").args(["-c", "exec ./ttl=9 1000"]).spawn().expect("sleep");
    wait_until("it has its name", || proc::name(sleep.id().cast_signed()) == "ttl=9");
    let comm = format!("/proc/{}/comm", sleep.id());
    let refused = |said: &str| {
        let said = format!("dlock: .*{said}.*\n");
        world.run("k", &["-q"], "touch ran").status(78).stderr_like(&said).run();
        world.dlock(["status", "--config", CONFIG]).status(78).stderr_like(&said).run();
    };
    for target in [&*comm, "/dev/zero", "/dev/full"] {
        link(&world, target, CONFIG);
        refused("not a regular file");
    }
    fifo(&world, CONFIG);
    refused("not a regular file");
    link(&world, "/dev/null", CONFIG);
    reads(prefix(&world), false);
    fs::remove_file(world.path(CONFIG)).expect("a link");
    world.write(CONFIG, &"#\n".repeat(40_000));
    refused("64 KiB");
    // As Kubernetes mounts a ConfigMap, and as Nix and stow link.
    world.write("config/..2026_11/dlock.toml", "prefix = 'file:'\n");
    link(&world, "..2026_11", "config/..data");
    link(&world, "..data/dlock.toml", CONFIG);
    reads(prefix(&world), true);
    assert!(!world.path("ran").exists());
    sleep.kill().and_then(|()| sleep.wait()).expect("our child");
}

/// The attack: the link names a file of root when it is judged, and one of the attacker's when it
/// is read.
#[test]
fn a_link_that_is_swapped_meanwhile_runs_nothing() {
    let world = World::new(Backend::Redis);
    if !is_root(&world) {
        return;
    }
    world.write("config/own.toml", "prefix = 'own:'\n");
    world.write(
        "config/theirs.toml",
        &format!("password-command = 'touch {}'\n", world.path("stolen").display()),
    );
    give(&world, "config/theirs.toml", NOBODY);
    link(&world, "own.toml", CONFIG);
    link(&world, "theirs.toml", "config/other");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (one, other) = (world.path(CONFIG), world.path("config/other"));
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("an exchange");
            }
        });
        for _ in 0..150 {
            world.dlock(["status", "k"]).spawn().output();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(!world.path("stolen").exists(), "a stranger's password command was run");
}

/// A file that the user names may be anybody's, if only its owner may write it.
#[test]
fn a_named_config_may_be_anybodys() {
    let world = World::without_redis();
    if !is_root(&world) {
        return;
    }
    mode(&world, "locks", 0o700);
    world.write("own.toml", "prefix = 'file:'\n");
    give(&world, "own.toml", 1000);
    let named = || world.run("k", &["-q", "--config", "own.toml"], "echo $DLOCK_PREFIX");
    reads(named(), true);
    reads(prefix(&world).env("DLOCK_CONFIG", world.path("own.toml")), true);
    for bits in [0o664, 0o646] {
        mode(&world, "own.toml", bits);
        named().status(78).stderr_like("dlock: --config: .*other users may write it.*\n").run();
    }
}

/// In a user namespace files of users outside it have no owner.
#[test]
fn an_unmapped_owner_counts_as_root() {
    let namespace = ["unshare", "--user", "--map-root-user"];
    let world = World::without_redis();
    world.write(CONFIG, "prefix = 'file:'\n");
    if !is_root(&world) {
        return;
    }
    let may = world.command(namespace[0]).args(&namespace[1..]).arg("true").output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: no user namespaces here");
        return;
    }
    mode(&world, "locks", 0o700);
    give(&world, CONFIG, 4321);
    reads(prefix(&world).under(&namespace), true);
    world.write("closed/r.json", "");
    mode(&world, "closed", 0o755);
    link(&world, "r.json", "closed/link");
    give(&world, "closed/link", 4321);
    world.run("k", &["--report", "closed/link"], "exit 3").under(&namespace).status(3).run();
    assert!(world.read("closed/r.json").contains("\"status\":3"));
    // Where everybody may write, it may be anybody's.
    world.write("open/r.json", "");
    mode(&world, "open", 0o1777);
    link(&world, "r.json", "open/link");
    give(&world, "open/link", 4321);
    let refused = world.run("k", &["--report", "open/link"], "touch ran").under(&namespace).status(78);
    refused.stderr_like("dlock: .*belongs to another user.*\n").run();
    assert!(!world.path("ran").exists());
}

#[test]
fn variables_go_to_no_file_of_a_stranger() {
    let world = World::without_redis();
    if !is_root(&world) {
        return;
    }
    mode(&world, "locks", 0o700);
    let held_for = |process: &Child, file: &str| {
        let pid = process.id().to_string();
        world.dlock(["hold", "-k", "k", "--pid", &pid, "--background", "--env-file", file])
    };
    let start = || world.command("sleep").arg("1000").spawn().expect("sleep");
    let end = |mut process: Child| process.kill().and_then(|()| process.wait()).expect("our child");
    let process = start();
    for directory in ["open", "theirs", "shared"] {
        fs::create_dir(world.path(directory)).expect("a directory");
    }
    world.write("private", "kept\n");
    for (target, name) in [("../private", "open/link"), ("../new", "open/dangling"), ("..", "open/up")] {
        link(&world, target, name);
        give(&world, name, NOBODY);
    }
    fifo(&world, "open/fifo");
    world.write("open/file", "");
    give(&world, "open/file", NOBODY);
    lchown(world.path("shared"), Some(1001), Some(4321)).expect("root may");
    mode(&world, "shared", 0o775);
    world.write("shared/file", "");
    give(&world, "shared/file", 1001);
    for (file, said) in [
        ("open/link", "is a link that belongs to another user"),
        ("open/dangling", "is a link that belongs to another user"),
        ("open/up/private", "is a link that belongs to another user"),
        ("open/fifo", "not a regular file"),
        ("/dev/tty0", ""),
        ("open/file", "belongs to another user \\(65534\\)"),
        ("shared/file", "belongs to another user \\(1001\\)"),
    ] {
        let said = format!("dlock: cannot write to {file}: .*{said}.*; nothing is held\n");
        held_for(&process, file).status(78).stderr_like(&said).run();
        assert_eq!(world.state("k"), "free");
    }
    assert!(!world.path("new").exists());
    assert_eq!(world.read("private"), "kept\n");
    fs::hard_link(world.path("private"), world.path("open/private")).expect("a link");
    let other = "dlock: .*another name.*; nothing is held\n";
    held_for(&process, "open/private").status(78).stderr_like(other).run();
    // As GitHub's runner gives one to a job that is root in a container; with umask 002.
    give(&world, "theirs", 1001);
    mode(&world, "theirs", 0o775);
    world.write("theirs/env", "A=b");
    give(&world, "theirs/env", 1001);
    link(&world, "theirs/env", "own-link");
    end(process);
    for file in ["theirs/env", "own-link", "new", "/dev/null", "/dev/stderr"] {
        let process = start();
        let held = held_for(&process, file);
        match file {
            "/dev/stderr" => held.stderr_like("(?s)DLOCK_KEY=k\n.*DLOCK_TOKEN=.*\n").run(),
            _ => held.run(),
        };
        assert_eq!(world.state("k"), "held", "{file}");
        end(process);
        wait_until("it is given back", || world.state("k") == "free");
    }
    let env = world.read("theirs/env");
    assert!(env.starts_with("A=b\nDLOCK_") && env.matches("DLOCK_TOKEN=").count() == 2, "{env}");
    let new = fs::metadata(world.path("new")).expect("a file").permissions().mode();
    assert_eq!(new & 0o777, 0o600, "the token is in it");
    assert!(fs::metadata("/dev/null").is_ok_and(|null| !null.is_file()));
}

/// A pipe into which nobody writes costs the connect timeout, not the run.
#[test]
fn a_password_or_token_is_waited_for_within_a_limit() {
    let world = World::with_redis(&["--requirepass", "hush"]);
    fifo(&world, "pipe");
    let status = || world.dlock(["status", "--connect-timeout", "300ms", "--password-file", "pipe"]);
    status().status(78).stderr_like("dlock: --password-file: cannot read pipe: .*300ms.*\n").run();
    let mut writer = world.command("sh").args(["-c", "echo hush > pipe"]).spawn().expect("sh");
    world.dlock(["status", "--password-file", "pipe", "k"]).any_stdout().run();
    writer.wait().expect("our child");
    let call = |words: &[&str]| world.dlock(words).env("DLOCK_PASSWORD", "hush");
    let token = ["--connect-timeout", "300ms", "--token-file", "pipe"];
    call(&["release", "k"])
        .args(token)
        .status(78)
        .stderr_like("dlock: cannot read .* pipe: .*300ms.*\n")
        .run();
    let token = call(&["acquire", "-k", "k"]).stdout_like("[0-9a-f]+\n").run().stdout;
    let mut writer =
        world.command("sh").args(["-c", &format!("echo {} > pipe", token.trim())]).spawn().expect("sh");
    call(&["release", "k", "--token-file", "pipe"]).run();
    writer.wait().expect("our child");
    world.write("long", &"x".repeat(70_000));
    call(&["release", "k", "--token-file", "long"]).status(78).any_stderr().run();
}
