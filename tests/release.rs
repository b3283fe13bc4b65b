//! `dlock release`: by token one's own hold, by force anybody's.

use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};

on_every_store!(
    a_free_lock_is_released_already,
    a_token_gives_back_its_own_hold_only,
    asking_comes_later,
    force_says_what_it_did,
);

fn a_free_lock_is_released_already(backend: Backend) {
    let world = World::new(backend);
    for options in [&["--force"][..], &["--force", "--now"]] {
        let output = world.dlock(["release", "k"]).args(options).any_stdout().any_stderr().run();
        assert!((output.stdout + &output.stderr).contains("free"), "it says so");
    }
}

fn a_token_gives_back_its_own_hold_only(backend: Backend) {
    let world = World::new(backend);
    let job = "echo $DLOCK_TOKEN > token.tmp; mv token.tmp token; while [ ! -e go ]; do sleep 0.02; done";
    let holder = world.run("k", &["-t", "2s"], job).status(79).any_stderr().spawn();
    wait_until("the job runs", || !world.read("token").is_empty());
    world.write("strange", "00000000000000000000000000000000\n");
    world.dlock(["release", "k", "--token-file", "strange"]).status(79).stderr_like("dlock: .*\n").run();
    world.dlock(["release", "k", "--token-file", "-"]).stdin("no token\n").status(78).any_stderr().run();
    world.dlock(["release", "k", "--token-file", "absent"]).status(78).any_stderr().run();
    assert_eq!(world.state("k"), "held");
    world.dlock(["release", "k", "--token-file", "token"]).any_stderr().any_stdout().run();
    // Given back is given back: the dlock that held it learns that it is lost.
    holder.finish();
    assert_eq!(world.state("k"), "free");
    let again = world.dlock(["release", "k", "--token-file", "-"]).stdin(&world.read("token"));
    again.any_stderr().any_stdout().run();
}

fn asking_comes_later(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.02; done").spawn();
    world.wait_for_log("up");
    world.dlock(["release", "k"]).status(64).stderr_like("dlock: .*later.*(\n.*)?\n").run();
    world.dlock(["release", "k", "-y"]).status(64).stderr_like("dlock: .*later.*(\n.*)?\n").run();
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
}

fn force_says_what_it_did(backend: Backend) {
    let world = World::new(backend);
    let holder =
        world.run("k", &["-t", "2s"], "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let output = world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    let said = output.stdout + &output.stderr;
    assert!(said.contains(&holder.pid().to_string()) && said.contains('k'), "it names whose it was: {said}");
    holder.finish();
    wait_until("it is free", || world.state("k") == "free");
    let last = world.status("k")["last_run"].to_string();
    assert!(last.contains("forced"), "the log knows: {last}");
}
