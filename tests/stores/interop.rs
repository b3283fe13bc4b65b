//! With an empty prefix the exclusive lock is the well-known pattern, SET NX PX with a random
//! token: dlock and the lock libraries that use it exclude each other.

use crate::support::redis::ask;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};

#[test]
fn a_librarys_lock_excludes_dlock() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    assert_eq!(redis.ask::<String>(&["SET", "job", "their-token", "NX", "PX", "600000"]), "OK");
    let call = |options: &[&str]| world.run("job", &[&["--prefix", ""], options].concat(), "touch ran");
    let busy = call(&[]).status(75).stderr_like("dlock: .*\n").run();
    assert!(busy.stderr.contains("job"), "{}", busy.stderr);
    call(&["-w", "300ms"]).status(75).any_stderr().run();
    let status = world.dlock(["status", "--prefix", "", "--json", "job"]).any_stdout().run().stdout;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status[0]["holders"][0]["foreign"], true);
    let left = status[0]["holders"][0]["lease_ms"].as_u64().expect("its TTL");
    assert!(left > 1000 && left <= 600_000, "{left}");
    world.dlock(["release", "job", "--prefix", "", "--force"]).any_stdout().any_stderr().spawn().output();
    assert_eq!(redis.get("job").as_deref(), Some("their-token"), "it is not deleted");
    assert!(!world.path("ran").exists());
    world.dlock(["release", "job", "--prefix", "", "--force", "--now", "-y"]).any_stdout().any_stderr().run();
    assert_eq!(redis.get("job"), None);
    call(&[]).run();
}

#[test]
fn dlocks_lock_excludes_a_library() {
    let world = World::new(Backend::Redis);
    let job = "echo $DLOCK_TOKEN > token.tmp; mv token.tmp token; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("job", &["--prefix", ""], job).spawn();
    wait_until("the job runs", || !world.read("token").is_empty());
    let redis = world.redis();
    assert_eq!(redis.ask::<Option<String>>(&["SET", "job", "theirs", "NX", "PX", "1000"]), None);
    assert_eq!(redis.get("job").as_deref(), Some(world.read("token").trim()));
    assert_eq!(redis.ask::<String>(&["TYPE", "job"]), "string");
    world.write("go", "");
    holder.finish();
    assert_eq!(
        redis.ask::<Option<String>>(&["SET", "job", "theirs", "NX", "PX", "1000"]).as_deref(),
        Some("OK")
    );
}

/// A waiter polls while the holder is foreign, because a foreign program does not wake it. These
/// programs release by compare-and-delete.
#[test]
fn a_waiter_follows_a_library() {
    let world = World::new(Backend::Redis);
    world.redis().ask::<()>(&["SET", "job", "theirs", "NX", "PX", "600000"]);
    let waiter = world.run("job", &["--prefix", "", "-w"], "echo ran >> log").any_stderr().spawn();
    wait_until("it waits", || {
        let status = world.dlock(["status", "--prefix", "", "--json", "job"]).any_stdout().run().stdout;
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status[0]["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    let script =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
    let deleted = ask::<i64>(&mut world.redis().connect(), &["EVAL", script, "1", "job", "theirs"]);
    assert_eq!(deleted.expect("the script runs"), 1);
    waiter.finish();
    assert_eq!(world.log(), ["ran"]);
}

/// dlock's release is a compare-and-delete, too: a lock that a library took in the meantime stays.
#[test]
fn dlock_deletes_only_its_own_token() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("job", &["--prefix", "", "-t", "1h"], job).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<()>(&["SET", "job", "theirs", "PX", "600000"]);
    world.write("go", "");
    drop(holder.output());
    assert_eq!(world.redis().get("job").as_deref(), Some("theirs"));
}
