//! Whom does dlock listen to, and to whom does it speak? What docs/security.md says of that and no other file shows.

use crate::support::dlock::BINARY;
use crate::support::world::World;
use rustix::process::geteuid;
use std::os::unix::fs::chown;

/// The settings of another user are not this one's, wherever they lie.
#[test]
fn a_config_of_somebody_else_is_skipped() {
    if !geteuid().is_root() {
        println!("skipped: this user cannot give a file away");
        return;
    }
    let world = World::without_redis();
    world.write("config/dlock.toml", "prefix = 'theirs:'\n");
    let run = || world.run("k", &["-v"], "echo \"$DLOCK_PREFIX\" > prefix").any_stderr();
    assert!(!run().run().stderr.contains("skipped"));
    assert_eq!(world.read("prefix"), "theirs:\n", "as long as it is one's own");
    chown(world.path("config/dlock.toml"), Some(65534), None).expect("root may");
    let said = run().run().stderr;
    assert!(said.contains("dlock.toml belongs to somebody else and is skipped"), "{said}");
    assert_eq!(world.read("prefix"), "dlock:\n");
}

/// Needs strace(1), and leave to trace. The job outlasts some renewals, and the run waits for another one before.
#[test]
fn nobody_but_the_store_is_spoken_to() {
    let world = World::with_redis(&[]);
    let traced = |options: &str| {
        let command = format!(
            "exec strace -f -qq -e trace=connect,sendto,sendmsg,sendmmsg -o calls {BINARY} run -k k -t 1s {options} -- sleep 1.5"
        );
        let mut shell = world.command("sh");
        shell.args(["-c", &command]).env("DLOCK_STORE", world.url()).env_remove("LD_LIBRARY_PATH");
        shell.output().is_ok_and(|output| output.status.success()).then(|| world.read("calls"))
    };
    let holder = world.run("k", &[], "echo up >> log; sleep 1").spawn();
    world.wait_for_log("up");
    let Some(calls) = traced("--wait") else {
        eprintln!("skipped: there is no strace here, or no leave to trace");
        return;
    };
    holder.finish();
    let connects = calls.lines().filter(|line| line.contains("connect(")).collect::<Vec<_>>();
    let store = format!("sin_port=htons({}), sin_addr=inet_addr(\"127.0.0.1\")", world.redis().port());
    assert!(connects.iter().any(|line| line.contains(&store)), "{calls}");
    assert!(connects.iter().all(|line| line.contains(&store)), "{connects:?}");
    // An address is named in one other way: where a message is sent to it without a connection.
    assert!(!calls.lines().any(|line| line.contains("send") && line.contains("sa_family=")), "{calls}");
}
