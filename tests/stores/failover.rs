//! A database with a standby that takes the place of the primary: a URL with both leads to the one
//! that can write, before, during and after a failover. Real streaming replication, real promotion.

use crate::stores::databases::JOB;
use crate::support::database::{Kind, Server, on_every_database};
use crate::support::dlock::Dlock;
use crate::support::hole::Silent;
use crate::support::proc;
use crate::support::redis::next_port;
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::Signal;

on_every_database!(
    the_writable_host_is_used_wherever_the_url_names_it,
    a_failover_disturbs_no_job_and_no_waiter,
    a_primary_that_becomes_read_only_is_left,
    the_guard_gives_the_lock_back_after_a_failover,
    a_failover_that_forgets_the_lock_stops_the_job,
);

/// A primary and its standby. The URL names the standby first.
fn pair(kind: Kind) -> (World, Server, Server) {
    let (mut world, (primary, standby)) =
        World::with_server(|home| Server::start_with_standby(kind, home), |(primary, _)| primary.url());
    world.use_store(url(&[&standby, &primary]));
    (world, primary, standby)
}

fn url(servers: &[&Server]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let one = servers[0].url();
    one.replace(&hosts[0], &hosts.join(","))
}

/// The run is refused, and the message names the store and the fault of each host.
#[track_caller]
fn no_host_takes_writes(run: Dlock<'_>, read_only: &Server) {
    let said = run.status(69).any_stderr().run().stderr;
    let here = format!("127.0.0.1:{} is read-only", read_only.port());
    assert!(said.contains("takes writes now") && said.contains(&here), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn the_writable_host_is_used_wherever_the_url_names_it(kind: Kind) {
    let (world, mut primary, standby) = pair(kind);
    world.run("k", &[], "echo standby first >> log").run();
    let both = world.url();
    let silent = Silent::new();
    for (what, port) in [("dead", next_port()), ("silent", silent.port())] {
        let url = both.replace(&format!("127.0.0.1:{},", standby.port()), &format!("127.0.0.1:{port},"));
        let options = ["--store", &url, "-w", "1m", "--op-timeout", "2s"];
        world.run("k", &options, &format!("echo {what} first >> log")).any_stderr().run();
    }
    let only = both.replace(&format!(",127.0.0.1:{}", primary.port()), "");
    let said = world.run("k", &["--store", &only], "true").status(69).any_stderr().run().stderr;
    assert!(said.contains("read-only") && said.contains("name the primary"), "{said}");
    standby.stop_following();
    let holder = world.run("k", &[], JOB).spawn();
    world.wait_for_log("up");
    assert_eq!(world.state("k"), "held", "a standby is not asked, not even by whoever only reads");
    world.write("go", "");
    holder.finish();
    let shown = both.replace("app@", "");
    let doctor = world.dlock(["doctor"]).any_stdout().run().stdout;
    assert!(doctor.contains(&shown), "{doctor}");
    assert!(doctor.contains(&format!("127.0.0.1:{} takes writes", primary.port())), "{doctor}");
    assert!(doctor.contains("a failover forgets the last locks"), "{doctor}");
    primary.kill();
    no_host_takes_writes(world.run("k", &[], "true"), &standby);
    assert_eq!(world.log(), ["standby first", "dead first", "silent first", "up", "done"]);
}

/// The holder goes on, the waiter gets the lock, and a newcomer waits until a server takes writes.
/// The replication is synchronous, so nothing need be waited for before the primary dies.
fn a_failover_disturbs_no_job_and_no_waiter(kind: Kind) {
    let (world, mut primary, standby) = pair(kind);
    primary.replicate_synchronously(&standby);
    let doctor = world.dlock(["doctor"]).any_stdout().run().stdout;
    assert!(doctor.contains("a standby has each grant before its job starts"), "{doctor}");
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next $DLOCK_FENCE >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    primary.kill();
    no_host_takes_writes(world.run("other", &[], "true"), &standby);
    let late = world.run("other", &["-w"], "echo late >> log").any_stderr().spawn();
    wait_until("it waits for a store", || late.messages().contains("takes writes now"));
    standby.promote();
    late.finish();
    assert_eq!((world.state("k"), world.fence("k")), ("held".into(), fence));
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let log = world.log();
    assert_eq!(log[..3], ["up", "late", "done"], "{log:?}");
    let next: u64 = log[3].strip_prefix("next ").and_then(|fence| fence.parse().ok()).expect("a fence");
    assert!(next > fence, "{fence}, then {log:?}");
}

/// Its connections stay open, and it answers reads.
fn a_primary_that_becomes_read_only_is_left(kind: Kind) {
    let (mut world, primary, standby) = pair(kind);
    world.use_store(url(&[&primary, &standby]));
    let holder = world.run("k", &["-t", "5m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let onlooker = world.dlock(["wait", "-w", "2m", "k"]).any_stderr().spawn();
    // The holder has two connections, the waiter one.
    wait_until("all are connected", || primary.connected() > 3);
    primary.make_read_only();
    standby.catch_up_with(&primary);
    standby.promote();
    assert_eq!(world.state("k"), "held");
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    onlooker.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

fn the_guard_gives_the_lock_back_after_a_failover(kind: Kind) {
    let (world, mut primary, standby) = pair(kind);
    let job = "echo $$ > pid; exec sleep 1000";
    let holder = world.run("k", &["-t", "20s"], job).dies_of(9).any_stderr().spawn();
    let job = world.wait_for_pid("pid");
    standby.catch_up_with(&primary);
    primary.kill();
    standby.promote();
    holder.signal(Signal::KILL);
    wait_until("it is given back", || world.state("k") == "free");
    assert!(!proc::alive(job));
    holder.finish();
}

/// The standby does not have the lock.
fn a_failover_that_forgets_the_lock_stops_the_job(kind: Kind) {
    let (world, mut primary, mut standby) = pair(kind);
    world.run("k", &[], "true").run();
    standby.catch_up_with(&primary);
    standby.stop();
    let holder = world.run("k", &["-t", "20s"], "exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let before = world.fence("k");
    primary.kill();
    standby.run();
    standby.promote();
    let said = holder.finish().stderr;
    assert!(said.contains("lost"), "{said}");
    world.run("k", &[], "true").run();
    assert!(world.fence("k") > before, "fences grow all the same");
}
