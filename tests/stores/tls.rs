//! TLS: which servers are trusted, which are not, and the message. The servers are real, with
//! certificates made by the test.

use crate::support::certificates::{Authority, Certificate, early, expired, for_clients};
use crate::support::dlock::Dlock;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rcgen::{BasicConstraints, IsCa};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use std::net::TcpListener;

/// A run on the world's server by another URL.
fn run_at<'w>(world: &'w World, url: &str) -> Dlock<'w> {
    world.run("k", &[], "echo ran >> log").env("DLOCK_STORE", url)
}

/// The run is refused before the job starts, with one line that contains all of `says`.
#[track_caller]
fn refused(world: &World, what: &str, run: Dlock<'_>, status: i32, says: &[&str]) {
    let output = run.status(status).stderr_like("dlock: .*\n").run();
    for part in says {
        assert!(output.stderr.contains(part), "{what}: {part:?}: {}", output.stderr);
    }
    assert_eq!(world.log(), [""; 0], "{what}");
}

/// The URL of the world's server, with other parameters.
fn url(world: &World, host: &str, parameters: &str) -> String {
    let home = world.path("");
    let parameters = parameters.replace('~', home.to_str().expect("UTF-8").trim_end_matches('/'));
    format!("rediss://{host}:{}?{parameters}", world.redis().port())
}

#[test]
fn a_server_is_trusted_by_name_and_by_address() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    for host in ["localhost", "127.0.0.1", "LOCALHOST"] {
        run_at(&world, &url(&world, host, "ca=~/ca.pem")).run();
    }
    assert_eq!(world.lines("ran"), 3);
    let shown = format!("rediss://localhost:{}", world.redis().port());
    let said = world.run("k", &["-v"], "true").any_stderr().run().stderr;
    assert!(said.contains(&shown) && !said.contains("ca="), "certificates are not part of the name: {said}");
}

/// Everything else is as without TLS: the order of waiters, wake-ups, requests to the holder,
/// status.
#[test]
fn waiters_wait_and_wake_over_tls() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    let first =
        world.run("k", &["-t", "60s"], "echo first >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("first");
    world.run("k", &[], "true").status(75).stderr_like("dlock: .*\n").run();
    let second = world.run("k", &["-w"], "echo second >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let third = world.run("k", &["-w"], "echo third >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    world.write("go", "");
    first.finish();
    second.finish();
    third.finish();
    assert_eq!(world.log(), ["first", "second", "third"]);
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
}

/// Passwords go through TLS, too.
#[test]
fn passwords_go_through_tls() {
    let world = World::with_tls(&Authority::new("ca"), &["--requirepass", "hush"]);
    refused(&world, "none", run_at(&world, &world.url()), 77, &["wants a password"]);
    refused(&world, "wrong", run_at(&world, &world.url()).env("DLOCK_PASSWORD", "x"), 77, &["refused"]);
    run_at(&world, &world.url()).env("DLOCK_PASSWORD", "hush").run();
    assert_eq!(world.lines("ran"), 1);
}

#[test]
fn servers_that_are_not_trusted_are_refused() {
    let authority = Authority::new("ca");
    let world = World::with_tls(&authority, &[]);
    let here = ["localhost"];
    let nobody: [&str; 0] = [];
    let ca = IsCa::Ca(BasicConstraints::Unconstrained);
    for (what, certificate, says) in [
        ("another authority", Authority::new("other").issue(&here), &["no authority in", "ca.pem"][..]),
        (
            "an authority made anew",
            Authority::new("ca").issue(&here),
            &["no authority in", "ca.pem", "another one, perhaps of the same name", "ca= must name"],
        ),
        (
            "another name",
            authority.issue(&["redis.example", "10.1.2.3"]),
            &["redis.example, 10.1.2.3", "not for localhost"],
        ),
        ("no name", authority.issue(&nobody), &["names no host", "subjectAltName"]),
        ("expired", authority.issue_with(&here, expired), &["expired at 2020-01-01T00:00:00Z"]),
        ("early", authority.issue_with(&here, early), &["not valid before 2090-01-01", "clock"]),
        ("a client's", authority.issue_with(&here, for_clients), &["not one for servers"]),
        ("self-signed", Certificate::self_signed(&here, IsCa::NoCa), &["no authority in"]),
        ("self-signed as by openssl", Certificate::self_signed(&here, ca), &["self-signed"]),
    ] {
        certificate.write(&world.path(""), "bad");
        world.redis().ask::<()>(&["CONFIG", "SET", "tls-cert-file", "bad.pem", "tls-key-file", "bad.key"]);
        let shown = format!("cannot trust rediss://localhost:{}: ", world.redis().port());
        let says = [says, &[&shown]].concat();
        refused(&world, what, run_at(&world, &world.url()), 69, &says);
    }
}

/// Certificates of openssl(1) that dlock does not take, in words.
#[test]
fn certificates_of_another_kind_are_explained() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    let script = "set -e
        make() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:$2 -out $1.key; }
        sign() { openssl req -new -key $1.key -subj /CN=localhost | \
            openssl x509 -req -CA $2.pem -CAkey $2.key -CAcreateserial -days 9 -out $1.pem $3; }
        echo subjectAltName=DNS:localhost > v3.ext
        for curve in 256 521; do
            make ca$curve P-$curve
            openssl req -x509 -new -key ca$curve.key -subj /CN=ca -days 9 -out ca$curve.pem
        done
        make v1 P-256; sign v1 ca256
        make long P-521; sign long ca256 '-extfile v3.ext'
        make signed P-256; sign signed ca521 '-extfile v3.ext'";
    let made = world.command("sh").args(["-c", script]).output().expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for (name, ca, says) in [
        ("v1", "ca256", "it must be version 3"),
        ("long", "ca256", "ECDSA P-256 or P-384"),
        ("signed", "ca521", "ECDSA P-256 or P-384"),
    ] {
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        world.redis().ask::<()>(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key]);
        let run = run_at(&world, &url(&world, "localhost", &format!("ca=~/{ca}.pem")));
        refused(&world, name, run, 69, &[says]);
    }
}

/// A self-signed certificate may be named as trusted, if it is not an authority's.
#[test]
fn a_named_self_signed_certificate_is_trusted() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    Certificate::self_signed(&["localhost"], IsCa::NoCa).write(&world.path(""), "own");
    world.redis().ask::<()>(&["CONFIG", "SET", "tls-cert-file", "own.pem", "tls-key-file", "own.key"]);
    run_at(&world, &url(&world, "localhost", "ca=~/own.pem")).run();
    assert_eq!(world.lines("ran"), 1);
}

#[test]
fn the_authorities_of_the_machine_decide_without_a_ca() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    let url = format!("rediss://localhost:{}", world.redis().port());
    let run = || run_at(&world, &url).env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    world.write("empty.pem", "");
    Authority::new("other").write(&world.path("other.pem"));
    let others = run().env("SSL_CERT_FILE", world.path("other.pem"));
    refused(&world, "not among them", others, 69, &["this machine trusts", "?ca=FILE"]);
    refused(
        &world,
        "there are none",
        run().env("SSL_CERT_FILE", world.path("empty.pem")),
        78,
        &["SSL_CERT_FILE", "?ca=FILE"],
    );
    run().env("SSL_CERT_FILE", world.path("ca.pem")).run();
    assert_eq!(world.lines("ran"), 1);
}

/// Without TLS no certificate file is opened: nothing ever writes into this FIFO, and a reader
/// would hang.
#[test]
fn without_tls_no_certificate_is_read() {
    let world = World::new(Backend::Redis);
    mkfifoat(CWD, world.path("fifo"), Mode::RWXU).expect("a fifo");
    world.run("k", &[], "echo ran >> log").env("SSL_CERT_FILE", world.path("fifo")).run();
    assert_eq!(world.lines("ran"), 1);
}

#[test]
fn client_certificates() {
    let authority = Authority::new("ca");
    let world = World::with_tls(&authority, &["--tls-auth-clients", "yes"]);
    authority.issue(&["client"]).write(&world.path(""), "client");
    Authority::new("other").issue(&["client"]).write(&world.path(""), "foreign");
    authority.issue_with(&["client"], expired).write(&world.path(""), "old");
    for version in ["TLSv1.3", "TLSv1.2"] {
        world.redis().ask::<()>(&["CONFIG", "SET", "tls-protocols", version]);
        let run = |parameters| run_at(&world, &url(&world, "localhost", parameters));
        refused(&world, version, run("ca=~/ca.pem"), 77, &["client certificate", "?cert=FILE&key=FILE"]);
        let foreign = run("ca=~/ca.pem&cert=~/foreign.pem&key=~/foreign.key");
        refused(&world, version, foreign, 77, &["refused the client certificate", "foreign.pem"]);
        let old = run("ca=~/ca.pem&cert=~/old.pem&key=~/old.key");
        refused(&world, version, old, 77, &["refused the client certificate", "expired"]);
        run("ca=~/ca.pem&cert=~/client.pem&key=~/client.key").run();
        assert_eq!(world.lines("ran"), 1, "{version}");
        std::fs::remove_file(world.path("log")).expect("the job's file");
    }
}

#[test]
fn tls_files_that_cannot_be_used_are_named() {
    let authority = Authority::new("ca");
    let world = World::with_tls(&authority, &[]);
    authority.issue(&["client"]).write(&world.path(""), "client");
    world.write("text", "no certificate\n");
    world.write("cut.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    world.write("noise.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for (parameters, says) in [
        ("ca=~/absent", &["ca=", "/absent", "does not exist"][..]),
        ("ca=~/", &["cannot read ca="]),
        ("ca=~/text", &["no certificate in ca="]),
        ("ca=~/server.key", &["no certificate in ca="]),
        ("ca=~/cut.pem", &["cut.pem", "not valid PEM"]),
        ("ca=~/noise.pem", &["noise.pem"]),
        ("ca=~/ca.pem&cert=~/client.pem&key=~/absent", &["key=", "does not exist"]),
        ("ca=~/ca.pem&cert=~/client.pem&key=~/client.pem", &["no private key in key="]),
        ("ca=~/ca.pem&cert=~/client.key&key=~/client.key", &["no certificate in cert="]),
        ("ca=~/ca.pem&cert=~/client.pem&key=~/server.key", &["is not the key of"]),
        ("ca=ca.pem", &["absolute"]),
        ("ca=~/ca.pem&cert=~/client.pem", &["needs key="]),
        ("insecure=1", &["no parameter insecure"]),
    ] {
        let run = run_at(&world, &url(&world, "localhost", parameters));
        refused(&world, parameters, run, 78, &[says, &["DLOCK_STORE"]].concat());
    }
}

/// One side uses TLS and the other does not: that does not heal, so a waiter gives up at once.
#[test]
fn tls_on_one_side_only_is_refused() {
    let with_tls = World::with_tls(&Authority::new("ca"), &[]);
    let without = World::new(Backend::Redis);
    Authority::new("ca").write(&without.path("ca.pem"));
    for (world, url, says) in [
        (
            &with_tls,
            format!("redis://localhost:{}", with_tls.redis().port()),
            ["wants TLS", "begins with rediss"],
        ),
        (&without, url(&without, "127.0.0.1", "ca=~/ca.pem"), ["does not speak TLS", "begins with redis"]),
    ] {
        for options in [&[][..], &["-w", "10m"]] {
            let run = world.run("k", options, "echo ran >> log").env("DLOCK_STORE", &url);
            refused(world, &url, run, 69, &says);
        }
    }
}

/// A server that hangs up may be a proxy whose server is away: a waiter waits for that.
#[test]
fn a_connection_that_is_cut_is_an_outage() {
    let world = World::without_redis();
    Authority::new("ca").write(&world.path("ca.pem"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("rediss://127.0.0.1:{port}?ca={}", world.path("ca.pem").display()),
    ] {
        let run = world.run("k", &["-w", "10m"], "true").env("DLOCK_STORE", &url).dies_of(15).any_stderr();
        let waiter = run.spawn();
        wait_until("it goes on", || waiter.messages().contains("trying again"));
        waiter.signal(Signal::TERM);
        let said = waiter.finish().stderr;
        assert!(said.contains("closed the connection"), "{said}");
    }
}

/// A server that accepts the connection and sends nothing does not delay dlock: connect-timeout
/// includes the handshake.
#[test]
fn the_handshake_ends_in_time() {
    let world = World::without_redis();
    Authority::new("ca").write(&world.path("ca.pem"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let url = format!("rediss://127.0.0.1:{port}?ca={}", world.path("ca.pem").display());
    let run = |options: &[&str]| {
        let run = world.run("k", options, "echo ran >> log").env("DLOCK_STORE", &url);
        run.env("DLOCK_CONNECT_TIMEOUT", "200ms")
    };
    refused(&world, "silence", run(&[]), 69, &["no answer in time, in the TLS handshake"]);
    let said = run(&["-w", "500ms"]).status(69).any_stderr().run().stderr;
    assert_eq!(
        said.matches("no answer in time, in the TLS handshake").count(),
        2,
        "the outage, and that the wait is over: {said}"
    );
}

/// The guard has a TLS session of its own, and releases the lock of a killed dlock.
#[test]
fn the_guard_of_a_killed_dlock_releases_over_tls() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    let job = "echo started >> log; exec sleep 1000";
    let running = world.run("k", &["-t", "1h", "--grace", "100ms"], job).dies_of(9).any_stderr().spawn();
    world.wait_for_log("started");
    running.signal(Signal::KILL);
    world.wait_for_state("k", "free");
    running.finish();
}

/// A connection that breaks is replaced by a new one, with a handshake of its own.
#[test]
fn a_lease_outlives_its_connection() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    let job = "echo started >> log; while [ ! -e go ]; do sleep 0.1; done";
    let running = world.run("k", &["-t", "8s"], job).any_stderr().spawn();
    world.wait_for_log("started");
    for _ in 0..2 {
        world.redis().ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        world.redis().after_renewal("dlock:k");
    }
    world.write("go", "");
    running.finish();
}

/// A machine in the middle for a while neither ends a job nor makes a waiter leave.
#[test]
fn a_wrong_certificate_for_a_while_ends_no_job() {
    let world = World::with_tls(&Authority::new("ca"), &[]);
    Authority::new("other").issue(&["localhost"]).write(&world.path(""), "bad");
    let certificate = |name: &str| {
        let (pem, key) = (format!("{name}.pem"), format!("{name}.key"));
        world.redis().ask::<()>(&["CONFIG", "SET", "tls-cert-file", &pem, "tls-key-file", &key]);
        world.redis().ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    };
    let job = "echo held >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "20s"], job).any_stderr().spawn();
    world.wait_for_log("held");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    certificate("bad");
    wait_until("both say why", || {
        [&holder, &waiter].iter().all(|running| running.messages().contains("cannot trust"))
    });
    certificate("server");
    world.redis().after_renewal("dlock:k");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["held", "waited"]);
}
