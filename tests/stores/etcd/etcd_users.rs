//! Which users and certificates etcd accepts, and what a user without rights can do.

use super::lost_members::balancer_before;
use super::{Asker, in_time, own_cluster};
use crate::support::certificates::{Authority, for_servers, nameless};
use crate::support::dlock::Dlock;
use crate::support::etcd::Etcd;
use crate::support::hand_over::{JOB, hand_over};
use crate::support::wait::{OUTAGE, wait_for, wait_until, wait_within};
use crate::support::world::World;
use dlock::rules::Acquired;
use dlock::store::Store as _;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// With the rights of docs/stores.md and no others.
#[test]
fn a_user_with_its_prefix_alone_can_do_all() {
    let (world, etcd) = own_cluster(3, &[]);
    let root = ["--user=root:rootpw"];
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "user add ops:s3same",
        "role add dlock",
        "role grant-permission dlock readwrite --prefix dlock/",
        "user grant-role ops dlock",
        "auth enable",
    ] {
        wait_for(command, || etcd.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    let url = etcd.url();
    let run = |user: &str, password: &str, script: &str| {
        world
            .run("k", &["-w", "20s"], script)
            .env("DLOCK_USERNAME", user)
            .env("DLOCK_PASSWORD", password)
            .any_stderr()
    };
    let holder = run("ops", "s3same", JOB).spawn();
    world.wait_for_log("up");
    let waiter = run("ops", "s3same", "echo next >> log").spawn();
    let as_ops = |args: &[&str]| {
        world
            .dlock(args)
            .env("DLOCK_USERNAME", "ops")
            .env("DLOCK_PASSWORD", "s3same")
            .any_stdout()
            .any_stderr()
            .run()
    };
    wait_until("it waits", || as_ops(&["status", "k"]).stdout.contains("wait"));
    let doctor = as_ops(&["doctor", "--op-timeout", "40s", "--ttl", "24h"]);
    assert!(doctor.stdout.contains("all that locks need"), "{doctor:?}");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let wrong = run("ops", "wr0ng", "true").status(77).run().stderr;
    assert!(wrong.contains("refused the user name or the password") && !wrong.contains("wr0ng"), "{wrong}");
    let nobody = world.run("k", &[], "true").status(77).any_stderr().run().stderr;
    assert!(nobody.contains("needs a user and a password"), "{nobody}");
    let elsewhere = format!("{url}/other");
    let denied = world
        .run("k", &["--store", &elsewhere], "true")
        .env("DLOCK_USERNAME", "ops")
        .env("DLOCK_PASSWORD", "s3same")
        .status(77)
        .any_stderr()
        .run()
        .stderr;
    assert!(denied.contains("other/") && denied.contains("readwrite"), "{denied}");
    assert_eq!(world.log(), ["up", "done", "next"]);
    drop(etcd.try_ctl(&[&root[..], &["auth", "disable"]].concat()));
}

fn as_root(dlock: Dlock<'_>) -> Dlock<'_> {
    dlock.env("DLOCK_USERNAME", "root").env("DLOCK_PASSWORD", "rootpw")
}

/// Prefixes do not isolate users on etcd: any user who can log in can keep any lease alive. But
/// such a user learns no token that could release a hold and can end no lease that dlock's keys are
/// attached to, and an operator can take the lock back.
#[test]
fn a_user_without_rights_learns_no_token_and_ends_no_lock() {
    let (world, etcd) = own_cluster(1, &[]);
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "user add mallory:m4llory",
        "role add elsewhere",
        "role grant-permission elsewhere readwrite --prefix elsewhere/",
        "user grant-role mallory elsewhere",
        "auth enable",
    ] {
        wait_for(command, || etcd.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    let job = "echo $DLOCK_TOKEN > token; echo $$ > pid; echo up >> log; exec sleep 1000";
    let options = ["-t", "4s", "--grace", "300ms"];
    let holder = as_root(world.run("k", &options, job)).dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = as_root(world.run("k", &["-w", "-t", "20s"], "echo next >> log")).any_stderr().spawn();
    let as_mallory = |args: &[&str]| etcd.try_ctl(&[&["--user=mallory:m4llory"], args].concat());
    let leases = || -> Vec<String> {
        let list = as_mallory(&["lease", "list"]).expect("he may ask that");
        list.lines().skip(1).map(str::to_owned).collect()
    };
    wait_until("the waiter has its lease", || leases().len() == 2);
    let told: Vec<(String, String)> = leases()
        .into_iter()
        .filter_map(|lease| {
            Some((lease.clone(), as_mallory(&["lease", "timetolive", "--keys", &lease]).ok()?))
        })
        .collect();
    // etcd 3.5.9 and later do not show them to a user who may not read the keys.
    let token = world.read("token").trim().to_owned();
    assert_eq!(token.len(), 32);
    assert!(told.iter().any(|(_, told)| told.contains("dlock/session/")), "{told:?}");
    assert!(!told.iter().any(|(_, told)| told.contains(&token)), "the token of the hold is in {told:?}");
    let (held, _) = told.iter().find(|(_, told)| told.contains("granted with TTL(4s)")).expect("a hold");
    let denied = as_mallory(&["lease", "revoke", held]).expect_err("he may not");
    assert!(denied.contains("permission denied"), "{denied}");
    // The user keeps a dead holder's lease alive; an operator can free the lock.
    let mut keeper = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args([&format!("--endpoints=127.0.0.1:{}", etcd.port(0)), "--user=mallory:m4llory"])
        .args(["lease", "keep-alive", held])
        .stdout(Stdio::piped())
        .spawn()
        .expect("etcdctl");
    let mut kept = BufReader::new(keeper.stdout.take().expect("a pipe was asked for")).lines();
    let mut is_kept = || kept.next().is_some_and(|line| line.is_ok_and(|line| line.contains("keepalived")));
    assert!(is_kept(), "he may keep it");
    // Neither dlock nor its guard can release it.
    holder.signal(Signal::STOP);
    for pid in [holder.guard(), world.wait_for_pid("pid")] {
        kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it runs");
    }
    holder.signal(Signal::KILL);
    holder.finish();
    // etcdctl renews every third of the lease.
    assert!((0..6).all(|_| is_kept()), "kept for more than the lease");
    assert_eq!(world.log(), ["up"], "prefixes do not isolate");
    as_root(world.dlock(["release", "k", "--force", "--now", "-y"])).any_stderr().any_stdout().run();
    waiter.finish();
    assert_eq!(world.log(), ["up", "next"]);
    drop(keeper.kill());
    drop(keeper.wait());
}

/// Lease ids can be derived from public values, so another client may have created the lease
/// before, with a shorter time.
#[test]
fn a_lease_id_taken_by_another_client_is_not_relied_on() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    let mut asker = Asker::new(etcd, &world.url());
    let hashed = asker.token.hashed();
    let digest = sha1_smol::Sha1::from(format!("dlock hold {} 30", hashed.secret())).digest().bytes();
    let id = u64::from_be_bytes(digest[..8].try_into().expect("eight")) >> 1;
    let body = format!(r#"{{"ID":"{id}","TTL":"2"}}"#);
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port(0))).expect("it is there");
    let request = format!("POST /v3/lease/grant HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("it hears");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("it answers");
    assert!(said.contains(&format!("\"ID\":\"{id}\"")), "{said}");
    let ask = asker.ask();
    let granted = wait_for("a grant", || asker.store.acquire(&asker.names, &ask, in_time()).ok());
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    let lease = etcd.ctl(&["lease", "timetolive", &format!("{id:x}")]);
    assert!(lease.contains("granted with TTL(30s)"), "{lease}");
    asker.leaves();
}

/// Some gateways hang up on a client with an expired login.
#[test]
fn a_gateway_that_hangs_up_on_an_old_login_is_logged_in_to_again() {
    let (world, etcd) = own_cluster(1, &[]);
    for command in ["user add root:rootpw", "user grant-role root root", "auth enable"] {
        wait_for(command, || etcd.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    // Logins seen before the first hang-up are expired from then on.
    let (is_over, seen) =
        (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new([BTreeSet::new(), BTreeSet::new()])));
    let (over, logins) = (Arc::clone(&is_over), Arc::clone(&seen));
    let port = balancer_before(etcd.port(0), move |request| {
        let text = String::from_utf8_lossy(request);
        let login = text.lines().find_map(|line| line.strip_prefix("Authorization: "))?.to_owned();
        let mut logins = logins.lock().expect("nobody panics");
        if !over.load(Ordering::SeqCst) {
            logins[0].insert(login);
            return None;
        }
        if logins[0].contains(&login) {
            return Some("");
        }
        logins[1].insert(login);
        None
    });
    let store = format!("etcd://127.0.0.1:{port}");
    let holder = as_root(world.run("k", &["-t", "8s", "--store", &store], JOB)).any_stderr().spawn();
    world.wait_for_log("up");
    is_over.store(true, Ordering::SeqCst);
    wait_within(OUTAGE, "it logs in again", || {
        (!seen.lock().expect("nobody panics")[1].is_empty()).then_some(())
    });
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

/// Over TLS, with a client certificate.
#[test]
fn members_are_reached_over_tls() {
    let (world, etcd) = certified_member(|_| {});
    let (host, ca) = (format!("127.0.0.1:{}", etcd.port(0)), world.path("ca.pem").display().to_string());
    wait_until("it serves", || {
        let run = world.run("k", &["-w", "1s"], "true").any_stderr().spawn();
        run.output().end() == crate::support::dlock::End::Status(0)
    });
    hand_over(&world, |dlock| dlock);
    let refused = |url: String, status: i32| {
        world.run("k", &["--store", &url], "true").status(status).any_stderr().run().stderr
    };
    refused(format!("etcds://{host}?ca={ca}"), 77);
    refused(format!("etcds://{host}"), 69);
}

/// A member with `--client-cert-auth`; `change` alters the member's own certificate.
fn certified_member(change: impl FnOnce(&mut rcgen::CertificateParams)) -> (World, Etcd) {
    let authority = Authority::new("etcd's");
    let mut world = World::without_redis();
    authority.write(&world.path("ca.pem"));
    authority.issue_with(&["localhost", "127.0.0.1"], change).write(&world.path(""), "server");
    authority.issue(&["client"]).write(&world.path(""), "client");
    authority.issue_with(&["client"], nameless).write(&world.path(""), "nameless");
    let path = |name: &str| world.path(name).display().to_string();
    let options = [
        format!("--cert-file={}", path("server.pem")),
        format!("--key-file={}", path("server.key")),
        format!("--trusted-ca-file={}", path("ca.pem")),
        "--client-cert-auth".into(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let etcd = Etcd::start_secure(&world.path(""), &options);
    let (host, ca) = (etcd.port(0), path("ca.pem"));
    let (cert, key) = (path("client.pem"), path("client.key"));
    world.use_store(format!("etcds://127.0.0.1:{host}?ca={ca}&cert={cert}&key={key}"));
    (world, etcd)
}

/// The gateway presents the member's certificate to the member itself, as a client.
#[test]
fn a_member_certificate_for_servers_only_is_reported() {
    let (world, _etcd) = certified_member(for_servers);
    wait_until("what is wrong is said", || {
        let output = world.run("k", &[], "touch ran").any_stderr().spawn().output();
        output.end() == crate::support::dlock::End::Status(69) && output.stderr.contains("clientAuth")
    });
    assert!(!world.path("ran").exists());
}

/// With users enabled, the gateway accepts no client certificate with a name (CN).
#[test]
fn a_certificate_with_a_name_is_refused_by_name_where_there_are_users() {
    let (world, etcd) = certified_member(|_| {});
    let certificates =
        ["ca.pem", "nameless.pem", "nameless.key"].map(|name| world.path(name).display().to_string());
    let endpoint = format!("https://127.0.0.1:{}", etcd.port(0));
    let ctl = |command: &str| {
        let mut ctl = Command::new("etcdctl");
        ctl.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoint}"));
        ctl.args(["--cacert", &certificates[0], "--cert", &certificates[1], "--key", &certificates[2]]);
        ctl.args(command.split(' ')).output().is_ok_and(|output| output.status.success()).then_some(())
    };
    for command in ["user add root:rootpw", "user grant-role root root", "auth enable"] {
        wait_for(command, || ctl(command));
    }
    let said = as_root(world.run("k", &[], "touch ran")).status(77).any_stderr().run().stderr;
    assert!(said.contains("without a CN"), "{said}");
    assert!(!world.path("ran").exists());
    let nameless = world.url().replace("client.", "nameless.");
    as_root(world.run("k", &["--store", &nameless], "true")).any_stderr().run();
}
