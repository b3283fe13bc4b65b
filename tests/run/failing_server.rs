//! A server that hangs up, fails or is full sees few connections of a dlock and its guard, whatever
//! they do; and a run that does not wait is served all the same, if that takes less than ten
//! seconds.

use crate::support::dlock::Running;
use crate::support::door::Door;
use crate::support::proc;
use crate::support::wait::wait_within;
use crate::support::world::{Backend, World, on_every_store};
use std::time::Duration;

/// Most connections that a server may see in ten seconds.
const MOST: usize = 25;

on_every_store!(a_server_that_hangs_up_is_left_in_peace, a_holder_leaves_its_server_in_peace);

/// The URL of the world's store behind a door; None for a store without a server.
fn behind(world: &World, backend: Backend, door: u16) -> Option<String> {
    if backend == Backend::File {
        return None;
    }
    if backend == Backend::Redis {
        return Some(format!("redis://127.0.0.1:{door}"));
    }
    Some(world.url().replace(&format!(":{}", port_of(world, backend)), &format!(":{door}")))
}

fn port_of(world: &World, backend: Backend) -> u16 {
    if backend == Backend::Redis {
        return world.redis().port();
    }
    let url = world.url();
    let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    authority.and_then(|authority| authority.rsplit(':').next()?.parse().ok()).expect("a port")
}

/// Waits until neither dlock nor a guard is left in this world.
fn wait_for_the_guards(world: &World) {
    let home = world.path("");
    let home = home.to_str().expect("a path").trim_end_matches('/').as_bytes().to_vec();
    wait_within(Duration::from_secs(60), "the guards end", || {
        let lives = proc::pids()
            .into_iter()
            .any(|pid| proc::name(pid).starts_with("dlock") && proc::has_in_environment(pid, &home));
        (!lives).then_some(())
    });
}

const COMMANDS: [&[&str]; 15] = [
    &["run", "-k", "k", "--", "true"],
    &["run", "-k", "k", "-w8s", "--", "true"],
    &["run", "-k", "k", "-k", "l", "-t", "1s", "-w8s", "--", "true"],
    &["hold", "-k", "k", "-w8s", "--pid", "1"],
    &["acquire", "-k", "k"],
    &["acquire", "-k", "k", "-w8s"],
    &["release", "k", "-y"],
    &["wait", "k", "-w12s"],
    &["status", "k"],
    &["status"],
    &["history", "k"],
    &["pause", "k", "--for", "1h", "--reason", "freeze"],
    &["metrics"],
    &["doctor"],
    &["watch", "k"],
];

fn a_server_that_hangs_up_is_left_in_peace(backend: Backend) {
    let world = World::new(backend);
    if backend == Backend::File {
        return;
    }
    let mut running: Vec<(&[&str], Door, Running)> = COMMANDS
        .iter()
        .map(|words| {
            let door = Door::shut();
            let url = behind(&world, backend, door.port()).expect("it has a server");
            let call = world.dlock(*words).env("DLOCK_STORE", url).any_stdout().any_stderr();
            (*words, door, call.spawn())
        })
        .collect();
    wait_within(Duration::from_secs(60), "each ends", || {
        running.iter_mut().all(|(words, _, call)| words[0] == "watch" || call.has_ended()).then_some(())
    });
    running.pop();
    wait_for_the_guards_of(&world, &mut running);
}

fn wait_for_the_guards_of(world: &World, running: &mut [(&[&str], Door, Running)]) {
    wait_for_the_guards(world);
    let seen: Vec<_> =
        running.iter().map(|(words, door, _)| (door.most_in_ten_seconds(), door.knocks(), *words)).collect();
    println!("{seen:#?}");
    assert!(seen.iter().all(|(most, ..)| *most <= MOST), "{seen:#?}");
}

/// A holder whose server hangs up for longer than the lease, and one whose job ends meanwhile.
fn a_holder_leaves_its_server_in_peace(backend: Backend) {
    let world = World::new(backend);
    if backend == Backend::File {
        return;
    }
    let server = port_of(&world, backend);
    let mut holders: Vec<(&[&str], Door, Running)> = [
        ("k1", &["run", "-k", "k1", "-t4s", "--", "sh", "-c", "echo up >> log; sleep 1000"][..], 79),
        (
            "k2",
            &[
                "run",
                "-k",
                "k2",
                "-t30s",
                "--",
                "sh",
                "-c",
                "echo up >> log; until [ -e go ]; do sleep 0.1; done",
            ],
            0,
        ),
        ("k3", &["acquire", "-k", "k3", "-t30s"], 0),
    ]
    .into_iter()
    .map(|(_, words, status)| {
        let door = Door::before(server);
        let url = behind(&world, backend, door.port()).expect("it has a server");
        let call = world.dlock(words).env("DLOCK_STORE", url).any_stdout().any_stderr().status(status);
        (words, door, call.spawn())
    })
    .collect();
    world.wait_for_lines("up", 2);
    holders.iter().for_each(|(_, door, _)| door.close());
    world.write("go", "");
    wait_within(Duration::from_secs(60), "each ends", || {
        holders.iter_mut().all(|(_, _, call)| call.has_ended()).then_some(())
    });
    wait_for_the_guards_of(&world, &mut holders);
}
