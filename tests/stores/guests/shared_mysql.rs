//! Other users of the same MySQL database: a view in the place of the table does not run.

use super::every_command;
use crate::support::hand_over::JOB;
use crate::support::mysql::Mysql;
use crate::support::wait::OUTAGE;
use crate::support::world::World;

/// A function that copies what its caller may read, and a view over the table that calls it.
const EVIL: &str = "CREATE USER mallory@localhost; CREATE DATABASE secret; CREATE TABLE secret.t (word TEXT); \
     INSERT INTO secret.t VALUES ('sesame'); CREATE TABLE ops.evidence (word TEXT); GRANT ALL ON ops.* TO mallory@localhost";
const VIEW: &str = "CREATE FUNCTION evil() RETURNS INT SQL SECURITY INVOKER MODIFIES SQL DATA BEGIN \
     INSERT INTO ops.evidence SELECT word FROM secret.t; RETURN 1; END; \
     CREATE SQL SECURITY INVOKER VIEW dlock_locks AS SELECT * FROM kept WHERE evil() = 1 WITH CHECK OPTION";

fn as_mallory(server: &Mysql, statements: &str) {
    let mut client = server.client("mallory");
    let text = format!("DELIMITER //\n{}//\n", statements.replace("END; ", "END//\n"));
    let output = client.args(["-D", "ops", "-e", &text]).output().expect("mariadb");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_view_in_the_place_of_the_table_is_not_used() {
    let (mut world, server) = World::with_server(|home| Mysql::start(home, &[]), |server| server.url("ops"));
    server.ask("mysql", EVIL);
    world.use_store(format!("mysql+unix://root@{}?db=ops", server.socket().display()));
    world.run("k", &[], "true").run();
    let holder = world.run("k", &["-t", "2m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    as_mallory(&server, "RENAME TABLE dlock_locks TO kept");
    as_mallory(&server, VIEW);
    for output in every_command(&world, 77, |dlock| dlock) {
        assert!(output.stderr.contains("a view in the place"), "{}", output.stderr);
    }
    let said = world.dlock(["doctor"]).status(69).any_stdout().any_stderr().run().stdout;
    assert!(
        said.contains("a view in the place") && said.contains("logs in as a user with the right"),
        "{said}"
    );
    // The holder from before does not use the view either.
    world.write("go", "");
    let said = holder.finish().stderr;
    assert!(said.contains("a view in the place"), "{said}");
    assert_eq!(server.ask("ops", "SELECT * FROM evidence"), "");
    // In one step: a guard that still tries to give the lock back creates a table that is missing.
    as_mallory(&server, "RENAME TABLE dlock_locks TO view, kept TO dlock_locks");
    // The holder could not release it: the next run waits until the lease ends.
    world.run("k", &["-w"], "true").any_stderr().spawn().finish_within(OUTAGE);
}

/// The user of docs/stores.md.
#[test]
fn a_user_as_documented() {
    let (world, server) = World::with_server(|home| Mysql::start(home, &[]), |server| server.url("ops"));
    let documented = include_str!("../../../docs/stores.md");
    let begin = documented.find("CREATE DATABASE dlock;").expect("the statements");
    let statements = documented[begin..].split("```").next().expect("their end");
    server.ask("mysql", statements);
    let url = format!("mysql+unix://dlock@{}?db=dlock", server.socket().display());
    for words in [&["run", "-k", "k", "--", "true"][..], &["status"], &["doctor"], &["metrics"]] {
        let run = world.dlock(words).env("DLOCK_STORE", &url).env("DLOCK_PASSWORD", "choose one");
        let said = run.any_stdout().any_stderr().run().stdout;
        assert!(!said.contains("logs in as"), "{said}");
    }
}
