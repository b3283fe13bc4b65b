//! Members that are killed, stopped or cut off: the others go on, and without a majority the job is
//! dead in time.

use super::{WISHES, own_cluster};
use crate::support::dlock::finish_all;
use crate::support::etcd::Etcd;
use crate::support::hand_over::JOB;
use crate::support::members::{
    AFTER_A_CUT, a_follower_is_cut_off, a_leader_is_cut_off, all_are_gone_for_good,
    all_stand_still_for_half_a_lease, increments_through_outages, leaders_are_killed, outages_of,
};
use crate::support::outages::storm_through_outages;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::storm::is_soak;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::World;
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// Each of three members is killed and stopped in turn; holders and waiters go on with the others.
#[test]
fn a_member_that_is_gone_or_silent_is_left_alone() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    for member in 0..3 {
        etcd.kill(member);
        assert_eq!((world.state("k"), world.fence("k"), world.waiters("k")), ("held".into(), fence, 1));
        etcd.run(member);
        etcd.wait_until_it_serves();
        etcd.signal(member, Signal::STOP);
        assert_eq!((world.state("k"), world.fence("k"), world.waiters("k")), ("held".into(), fence, 1));
        world.run(&format!("other{member}"), &[], "true").run();
        etcd.signal(member, Signal::CONT);
        etcd.wait_until_it_serves();
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// A holder listens on a connection of its own. If the member there is silent, the holder hears a request at its next renewal, which
/// goes to another member. Of twelve holders some listen at the one that is stopped.
#[test]
fn a_request_is_heard_though_a_member_is_silent() {
    let (world, etcd) = own_cluster(3, &[]);
    let keys: Vec<String> = (0..12).map(|number| format!("k{number}")).collect();
    let holders: Vec<_> = keys
        .iter()
        .map(|key| {
            world.run(key, &["-t", "8s"], "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn()
        })
        .collect();
    wait_until("all hold", || world.lines("up") == keys.len());
    let leader = etcd.leader();
    etcd.signal((leader + 1) % 3, Signal::STOP);
    let requests: Vec<_> =
        keys.iter().map(|key| world.dlock(["release", key, "-y"]).any_stderr().spawn()).collect();
    finish_all(requests);
    finish_all(holders);
    etcd.signal((leader + 1) % 3, Signal::CONT);
    assert!(keys.iter().all(|key| world.state(key) == "free"));
}

/// Each of three members shuts down in order and starts again. It then answers that its own connections are closing, which is
/// an outage and not an error: waiters and watchers go on with the others.
#[test]
fn members_that_shut_down_end_no_wait() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let holder = world.run("k", &["-t", "30s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> =
        (0..10).map(|_| world.run("k", &["-w"], "echo next >> log").any_stderr().spawn()).collect();
    world.wait_for_waiters("k", 10);
    let free: Vec<_> = (0..5).map(|_| world.dlock(["wait", "k"]).any_stderr().spawn()).collect();
    let mut watches: Vec<_> =
        (0..5).map(|_| world.dlock(["watch"]).any_stdout().any_stderr().spawn()).collect();
    wait_until("all watch", || {
        world.run("seen", &[], "true").run();
        watches.iter().all(|watch| watch.printed().contains("seen"))
    });
    for member in 0..3 {
        etcd.stop(member);
        etcd.run(member);
        etcd.wait_until_it_serves();
    }
    assert!(watches.iter_mut().all(|watch| !watch.has_ended()), "a watch ended");
    world.write("go", "");
    holder.finish();
    finish_all(waiters);
    finish_all(free);
    for watch in &watches {
        watch.signal(Signal::TERM);
    }
    finish_all(watches);
    assert_eq!(world.lines("next"), 10);
}

/// A member in a minority neither renews nor grants. The majority grants again when no process of
/// the job is alive.
#[test]
fn a_holder_that_reaches_only_a_minority_loses_its_lock_in_time() {
    let (world, etcd) = own_cluster(3, &[]);
    let alone = format!("etcd://127.0.0.1:{}", etcd.port(0));
    let job = "echo $$ > pid; while :; do sleep 0.1; done";
    let options = ["-t", "5s", "--grace", "300ms", "--store", &alone];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    let pid = world.wait_for_pid("pid");
    etcd.signal(1, Signal::STOP);
    etcd.signal(2, Signal::STOP);
    holder.finish();
    assert!(!proc::alive(pid), "dead before dlock says that the lock is lost");
    world.run("k2", &["--store", &alone], "true").status(69).any_stderr().run();
    etcd.signal(1, Signal::CONT);
    etcd.signal(2, Signal::CONT);
    world.run("k", &["-w", "30s"], "echo next >> log").any_stderr().run();
    assert_eq!(world.log(), ["next"]);
}

#[test]
fn leaders_that_are_killed_disturb_no_job_and_no_queue() {
    let (world, mut etcd) = own_cluster(3, &[]);
    leaders_are_killed(&world, &mut etcd, "20s");
}

#[test]
fn members_that_stand_still_for_half_a_session_disturb_no_job() {
    let (world, etcd) = own_cluster(3, &[]);
    all_stand_still_for_half_a_lease(&world, &etcd, 20);
}

#[test]
fn half_a_session_without_any_member_disturbs_no_job() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    (0..3).for_each(|member| etcd.signal(member, Signal::STOP));
    // The length of the outage: less than half of the session, on a busy machine too.
    sleep(Duration::from_secs(4));
    (0..3).for_each(|member| etcd.signal(member, Signal::CONT));
    etcd.wait_until_it_serves();
    (0..3).for_each(|member| etcd.kill(member));
    (0..3).for_each(|member| etcd.run(member));
    etcd.wait_until_it_serves();
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

#[test]
fn a_cluster_that_is_gone_for_good_ends_the_job_in_time() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, etcd) = own_cluster(1, &[]);
        let job = "trap 'echo term >> log' TERM; echo $$ > pid; while :; do sleep 0.1; done";
        let holder = world.run("k", &["-t", "5s", "--grace", "300ms"], job).status(79).any_stderr().spawn();
        let pid = world.wait_for_pid("pid");
        etcd.signal(0, signal);
        holder.finish();
        assert!(!proc::alive(pid), "dead before dlock says that the lock is lost");
        assert!(world.log().contains(&"term".to_owned()));
    }
}

#[test]
fn members_that_are_gone_for_good_end_the_job_in_time() {
    let signals = if is_soak() { &[Signal::STOP, Signal::KILL][..] } else { &[Signal::STOP] };
    for signal in signals {
        let (world, etcd) = own_cluster(3, &[]);
        all_are_gone_for_good(&world, &etcd, *signal);
    }
}

/// An old leader that does not know of the new one claims to keep a lease alive.
#[test]
fn a_lease_that_an_old_leader_keeps_is_not_relied_on() {
    let (world, etcd) = own_cluster(1, &[]);
    let behind = stale_leader_before(etcd.port(0));
    let job = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let store = format!("etcd://127.0.0.1:{behind}");
    let options = ["-t", "5s", "--grace", "300ms", "--store", &store];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    world.wait_for_pid("pid");
    world.run("k", &["-w"], AFTER_A_CUT).any_stderr().run();
    holder.finish();
    assert_eq!(world.log(), ["next"]);
}

/// A proxy before a member that answers lease renewals itself, as a leader of an earlier term.
fn stale_leader_before(member: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve_stale(client, member));
        }
    });
    port
}

fn serve_stale(mut client: TcpStream, member: u16) -> Option<()> {
    let mut server = TcpStream::connect(("127.0.0.1", member)).ok()?;
    let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut replies, &mut to_client));
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let request = &buffer[..count];
        if request.starts_with(b"POST /v3/lease/keepalive") {
            let status = Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args([&format!("--endpoints=127.0.0.1:{member}"), "endpoint", "status", "-w", "json"])
                .output()
                .ok()?;
            let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
            let header = &status[0]["Status"]["header"];
            let (id, term) = (&header["member_id"], header["raft_term"].as_u64()? - 1);
            let body = format!(
                r#"{{"result":{{"header":{{"member_id":"{id}","raft_term":"{term}"}},"ID":"1","TTL":"5"}}}}"#
            );
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            client.write_all((head + &body).as_bytes()).ok()?;
        } else {
            server.write_all(request).ok()?;
        }
    }
    None
}

/// A proxy before a member. `answer` sees each chunk that a client sends and may return a reply to
/// send in its place; an empty reply hangs up. Other chunks reach the member.
pub fn balancer_before(
    member: u16,
    answer: impl Fn(&[u8]) -> Option<&'static str> + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || balance(client, member, &*answer));
        }
    });
    port
}

fn balance(
    mut client: TcpStream,
    member: u16,
    answer: &(dyn Fn(&[u8]) -> Option<&'static str> + Send + Sync),
) -> Option<()> {
    let server = TcpStream::connect(("127.0.0.1", member)).ok()?;
    let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut replies, &mut to_client));
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        if let Some(reply) = answer(&buffer[..count]) {
            client.write_all(reply.as_bytes()).ok();
            break;
        }
        (&server).write_all(&buffer[..count]).ok()?;
    }
    drop(server.shutdown(Shutdown::Both));
    client.shutdown(Shutdown::Both).ok()
}

/// The error pages of HAProxy, nginx and others, with and without a length. A balancer whose
/// members are all away is an outage.
/// A waiter's watch is renewed with the connection of its heartbeats. Behind twenty others it would
/// read the lock only after half a minute.
#[test]
fn a_waiter_that_a_balancer_has_forgotten_is_woken() {
    let (world, etcd) = own_cluster(1, &[]);
    let balancer = Proxy::before(etcd.port(0));
    let url = format!("etcd://127.0.0.1:{}", balancer.port());
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let others = world.queue("k", &["-w"], ["true"; 20]);
    let options = ["-w", "--store", &url, "--op-timeout", "500ms"];
    let last = world.run("k", &options, "echo last >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 21);
    let before = balancer.connections();
    balancer.forget();
    wait_until("it connects anew, also to watch", || balancer.connections() >= before + 2);
    world.write("go", "");
    holder.finish();
    finish_all(others);
    wait_within(Duration::from_secs(10), "its turn", || world.log().contains(&"last".into()).then_some(()));
    last.finish();
}

#[test]
fn a_balancer_without_members_is_an_outage() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    const REPLIES: [&str; 3] = [
        "HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n<html>503</html>",
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\nConnection: close\r\n\r\n502",
        "HTTP/1.1 504 Gateway Time-out\r\nContent-Length: 0\r\n\r\n",
    ];
    for reply in REPLIES {
        let asked = AtomicUsize::new(0);
        let port = balancer_before(etcd.port(0), move |_| {
            (asked.fetch_add(1, Ordering::SeqCst) < 3).then_some(reply)
        });
        let prefix = etcd.target(&world.url()).space;
        let store = format!("etcd://127.0.0.1:{port}/{prefix}");
        world.run("k", &["-w", "60s", "--store", &store], "echo ran >> log").any_stderr().run();
    }
    assert_eq!(world.log(), ["ran"; 3]);
}

/// Members are killed, stopped and cut off under a crowd: no two exclusive holders meet, and
/// nothing is left behind.
#[test]
fn a_storm_through_outages_of_members_breaks_no_exclusion() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let grants = if is_soak() { 3000 } else { 60 };
    storm_through_outages(&world, 6, grants, &WISHES, outages_of(&mut etcd));
    wait_until("all leases have ended", || etcd.ctl(&["lease", "list"]) == "found 0 leases");
    assert_eq!(etcd.leftovers("/dlock"), [""; 0]);
}

#[test]
fn no_increment_is_lost() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let (times, ttl) = if is_soak() { (2000, "2s") } else { (60, "5s") };
    increments_through_outages(&world, times, &["-t", ttl, "--grace", "100ms"], outages_of(&mut etcd));
}

#[test]
fn a_leader_that_is_cut_off_keeps_no_lease() {
    let (world, etcd) = own_cluster(3, &[]);
    a_leader_is_cut_off(&world, &etcd);
}

#[test]
fn a_follower_that_is_cut_off_keeps_no_lease() {
    let (world, etcd) = own_cluster(3, &[]);
    a_follower_is_cut_off(&world, &etcd);
}
