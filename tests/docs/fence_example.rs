//! The example of a fence in docs/guarantees.md, as it is printed there, on SQLite. No lock helps
//! there: a run that was stopped together with its dlock and its guard goes on after the next run
//! has written.

use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::Signal;
use std::process::Stdio;

/// The run that the page shows.
const RUN: &str = "./write-report";

#[test]
fn an_older_run_is_refused() {
    let world = a_database(&block("sql", "-- write.sql\n"));
    comes_back_too_late(&world);
    assert_eq!(world.lines("status 1"), 1, "it stops: {:?}", world.log());
    assert!(world.read("refusal").contains("refused"), "it says why: {}", world.read("refusal"));
    assert_eq!(world.read("refusal").lines().count(), 1, "and nothing else");
    assert_eq!(body(&world), "newer");
    assert_eq!(query(&world, "SELECT fence FROM report"), world.fence("report").to_string());
}

/// The same without the condition, to show that only the condition refuses the old run.
#[test]
fn without_the_condition_it_overwrites_what_is_newer() {
    let write = block("sql", "-- write.sql\n");
    let (write, _) = write.split_once("WHERE").expect("a condition");
    let world = a_database(&format!("{};\n", write.trim_end()));
    comes_back_too_late(&world);
    assert_eq!(world.lines("status 0"), 1, "{:?}", world.log());
    assert_eq!(body(&world), "older");
}

#[test]
fn runs_in_order_write_one_after_the_other() {
    let world = a_database(&block("sql", "-- write.sql\n"));
    let mut fence = 0;
    for text in ["first", "second"] {
        // The same run writes twice.
        world
            .run("report", &[], &format!("for at in 1 2; do {}; done", writes(&format!("{text} $at"))))
            .run();
        assert_eq!(body(&world), format!("{text} 2"));
        let next = query(&world, "SELECT fence FROM report").parse::<u64>().expect("a number");
        assert_eq!(next, world.fence("report"));
        assert!(next > fence, "{next} after {fence}");
        fence = next;
    }
    assert_eq!(query(&world, "SELECT count(*) FROM report"), "1");
}

/// After a run has read the row, an older run may not write it.
#[test]
fn a_read_claims_the_row() {
    let world = a_database(&block("sql", "-- write.sql\n"));
    world.run("report", &[], &writes("first")).run();
    let claim = format!("{} SELECT changes();", block("sql", "-- claim.sql\n"));
    let fence = world.fence("report");
    let claims = |fence: u64| query(&world, &claim.replace(":fence", &fence.to_string()));
    assert_eq!(claims(fence + 1), "1", "a later run");
    assert_eq!(claims(fence + 1), "1", "the same once more");
    assert_eq!(claims(fence), "0", "the one before it");
    let late = format!("DLOCK_FENCE={fence} {RUN}");
    let mut shell = world.command("sh");
    assert_eq!(shell.args(["-c", &late]).stderr(Stdio::null()).status().expect("sh").code(), Some(1));
    assert_eq!(body(&world), "first");
}

/// A run gets the lock and is stopped, with its dlock and its guard, until its lease is over. The
/// next run writes. Then the first job goes on, before its guard can end it.
fn comes_back_too_late(world: &World) {
    let writes = format!("{} 2> refusal; echo \"status $?\" >> log", writes("older"));
    let job = format!("echo $$ > job; while [ ! -e go ]; do sleep 0.1; done; {writes}");
    let holder = world.run("report", &["-t", "2s"], &job).status(79).any_stderr().spawn();
    let (job, guard) = (world.wait_for_pid("job"), holder.guard());
    for pid in [guard, holder.pid(), job] {
        proc::signal(pid, Signal::STOP);
        wait_until("it stops", || proc::stopped(pid));
    }
    world.run("report", &["-w"], &self::writes("newer")).any_stderr().run();
    assert_eq!(body(world), "newer");
    world.write("go", "");
    proc::signal(job, Signal::CONT);
    wait_until("the older run has tried to write", || !world.log().is_empty());
    proc::signal(guard, Signal::CONT);
    holder.signal(Signal::CONT);
    holder.finish();
}

/// The script of a job that writes this report.
fn writes(text: &str) -> String {
    format!("printf %s \"{text}\" > report.txt; {RUN}")
}

/// A world with the files of the page, and a database with its table.
fn a_database(write: &str) -> World {
    let world = World::without_redis();
    world.script("write-report", &block("sh", "#!/bin/sh\n# write-report:"));
    assert!(block("sh", "dlock run ").contains(RUN), "it is run as the page says");
    world.write("write.sql", write);
    query(&world, &block("sql", "-- table.sql\n"));
    world
}

fn body(world: &World) -> String {
    query(world, "SELECT body FROM report")
}

#[track_caller]
fn query(world: &World, sql: &str) -> String {
    let mut sqlite = world.command("sqlite3");
    // Without the space a leading comment would look like an option.
    let output = sqlite.args(["-bail", "report.db", &format!(" {sql}")]).output().expect("sqlite3");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The fenced block of the page that begins with `begin`.
fn block(language: &str, begin: &str) -> String {
    let page = include_str!("../../docs/guarantees.md");
    let (_, section) = page.split_once("### An example in SQL\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let mut blocks = section.split("\n```").skip(1).step_by(2);
    let found = blocks.find_map(|block| {
        block.strip_prefix(language)?.strip_prefix('\n').filter(|text| text.starts_with(begin))
    });
    format!("{}\n", found.unwrap_or_else(|| panic!("{begin:?} is on the page")))
}
