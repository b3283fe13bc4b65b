//! What a quorum refuses, and what it needs: an odd number of different masters, a lease that none
//! of them can forget, rights.

use super::{ALONE, STEADY};
use crate::support::certificates::Authority;
use crate::support::dlock::BINARY;
use crate::support::masters::{Masters, url};
use crate::support::wait::wait_until;

/// A run inside a job that holds the lock does not take it again. What independent masters cannot
/// do is refused.
#[test]
fn a_run_inside_a_job_starts_and_other_modes_are_refused() {
    let mut masters = Masters::aged(3);
    masters.at_mut(1).kill();
    let inner = format!("'{BINARY}' run -k k -- sh -c 'echo inside >> log'");
    masters.run("k", &[], &inner).any_stderr().run();
    assert_eq!(masters.world().lines("inside"), 1);
    for (options, why) in [
        (&["-k", "other"][..], "takes one key at a time"),
        (&["-s"], "has no shared locks"),
        (&["-n", "2"], "has no slots"),
    ] {
        let run = masters.run("k", options, "echo ran >> log").status(64);
        run.stderr_like(&format!("dlock: redis\\+quorum:// {why}: .*\n")).run();
    }
    let run = masters.run("k", &["--replicas", "1"], "echo ran >> log").status(78);
    run.stderr_like("dlock: --replicas: .* has no replicas.*\n").run();
    assert_eq!(masters.world().lines("ran"), 0);
}

#[test]
fn a_url_that_is_no_quorum_is_refused() {
    let mut masters = Masters::aged(3);
    let ports = masters.ports();
    let refused = |masters: &Masters, store: &str, why: &str| {
        let run = masters.run("k", &[], "echo ran >> log").env("DLOCK_STORE", store);
        run.status(78).stderr_like(&format!("dlock: .*{why}.*\n")).run();
    };
    refused(&masters, &url(&ports[..2]), "at least three masters");
    refused(&masters, &format!("{},h4", masters.url()), "an odd number of masters");
    refused(&masters, &url(&[ports[0], ports[1], ports[0]]), "named twice");
    // With one master away, both others must answer before there is a result.
    masters.at_mut(1).kill();
    let alias = format!("redis+quorum://127.0.0.1:{0},localhost:{0},127.0.0.1:{1}", ports[0], ports[1]);
    refused(&masters, &alias, "are the same server");
    let port = ports[0].to_string();
    masters.at(2).ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    refused(&masters, &masters.url(), "is a replica");
    assert_eq!(masters.world().log(), [""; 0]);
}

#[test]
fn a_lease_that_could_be_forgotten_is_refused() {
    let masters = Masters::aged(3);
    let refused = |options: &[&str], status, why: &str| {
        let run = masters.run("k", options, "echo ran >> log");
        run.status(status).stderr_like(&format!("dlock: {why}.*\n")).run();
    };
    refused(&["-t", "6m"], 64, "--ttl of 6m is longer than the default --max-lease of 5m");
    refused(&["--min-hold", "6m"], 64, "--min-hold of 6m is longer than the default --max-lease");
    refused(&["--max-lease", "5s"], 64, "the default --ttl of 30s is longer than --max-lease of 5s");
    let acquire = masters.dlock(&["acquire", "-k", "k", "-t", "6m"]).status(64);
    acquire.stderr_like("dlock: --ttl of 6m is longer than the default --max-lease of 5m.*\n").run();
    masters.world().write("short.toml", "ttl = '11s'\nmax-lease = '10s'");
    let acquire = masters.dlock(&["acquire", "-k", "k", "--config", "short.toml"]).status(78);
    let said = "dlock: ttl \\(short.toml line 1\\) of 11s is longer than max-lease \\(short.toml line 2\\) of 10s.*\n";
    acquire.stderr_like(said).run();
    masters.world().write("long.toml", "ttl = '1h'");
    refused(
        &["--config", "long.toml"],
        78,
        "ttl \\(long.toml line 1\\) of 1h is longer than the default --max-lease",
    );
    masters.world().write("both.toml", "ttl = '1h'\nmax-lease = '2h'");
    let run =
        masters.run("k", &["--config", "both.toml", "-t", "61m", "--min-hold", "1s"], "echo ran >> log");
    // This is allowed; the masters have been up for an hour or two.
    run.any_stderr().spawn().output();
    refused(
        &["--config", "both.toml", "-t", "3h"],
        64,
        "--ttl of 3h is longer than max-lease \\(both.toml line 2\\) of 2h",
    );
}

/// The rights for a single server and INFO are enough. Without INFO a master's uptime is unknown.
#[test]
fn tls_and_the_least_rights() {
    let masters = Masters::aged_with_tls(3, &Authority::new("ca"));
    let hosts: Vec<_> = masters.ports().iter().map(|port| format!("localhost:{port}")).collect();
    let ca = masters.world().path("master0/ca.pem");
    let store = format!("rediss+quorum://{}?ca={}", hosts.join(","), ca.display());
    let grant = |words: &[String]| {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        (0..3).for_each(|at| masters.at(at).ask::<()>(&words));
    };
    let login = [("DLOCK_STORE", store.as_str()), ("DLOCK_USERNAME", "dlock"), ("DLOCK_PASSWORD", "hush")];
    let run = |options: &[&str], script: &str| {
        let run = masters.run("k", options, script);
        login.iter().fold(run, |run, (name, value)| run.env(name, value))
    };
    let dlock = |words: &[&str]| {
        let dlock = masters.dlock(words).any_stdout().any_stderr();
        login.iter().fold(dlock, |dlock, (name, value)| dlock.env(name, value))
    };
    let line = crate::stores::acl::line();
    let without_info: Vec<_> = line.iter().filter(|word| *word != "+info").cloned().collect();
    grant(&without_info);
    let refused = run(&[], "echo ran >> log").status(77);
    refused.stderr_like("dlock: k: .*this user may not see the uptime of .* \\(INFO\\).*\n").run();
    grant(&line);
    run(&["--min-hold", "1ms"], ALONE).run();
    let holder = run(&["-t", "6s"], STEADY).status(79).any_stderr().spawn();
    masters.world().wait_for_log("up");
    run(&[], "echo ran >> log").status(75).any_stderr().run();
    run(&["-w", "300ms"], "echo ran >> log").status(75).any_stderr().run();
    masters.at(0).after_renewal("dlock:k");
    masters.at(1).ask::<()>(&["DEL", "dlock:k"]);
    wait_until("it is won back", || masters.at(1).get("dlock:k").is_some());
    assert!(dlock(&["status"]).run().stdout.contains("held"));
    dlock(&["release", "k", "--force"]).run();
    holder.finish();
    assert_eq!(masters.world().lines("ran"), 0);
}

/// A user whose process limit is reached gets a clear message.
#[test]
fn threads_that_cannot_be_made_are_an_error() {
    let masters = Masters::aged(3);
    for command in [&["status"][..], &["status", "k"]] {
        // A stack larger than the address space.
        let run = masters.dlock(command).env("RUST_MIN_STACK", "70368744177664").any_stdout();
        let failed = run.any_stderr().spawn().output();
        assert_eq!(failed.status.code(), Some(69), "{command:?}: {}", failed.stderr);
        assert!(failed.stderr.contains("cannot start a thread"), "{command:?}: {}", failed.stderr);
    }
}
