//! TLS and passwords of sentinels, and how dlock checks their answers.

use super::JOB;
use crate::support::certificates::Authority;
use crate::support::redis::next_port;
use crate::support::replicated;
use crate::support::sentinel::{Sentinel, admit_watchers, url};
use crate::support::world::World;

/// Sentinels and master over TLS, under the names that the sentinels know.
#[test]
fn sentinels_work_over_tls() {
    let mut world = World::with_tls(&Authority::new("ca"), &[]);
    admit_watchers(world.redis());
    let port = next_port();
    let home = world.path("");
    let lines = format!(
        "tls-port {port}\ntls-replication yes\ntls-auth-clients no\ntls-cert-file {0}/server.pem\n\
         tls-key-file {0}/server.key\ntls-ca-cert-file {0}/ca.pem",
        home.display()
    );
    let _sentinel = Sentinel::start(&world, world.redis().port(), 1, 0, &lines);
    let url = format!("rediss+sentinel://localhost:{port}/m");
    world
        .run("k", &[], "true")
        .env("DLOCK_STORE", &url)
        .status(69)
        .stderr_like("dlock: .*the sentinel .*\n")
        .run();
    world.use_store(format!("{url}?ca={}/ca.pem", home.display()));
    let holder = world.run("k", &["-t", "6s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    for _ in 0..3 {
        world.redis().after_renewal("dlock:k");
    }
    world.write("go", "");
    holder.finish();
}

/// Sentinels have users of their own. An error about them names the sentinel, not the master.
#[test]
fn sentinels_have_credentials_of_their_own() {
    let mut world = World::without_redis();
    let (master, _) = replicated::start(&world, 0);
    admit_watchers(&master);
    let rules = "user dlock on >sesame ~* &* +@all\nuser default off";
    let sentinel = Sentinel::start(&world, master.port(), 1, 0, rules);
    let plain = url(&[sentinel.port()]);
    world.write("word", "sesame\n");
    world.write("wrong", "no\n");
    let with = |file: &str| {
        format!("{plain}?sentinel-username=dlock&sentinel-password-file={}", world.path(file).display())
    };
    let (good, wrong) = (with("word"), with("wrong"));
    for (url, says) in [(&plain, "password"), (&wrong, "refused the user name or the password")] {
        let run = world.run("k", &[], "touch ran").env("DLOCK_STORE", url);
        let output = run.status(77).stderr_like("dlock: .*\n").run();
        assert!(output.stderr.contains("the sentinel 127.0.0.1"), "{}", output.stderr);
        assert!(output.stderr.contains(says), "{}", output.stderr);
        assert!(!output.stderr.contains("sesame"), "{}", output.stderr);
    }
    assert!(!world.path("ran").exists());
    world.use_store(good);
    world.run("k", &[], "true").run();
}

/// A service name that the sentinels do not know, and a server that is not the master that they
/// name.
#[test]
fn answers_of_sentinels_are_checked() {
    let mut world = World::without_redis();
    let (master, replicas) = replicated::start(&world, 1);
    // The sentinel cannot log in to the server, and keeps naming it.
    let sentinel = Sentinel::start(&world, replicas[0].port(), 1, 0, "");
    let other = url(&[sentinel.port()]).replace("/m", "/other");
    let unknown = world.run("k", &[], "touch ran").env("DLOCK_STORE", &other);
    unknown.status(78).stderr_like("dlock: .*no master named 'other'.*\n").run();
    world.use_store(url(&[sentinel.port()]));
    world.run("k", &[], "touch ran").status(69).stderr_like("dlock: .*not the master.*\n").run();
    assert!(!world.path("ran").exists());
    assert!(master.keys().is_empty() && replicas[0].keys().is_empty());
}
