//! `--wait` covers the first contact: a store that cannot be reached yet is waited for like the
//! lock. An error that waiting cannot fix ends the run at once.

use crate::support::dlock::{Dlock, finish_all};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use std::net::TcpListener;
use std::time::Instant;

/// The URL of a store at which nothing listens yet.
fn absent(world: &World) -> String {
    format!("redis+unix://{}", world.path("later.sock").display())
}

/// Starts the store.
fn appears(world: &World) {
    std::os::unix::fs::symlink(world.redis().socket(), world.path("later.sock")).expect("a link");
}

fn calls<'w>(world: &'w World, bound: &str) -> [Dlock<'w>; 3] {
    [
        world.dlock(["run", "-k", "run", &format!("-w{bound}"), "--", "touch", "ran"]),
        world.dlock(["acquire", "-k", "acquire", &format!("-w{bound}")]).any_stdout(),
        world.dlock(["wait", "wait", &format!("-w{bound}")]),
    ]
    .map(|call| call.env("DLOCK_STORE", absent(world)))
}

#[test]
fn an_outage_at_the_start_is_waited_out() {
    let world = World::new(Backend::Redis);
    let calls = calls(&world, "10m").map(|call| call.any_stderr().spawn());
    wait_until("the run waits", || calls[0].messages().contains("still waiting for"));
    let said = Instant::now();
    for call in &calls {
        wait_until("it says that it waits", || call.messages().contains("still waiting for"));
    }
    assert!(!world.path("ran").exists());
    let tried = said.elapsed();
    appears(&world);
    for call in calls {
        let said = call.finish().stderr;
        assert_eq!(said.matches("trying again").count(), 1, "it is said once: {said}");
        // The end of the outage is reported.
        let over = ["got run in ", "acquire in ", "answers again", " is free after "];
        assert!(over.iter().any(|over| said.contains(over)), "{said}");
    }
    assert!(world.path("ran").exists());
    // It arrived when it first tried.
    let ends = world.dlock(["history", "--json", "run"]).any_stdout().run().stdout;
    let ends: serde_json::Value = serde_json::from_str(&ends).expect("JSON");
    let waited = ends[0]["waited_ms"].as_u64().expect("a time");
    assert!(u128::from(waited) > tried.as_millis(), "{ends}");
}

/// Inside a job dlock first asks the store whether the lock is held, before it joins a queue.
#[test]
fn a_dlock_inside_of_a_job_waits_for_the_store() {
    let world = World::new(Backend::Redis);
    let held = format!(
        r#"[{{"store":"{}","prefix":"dlock:","keys":["k"],"token":"0123456789abcdef0123456789abcdef","fence":1}}]"#,
        absent(&world)
    );
    let calls =
        [&["run", "-k", "k", "-w", "10m", "--", "touch", "ran"][..], &["acquire", "-k", "k", "-w", "10m"]]
            .map(|words| world.dlock(words).env("DLOCK_HELD", &held).env("DLOCK_STORE", absent(&world)))
            .map(|call| call.any_stdout().any_stderr().spawn());
    let stopped = world.dlock(["acquire", "-k", "k", "-w"]).env("DLOCK_HELD", &held);
    let stopped = stopped.env("DLOCK_STORE", absent(&world)).any_stderr().dies_of(15).spawn();
    for call in calls.iter().chain([&stopped]) {
        wait_until("it says that it waits", || call.messages().contains("still waiting"));
    }
    stopped.signal(rustix::process::Signal::TERM);
    stopped.finish();
    appears(&world);
    finish_all(calls);
    assert!(world.path("ran").exists());
}

#[test]
fn a_wait_that_ends_in_an_outage_is_69() {
    let world = World::new(Backend::Redis);
    for call in calls(&world, "0.4").map(|call| call.status(69).any_stderr().spawn()) {
        let said = call.finish().stderr;
        assert!(said.contains("trying again") && said.contains("there is no such socket"), "{said}");
    }
    // A run without --wait ends at once.
    let run = world.dlock(["run", "-k", "k", "--", "touch", "ran"]).env("DLOCK_STORE", absent(&world));
    run.status(69).stderr_like("dlock: k: cannot reach .*did not run\n").run();
    assert!(!world.path("ran").exists());
}

#[test]
fn an_error_that_waiting_cannot_fix_ends_at_once() {
    let world = World::with_redis(&["--requirepass", "sesame"]);
    let port = world.redis().port();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let web = format!("redis://{}", listener.local_addr().expect("an address"));
    // The name is invalid, so it fails without a name service.
    let nameless = "redis://no..such..name".to_owned();
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _read = stream.read(&mut [0; 512]);
            let _written = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for (url, status) in [
        (format!("redis://:wrong@127.0.0.1:{port}"), 77),
        (world.url(), 77),
        (format!("redis://:sesame@127.0.0.1:{port}/99"), 78),
        (nameless, 69),
        (web, 69),
    ] {
        for words in [
            &["run", "-k", "k", "-w", "10m", "--", "touch", "ran"][..],
            &["acquire", "-k", "k", "-w", "10m"],
            &["wait", "k", "-w", "10m"],
        ] {
            let call = world.dlock(words).env("DLOCK_STORE", &url).status(status).any_stderr().run();
            assert!(!call.stderr.contains("trying again"), "{url}: {}", call.stderr);
        }
    }
    assert!(!world.path("ran").exists());
}
