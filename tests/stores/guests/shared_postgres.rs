//! Other users of the same PostgreSQL database: what they make there does not run with the rights
//! of dlock's user.

use super::every_command;
use crate::support::hand_over::JOB;
use crate::support::postgres::{Pooler, Postgres};
use crate::support::world::World;
use std::fs;

/// Objects of a user who may create objects in `public`: each function, operator and type that a
/// statement could take for the server's own, with the server's types and with similar ones. Each
/// makes that user a superuser, and leaves a trace.
const TRAPS: &str = "
    CREATE ROLE mallory LOGIN;
    GRANT CREATE, USAGE ON SCHEMA public TO mallory;
    CREATE TABLE public.evidence (what pg_catalog.text);
    GRANT ALL ON public.evidence TO PUBLIC;
    SET ROLE mallory;
    DO $do$
    DECLARE
        body text := $b$ BEGIN RAISE LOG 'evidence'; INSERT INTO public.evidence VALUES ('x'); ALTER ROLE mallory SUPERUSER; RETURN NULL; END $b$;
        types text[] := ARRAY['int2', 'int4', 'int8', 'numeric', 'float8', 'text', 'varchar', 'name', 'bytea', '\"char\"', 'oid', 'regclass', 'timestamptz', 'bool'];
        l text; r text; op text; f record; made int := 0;
    BEGIN
        FOREACH l IN ARRAY types LOOP FOREACH r IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.says(pg_catalog.%s, pg_catalog.%s) RETURNS pg_catalog.bool LANGUAGE plpgsql AS %L', l, r, body);
            EXECUTE format('CREATE FUNCTION public.makes(pg_catalog.%s, pg_catalog.%s) RETURNS pg_catalog.%s LANGUAGE plpgsql AS %L', l, r, l, body);
            FOREACH op IN ARRAY ARRAY['=', '<>', '<', '<=', '>', '>=', '~~'] LOOP
                EXECUTE format('CREATE OPERATOR public.%s (leftarg = pg_catalog.%s, rightarg = pg_catalog.%s, function = public.says)', op, l, r);
            END LOOP;
            FOREACH op IN ARRAY ARRAY['+', '-', '*', '/', '%', '||'] LOOP
                EXECUTE format('CREATE OPERATOR public.%s (leftarg = pg_catalog.%s, rightarg = pg_catalog.%s, function = public.makes)', op, l, r);
            END LOOP;
            made := made + 13;
        END LOOP; END LOOP;
        -- All that the server has under the names that a statement of locks may use, with the same types.
        FOR f IN SELECT DISTINCT p.proname, pg_get_function_identity_arguments(p.oid) AS args, format_type(p.prorettype, NULL) AS result
            FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname ~ '^(encode|decode|concat|concat_ws|set_config|current_setting|to_regclass|pg_identify_object|pg_has_role|pg_get_userbyid|pg_backend_pid|pg_notify|statement_timestamp|pg_is_in_recovery|pg_try_advisory.*|pg_advisory.*|date_part|extract|timezone|length|substring|int8|int4|int2|text|numeric|bytea.*|.*eq|.*ne|.*lt|.*le|.*gt|.*ge)$'
        LOOP BEGIN
            EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.proname, f.args, f.result, body);
            made := made + 1;
        EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP;
        FOREACH l IN ARRAY types LOOP
            FOREACH op IN ARRAY ARRAY['count', 'max', 'lead', 'row_number', 'quote_ident', 'length', 'text', 'int8', 'encode', 'decode', 'concat', 'concat_ws', 'pg_notify', 'to_regclass'] LOOP BEGIN
                EXECUTE format('CREATE FUNCTION public.%s(pg_catalog.%s) RETURNS pg_catalog.text LANGUAGE plpgsql AS %L', op, l, body);
                made := made + 1;
            EXCEPTION WHEN OTHERS THEN NULL; END; BEGIN
                EXECUTE format('CREATE FUNCTION public.%s(pg_catalog.%s, pg_catalog.varchar) RETURNS pg_catalog.text LANGUAGE plpgsql AS %L', op, l, body);
                made := made + 1;
            EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP;
        END LOOP;
        FOREACH l IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.looks(pg_catalog.%s) RETURNS pg_catalog.bool LANGUAGE plpgsql AS %L', l, body);
            EXECUTE format('CREATE DOMAIN public.%s AS pg_catalog.%s CHECK (public.looks(VALUE))', l, l);
        END LOOP;
        CREATE TYPE public.number AS (n pg_catalog.int8);
        CREATE FUNCTION public.cast_it(public.number) RETURNS pg_catalog.int8 LANGUAGE plpgsql AS $b$ BEGIN RAISE LOG 'evidence'; RETURN 0; END $b$;
        CREATE CAST (public.number AS pg_catalog.int8) WITH FUNCTION public.cast_it(public.number) AS IMPLICIT;
        IF made < 2700 THEN RAISE EXCEPTION 'only % traps', made; END IF;
    END $do$";

fn own_server() -> (World, Postgres) {
    World::with_server(|home| Postgres::start(home, &["fsync=off"]), |server| server.url("postgres"))
}

#[track_caller]
fn nothing_ran(server: &Postgres, when: &str) {
    // The statements that follow use no operator and no function.
    assert_eq!(server.ask("postgres", "TABLE public.evidence"), "", "{when}");
    let log = fs::read_to_string(server.data().join("../log")).expect("a log");
    // The trace in the log remains if the transaction was rolled back.
    assert!(!log.lines().any(|line| line.ends_with("LOG:  evidence")), "{when}");
}

/// The attack of CVE-2018-1058, also where `public` comes before the server's own schema, and
/// behind a pooler.
#[test]
fn foreign_objects_in_the_search_path_never_run() {
    let (mut world, server) = own_server();
    server.ask("postgres", TRAPS);
    let direct = world.url();
    world.open_to_all();
    for path in ["\"$user\", public", "public, pg_catalog"] {
        server.ask("postgres", &format!("ALTER ROLE app SET search_path = {path}"));
        for mode in [None, Some("transaction")] {
            let pooler = mode.map(|mode| Pooler::start(&world, server.port(), "postgres", mode));
            world.use_store(pooler.as_ref().map_or_else(|| direct.clone(), Pooler::url));
            let when = format!("{path} {mode:?}");
            every_command(&world, 0, |dlock| dlock);
            world.dlock(["doctor"]).any_stdout().any_stderr().run();
            let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
            world.wait_for_log("up");
            let jobs = (1..=3).map(|number| format!("echo {number} >> log"));
            let waiters = world.queue("k", &["-w"], jobs);
            world.write("go", "");
            holder.finish();
            waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
            assert_eq!(world.log(), ["up", "done", "1", "2", "3"], "{when}");
            let asked = world.run("k", &["-t", "1m"], "exec sleep 1000").status(79).any_stderr().spawn();
            world.wait_for_state("k", "held");
            world.dlock(["release", "k", "-y"]).any_stderr().run();
            asked.finish();
            for file in ["go", "log"] {
                fs::remove_file(world.path(file)).unwrap();
            }
            nothing_ran(&server, &when);
        }
    }
}

/// A function that leaves a trace, and makes its owner a superuser if it can.
const EVIL: &str = "CREATE ROLE mallory LOGIN; CREATE ROLE guest LOGIN; GRANT CREATE ON SCHEMA public TO mallory, guest; \
     CREATE TABLE public.evidence (what text); GRANT ALL ON public.evidence TO PUBLIC; SET ROLE mallory; \
     CREATE FUNCTION public.evil() RETURNS trigger LANGUAGE plpgsql AS $b$ BEGIN RAISE LOG 'evidence'; \
     INSERT INTO public.evidence VALUES (TG_OP); RETURN NEW; END $b$; \
     CREATE FUNCTION public.wicked() RETURNS bigint LANGUAGE plpgsql AS $b$ BEGIN RAISE LOG 'evidence'; \
     INSERT INTO public.evidence VALUES ('f'); RETURN 0; END $b$; \
     CREATE FUNCTION public.wicked(bytea) RETURNS bytea IMMUTABLE LANGUAGE plpgsql AS $b$ BEGIN RAISE LOG 'evidence'; RETURN $1; END $b$";

const TABLES: [&str; 3] = ["dlock_locks", "dlock_waiters", "dlock_ends"];

/// Has a run create all tables and then gives them to mallory, who lets all users use them.
fn give_to_mallory(world: &World, server: &Postgres) {
    world.run("k", &[], "true").run();
    for table in TABLES {
        server.ask(
            "postgres",
            &format!("ALTER TABLE {table} OWNER TO mallory; GRANT ALL ON {table} TO PUBLIC"),
        );
    }
}

#[test]
fn a_superuser_uses_no_table_of_another_user() {
    let (world, server) = own_server();
    server.ask("postgres", EVIL);
    give_to_mallory(&world, &server);
    server.ask(
        "postgres",
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON dlock_locks FOR EACH ROW EXECUTE FUNCTION evil()",
    );
    for output in every_command(&world, 77, |dlock| dlock) {
        let said = output.stderr;
        assert!(said.contains(" of mallory") && said.contains("docs/stores.md"), "{said}");
    }
    // Without a trigger they are refused, too: one can be added at any time.
    server.ask("postgres", "DROP TRIGGER t ON dlock_locks");
    let said = world.run("k", &[], "true").status(77).any_stderr().run().stderr;
    assert!(said.contains("whose owner may do less"), "{said}");
    let said = world.dlock(["doctor"]).status(69).any_stdout().any_stderr().run().stdout;
    assert!(said.contains("mallory"), "{said}");
    nothing_ran(&server, "a trigger");
}

/// A user with ordinary rights may use tables of another user, as long as they hold no code of that
/// user.
#[test]
fn tables_of_another_user_hold_no_code() {
    let (world, server) = own_server();
    server.ask("postgres", EVIL);
    give_to_mallory(&world, &server);
    let guest = world.url().replace("app@", "guest@");
    let run = || world.run("k", &["--store", &guest], "true").any_stderr();
    run().run();
    let said = world.dlock(["doctor", "--store", &guest]).any_stdout().run().stdout;
    assert!(said.contains("every user, mallory may change dlock's tables, too"), "{said}");
    for (make, undo) in [
        (
            "CREATE TRIGGER t AFTER UPDATE ON dlock_locks EXECUTE FUNCTION evil()",
            "DROP TRIGGER t ON dlock_locks",
        ),
        ("CREATE RULE r AS ON UPDATE TO dlock_locks DO ALSO SELECT wicked()", "DROP RULE r ON dlock_locks"),
        (
            "ALTER TABLE dlock_waiters ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON dlock_waiters USING (wicked() = 0)",
            "DROP POLICY p ON dlock_waiters; ALTER TABLE dlock_waiters DISABLE ROW LEVEL SECURITY",
        ),
        (
            "ALTER TABLE dlock_locks ALTER version SET DEFAULT wicked()",
            "ALTER TABLE dlock_locks ALTER version DROP DEFAULT",
        ),
        (
            "ALTER TABLE dlock_locks ADD CONSTRAINT c CHECK (wicked() = 0) NOT VALID",
            "ALTER TABLE dlock_locks DROP CONSTRAINT c",
        ),
        ("CREATE INDEX i ON dlock_locks (wicked(body))", "DROP INDEX i"),
        (
            "CREATE DOMAIN d AS bytea CHECK (wicked(VALUE) IS NOT NULL); ALTER TABLE dlock_locks ALTER body TYPE d",
            "ALTER TABLE dlock_locks ALTER body TYPE bytea; DROP DOMAIN d",
        ),
        (
            "ALTER TABLE dlock_locks RENAME TO kept; CREATE VIEW dlock_locks AS SELECT * FROM kept WHERE wicked() = 0; \
             GRANT ALL ON dlock_locks TO PUBLIC",
            "DROP VIEW dlock_locks; ALTER TABLE kept RENAME TO dlock_locks",
        ),
    ] {
        server.ask("postgres", &format!("SET client_min_messages = error; {make}; DELETE FROM evidence"));
        let said = run().status(77).run().stderr;
        assert!(said.contains("does not use dlock_"), "{make}: {said}");
        assert_eq!(server.ask("postgres", "TABLE evidence"), "", "{make}");
        server.ask("postgres", undo);
        run().run();
    }
}

/// A user with GRANT ALL on the administrator's table adds a trigger while a lock is held.
#[test]
fn a_trigger_that_comes_while_a_job_runs_is_not_run() {
    let (world, server) = own_server();
    server.ask("postgres", EVIL);
    world.run("k", &[], "true").run();
    server.ask("postgres", "GRANT ALL ON dlock_locks TO mallory");
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    server.ask(
        "postgres",
        "SET ROLE mallory; CREATE TRIGGER t BEFORE UPDATE ON dlock_locks FOR EACH ROW EXECUTE FUNCTION evil()",
    );
    world.write("go", "");
    let said = holder.finish().stderr;
    assert!(said.contains("has a trigger"), "{said}");
    nothing_ran(&server, "while it runs");
}

/// The owner and the user of docs/stores.md.
#[test]
fn an_owner_and_a_user_as_documented() {
    let (world, server) = own_server();
    let documented = include_str!("../../../docs/stores.md");
    let begin = documented.find("CREATE ROLE dlock_owner").expect("the statements");
    let statements = documented[begin..].split("```").next().expect("their end");
    server.ask("postgres", statements);
    let url = world.url().replace("app@", "dlock@");
    every_command(&world, 0, |dlock| dlock.env("DLOCK_STORE", &url));
    let said = world.dlock(["doctor"]).env("DLOCK_STORE", &url).any_stdout().run().stdout;
    assert!(!said.contains("logs in as") && !said.contains("may change"), "{said}");
    let said = world.dlock(["doctor"]).any_stdout().any_stderr().run().stdout;
    assert!(said.contains("logs in as a superuser"), "{said}");
    assert_ne!(server.ask("postgres", "SELECT count(*) FROM dlock.dlock_locks"), "0");
}
