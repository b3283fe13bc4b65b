//! `dlock status --watch`: the table is redrawn in place, and the terminal is restored at the end.

use crate::support::proc;
use crate::support::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(it_shows_changes, every_end_gives_the_terminal_back, it_stops_and_goes_on, q_leaves,);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const WATCH: &str = "TERM=xterm sh -c 'echo $$ > watch.pid; exec dlock status --watch 100ms'";

fn it_shows_changes(backend: Backend) {
    let world = World::new(backend);
    let mut terminal = Terminal::open(&world);
    terminal.type_line(WATCH);
    terminal.expect(ENTER);
    terminal.expect("no lock is held");
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    terminal.expect(&format!(" {} ", holder.pid()));
    let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
    terminal.expect("waits");
    terminal.expect(&format!(" {} ", waiter.pid()));
    world.write("go", "");
    holder.finish();
    waiter.finish();
    terminal.expect("no lock is held");
    terminal.press(CTRL_C);
    terminal.expect(LEAVE);
    terminal.close();
}

fn every_end_gives_the_terminal_back(backend: Backend) {
    let world = World::new(backend);
    let mut terminal = Terminal::open(&world);
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        world.write("watch.pid", "");
        terminal.type_line(WATCH);
        terminal.expect("no lock is held");
        proc::signal(world.wait_for_pid("watch.pid"), signal);
        terminal.expect(LEAVE);
        terminal.expect("READY> ");
        terminal.type_line("echo $?-is-the-status");
        terminal.expect(&format!("{status}-is-the-status"));
    }
    let screen = terminal.screen();
    assert_eq!((screen.matches(ENTER).count(), screen.matches(LEAVE).count()), (4, 4));
    terminal.close();
}

fn it_stops_and_goes_on(backend: Backend) {
    let world = World::new(backend);
    let mut terminal = Terminal::open(&world);
    terminal.type_line(WATCH);
    terminal.expect("no lock is held");
    terminal.press(CTRL_Z);
    terminal.expect(LEAVE);
    terminal.expect("Stopped");
    // In the background it does not write to the screen.
    terminal.type_line("bg");
    let pid = world.wait_for_pid("watch.pid");
    wait_until("it runs", || !proc::stopped(pid));
    terminal.type_line("echo $((40+2))-quiet");
    assert!(!terminal.expect("42-quiet").contains(ENTER));
    terminal.type_line("fg");
    terminal.expect(ENTER);
    terminal.press(CTRL_C);
    terminal.expect(LEAVE);
    terminal.close();
}

/// A key is read at once and not echoed, and the settings of the keyboard are restored.
fn q_leaves(backend: Backend) {
    let world = World::new(backend);
    let mut terminal = Terminal::open(&world);
    terminal.type_line("stty -a > before");
    terminal.expect("READY> ");
    terminal.type_line(&format!("{WATCH}; echo $?-is-the-status"));
    terminal.expect("no lock is held");
    terminal.press("x");
    terminal.press(CTRL_Z);
    terminal.expect(LEAVE);
    terminal.expect("Stopped");
    terminal.type_line("stty -a > stopped; fg");
    terminal.expect(ENTER);
    terminal.press("q");
    terminal.expect(LEAVE);
    let rest = terminal.expect("READY> ");
    assert!(!rest.contains('x') && !rest.contains('q'), "nothing is echoed: {rest:?}");
    terminal.type_line("echo $?-is-the-status; stty -a > after");
    terminal.expect("0-is-the-status");
    terminal.expect("READY> ");
    let modes = ["before", "stopped", "after"].map(|name| world.read(name));
    assert!(!modes[0].is_empty() && modes.iter().all(|mode| *mode == modes[0]), "{modes:#?}");
    terminal.close();
}

/// No line is wider than the terminal, whatever it contains; otherwise the screen would cut it or
/// draw over it.
#[test]
fn the_page_fits_its_terminal() {
    let world = World::new(Backend::Redis);
    let key = "夜间报告-🚀-of-the-whole-company";
    let holder = world.run(key, &["-t", "1m", "--label", "睡觉".repeat(30).as_str()], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run(key, &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters(key, 1);
    for columns in [60, 80, 100] {
        let mut terminal = Terminal::with_size(&world, "xterm", 20, columns);
        terminal.type_line("export LC_ALL=C.UTF-8; clear; dlock status --watch 100ms");
        terminal.expect("waits");
        let whole = |rows: &[String]| {
            let text = rows.concat().replace(' ', "");
            let pids = [holder.pid(), waiter.pid()].map(|pid| text.contains(&pid.to_string()));
            text.contains(key)
                && pids == [true; 2]
                && rows.iter().filter(|row| row.contains("STATE")).count() == 1
        };
        wait_until("the page is there", || whole(&terminal.rows()));
        terminal.resize(20, columns - 15);
        wait_until("it is drawn anew", || whole(&terminal.rows()));
        terminal.press("q");
        terminal.expect(LEAVE);
        terminal.close();
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
}

/// While the store is away the page shows its last answer and the time of that.
#[test]
fn a_store_that_goes_away_is_ridden_out() {
    let mut world = World::new(Backend::Redis);
    let holder = world.run("k", &["-t", "5m"], HOLD).any_stderr().spawn();
    world.wait_for_log("up");
    let mut terminal = Terminal::open(&world);
    terminal.type_line(WATCH);
    terminal.expect(&format!(" {} ", holder.pid()));
    world.redis().pause();
    terminal.expect("no answer since ");
    terminal.expect(&format!(" {} ", holder.pid()));
    // A store that does not answer delays no signal.
    terminal.press(CTRL_Z);
    terminal.expect(LEAVE);
    terminal.type_line("fg");
    terminal.expect("no answer since ");
    world.redis().resume();
    terminal.expect("\x1b[H");
    wait_until("it answers again", || {
        terminal.screen().rsplit("\x1b[H").nth(1).is_some_and(|page| !page.contains("no answer"))
    });
    world.redis_mut().restart();
    wait_until("the restarted one answers, and has forgotten", || {
        terminal.screen().rsplit("\x1b[H").nth(1).is_some_and(|page| page.contains("no lock is held"))
    });
    terminal.press(CTRL_C);
    terminal.expect(LEAVE);
    terminal.close();
}

#[test]
fn it_is_for_terminals() {
    let world = World::without_redis();
    let refused = |words: &[&str], why: &str| {
        world.dlock(words).status(64).stderr_like(&format!("dlock: [^\n]*{why}[^\n]*\n")).run();
    };
    refused(&["status", "--watch"], "standard output is not a terminal");
    refused(&["status", "--watch", "--json"], "exclude each other");
    refused(&["status", "--watch", "nightly-report"], "a KEY stands before --watch");
    refused(&["status", "--watch", "1ms"], "100ms is the shortest");
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock status --watch; echo $?-is-the-status");
    terminal.expect("the terminal cannot redraw");
    terminal.expect("64-is-the-status");
    // A store that cannot be reached at the start is an error, as with other commands.
    terminal
        .type_line("TERM=xterm dlock status --watch --store redis+unix:///nowhere; echo $?-is-the-status");
    let shown = terminal.expect("69-is-the-status");
    assert!(!shown.contains(ENTER), "{shown:?}");
    terminal.close();
}
