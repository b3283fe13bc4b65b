//! `dlock acquire`: a lock that a script releases itself, in the shells that scripts are written
//! for.

use crate::support::dlock::{BINARY, Dlock, Running};
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

on_every_store!(
    the_documented_script_holds_its_lock_and_gives_it_back,
    the_documented_script_stops_when_it_has_no_lock,
    a_signal_ends_the_documented_script_and_its_hold,
    an_eval_stops_a_script_that_does_not_get_the_lock,
    any_key_reaches_the_script_unchanged,
    a_run_in_the_script_has_its_lock,
    a_token_is_printed_and_proves_the_hold,
    the_hold_outlives_its_process_until_the_lease_ends,
    every_mode_and_several_keys,
    it_waits_its_turn,
    a_signal_leaves_the_queue,
    a_killed_waiter_delays_nobody,
    it_does_not_wait_for_itself,
    a_hold_whose_token_cannot_be_printed_is_released,
    a_min_hold_outlasts_the_release,
);

/// The shells that the documents promise.
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];

/// Runs a script in a shell, with dlock in its PATH.
fn script<'w>(world: &'w World, shell: &str, text: &str) -> Dlock<'w> {
    let bin = Path::new(BINARY).parent().expect("a directory").display();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    world.dlock([""; 0]).under(&[shell, "-c", text]).env("PATH", path)
}

/// The script of docs/recipes.md, with stand-ins for its programs. The middle one waits for the
/// file `go`.
fn documented<'w>(world: &'w World, shell: &str) -> Dlock<'w> {
    let recipes = include_str!("../../docs/recipes.md");
    let block = recipes.split("```sh\n").find(|block| block.contains("$(dlock acquire --export"));
    let text = block.and_then(|block| block.split("```").next()).expect("the script");
    for step in ["fetch", "load"] {
        world.script(step, &format!("#!/bin/sh\necho {step} >> log\n"));
    }
    world.write("config/dlock.toml", "verbose = true\n");
    world.script("transform", "#!/bin/sh\necho transform >> log\nuntil [ -e go ]; do sleep 0.1; done\n");
    world.write("documented", text);
    script(world, shell, "").under(&[shell, "./documented"]).any_stderr()
}

fn the_documented_script_holds_its_lock_and_gives_it_back(backend: Backend) {
    for shell in SHELLS {
        let world = World::new(backend);
        let running = documented(&world, shell).spawn();
        world.wait_for_log("transform");
        let status = world.status("import");
        assert_eq!(status["state"], "held", "{shell}");
        assert_eq!(status["holders"][0]["pid"], running.pid(), "{shell}: the script is the holder: {status}");
        let command = status["holders"][0]["command"].as_str().expect("a command");
        assert!(command.contains("documented"), "{shell}: {command}");
        assert!(status["holders"][0]["lease_ms"].as_u64().expect("a lease") > 500_000, "{status}");
        world.run("import", &[], "true").status(75).any_stderr().run();
        world.write("go", "");
        let output = running.finish();
        assert!(output.stderr.contains("is acquired until"), "{shell}: {}", output.stderr);
        assert!(output.stderr.contains("is given back"), "{shell}: {}", output.stderr);
        assert_eq!(world.log(), ["fetch", "transform", "load"], "{shell}");
        assert_eq!(world.state("import"), "free", "{shell}");
    }
}

fn the_documented_script_stops_when_it_has_no_lock(backend: Backend) {
    for shell in SHELLS {
        let world = World::new(backend);
        let holder = hold(&world, "import", &[]);
        let output = documented(&world, shell).status(75).run();
        assert!(output.stderr.contains("is busy: held by"), "{shell}: {}", output.stderr);
        assert_eq!(world.lines("fetch"), 0, "{shell}");
        assert_eq!(world.state("import"), "held", "{shell}: the other's hold is left alone");
        world.write("end", "");
        holder.finish();
        // The lock is taken away between two steps. The script stops before the step that must not
        // be done twice.
        let running = documented(&world, shell).status(79).spawn();
        world.wait_for_log("transform");
        world.dlock(["release", "import", "--force", "--now", "-y"]).any_stderr().run();
        world.write("go", "");
        running.finish();
        assert_eq!(world.lines("load"), 0, "{shell}");
    }
}

fn a_signal_ends_the_documented_script_and_its_hold(backend: Backend) {
    for shell in SHELLS {
        let world = World::new(backend);
        let running = documented(&world, shell).status(143).spawn();
        world.wait_for_log("transform");
        running.signal(Signal::TERM);
        // A shell runs its traps when the command in the foreground has ended.
        world.write("go", "");
        running.finish();
        assert_eq!(world.lines("load"), 0, "{shell}");
        assert_eq!(world.state("import"), "free", "{shell}");
    }
}

fn an_eval_stops_a_script_that_does_not_get_the_lock(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k", &[]);
    let unreachable = "--store redis://127.0.0.1:1 --connect-timeout 0.2";
    for shell in SHELLS {
        for (options, status) in
            [("-k k", 75), ("-k k -E 9", 9), ("-k k -w 0.1", 75), ("-k k --jsno", 64), ("", 64)]
        {
            let text = format!("eval \"$(dlock acquire --export {options})\"; echo on");
            script(&world, shell, &text).status(status).any_stderr().run();
            let text = format!("lock=$(dlock acquire --export {options}) || exit; eval \"$lock\"; echo on");
            script(&world, shell, &text).status(status).any_stderr().run();
        }
        for wrong in [
            "-x acquire --export -k k",
            "acquier --export -k k",
            "acquire --export=yes -k k",
            "acquire --export -k k --help",
            "--version --export",
            "renew k --export",
            "hold -k free --background --export",
            "hold -k free --pid $$ --background --export -E 0",
        ] {
            let text = format!("eval \"$(dlock {wrong})\"; echo on");
            script(&world, shell, &text).status(64).any_stderr().run();
        }
        let text = format!("eval \"$(dlock acquire --export -k k {unreachable})\"; echo on");
        script(&world, shell, &text).status(69).any_stderr().run();
        let text = format!("set -eu; eval \"$(dlock acquire --export -k free-{shell})\"; echo on");
        script(&world, shell, &text).stdout("on\n").any_stderr().run();
    }
    world.write("end", "");
    holder.finish();
}

fn any_key_reaches_the_script_unchanged(backend: Backend) {
    let world = World::new(backend);
    let keys = ["it's $(touch pwned) `touch pwned` \"$HOME\" \\ é ; & * ~ !", "'", "-n"];
    for (shell, key) in ["sh", "bash", "dash", "zsh"].iter().flat_map(|shell| keys.map(|key| (shell, key))) {
        if *shell == "zsh" && !Path::new("/usr/bin/zsh").exists() {
            continue;
        }
        world.write("key", key);
        let text = "lock=$(dlock acquire -q --export \"--key=$(cat key)\" -k second -n 2) || exit; eval \"$lock\"
            printf '%s|%s|%s|%s\\n' \"$DLOCK_KEY\" \"$DLOCK_KEYS\" \"$DLOCK_SLOT\" \"${#DLOCK_TOKEN}\"
            dlock check -- \"$DLOCK_KEY\" && dlock check second && dlock release -q -- \"$DLOCK_KEY\"
            lock=$(dlock acquire -q --export -k plain) || exit; eval \"$lock\"; echo \"$DLOCK_KEYS|${DLOCK_SLOT-unset}\"; dlock release -q plain";
        let said = format!("{key}|{key}\nsecond|0|32\nplain|unset\n");
        script(&world, shell, text).stdout(&said).run();
        assert!(!world.path("pwned").exists(), "{shell}: {key}");
        assert_eq!(world.state("second"), "free", "{shell}: one release gives back the whole hold");
    }
}

fn a_run_in_the_script_has_its_lock(backend: Backend) {
    let world = World::new(backend);
    let text = "lock=$(dlock acquire -q --export -k k) || exit; eval \"$lock\"; dlock run -k k -- echo inside; dlock check k && echo held
        dlock release -q k; dlock run -k k -- echo again; dlock check k; echo $?";
    let like = "dlock: k in .* is not held any more.*\n";
    script(&world, "sh", text).stdout("inside\nheld\nagain\n79\n").stderr_like(like).run();
}

fn a_token_is_printed_and_proves_the_hold(backend: Backend) {
    let world = World::new(backend);
    let output = world.dlock(["acquire", "-v", "-k", "k", "-t", "10m"]).stdout_like("[0-9a-f]{32}\n");
    let output = output
        .stderr_like("dlock: k in .* is acquired until .*, for (10m|9m[0-9]+s): .*--token-file FILE.*\n")
        .run();
    let status = world.status("k");
    assert_eq!(status["state"], "held");
    assert!(!status.to_string().contains(output.stdout.trim()), "a token is a secret");
    world.dlock(["release", "k", "--token-file", "-"]).stdin(&output.stdout).any_stderr().run();
    assert_eq!(world.state("k"), "free");

    let options = ["--json", "--reason", "month's end", "--label", "import"];
    let output = world.dlock(["acquire", "-k", "k", "-q"]).args(options).any_stdout().run();
    let printed: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let hold = &printed[0];
    assert_eq!(
        (&hold["keys"], &hold["mode"], &hold["slot"]),
        (&json!(["k"]), &json!("exclusive"), &json!(null))
    );
    assert!(hold["lease_ms"].as_u64().is_some_and(|left| (1..=30_000).contains(&left)), "{printed}");
    let status = world.status("k");
    assert_eq!(status["fence"], hold["fence"]);
    assert_eq!(status["holders"][0]["reason"], "month's end");
    assert_eq!(status["holders"][0]["command"], "import");
    let token = hold["token"].as_str().expect("a token");
    world.dlock(["release", "k", "--token-file", "-"]).stdin(token).any_stderr().run();
}

/// Some stores notice when a process dies. The end of `acquire` must not end the hold.
fn the_hold_outlives_its_process_until_the_lease_ends(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["acquire", "-k", "k", "-t", "1m", "-q"]).any_stdout().run();
    let fence = world.fence("k");
    // Each of these requests checks which holders are dead.
    world.run("k", &[], "true").status(75).any_stderr().run();
    world.run("k", &["-w", "0.3"], "true").status(75).any_stderr().run();
    world.dlock(["status"]).any_stdout().run();
    assert_eq!((world.state("k").as_str(), world.fence("k")), ("held", fence));
    // The same for a hold that was granted after a wait.
    let holder = hold(&world, "queued", &[]);
    let waiter = world.dlock(["acquire", "-k", "queued", "-w", "-q", "-t", "1m"]).any_stdout().spawn();
    world.wait_for_waiters("queued", 1);
    world.write("end", "");
    holder.finish();
    waiter.finish();
    world.run("queued", &[], "true").status(75).any_stderr().run();

    world.dlock(["acquire", "-k", "short", "-t", "3s", "-q"]).any_stdout().run();
    world.wait_for_state("short", "free");
    world.run("short", &[], "true").run();
    let log = world.dlock(["history", "short", "--json"]).any_stdout().run().stdout;
    assert!(log.contains("expired"), "{log}");
}

fn every_mode_and_several_keys(backend: Backend) {
    let world = World::new(backend);
    let acquire = |options: &[&str]| {
        let output =
            world.dlock(["acquire", "--json"]).args(options).any_stdout().any_stderr().spawn().output();
        let printed: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        (output.status.code(), printed[0].clone())
    };
    for slot in [0, 1] {
        let (status, hold) = acquire(&["-k", "slots", "-n", "2"]);
        assert_eq!((status, &hold["slot"], &hold["slots"]), (Some(0), &json!(slot), &json!(2)));
    }
    assert_eq!(acquire(&["-k", "slots", "-n", "2", "-E", "9"]).0, Some(9));
    assert_eq!(acquire(&["-k", "shared", "-s"]).0, Some(0));
    assert_eq!(acquire(&["-k", "shared", "-s"]).1["mode"], "shared");
    assert_eq!(acquire(&["-k", "shared"]).0, Some(75));
    assert_eq!(acquire(&["-k", "a", "-k", "shared"]).0, Some(75));
    assert_eq!(world.state("a"), "free", "all or nothing");
    let (status, both) = acquire(&["-k", "b", "-k", "a", "-k", "b"]);
    assert_eq!((status, &both["keys"]), (Some(0), &json!(["b", "a"])));
    assert_eq!((world.state("a").as_str(), world.state("b").as_str()), ("held", "held"));
}

fn it_waits_its_turn(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k", &[]);
    let text = "lock=$(dlock acquire -q --export -k k -w) || exit; eval \"$lock\"; echo first >> log; until [ -e go ]; do sleep 0.1; done
        dlock release -q k";
    let first = script(&world, "sh", text).spawn();
    world.wait_for_waiters("k", 1);
    let waiter = &world.status("k")["waiters"][0];
    assert_eq!(waiter["pid"], first.pid(), "the script waits: {waiter}");
    let second = world.run("k", &["-w"], "echo second >> log").spawn();
    world.wait_for_waiters("k", 2);
    world.write("end", "");
    holder.finish();
    world.wait_for_log("first");
    assert_eq!(world.lines("second"), 0);
    world.write("go", "");
    first.finish();
    second.finish();
    assert_eq!(world.log(), ["up", "first", "second"]);
}

fn a_signal_leaves_the_queue(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k", &[]);
    // A signal that the caller ignores stays ignored.
    let stays = world.dlock(["acquire", "-k", "k", "-w", "-q"]).after_shell("trap '' HUP").any_stdout();
    let stays = stays.spawn();
    world.wait_for_waiters("k", 1);
    stays.signal(Signal::HUP);
    // Over a connection that takes longer than a dlock that must end has (60 ms) the place stays until it ends by
    // itself: elsewhere one signal stands for all.
    let is_quick = matches!(backend, Backend::Redis | Backend::File);
    let signals = [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1), (Signal::QUIT, 3)];
    for (signal, number) in &signals[..if is_quick { 4 } else { 1 }] {
        let waiter = world.dlock(["acquire", "-k", "k", "-w"]).dies_of(*number).spawn();
        world.wait_for_waiters("k", 2);
        waiter.signal(*signal);
        waiter.finish();
        // A place that was not given up would last longer than this.
        let within = Duration::from_secs(if is_quick { 4 } else { 60 });
        wait_within(within, "one waits", || (world.waiters("k") == 1).then_some(()));
    }
    let waiter = world.dlock(["acquire", "--export", "-k", "k", "-w"]).stdout("exit 143\n").dies_of(15);
    let waiter = waiter.spawn();
    world.wait_for_waiters("k", 2);
    waiter.signal(Signal::TERM);
    waiter.finish();
    world.write("end", "");
    holder.finish();
    stays.finish();
}

fn a_killed_waiter_delays_nobody(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k", &[]);
    let waiter = world.dlock(["acquire", "-k", "k", "-w"]).dies_of(9).spawn();
    world.wait_for_waiters("k", 1);
    waiter.signal(Signal::KILL);
    waiter.finish();
    let next = world.run("k", &["-w"], "echo next >> log").spawn();
    world.write("end", "");
    holder.finish();
    next.finish();
    assert_eq!(world.lines("next"), 1);
}

fn it_does_not_wait_for_itself(backend: Backend) {
    let world = World::new(backend);
    let job = |options: &str| format!("$D acquire -q -k k {options} > out; echo $?");
    let inside = |outer: &[&str], options: &str, status: &str| {
        let run = world.run("k", outer, &job(options)).env("D", BINARY);
        run.stdout(&format!("{status}\n")).any_stderr().run();
    };
    inside(&[], "-w", "64");
    inside(&[], "-w 0.1", "64");
    inside(&[], "", "75");
    let said = world.run("k", &[], "$D acquire -k k -w 10m; $D acquire -k k").env("D", BINARY);
    let like = "dlock: this process itself holds k in .* wait for itself; this job runs under it already.*\n\
                dlock: k in .* is busy: held by .*; this process itself runs under it\n";
    said.status(75).stderr_like(like).run();
    let text =
        "lock=$(dlock acquire -q --export -k own) || exit; eval \"$lock\"; dlock acquire -k own -w 10m";
    let like = "dlock: this process itself holds own .* wait for itself; 'dlock release own' gives it back\n";
    script(&world, "sh", text).status(64).stderr_like(like).run();
    inside(&["-n", "1"], "-n 1 -w", "64");
    inside(&["-n", "2"], "-s -w", "64");
    let run = world.run("sh", &["-s"], "$D acquire -q -k sh -s -w > out; echo $?").env("D", BINARY);
    run.stdout("0\n").run();
    // A stale DLOCK_HELD has no effect.
    let stale = world.run("stale", &[], "echo \"$DLOCK_HELD\" > held").run();
    drop(stale);
    let held = world.read("held");
    world.dlock(["acquire", "-q", "-k", "stale", "-w"]).env("DLOCK_HELD", held.trim()).any_stdout().run();
}

fn a_hold_whose_token_cannot_be_printed_is_released(backend: Backend) {
    let world = World::new(backend);
    for preparation in ["exec > /dev/full", "exec >&-"] {
        let acquire = world.dlock(["acquire", "-k", "k"]).after_shell(preparation);
        acquire.status(74).stderr_like("dlock: cannot write .*\n").run();
        assert_eq!(world.state("k"), "free", "{preparation}");
    }
    let text = "{ sleep 0.2; dlock acquire -k k; echo $? > status; } | :";
    script(&world, "sh", text).any_stderr().run();
    wait_until("it has ended", || !world.read("status").is_empty());
    assert_eq!(world.read("status"), "74\n", "nobody reads the token");
    assert_eq!(world.state("k"), "free");
}

fn a_min_hold_outlasts_the_release(backend: Backend) {
    let world = World::new(backend);
    let text =
        "lock=$(dlock acquire -q --export -k k --min-hold 1h) || exit; eval \"$lock\"; dlock release -v k";
    script(&world, "sh", text).stderr_like("dlock: .*--min-hold keeps it.*\n").run();
    assert_eq!(world.state("k"), "cooling");
}

/// Starts a run that holds the key until the file `end` exists.
fn hold(world: &World, key: &str, options: &[&str]) -> Running {
    let holder = world.run(key, options, "echo up >> log; until [ -e end ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    holder
}

/// `acquire` ends at once, although the server does not answer, and leaves the queue when it does.
#[test]
fn a_signal_ends_it_while_the_server_hangs() {
    let world = World::with_redis(&[]);
    let holder = hold(&world, "k", &["-t", "10m"]);
    let proxy = Proxy::before(world.redis().port());
    let waiter = world.dlock(["acquire", "-k", "k", "-w"]).env("DLOCK_STORE", proxy.url());
    let waiter = waiter.any_stderr().dies_of(15).spawn();
    world.wait_for_waiters("k", 1);
    proxy.begin_outage();
    waiter.signal(Signal::TERM);
    waiter.finish();
    proxy.end_outage();
    // A place that was not given up would last longer than this.
    wait_until("nobody waits", || world.waiters("k") == 0);
    world.write("end", "");
    holder.finish();
}

/// What goes on leaving takes no signals. A service manager that stops a unit waits for it, also in a
/// long outage.
#[test]
fn what_leaves_after_a_signal_gives_up_as_a_guard_does() {
    let world = World::with_redis(&[]);
    let holder = hold(&world, "k", &["-t", "10m"]);
    let proxy = Proxy::before(world.redis().port());
    let waiter = world.dlock(["acquire", "-k", "k", "-w", "-t", "1s", "--op-timeout", "0.2"]);
    let waiter = waiter.env("DLOCK_STORE", proxy.url()).any_stderr().dies_of(15).spawn();
    world.wait_for_waiters("k", 1);
    proxy.begin_outage();
    waiter.signal(Signal::TERM);
    waiter.finish();
    let url = proxy.url();
    let is_left = |pid: i32| proc::name(pid) == "dlock" && proc::has_in_environment(pid, url.as_bytes());
    wait_until("nothing of it is left", || !proc::pids().into_iter().any(is_left));
    proxy.end_outage();
    world.write("end", "");
    holder.finish();
}
