//! `dlock release` of the caller's own hold: by its token, or by the script that acquired it.

use super::HOLD;
use crate::support::dlock::BINARY;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};

on_every_store!(
    a_token_releases_its_own_hold_only,
    a_script_releases_the_lock_that_it_acquired,
    a_script_that_lost_its_lock_asks_nobody_else,
    the_lock_of_the_enclosing_run_ends_with_its_job,
);

fn a_token_releases_its_own_hold_only(backend: Backend) {
    let world = World::new(backend);
    let job = "echo $DLOCK_TOKEN > token.tmp; mv token.tmp token; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "6s"], job).status(79).any_stderr().spawn();
    wait_until("the job runs", || !world.read("token").is_empty());
    world.write("strange", "00000000000000000000000000000000\n");
    world.dlock(["release", "k", "--token-file", "strange"]).status(79).stderr_like("dlock: .*\n").run();
    world.dlock(["release", "k", "--token-file", "-"]).stdin("no token\n").status(78).any_stderr().run();
    world.dlock(["release", "k", "--token-file", "absent"]).status(78).any_stderr().run();
    assert_eq!(world.state("k"), "held");
    world.dlock(["release", "k", "--token-file", "token"]).any_stderr().any_stdout().run();
    // The dlock that held the lock notices that the hold is gone.
    holder.finish();
    assert_eq!(world.state("k"), "free");
    let again = world.dlock(["release", "k", "--token-file", "-"]).stdin(&world.read("token"));
    again.any_stderr().any_stdout().run();
}

fn a_script_releases_the_lock_that_it_acquired(backend: Backend) {
    let world = World::new(backend);
    let job = "lock=$($D acquire -q --export -k k -k l) || exit; eval \"$lock\"; $D release k -v; $D release l -v; $D release k";
    let sh = world.dlock([""; 0]).under(&["sh", "-c", job]).env("D", BINARY);
    sh.stderr_like("dlock: k and l in .* is given back\ndlock: k and l in .* was already given back\n").run();
    assert_eq!((world.state("k").as_str(), world.state("l").as_str()), ("free", "free"));
    // The same inside a run that shares the key.
    let job = "lock=$($D acquire -q --export -k k -s) || exit; eval \"$lock\"; $D release -q k; $D release -v k; echo $?";
    let run = world.run("k", &["-s"], job).env("D", BINARY).stdout("0\n");
    run.stderr_like("dlock: k in .* was already given back\n").run();
}

fn a_script_that_lost_its_lock_asks_nobody_else(backend: Backend) {
    let world = World::new(backend);
    let acquire =
        "lock=$($D acquire -q --export -k k -t 500ms) || exit; eval \"$lock\"; echo \"$DLOCK_HELD\" > held";
    world.dlock([""; 0]).under(&["sh", "-c", acquire]).env("D", BINARY).run();
    world.wait_for_state("k", "free");
    let other = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    for options in [&[][..], &["-y"]] {
        let release =
            world.dlock(["release", "k"]).args(options).env("DLOCK_HELD", world.read("held").trim());
        release.status(79).stderr_like("dlock: k in .* is not held by this token .*\n").run();
    }
    world.write("go", "");
    other.finish();
}

fn the_lock_of_the_enclosing_run_ends_with_its_job(backend: Backend) {
    let world = World::new(backend);
    let job = "echo \"$DLOCK_HELD\" > held; $D release k; echo $?; $D release k -y; echo $?";
    let run = world.run("k", &[], job).env("D", BINARY).stdout("64\n64\n");
    run.stderr_like("(dlock: k in .* when its job ends.*\n){2}").run();
    let late = world.dlock(["release", "k", "-y"]).env("DLOCK_HELD", world.read("held").trim());
    late.status(79).stderr_like("dlock: k in .* is not held any more .*\n").run();
}
