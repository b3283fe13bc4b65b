//! Connection poolers between dlock and PostgreSQL.

use crate::stores::databases::JOB;
use crate::support::hand_over::notices_deaths;
use crate::support::postgres::{Pooler, Postgres};
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::Signal;

/// PgBouncer gives the server connection to another client after each transaction, so no
/// notification arrives.
#[test]
fn poolers_may_stand_in_between() {
    for mode in ["session", "transaction"] {
        let mut world = World::with_postgres();
        world.open_to_all();
        let pooler = Pooler::start(&world, Postgres::shared().port(), world.database(), mode);
        world.use_store(pooler.url());
        let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
        world.wait_for_log("up");
        let jobs = (1..=8).map(|number| format!("echo {number} >> log"));
        let waiters = world.queue("k", &["-w"], jobs);
        world.write("go", "");
        holder.finish();
        waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
        assert_eq!(world.log(), ["up", "done", "1", "2", "3", "4", "5", "6", "7", "8"], "{mode}");
    }
}

/// Nothing wakes a waiter behind a pooler, so it reads the lock more often.
#[test]
fn the_last_of_a_crowd_behind_a_pooler_soon_notices_a_death_before_it() {
    let mut world = World::with_postgres();
    world.open_to_all();
    let pooler = Pooler::start(&world, Postgres::shared().port(), world.database(), "transaction");
    world.use_store(pooler.url());
    notices_deaths(&world);
}

/// One pooler before the primary and one before its standby, used as if they were the two servers.
#[test]
fn a_pooler_may_stand_before_each_of_several_hosts() {
    let (mut world, (mut primary, standby)) = World::with_server(
        |home| {
            let primary = Postgres::start(home, &[]);
            let standby = primary.standby();
            (primary, standby)
        },
        |(primary, _)| primary.url("postgres"),
    );
    world.open_to_all();
    let before = |server: &Postgres| Pooler::start(&world, server.port(), "postgres", "transaction");
    let (first, second) = (before(&standby), before(&primary));
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    world.use_store(first.url().replace(&format!("127.0.0.1:{}", first.port()), &hosts));
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    let done = primary.ask("postgres", "SELECT pg_current_wal_lsn()");
    let has_it = format!("SELECT pg_last_wal_replay_lsn() >= '{done}'");
    wait_until("the standby has caught up", || standby.ask("postgres", &has_it) == "t");
    primary.stop(Signal::KILL);
    standby.ask("postgres", "SELECT pg_promote()");
    assert_eq!((world.state("k"), world.fence("k")), ("held".into(), fence));
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}
