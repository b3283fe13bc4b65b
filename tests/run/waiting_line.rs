//! A run that waits on a terminal shows one line with its progress, and removes it when the command
//! starts. The tests read the screen of a terminal emulator.

use crate::support::dlock::{Running, finish_all};
use crate::support::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use regex_lite::Regex;

on_every_store!(
    the_line_shows_progress_and_leaves_no_trace,
    the_line_fits_whatever_the_width_is,
    an_interrupt_takes_the_line_away,
    a_stop_takes_the_line_away_until_it_goes_on,
    no_line_is_shown_where_none_is_wanted,
    a_log_says_that_it_waits_and_that_it_is_over,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
const WAIT: &str = "dlock run -k nightly -w -- sh -c 'echo ran-$((1+1))'";

/// Starts a run that holds the lock until the file `go` exists.
fn holder(world: &World) -> Running {
    let holder = world.run("nightly", &["--label", "the-long-one"], HOLD).spawn();
    world.wait_for_log("up");
    holder
}

/// Waits until dlock's only row on the screen matches `pattern`, and returns it.
#[track_caller]
fn line(terminal: &Terminal, pattern: &str) -> String {
    let pattern = Regex::new(pattern).expect("a pattern");
    wait_for(&format!("a line like {pattern} on:\n{}", terminal.rows().join("\n")), || {
        let rows = terminal.rows();
        let ours = rows.iter().filter(|row| row.contains("dlock: ")).collect::<Vec<_>>();
        assert!(ours.len() <= 1, "one line, not {ours:?}");
        // It must be the last row: the line was not wrapped.
        ours.into_iter().find(|row| pattern.is_match(row) && rows.last() == Some(row)).cloned()
    })
}

#[track_caller]
fn screen_becomes(terminal: &Terminal, expected: &[&str]) {
    let mut rows = Vec::new();
    wait_until(&format!("the screen shows {expected:?}"), || {
        rows = terminal.rows();
        rows == expected || {
            // Fails at once if all expected rows are there, and others as well.
            let all = expected.iter().all(|row| rows.iter().any(|shown| shown == row));
            assert!(!all || rows.len() <= expected.len(), "{rows:#?}");
            false
        }
    });
}

fn the_line_shows_progress_and_leaves_no_trace(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world);
    let before = world.run("nightly", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("nightly", 1);
    let mut terminal = Terminal::with_size(&world, "xterm", 24, 100);
    terminal.press(&format!("{WAIT}\n"));
    line(
        &terminal,
        r"^dlock: waiting \d+s for nightly, place 2: held for \d+s by .*@.*, lease \d+s(, running .*)?$",
    );
    // The line changes in place.
    let later = line(&terminal, r"waiting [2-9]s for .* held for \d+s");
    assert!(later.chars().count() < 100, "{later}");
    drop(before);
    line(&terminal, r"place 1");
    world.write("go", "");
    screen_becomes(&terminal, &[&format!("READY> {WAIT}"), "ran-2", "READY>"]);
    holder.finish();
    terminal.close();
}

fn the_line_fits_whatever_the_width_is(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world);
    let mut terminal = Terminal::with_size(&world, "xterm", 24, 40);
    world.script("w", &format!("#!/bin/sh\n{WAIT}\n"));
    terminal.press("./w\n");
    let narrow = line(&terminal, r"^dlock: waiting \d+s for nightly, pl.*…$");
    assert_eq!(narrow.chars().count(), 39, "{narrow}");
    terminal.resize(24, 400);
    line(&terminal, r"^dlock: waiting for \d+s for nightly in .*, place 1 in the queue: held by .*…?");
    line(&terminal, r"^dlock: waiting .* running 'the-long-one'");
    terminal.resize(24, 60);
    line(&terminal, r"^dlock: waiting \d+s for nightly, place 1: held for \d+s.*…$");
    terminal.resize(24, 10);
    line(&terminal, r"^dlock: w…$");
    terminal.resize(24, 1);
    terminal.resize(24, 40);
    line(&terminal, r"^dlock: waiting \d+s for nightly, pl.*…$");
    world.write("go", "");
    wait_until("the command ran", || terminal.rows().iter().any(|row| row.contains("ran-2")));
    wait_until("a prompt", || terminal.rows().last().is_some_and(|row| row == "READY>"));
    assert!(!terminal.rows().iter().any(|row| row.contains("dlock:")), "{:#?}", terminal.rows());
    holder.finish();
    terminal.close();
}

fn an_interrupt_takes_the_line_away(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world);
    let mut terminal = Terminal::with_size(&world, "xterm", 24, 80);
    terminal.press(&format!("{WAIT}\n"));
    line(&terminal, r"^dlock: waiting \d+s for nightly, place 1");
    terminal.press(CTRL_C);
    // The shell begins a new row, where `^C` would stand.
    screen_becomes(&terminal, &[&format!("READY> {WAIT}"), "", "READY>"]);
    world.write("go", "");
    holder.finish();
    terminal.close();
}

fn a_stop_takes_the_line_away_until_it_goes_on(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world);
    let mut terminal = Terminal::with_size(&world, "xterm", 24, 120);
    terminal.press(&format!("{WAIT}\n"));
    line(&terminal, r"^dlock: waiting \d+s for nightly, place 1");
    terminal.press(CTRL_Z);
    wait_until("it stops", || terminal.rows().iter().any(|row| row.contains("Stopped")));
    assert!(!terminal.rows().iter().any(|row| row.contains("dlock: ")), "{:#?}", terminal.rows());
    terminal.press("fg\n");
    line(&terminal, r"^dlock: waiting \d+s for nightly, place 1");
    world.write("go", "");
    wait_until("a prompt", || terminal.rows().last().is_some_and(|row| row == "READY>"));
    assert!(!terminal.rows().iter().any(|row| row.contains("dlock: ")), "{:#?}", terminal.rows());
    holder.finish();
    terminal.close();
}

/// With -q, into a file, or without --wait there is no line. A terminal that cannot erase a line
/// gets whole lines.
fn no_line_is_shown_where_none_is_wanted(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world);
    let mut terminal = Terminal::with_size(&world, "xterm", 24, 80);
    terminal.press("dlock run -k nightly -q -w 1.5 -- true; dlock run -k nightly -w 1.5 -- true 2> said\n");
    wait_until("both give up", || {
        terminal.rows().iter().filter(|row| row.starts_with("READY>")).count() == 2
    });
    assert!(!terminal.screen().contains("dlock: "), "{:#?}", terminal.rows());
    assert_eq!(world.read("said").lines().count(), 1);
    assert!(!world.read("said").contains('\x1b'), "{}", world.read("said"));
    world.write("go", "");
    holder.finish();
    terminal.close();
}

/// Each message comes once, and none if the lock is granted before the first one is due.
fn a_log_says_that_it_waits_and_that_it_is_over(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world);
    let waiters = [
        (&["wait", "nightly"][..], "nightly in .* is free after"),
        (&["acquire", "-k", "nightly", "-w", "-t", "5s"], "nightly in .* is acquired after"),
        (&["run", "-k", "nightly", "-w", "--", "true"], "got nightly in .* after"),
    ]
    .map(|(words, over)| {
        let like = format!("dlock: waiting for 1\\d.*s.*nightly .*held .*\\n(dlock: waiting .*\\n)*dlock: {over} \\d+.*s.*\\n");
        world.dlock(words).any_stdout().stderr_like(&like).spawn()
    });
    for waiter in &waiters {
        wait_until("it says that it waits", || waiter.messages().contains("waiting for"));
    }
    world.write("go", "");
    holder.finish();
    finish_all(waiters);
    world.dlock(["wait", "nightly"]).run();
}
