//! `dlock renew`: a script prolongs the lease that it acquired, and never shortens it by accident.

use crate::support::dlock::BINARY;
use crate::support::world::{Backend, World, on_every_store};

on_every_store!(
    a_lease_is_extended,
    a_lease_is_not_shortened_by_accident,
    a_hold_that_is_gone_stays_gone,
    the_hold_of_a_run_is_not_renewed,
    a_script_is_told_of_a_request_to_stop,
);

fn lease(world: &World, key: &str) -> u64 {
    world.status(key)["holders"][0]["lease_ms"].as_u64().unwrap_or_default()
}

/// Acquires a lock, and writes the token and DLOCK_HELD into files.
fn acquire(world: &World, options: &[&str]) {
    let output = world.dlock(["acquire", "-q", "--export"]).args(options).any_stdout().run().stdout;
    let value = |name: &str| {
        let rest = output.split(&format!("export {name}='")).nth(1).expect("exported");
        rest.split("';\n").next().expect("quoted").to_owned()
    };
    world.write("token", &value("DLOCK_TOKEN"));
    world.write("held", &value("DLOCK_HELD"));
}

fn a_lease_is_extended(backend: Backend) {
    let world = World::new(backend);
    acquire(&world, &["-k", "k", "-k", "l", "-t", "1m"]);
    let renew = world.dlock(["renew", "k", "-t", "10m", "-v"]).env("DLOCK_HELD", world.read("held"));
    renew.stderr_like("dlock: k and l in .* is renewed until .*, for 10m\n").run();
    assert!(lease(&world, "k") > 500_000 && lease(&world, "l") > 500_000, "all of the hold");
    world.dlock(["renew", "-t", "20m"]).env("DLOCK_HELD", world.read("held")).run();
    assert!(lease(&world, "k") > 1_100_000);
    world.dlock(["renew", "l", "-t", "1h", "--token-file", "token"]).run();
    assert!(lease(&world, "l") > 3_500_000 && lease(&world, "k") < 1_300_000, "by key");
    world.dlock(["renew", "l", "-t", "2h", "--token-file", "-"]).stdin(&world.read("token")).run();
    assert!(lease(&world, "l") > 7_100_000);
    world.dlock(["renew", "k", "-t", "1s", "--token-file", "token"]).run();
    assert!(lease(&world, "k") <= 1000, "who says so gets a shorter one");
}

fn a_lease_is_not_shortened_by_accident(backend: Backend) {
    let world = World::new(backend);
    acquire(&world, &["-k", "k", "-t", "10m"]);
    world.dlock(["renew", "k", "--token-file", "token"]).run();
    assert!(lease(&world, "k") > 500_000);
    world.dlock(["renew", "k", "-t", "1m", "--token-file", "token"]).run();
    world.dlock(["renew"]).env("DLOCK_HELD", world.read("held")).run();
    assert!(lease(&world, "k") > 500_000, "as it was acquired");
}

fn a_hold_that_is_gone_stays_gone(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["renew"]).status(79).stderr_like("dlock: this process runs under no lock.*\n").run();
    world.dlock(["renew", "k"]).status(79).any_stderr().run();
    acquire(&world, &["-k", "k"]);
    let renew = |like: &str| {
        let renew = world.dlock(["renew", "k"]).env("DLOCK_HELD", world.read("held"));
        renew.status(79).stderr_like(like).run();
        world.dlock(["renew", "k", "--token-file", "token"]).status(79).stderr_like(like).run();
    };
    world.dlock(["release", "k", "-q"]).env("DLOCK_HELD", world.read("held")).run();
    renew("dlock: k in .* is not held any more.*\n");
    assert_eq!(world.state("k"), "free");
    acquire(&world, &["-k", "k"]);
    world.dlock(["release", "k", "-q", "--force"]).run();
    renew("dlock: an operator took k in .* away.*\n");
    acquire(&world, &["-k", "late"]);
    let fence = world.status("late")["fence"].as_u64().expect("a fence");
    let other = world.read("held").replace(&fence.to_string(), &(fence - 1).to_string());
    for command in [&["renew", "late"][..], &["check", "late"]] {
        let command = world.dlock(command).env("DLOCK_HELD", &other);
        command.status(79).stderr_like("dlock: late in .* is not held any more.*\n").run();
    }
    acquire(&world, &["-k", "short", "-t", "3s"]);
    world.wait_for_state("short", "free");
    let renew = world.dlock(["renew"]).env("DLOCK_HELD", world.read("held"));
    renew.status(79).stderr_like("dlock: short in .* is not held any more.*\n").run();
}

/// The dlock of the run relies on the lease that it requested.
fn the_hold_of_a_run_is_not_renewed(backend: Backend) {
    let world = World::new(backend);
    let job = "$D renew k -t 1h -v; echo $?; $D renew -q; echo $?; $D status --json k > status
        $D release k -qy --force --now; $D renew k; echo $?";
    let run = world.run("k", &["--on-lost", "warn", "-q"], job).env("D", BINARY);
    let output = run.stdout("0\n0\n79\n").status(79).any_stderr().run();
    assert!(output.stderr.contains("is renewed by the 'dlock run'"), "{}", output.stderr);
    let status: serde_json::Value = serde_json::from_str(&world.read("status")).expect("JSON");
    assert!(status[0]["holders"][0]["lease_ms"].as_u64().expect("a lease") <= 30_000, "{status}");
    // The lock that the script acquired comes before the lock of the surrounding run.
    let job = "lock=$($D acquire -q --export -k inner -t 1m) || exit; eval \"$lock\"; $D renew -v";
    let run = world.run("k2", &[], job).env("D", BINARY);
    run.stderr_like("dlock: inner in .* is renewed .*\n").run();
}

fn a_script_is_told_of_a_request_to_stop(backend: Backend) {
    let world = World::new(backend);
    acquire(&world, &["-k", "k", "-t", "10m"]);
    let ask = world.dlock(["release", "k", "-y", "--timeout", "0"]).status(75).any_stderr().run();
    assert!(ask.stderr.contains("is a script") && ask.stderr.contains("--force"), "{}", ask.stderr);
    let renew = world.dlock(["renew", "k", "-q"]).env("DLOCK_HELD", world.read("held"));
    renew.stderr_like("dlock: .+@.+ \\(pid \\d+\\) asks for k in .* back.*\n").run();
    assert_eq!(world.state("k"), "held");
}
