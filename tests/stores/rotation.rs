//! Passwords that change while locks are held and waited for. dlock reads them from a file or from
//! a command before each connection, and never shows any part of them.

mod doors;

use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::wait::wait_until;
#[cfg(feature = "etcd")]
use doors::etcd;
#[cfg(feature = "mysql")]
use doors::mysql;
#[cfg(feature = "postgres")]
use doors::postgres;
use doors::{Door, FIRST, SECOND, cluster, quorum, redis, sentinels};
use rustix::process::Signal;

const JOB: &str = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; echo done >> log";

/// How dlock gets the password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    File,
    /// The command takes longer than an attempt to renew may.
    SlowCommand,
}

/// The job goes on, the waiter gets its turn, and the lock is released.
fn a_new_password_disturbs_nobody(door: &Door) {
    let world = &door.world;
    for way in [Way::File, Way::SlowCommand] {
        world.write("word", &format!("{FIRST}\n"));
        let run = |options: &[&str], job: &str| door.dlock(way, world.run("k", options, job)).any_stderr();
        let holder = run(&["-t", "10s", "-v"], JOB).spawn();
        world.wait_for_log("up");
        let waiter = run(&["-t", "10s", "-v", "-w", "60s"], "echo next >> log").spawn();
        wait_until("it waits", || match world.url().starts_with("redis+quorum") {
            false => door.holders()["waiters"].as_array().is_some_and(|all| all.len() == 1),
            // A quorum has no queue to look at.
            true => waiter.messages().contains("waiting"),
        });
        for word in [SECOND, FIRST] {
            door.rotate(word);
            door.after_renewal();
            door.after_renewal();
        }
        for pid in [holder.pid(), holder.guard()] {
            door.shows_nothing(&(proc::arguments(pid) + &proc::name(pid)));
        }
        world.write("go", "");
        let (held, waited) = (holder.finish(), waiter.finish());
        door.shows_nothing(&(held.stderr + &waited.stderr));
        assert_eq!(world.log(), ["up", "done", "next"], "{way:?}");
        assert_eq!(door.holders()["state"], "free", "{way:?}");
        for file in ["go", "log"] {
            std::fs::remove_file(world.path(file)).expect("a file");
        }
    }
    // A holder and a waiter begin. A busy machine makes few connections anew between two changes.
    let runs = world.read("runs").lines().count();
    assert!(runs > 2, "before each connection, not only the first: {runs}");
}

/// The guard releases the lock of a killed dlock, with the new password.
fn the_guard_has_the_new_password(door: &Door) {
    let world = &door.world;
    for way in [Way::File, Way::SlowCommand] {
        world.write("word", &format!("{FIRST}\n"));
        let holder = door.dlock(way, world.run("k", &["-t", "60s"], JOB)).dies_of(9).any_stderr().spawn();
        world.wait_for_log("up");
        (door.change)(SECOND);
        (door.hang_up)();
        world.write("word", &format!("{SECOND}\n"));
        holder.signal(Signal::KILL);
        holder.finish();
        wait_until("the guard gives it back", || door.holders()["state"] == "free");
        (door.change)(FIRST);
        std::fs::remove_file(world.path("log")).expect("a file");
    }
}

macro_rules! on_every_door {
    ($($(#[$attribute:meta])* $door:ident),+ $(,)?) => {
        $($(#[$attribute])* mod $door {
            #[test]
            fn a_new_password_disturbs_nobody() {
                super::a_new_password_disturbs_nobody(&super::$door());
            }
            #[test]
            fn the_guard_has_the_new_password() {
                super::the_guard_has_the_new_password(&super::$door());
            }
        })+
    };
}

on_every_door!(
    redis,
    sentinels,
    cluster,
    quorum,
    #[cfg(feature = "postgres")]
    postgres,
    #[cfg(feature = "mysql")]
    mysql,
    #[cfg(feature = "etcd")]
    etcd,
);

/// The same password, set again and again, ends the login of each client at any moment, also between
/// its login and its next request.
#[cfg(feature = "etcd")]
#[test]
fn logins_that_the_server_ends_at_any_moment_end_no_run() {
    let door = etcd();
    let world = &door.world;
    world.write("word", &format!("{FIRST}\n"));
    let count = "n=$(cat n 2>/dev/null || echo 0); sleep 0.05; echo $((n + 1)) > n";
    let run =
        || door.dlock(Way::File, world.run("k", &["-t", "20s", "-w", "120s"], count)).any_stderr().spawn();
    let mut runs: Vec<_> = (0..10).map(|_| run()).collect();
    while runs.iter_mut().any(|run| !run.has_ended()) {
        (door.change)(FIRST);
    }
    for run in runs {
        run.finish();
    }
    assert_eq!(world.read("n").trim(), "10");
}

/// A command that prints no password leads to status 77, and its output is not shown.
#[test]
fn a_command_that_fails_is_77_and_its_output_is_not_shown() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    for (command, said) in [
        ("cat word; cat word >&2; exit 3", "has failed (exit status: 3)"),
        ("cat word; kill -9 $$", "has failed (signal: 9"),
        ("cat word | cut -c 40-", "has printed nothing"),
        ("true", "has printed nothing"),
        ("printf '\\377\\n'", "has printed text that is not valid UTF-8"),
        (
            "head -c 1000000 /dev/zero | tr '\\0' x",
            "has printed a first line that is too long for a password",
        ),
        ("cat word; no-such-program", "has failed (exit status: 127)"),
        ("sed s/s3same/wr0ng/ word", "refused the user name or the password"),
    ] {
        for format in ["text", "json"] {
            let options = ["-v", "--log-format", format, "--password-command", command];
            let run = door.world.run("k", &options, "touch ran").status(77).any_stderr().run().stderr;
            assert!(run.contains(said) && run.contains("redis://127.0.0.1"), "{command}: {run}");
            assert!(!run.contains("s3same") && !run.contains("wr0ng"), "{command}: {run}");
        }
    }
    assert!(!door.world.path("ran").exists());
}

/// The first line counts, however much follows and whichever process keeps the output open.
#[test]
fn the_first_line_counts() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\r\n"));
    for command in
        ["cat word; head -c 1000000 /dev/zero", "cat word", "tr -d '\\r\\n' < word", "sleep 60 & cat word"]
    {
        door.world.run("k", &["--password-command", command], "true").run();
    }
}

/// When the time to connect is over, no process of the command is left.
#[test]
fn a_command_that_hangs_is_killed() {
    let door = redis();
    // The guard of each run also runs the command, to leave the queue: each run has file names of
    // its own.
    let hangs = "echo $$ > $RUN-shell.tmp; sleep 1000 & echo $! > $RUN-sleep.pid; mv $RUN-shell.tmp $RUN-shell.pid; \
                 trap '' TERM INT HUP; while :; do sleep 1; done";
    let gone = |run: &str, what: &str| {
        let pids = ["shell", "sleep"].map(|process| door.world.wait_for_pid(&format!("{run}-{process}.pid")));
        wait_until(what, || !pids.into_iter().any(proc::alive));
    };
    let run = |name: &str, limit: &str| {
        let options = ["-w", "--connect-timeout", limit, "--password-command", hangs];
        door.world.run("k", &options, "touch ran").env("RUN", name).any_stderr()
    };
    let said = run("first", "1s").status(77).run().stderr;
    assert!(said.contains("has not ended within the connect timeout, 1s, and was killed"), "{said}");
    gone("first", "it is killed at the connect timeout");
    // The same if dlock is stopped by a signal meanwhile.
    let waiter = run("second", "8s").dies_of(2).spawn();
    door.world.wait_for_pid("second-shell.pid");
    waiter.signal(Signal::INT);
    waiter.finish();
    gone("second", "it ends with its dlock");
    // The command's first process also ends when dlock is killed.
    let alone = "echo $$ > shell.tmp; mv shell.tmp shell.pid; exec sleep 1000";
    let options = ["--connect-timeout", "2s", "--password-command", alone];
    let status = door.world.dlock(["status"]).args(options).dies_of(9).any_stderr().spawn();
    let pid = door.world.wait_for_pid("shell.pid");
    status.signal(Signal::KILL);
    status.finish();
    wait_until("its time is over", || !proc::alive(pid));
    assert!(!door.world.path("ran").exists());
}

/// The command runs in a session of its own, with no descriptor but the first three and no signal
/// blocked.
#[test]
fn a_command_has_nothing_of_its_caller() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    // The shell itself blocks signals while it waits.
    let command = "ls -l /proc/$$/fd > fds; cut -d ' ' -f 6 /proc/$$/stat > session; echo $$ >> session; \
                   grep SigBlk /proc/self/status > blocked; cat word";
    let run = door.world.run("k", &["--password-command", command], "true");
    run.after_shell("exec 9> mutex; flock 9").run();
    let fds = door.world.read("fds");
    assert!(fds.contains("/dev/null") && !fds.contains("mutex"), "{fds}");
    // Descriptors from 10 on are the shell's own.
    assert!((3..10).all(|fd| !fds.contains(&format!(" {fd} -> "))), "{fds}");
    let session = door.world.read("session");
    let session: Vec<_> = session.lines().collect();
    assert_eq!(session[0], session[1], "it leads its session");
    assert_eq!(door.world.read("blocked").trim(), "SigBlk:\t0000000000000000");
}

/// The password is still right while the command that prints it fails.
#[test]
fn a_password_that_cannot_be_read_any_more_is_shown_as_it_was() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    for way in ["--password-file=lent", "--password-command=cat lent"] {
        door.world.write("lent", &format!("{FIRST}\n"));
        let holder = door.world.run("k", &["-t", "10s", way], JOB).any_stderr().spawn();
        door.world.wait_for_log("up");
        std::fs::remove_file(door.world.path("lent")).expect("a file");
        (door.hang_up)();
        door.after_renewal();
        door.after_renewal();
        door.world.write("go", "");
        holder.finish();
        assert_eq!(door.world.log(), ["up", "done"], "{way}");
        for file in ["go", "log"] {
            std::fs::remove_file(door.world.path(file)).expect("a file");
        }
    }
}

/// A descriptor may be another file by the time of the next connection.
#[test]
fn a_password_on_stdin_is_read_once() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    let script = "sleep 1000 > /dev/null 2>&1 & exec \"$D\" hold -k h --pid $! --background --password-file /dev/stdin < word";
    let held = door
        .world
        .command("sh")
        .args(["-c", script])
        .env("D", BINARY)
        .env("DLOCK_STORE", door.world.url())
        .output()
        .expect("a shell");
    assert!(held.status.success(), "{}", String::from_utf8_lossy(&held.stderr));
    door.world.write("word", "nothing\n");
    (door.hang_up)();
    door.world.write("word", &format!("{FIRST}\n"));
    let release = door.dlock(Way::File, door.world.dlock(["release", "h", "-y"]));
    release.any_stdout().any_stderr().run();
}

/// A dlock inside the job runs the same command.
#[test]
fn a_job_gets_the_password_command() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    let job = "echo $DLOCK_PASSWORD_COMMAND > inner; $D check && exec $D run -k k -- $D check k";
    let run = door.world.run("k", &["--password-command", "cat word"], job).env("DLOCK_PASSWORD", "wr0ng");
    run.env("D", BINARY).run();
    assert_eq!(door.world.read("inner"), "cat word\n");
}

/// doctor names the source of the password, and never the password.
#[test]
fn doctor_says_where_the_password_is_from() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    let word = door.world.path("word").display().to_string();
    let of_file = format!("from {word}, read before each connection (DLOCK_PASSWORD_FILE)");
    for (variable, value, says) in [
        ("DLOCK_PASSWORD", FIRST, "from DLOCK_PASSWORD"),
        ("DLOCK_PASSWORD_FILE", &word, &of_file),
        (
            "DLOCK_PASSWORD_COMMAND",
            "cat word",
            "from a command, run before each connection (DLOCK_PASSWORD_COMMAND)",
        ),
    ] {
        let doctor = door.world.dlock(["doctor"]).env(variable, value).any_stdout().any_stderr().run().stdout;
        assert!(doctor.contains(says), "{variable}: {doctor}");
        door.shows_nothing(&doctor);
    }
}
