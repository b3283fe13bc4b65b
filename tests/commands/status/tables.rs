//! What `dlock status` prints for people: tables, records of one key, and what is not there.

use super::HOLD;
use crate::support::dlock::finish_all;
use crate::support::pty::Terminal;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    status_estimates_when_a_waiter_gets_the_lock,
    labels_and_reasons_are_escaped,
    one_key_is_a_record,
    an_empty_answer_names_the_store_and_the_prefix,
);

fn labels_and_reasons_are_escaped(backend: Backend) {
    let world = World::new(backend);
    let holder = world
        .run("k", &["--label", "a\x1b[31mred\x07\u{9b}", "--reason", "two\nlines"], HOLD)
        .any_stderr()
        .spawn();
    world.wait_for_log("up");
    let table = world.dlock(["status", "k"]).any_stdout().run().stdout;
    let busy = world.run("k", &[], "true").status(75).any_stderr().run().stderr;
    for text in [&table, &busy] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("red"), "{text:?}");
    }
    assert_eq!(busy.lines().count(), 1, "{busy:?}");
    world.write("go", "");
    holder.finish();
}

/// A CI runner, or journald, takes the beginning of a line for a command, and `##[` and the like
/// anywhere. No key, label or reason that another user chose gets there.
#[test]
fn no_text_of_others_is_a_command_to_a_ci_runner() {
    let world = World::new(Backend::Redis);
    let keys = ["::add-mask::dlock", "##[add-mask]dlock", "<0>k", "##vso[task.setvariable variable=x]y"];
    let others = ["--label", "::set-output name=x::y ##[error]z", "--reason", "##teamcity[x]"];
    let watcher = world.dlock(["watch", "-v"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watcher.messages().contains("watching from now on"));
    for key in keys {
        world.run(key, &others, "true").run();
    }
    let hold = |key: &&str| world.run(key, &others, HOLD).any_stderr().spawn();
    let holders: Vec<_> = keys.iter().map(hold).collect();
    wait_until("all hold", || world.lines("up") == keys.len());
    let mut said = String::new();
    for key in keys {
        said += &world.run(key, &others, "true").status(75).any_stderr().run().stderr;
        for words in [&["wait", "-w", "50ms", key][..], &["release", key], &["status", key]] {
            let output = world.dlock(words).spawn().output();
            said += &(output.stdout + &output.stderr);
        }
    }
    for words in [
        &["status"][..],
        &["status", "--all"],
        &["status", "*vso*"],
        &["status", "--json"],
        &["history"],
        &["history", "--refused"],
        &["history", "--json"],
        &["metrics"],
    ] {
        let shown = world.dlock(words).any_stdout().run().stdout;
        assert!(shown.contains("vso["), "{words:?}: {shown}");
        said += &shown;
    }
    wait_until("it prints them", || watcher.printed().matches("granted").count() >= 2 * keys.len());
    watcher.signal(Signal::TERM);
    said += &watcher.finish().stdout;
    for line in said.lines() {
        assert!(!line.trim_start().starts_with("::") && !line.starts_with('<'), "{line}");
        assert!(!line.contains("##"), "{line}");
    }
    assert!(
        said.contains("\n\\x3a:add-mask::dlock  ") && said.contains("\n\\x23\\u{23}[add-mask]"),
        "{said}"
    );
    world.write("go", "");
    finish_all(holders);
}

fn one_key_is_a_record(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], "exit 3").status(3).run();
    let holder = world.run("k", &["-t", "1m", "-n", "3", "--reason", "because"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w", "--label", "the next one"], "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let text = world.dlock(["status", "k"]).any_stdout().run().stdout;
    let labels: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let expected = [
        "key", "state", "mode", "holder", "since", "lease", "command", "reason", "fence", "waiting", "1.",
        "last", "store",
    ];
    assert_eq!(labels, expected, "{text}");
    for part in [
        &format!("{}, slot 0", holder.pid()),
        "1 of 3 slots held",
        &format!("{}, for ", waiter.pid()),
        "exclusive: the next one",
        "because",
        "exit 3",
        &world.shown(),
        "prefix dlock:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
}

/// An empty answer names the store and the prefix, because a wrong one is the usual reason.
fn an_empty_answer_names_the_store_and_the_prefix(backend: Backend) {
    let world = World::new(backend);
    let url = world.shown();
    let said = |words: &[&str]| world.dlock(words).any_stdout().run().stdout;
    let place = format!("under the prefix dlock: in {url}");
    assert_eq!(
        said(&["status", "never"]),
        format!(
            "no record of never, {}: never used there, or the store was restarted, flushed or failed over since\n",
            place.trim_end()
        )
    );
    assert_eq!(
        said(&["status"]),
        format!("no lock is held, cooling, paused, overdue or waited for, {place}\n")
    );
    let elsewhere = said(&["status", "--prefix", "other:"]);
    assert!(elsewhere.contains("under the prefix other:"), "{elsewhere}");
    let bare = said(&["status", "k", "--prefix", ""]);
    assert!(bare.contains("without a prefix"), "{bare}");
    let none = said(&["status", "deploy-*"]);
    assert_eq!(none, format!("no key that matches deploy-* is known, {place}\n"));
    let table = said(&["status", "never", "again"]);
    assert_eq!(table.matches("never used").count(), 2, "{table}");
    assert_eq!(said(&["status", "--json"]), "[]\n");
}

/// On a terminal KEY and HOLDER are not cut and every line fits, even with characters that are two
/// columns wide.
#[test]
fn a_terminal_shows_key_and_holder_whole() {
    let world = World::new(Backend::Redis);
    let keys = ["nightly-report", "夜间报告-每天", "deploy-🚀-web", &"very-long-".repeat(8)];
    let holders = keys.map(|key| {
        world.run(key, &["-t", "1m", "--label", "sleep 600 # 睡觉 😴"], HOLD).env("LC_ALL", "C.UTF-8").spawn()
    });
    world.wait_for_lines("up", 4);
    for columns in [60, 80, 100] {
        let mut terminal = Terminal::with_size(&world, "xterm", 40, columns);
        terminal.type_line("export LC_ALL=C.UTF-8; clear; dlock status; echo e''nd");
        terminal.expect("\r\nend");
        let rows = terminal.rows();
        let text = rows.concat().replace(' ', "");
        for (key, holder) in keys.iter().zip(&holders) {
            assert!(text.contains(key), "{columns} {key}\n{rows:#?}");
            let pid = format!("{}", holder.pid());
            assert!(
                rows.iter().any(|row| row.split_whitespace().any(|word| word == pid)),
                "{columns}\n{rows:#?}"
            );
        }
        let heads = rows.iter().filter(|row| row.contains("STATE")).count();
        assert_eq!(heads, 1, "{rows:#?}");
        // The rows are the printed lines: the terminal wrapped none.
        let printed = terminal.screen();
        let printed =
            printed.rsplit("KEY").next().expect("a table").replace("\x1b[32m", "").replace("\x1b[0m", "");
        for line in printed.lines().take_while(|line| !line.starts_with("end")).skip(1) {
            assert!(rows.iter().any(|row| row == line.trim_end()), "{columns} {line:?}\n{rows:#?}");
        }
        // The columns are aligned.
        terminal.type_line("clear; dlock status nightly-report 夜间报告-每天 deploy-🚀-web; echo e''nd");
        terminal.expect("\r\nend");
        let rows = terminal.rows();
        let columns_of = |c: char| if c >= '\u{2e80}' { 2 } else { 1 };
        let place = |row: &String| Some(row[..row.find("held")?].chars().map(columns_of).sum());
        let places: Vec<usize> = rows.iter().filter_map(place).collect();
        assert!(
            places.len() == 3 && places.iter().all(|at| *at == places[0]),
            "{columns} {places:?}\n{rows:#?}"
        );
        terminal.close();
    }
    world.write("go", "");
    finish_all(holders);
}

/// In a pipe tables are not cut and have no colours.
/// Thousands of idle keys are looked through with less, at 80 columns.
#[test]
fn a_table_of_idle_keys_has_no_columns_of_dashes() {
    let world = World::without_redis();
    for (key, status) in [("nightly-report", 0), ("weekly-cleanup", 3)] {
        world.run(key, &[], &format!("exit {status}")).status(status).run();
    }
    let table = world.dlock(["status", "-a"]).any_stdout().run().stdout;
    let head: Vec<&str> = table
        .lines()
        .next()
        .expect("a head")
        .split("  ")
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect();
    assert_eq!(head, ["KEY", "STATE", "LAST RUN"], "{table}");
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
}

#[test]
fn a_piped_table_is_whole_and_plain() {
    let world = World::new(Backend::Redis);
    let label = "x".repeat(200);
    let holder = world.run("k", &["--label", &label], HOLD).spawn();
    world.wait_for_log("up");
    let table = world.dlock(["status"]).any_stdout().env("COLUMNS", "40").run().stdout;
    assert!(table.contains(&label) && !table.contains('\x1b'), "{table}");
    world.write("go", "");
    holder.finish();
}

/// The estimate needs enough earlier runs.
fn status_estimates_when_a_waiter_gets_the_lock(backend: Backend) {
    let world = World::new(backend);
    for key in ["k", "k", "k", "k", "k", "l"] {
        world.run(key, &[], "sleep 0.2").run();
    }
    let hold = |key| world.run(key, &[], HOLD).spawn();
    let wait = |key| world.run(key, &["-w"], "true").any_stderr().spawn();
    let holders = ["k", "l"].map(hold);
    world.wait_for_lines("up", 2);
    let mut waiters: Vec<_> = ["k", "l"].map(wait).into();
    world.wait_for_waiters("k", 1);
    waiters.push(wait("k"));
    world.wait_for_waiters("k", 2);
    world.wait_for_waiters("l", 1);
    let turns = |key| -> Vec<Option<u64>> {
        let status = world.status(key);
        let waiters = status["waiters"].as_array().expect("waiters");
        waiters.iter().map(|waiter| waiter["turn_ms"].as_u64()).collect()
    };
    let [first, second] = turns("k")[..] else { panic!("two wait") };
    assert!(first.is_some() && second >= first.map(|first| first + 200), "{first:?}, {second:?}");
    assert_eq!(turns("l"), [None], "one run says nothing");
    let text = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(text.contains("its turn in about "), "{text}");
    world.write("go", "");
    holders.into_iter().chain(waiters).for_each(|one| drop(one.finish()));
}
