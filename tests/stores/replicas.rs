//! `--replicas`: a lock counts only when replicas have it, too.

use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::Redis;
use crate::support::replicated;
use crate::support::wait::wait_until;
use crate::support::world::World;

const JOB: &str =
    "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 7";

struct Replicated {
    master: Redis,
    replicas: Vec<Redis>,
    world: World,
}

fn with(count: usize) -> Replicated {
    let mut world = World::without_redis();
    let (master, replicas) = replicated::start(&world, count);
    world.use_store(master.url());
    Replicated { master, replicas, world }
}

/// The replicas have the lock when the job starts, without waiting in the test.
#[test]
fn the_lock_is_on_the_replicas_when_the_job_starts() {
    let here = with(2);
    let script = format!(
        "redis-cli -p {} get dlock:$0; redis-cli -p {} get dlock:$0",
        here.replicas[0].port(),
        here.replicas[1].port()
    );
    for (key, replicas) in [("a", "2"), ("b", "all")] {
        let run =
            here.world.dlock(["run", "-k", key, "--replicas", replicas, "--", "sh", "-c", &script, key]);
        let output = run.any_stdout().run();
        assert_eq!(output.stdout.lines().filter(|line| line.len() == 32).count(), 2, "{}", output.stdout);
    }
}

/// One of two replicas does not answer: the lock is released, and the message has the numbers. Also
/// from a configuration file.
#[test]
fn too_few_acknowledgements_give_the_lock_back() {
    let here = with(2);
    here.replicas[1].pause();
    let world = &here.world;
    world.write("file", "replicas = \"all\"\n");
    for options in [
        &["--replicas", "2"][..],
        &["--replicas", "all"],
        &["--config", "file"],
        &["-w", "1s", "--replicas", "2"],
    ] {
        let run = world.run("k", options, "touch ran").status(69);
        let output = run
            .stderr_like(
                "(dlock: .*\n)?dlock: .*(1 of 2|how many) replicas acknowledged.*given back.*did not run\n",
            )
            .run();
        assert!(output.stderr.contains(&world.url()), "{}", output.stderr);
        assert_eq!(world.state("k"), "free", "{options:?}");
    }
    assert!(!world.path("ran").exists());
    world.run("k", &["--replicas", "1"], "true").run();
    here.replicas[1].resume();
}

/// A waiter also waits for the replicas.
#[test]
fn a_waiter_rides_out_missing_acknowledgements() {
    let here = with(1);
    here.replicas[0].pause();
    let options = ["-w", "--replicas", "1", "--op-timeout", "400ms"];
    let waiter = here.world.run("k", &options, "echo ran >> log").any_stderr().spawn();
    wait_until("it says so", || waiter.messages().contains("replicas acknowledged"));
    assert!(here.world.log().is_empty() || here.world.log() == [""], "{:?}", here.world.log());
    here.replicas[0].resume();
    waiter.finish();
    assert_eq!(here.world.log(), ["ran"]);
    assert_eq!(here.world.state("k"), "free");
}

/// WAIT goes out with the script, so that acknowledging costs no request of its own.
#[test]
fn acknowledging_costs_no_request() {
    let here = with(1);
    let proxy = Proxy::before(here.master.port());
    let run = |options: &[&str]| {
        proxy.plan(0, Fault::ReplyLost);
        here.world.run("k", options, "true").env("DLOCK_STORE", proxy.url()).run();
        proxy.seen()
    };
    // Once before, so that the server has cached the scripts.
    run(&[]);
    let [without, one, all] = [&[][..], &["--replicas", "1"], &["--replicas", "all"]].map(run);
    println!("requests of a run: {without}, with --replicas 1 {one}, with --replicas all {all}");
    assert_eq!([without, one, all], [2, 2, 2], "taken and given back");
}

/// `all` wants at least one.
#[test]
fn all_replicas_means_at_least_one() {
    let here = with(0);
    let run = here.world.run("k", &["--replicas", "all"], "touch ran").status(69);
    run.stderr_like("dlock: .*0 of 1 replicas acknowledged.*did not run\n").run();
    assert!(!here.world.path("ran").exists());
}

/// A renewal that is not acknowledged has failed, although the master has renewed: the job is
/// stopped in time.
#[test]
fn renewals_are_acknowledged_too() {
    let here = with(1);
    let options = ["-t", "8s", "--replicas", "1"];
    let holder = here.world.run("k", &options, JOB).status(79).any_stderr().spawn();
    here.world.wait_for_log("up");
    here.master.after_renewal("dlock:k");
    here.replicas[0].pause();
    here.master.after_renewal("dlock:k");
    let output = holder.finish();
    assert!(output.stderr.contains("replicas acknowledged"), "{}", output.stderr);
    assert_eq!(here.world.log(), ["up", "disturbed"]);
    here.replicas[0].resume();
}

/// A replica that is away for a moment disturbs nothing.
#[test]
fn a_replica_may_be_away_for_a_while() {
    let here = with(1);
    let options = ["-t", "8s", "--replicas", "all"];
    let holder = here.world.run("k", &options, JOB).status(7).any_stderr().spawn();
    here.world.wait_for_log("up");
    here.replicas[0].pause();
    // The first attempt fails after half a second, and others follow.
    here.master.after_renewal("dlock:k");
    here.master.after_renewal("dlock:k");
    here.replicas[0].resume();
    for _ in 0..3 {
        here.master.after_renewal("dlock:k");
    }
    here.world.write("go", "");
    holder.finish();
    assert_eq!(here.world.log(), ["up"]);
}

/// A server that cannot ask its replicas.
#[test]
fn a_server_without_wait_is_reported() {
    let world = World::with_redis(&["--rename-command", "WAIT", ""]);
    let run = world.run("k", &["--replicas", "1"], "touch ran").status(78);
    run.stderr_like("dlock: .*has no WAIT.*did not run\n").run();
    wait_until("no lock is left", || world.state("k") == "free");
    assert!(!world.path("ran").exists());
}

/// A directory has no replicas to wait for.
#[test]
fn a_directory_has_no_replicas() {
    let world = World::without_redis();
    let run = world.run("k", &["--replicas", "1"], "touch ran").status(78);
    run.stderr_like("dlock: .*no replicas.*\n").run();
    assert!(!world.path("ran").exists());
    world.run("k", &["--replicas", "0"], "true").run();
}
