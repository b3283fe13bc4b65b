//! Transactions: deadlocks, single statements, tables without transactions, and the rows that are
//! written.

use super::{Hog, own_server};
use crate::stores::databases::JOB;
use crate::support::database::refused;
use crate::support::mysql::Mysql;
use crate::support::storm::{Wish, storm};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;

/// The victim of a deadlock with another transaction, the one that has changed less, tries again.
#[test]
fn a_deadlock_is_tried_again() {
    let (world, server) = own_server(&[]);
    let both = || world.dlock(["run", "-k", "a", "-k", "b", "--op-timeout", "20s", "--", "true"]);
    both().run();
    let row =
        |key: &str| format!("SELECT 1 FROM dlock_locks WHERE kind = 0 AND name = 'dlock:{key}' FOR UPDATE");
    server.ask("ops", "CREATE TABLE ballast (n INT PRIMARY KEY) ENGINE=InnoDB");
    let change = "INSERT INTO ballast SELECT seq FROM seq_1_to_500";
    let hog = Hog::with(&server, "root", &format!("{change}; {}", row("b")));
    let run = both().any_stderr().spawn();
    // The server does not refresh the list of transactions while it is read ten times a second.
    let waits = "SELECT variable_value FROM information_schema.global_status \
         WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'";
    wait_until("the run waits for the row", || server.ask("ops", waits) != "0");
    hog.say(&row("a"));
    let status = || server.ask("ops", "SHOW ENGINE INNODB STATUS");
    wait_until("a deadlock was found", || status().contains("LATEST DETECTED DEADLOCK"));
    drop(hog);
    run.finish();
}

/// No transaction outlasts a statement, so a client that is stopped or dies between two statements
/// leaves no row locked.
#[test]
fn no_transaction_has_several_statements() {
    let (world, server) = own_server(&[]);
    server.ask("ops", "SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = 1");
    let wishes = [
        Wish { keys: &["k"], options: &[], kind: "alone" },
        Wish { keys: &["k", "l"], options: &["--shared"], kind: "shared" },
    ];
    storm(&world, 4, 3, &wishes);
    let said = server.ask(
        "mysql",
        "SELECT argument FROM general_log WHERE user_host LIKE 'app%' AND command_type = 'Query'",
    );
    assert!(said.contains("INSERT INTO dlock_locks"), "{said}");
    let starts = |line: &str| {
        ["BEGIN", "START", "SET AUTOCOMMIT = 0", "LOCK", "SAVEPOINT"]
            .iter()
            .any(|word| line.starts_with(word))
    };
    let begun: Vec<_> = said.lines().filter(|line| starts(&line.trim_start().to_uppercase())).collect();
    assert!(begun.is_empty(), "{begun:?}");
}

/// A value that the server withholds because of its size is not taken for damaged. MariaDB 10.11.14
/// withholds none.
#[test]
fn a_packet_that_is_too_large_names_the_setting() {
    let (world, server) = own_server(&[]);
    // However short the names of this machine and its user are, the record is larger than a packet.
    world.run("k", &["--once-per", "1s", "--label", &"x".repeat(200)], "true").run();
    server.ask("ops", "SET GLOBAL max_allowed_packet = 1024");
    if server.ask("ops", "SELECT MAX(HEX(body) IS NULL) FROM dlock_locks WHERE kind = 0").trim() == "1" {
        let said = refused(&world, 69);
        assert!(said.contains("max_allowed_packet"), "{said}");
    }
    server.ask("ops", "SET GLOBAL max_allowed_packet = 16777216");
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["well"]);
}

/// A crash may leave half of what is written into such a table.
#[test]
fn a_table_without_transactions_is_refused() {
    let world = World::with_mysql();
    world.run("k", &[], "true").run();
    world.dlock(["doctor", "--strict"]).any_stdout().run();
    let server = Mysql::shared();
    for engine in ["MyISAM", "Aria"] {
        server.ask(world.database(), &format!("ALTER TABLE dlock_locks ENGINE={engine}"));
        let said = refused(&world, 78);
        assert!(said.contains("ALTER TABLE dlock_locks ENGINE=InnoDB"), "{said}");
        world.dlock(["status"]).status(78).any_stderr().run();
        let said = world.dlock(["doctor"]).status(69).any_stdout().any_stderr().run().stdout;
        assert!(said.contains("ENGINE=InnoDB"), "{said}");
    }
    server.ask(world.database(), "ALTER TABLE dlock_locks ENGINE=InnoDB");
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["well"]);
}

/// dlock does not create such a table where the server has no other engine.
#[test]
fn no_table_without_transactions_is_made() {
    for (option, why) in
        [("skip-innodb", "has no InnoDB"), ("enforce-storage-engine=Aria", "does not allow what dlock needs")]
    {
        let (world, server) = own_server(&[option, "default-storage-engine=MyISAM"]);
        let said = refused(&world, 78);
        assert!(said.contains(why), "{said}");
        assert_eq!(server.tables("ops"), 0);
    }
}

/// The heartbeat of a waiter reads and changes its own row and no other.
#[test]
fn a_heartbeat_touches_one_row() {
    let (world, server) = own_server(&[]);
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters = world.queue("k", &["-w", "-t", "1m"], ["true"; 5]);
    server.begin_log();
    let said = wait_for("a heartbeat", || {
        let log = server.log();
        log.lines().find_map(|line| {
            Some(line[line.find("\tUPDATE dlock_locks FORCE INDEX (PRIMARY) SET said")?..].trim().to_owned())
        })
    });
    let touched = "SELECT SUM(variable_value) FROM information_schema.session_status \
         WHERE variable_name LIKE 'Handler_read%' OR variable_name = 'Handler_update'";
    let before = "SET sql_mode = 'STRICT_ALL_TABLES'; FLUSH STATUS";
    let counted = server.ask("ops", &format!("{before}; {said}; {touched}"));
    assert!(counted.parse::<f64>().is_ok_and(|rows| rows <= 2.0), "{counted}: {said}");
    world.write("go", "");
    holder.finish();
    waiters.into_iter().for_each(|run| drop(run.finish()));
}

/// Waiters that have gone and ends from long ago leave no row.
#[test]
fn no_row_is_left_behind() {
    let world = World::with_mysql();
    for round in 0..70 {
        world.run("k", &[], "true").run();
        if round == 3 {
            let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
            world.wait_for_log("up");
            let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
            world.wait_for_waiters("k", 1);
            world.write("go", "");
            holder.finish();
            waiter.finish();
        }
    }
    let count = |kind: u8| {
        let count = format!("SELECT COUNT(*) FROM dlock_locks WHERE kind = {kind} AND name = 'dlock:k'");
        Mysql::shared().ask(world.database(), &count)
    };
    assert_eq!([count(0), count(1), count(2)], ["1", "0", "64"]);
}
