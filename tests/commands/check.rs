//! `dlock check`: whether the lock that a process runs under is still held. Only the store can
//! tell.

use crate::support::dlock::BINARY;
use crate::support::world::{Backend, World, on_every_store};

on_every_store!(
    inside_a_job_the_lock_is_held,
    outside_a_job_no_lock_is_held,
    a_lock_that_is_gone_is_reported,
    the_innermost_lock_is_checked_unless_one_is_named,
    a_store_that_cannot_be_reached_is_no_answer,
    a_token_in_a_file_proves_it,
);

fn inside_a_job_the_lock_is_held(backend: Backend) {
    let world = World::new(backend);
    let job = "$D check && $D check k && $D check -v k";
    let run = world.run("k", &["-t", "20s"], job).env("D", BINARY);
    run.stderr_like("dlock: k in .* is held, for 1?[0-9]s more\n").run();
    let run = world.dlock(["run", "-k", "a", "-k", "b", "-s", "--", "sh", "-c", "$D check a && $D check b"]);
    run.env("D", BINARY).run();
}

fn outside_a_job_no_lock_is_held(backend: Backend) {
    let world = World::new(backend);
    let like = "dlock: this process runs under no lock.*'dlock run'.*\n";
    world.dlock(["check"]).status(79).stderr_like(like).run();
    world.dlock(["check", "-q", "k"]).status(79).stderr_like(like).run();
    for garbage in ["", "x", "[]", "[{}]"] {
        world.dlock(["check"]).env("DLOCK_HELD", garbage).status(79).stderr_like(like).run();
    }
    // The same key in another store is another lock.
    let run =
        world.run("k", &[], "$D check --prefix other:; echo $?; $D check other; echo $?").env("D", BINARY);
    let like = "dlock: this process runs under no lock in .*it holds k in .*; --store and --prefix .*\n\
                dlock: this process runs under no lock of other: it holds k in [^;]*\n";
    let run = run.stdout("79\n79\n").stderr_like(like);
    run.run();
}

fn a_lock_that_is_gone_is_reported(backend: Backend) {
    let world = World::new(backend);
    let job = "$D check && echo held; $D release k -q --force; $D check; echo $?";
    let run = world.run("k", &["--on-lost", "warn", "-t", "8s"], job).env("D", BINARY);
    let run = run.stdout("held\n79\n").any_stderr().run();
    assert!(run.stderr.contains("is not held any more"), "{}", run.stderr);
}

fn the_innermost_lock_is_checked_unless_one_is_named(backend: Backend) {
    let world = World::new(backend);
    let job = "$D release -qy inner --force --now; $D check; echo $?; $D check inner; echo $?; $D check outer; echo $?
        $D run -k outer -c '$D check; echo $?'";
    world.write("job", job);
    let run = world.run("outer", &[], "$D run -k inner --on-lost warn -q -- sh job").env("D", BINARY);
    run.any_stderr().stdout("79\n79\n0\n0\n").status(79).run();
}

fn a_store_that_cannot_be_reached_is_no_answer(backend: Backend) {
    let world = World::new(backend);
    let elsewhere = "redis://127.0.0.1:1";
    let held = format!(
        r#"[{{"store":"{elsewhere}","prefix":"dlock:","keys":["k"],"token":"0123456789abcdef0123456789abcdef","fence":1}}]"#
    );
    let check = world.dlock(["check", "--store", elsewhere, "--connect-timeout", "0.2"]);
    let like = "dlock: .*127.0.0.1:1.*; it is unknown whether k is still held\n";
    check.env("DLOCK_HELD", held).status(69).stderr_like(like).run();
}

fn a_token_in_a_file_proves_it(backend: Backend) {
    let world = World::new(backend);
    let token = world.dlock(["acquire", "-k", "k", "-t", "1h"]).any_stdout().run().stdout;
    world.write("token", &token);
    world.dlock(["check", "k", "--token-file", "token"]).run();
    let check = world.dlock(["check", "-v", "-k", "k", "--token-file", "-"]).stdin(&token);
    check
        .stderr_like("dlock: k in .* is held, for 1h.* more\n|dlock: k in .* is held, for 59m.* more\n")
        .run();
    // An operator that wants it back is named.
    let asks = ["release", "k", "-y", "--timeout", "0.1", "--reason", "why"];
    world.dlock(asks).any_stderr().spawn().output();
    let like = "dlock: k in .* is held, for .* more, but .*@.* \\(why\\) asks for it back: end soon\n";
    world.dlock(["check", "k", "--token-file", "token"]).stderr_like(like).run();
    let like = "dlock: . in .* is not held any more.*\n";
    world.dlock(["check", "l", "--token-file", "token"]).status(79).stderr_like(like).run();
    world.dlock(["release", "k", "--token-file", "token"]).run();
    world.dlock(["check", "k", "--token-file", "token"]).status(79).stderr_like(like).run();
    world.dlock(["check", "k", "--token-file", "absent"]).status(78).any_stderr().run();
}
