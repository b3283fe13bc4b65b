//! `dlock release --force`: the lock is taken away without asking its holder.

use super::endless;
use crate::support::dlock::Running;
use crate::support::pty::Terminal;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};

on_every_store!(
    force_reports_its_effect,
    force_asks_the_person_at_the_terminal,
    both_jobs_may_run_only_after_a_yes,
    force_takes_a_lock_from_several,
);

fn force_reports_its_effect(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let output = world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    let said = output.stdout + &output.stderr;
    assert!(said.contains(&holder.pid().to_string()) && said.contains('k'), "it names whose it was: {said}");
    holder.finish();
    wait_until("it is free", || world.state("k") == "free");
    let last = world.status("k")["last_run"].to_string();
    assert!(last.contains("forced"), "the log knows: {last}");
}

fn force_takes_a_lock_from_several(backend: Backend) {
    let world = World::new(backend);
    let holders: Vec<Running> = (0..2).map(|_| endless(&world, "k", &["-t", "6s", "-s"])).collect();
    let said = world.dlock(["release", "k", "--force"]).any_stderr().run().stderr;
    assert!(holders.iter().all(|holder| said.contains(&format!("pid {}", holder.pid()))), "{said}");
    holders.into_iter().for_each(|holder| drop(holder.finish()));
    wait_for("it is free", || (world.state("k") == "free").then_some(()));
    world.dlock(["acquire", "-q", "-k", "k", "-t", "1h"]).any_stdout().run();
    let said = world.dlock(["release", "k", "--force"]).any_stderr().run().stderr;
    assert!(said.contains("dlock cannot stop a script"), "{said}");
    world.dlock(["release", "k", "--force", "--now", "-y", "-q"]).run();
    assert_eq!(world.state("k"), "free");
}

fn force_asks_the_person_at_the_terminal(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let mut terminal = Terminal::open(&world);
    for (options, question) in
        [("--force", "take the lock away? [y/N] "), ("--force --now", "may still run? [y/N] ")]
    {
        terminal.type_line(&format!("dlock release k {options}; echo STATUS $?"));
        let shown = terminal.expect(question);
        assert!(shown.contains(&format!("pid {}", holder.pid())) && shown.contains("sleep 1000"), "{shown}");
        terminal.press("n\n");
        terminal.expect("nothing was done");
        terminal.expect("STATUS 75");
        assert_eq!(world.state("k"), "held");
    }
    terminal.type_line("dlock release k --force; echo STATUS $?");
    terminal.expect("[y/N] ");
    terminal.press("y\n");
    terminal.expect("is taken away from");
    terminal.expect("STATUS 0");
    holder.finish();
    world.wait_for_state("k", "free");
    // A free lock needs no question, nor does -y.
    terminal.type_line("dlock release k --force; dlock release k --force --now; echo STATUS $?");
    let shown = terminal.expect("STATUS 0");
    assert_eq!(shown.matches("is free; nothing to release").count(), 2, "{shown}");
    let holder = endless(&world, "k", &["-t", "6s"]);
    terminal.type_line("dlock release k --force -y; echo STATUS $?");
    let shown = terminal.expect("STATUS 0");
    assert!(!shown.contains("[y/N]"), "{shown}");
    holder.finish();
    terminal.close();
}

fn both_jobs_may_run_only_after_a_yes(backend: Backend) {
    let world = World::new(backend);
    let holder = endless(&world, "k", &["-t", "6s"]);
    let release =
        world.dlock(["release", "k", "--force", "--now"]).stdin("y\n").status(64).any_stderr().run();
    for part in [&format!("pid {}", holder.pid()), "No terminal", "-y"] {
        assert!(release.stderr.contains(part), "{part}: {}", release.stderr);
    }
    assert_eq!(world.state("k"), "held");
    let release = world.dlock(["release", "k", "--force", "--now", "-y"]).any_stderr().run();
    assert!(release.stderr.contains("may still run beside the next one"), "{}", release.stderr);
    holder.finish();
}
