//! A server that begins well and then answers anything at all, and a network that changes answers.
//! A client that asks ends soon, stays small and says why. A holder goes on with its lock, or its
//! job is dead before another client gets the lock.

use super::liar::{self, Lie, garbled, random};
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
use super::{is_decent, tongue::Tongue};
use crate::support::dlock::End;
use crate::support::proc;
use crate::support::storm::{Dice, is_soak};
use crate::support::wait::{OUTAGE, wait_until};
use crate::support::world::{Backend, World};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

mod on_redis {
    use crate::support::world::Backend;

    #[test]
    fn a_job_whose_network_garbles_is_dead_in_time_or_goes_on() {
        super::a_job_whose_network_garbles_is_dead_in_time_or_goes_on(Backend::Redis);
    }
}

#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
macro_rules! on_the_other_stores {
    ($($store:ident, $backend:ident, $feature:literal;)+) => {$(
        #[cfg(feature = $feature)]
        mod $store {
            use crate::support::world::Backend;

            #[test]
            fn any_answer_ends_in_a_line() {
                super::any_answer_ends_in_a_line(Backend::$backend);
            }

            #[test]
            fn an_answer_without_an_end_is_given_up() {
                super::an_answer_without_an_end_is_given_up(Backend::$backend);
            }

            #[test]
            fn a_job_whose_network_garbles_is_dead_in_time_or_goes_on() {
                super::a_job_whose_network_garbles_is_dead_in_time_or_goes_on(Backend::$backend);
            }
        }
    )+};
}

#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
on_the_other_stores! {
    on_mysql, Mysql, "mysql";
    on_postgres, Postgres, "postgres";
    on_etcd, Etcd, "etcd";
    on_zookeeper, ZooKeeper, "zookeeper";
}

/// Address space in bytes that is more than any process of dlock needs.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
const SMALL: &str = "--as=400000000";
/// Longer than any client takes whose steps may each wait for a third of a second.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
const SOON: Duration = Duration::from_secs(25);
/// Number of clients at a time.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
const WORKERS: usize = 4;

/// The port of a world's server.
fn port(world: &World) -> u16 {
    let url = world.url();
    let behind = url.split_once("127.0.0.1:").expect("a server of this machine's").1;
    let digits = behind.split(|c: char| !c.is_ascii_digit()).next().expect("a port");
    digits.parse().expect("a port")
}

/// The URL of the world's store through another port.
fn by_way_of(world: &World, other: u16) -> String {
    world.url().replace(&format!("127.0.0.1:{}", port(world)), &format!("127.0.0.1:{other}"))
}

#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
fn any_answer_ends_in_a_line(backend: Backend) {
    let (world, tongue) = (World::new(backend), Tongue::of(backend));
    let hold = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("held", &["-t", "5m"], hold).any_stderr().spawn();
    world.wait_for_log("up");
    let (last, seeds) = (if is_soak() { 3000 } else { 100 }, AtomicU64::new(1));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed);
                    if seed > last {
                        break;
                    }
                    one_case(&world, tongue, seed);
                }
            });
        }
    });
    assert!(!world.path("met").exists(), "somebody ran beside the holder");
    world.write("go", "");
    holder.finish();
}

#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
fn one_case(world: &World, tongue: Tongue, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let honest = dice.roll(14);
    // An answer that is valid by chance may say that a held lock is free; then that is the server's
    // word.
    let is_held = dice.roll(3) == 0;
    let liar = liar::before(port(world), seed, move |dice, number, answer| match number < honest {
        true => Lie::Say(answer.to_vec()),
        false if is_held => tongue.rubbish(dice, answer),
        false => tongue.lie(dice, answer),
    });
    let (own, ran) = (format!("k{seed}"), format!("ran{seed}"));
    let (key, ran) = if is_held { ("held", "met") } else { (own.as_str(), ran.as_str()) };
    let words: &[&str] = match dice.roll(10) {
        0 | 1 => &["run", "-k", key, "-t", "2s", "--", "touch", ran],
        2 | 3 => &["run", "-k", key, "-w", "300ms", "-t", "2s", "--", "touch", ran],
        4 => &["run", "-k", key, "-k", "also", "--shared", "-t", "2s", "--", "touch", ran],
        5 => &["status"],
        6 => &["history", key],
        7 => &["metrics"],
        8 => &["release", &own, "-y"],
        _ => &["wait", key, "-w", "300ms"],
    };
    let dlock = world.dlock(words).env("DLOCK_STORE", by_way_of(world, liar));
    let dlock = dlock.env("DLOCK_OP_TIMEOUT", "300ms").env("DLOCK_CONNECT_TIMEOUT", "300ms");
    let began = Instant::now();
    let case = format!("seed {seed}, {honest} honest answers: {words:?}");
    let output = is_decent(dlock, &case, SMALL);
    assert!(began.elapsed() < SOON, "after {:?}: {case}: {}", began.elapsed(), output.stderr);
    let (end, has_run) = (output.end(), world.path(ran).exists());
    assert!(end != End::Status(64), "it is not the caller's fault: {case}: {}", output.stderr);
    if words[0] == "run" && !is_held {
        // A job that has ended cannot be stopped, so the message says that it may have run beside
        // another one.
        let fits = if has_run { matches!(end, End::Status(0 | 79)) } else { end != End::Status(0) };
        assert!(fits, "{end:?}, and that it has run is {has_run}: {case}: {}", output.stderr);
    }
    assert!(end == End::Status(0) || output.stderr.contains("dlock: "), "it says nothing: {end:?}: {case}");
}

/// An endless answer is ended by a limit on its size, not by the clock and not by the kernel.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
fn an_answer_without_an_end_is_given_up(backend: Backend) {
    let (world, tongue) = (World::new(backend), Tongue::of(backend));
    world.run("k", &[], "true").run();
    let kinds = tongue.floods(&[0; 8]).len();
    let cases = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let case = cases.fetch_add(1, Ordering::Relaxed);
                    let (kind, honest) =
                        (usize::try_from(case).expect("a number") % kinds, case / kinds as u64);
                    if honest > 3 {
                        break;
                    }
                    let liar = liar::before(port(&world), case, move |_, number, answer| {
                        if number < honest {
                            return Lie::Say(answer.to_vec());
                        }
                        let (first, again) = tongue.floods(answer).swap_remove(kind);
                        Lie::ForEver(first, again)
                    });
                    let words: &[&str] = if case.is_multiple_of(2) { &["status"] } else { &["status", "k"] };
                    let dlock = world.dlock(words).env("DLOCK_STORE", by_way_of(&world, liar));
                    let case = format!("flood {kind} after {honest} answers");
                    let output = is_decent(dlock.env("DLOCK_OP_TIMEOUT", "8s"), &case, SMALL);
                    // If less was requested, the whole answer came before the flood.
                    assert!(matches!(output.end(), End::Status(0 | 69 | 77)), "{case}: {output:?}");
                }
            });
        }
    });
}

/// The answers to a holder are changed, cut, slow or endless. Its requests arrive, so another
/// client is granted the lock by the server when the lease is over, and not before.
fn a_job_whose_network_garbles_is_dead_in_time_or_goes_on(backend: Backend) {
    let last = if is_soak() { 40 } else { 4 };
    let seeds = AtomicU64::new(1);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed);
                    if seed > last {
                        break;
                    }
                    one_holder(backend, seed);
                }
            });
        }
    });
}

fn one_holder(backend: Backend, seed: u64) {
    let world = World::new(backend);
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let often = *dice.of(&[1, 2, 8]);
    let is_bad = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_bad);
    let liar = liar::before(port(&world), seed, move |dice, _, answer| {
        let lies = switch.load(Ordering::Relaxed) && dice.roll(often) == 0;
        match dice.roll(10) {
            _ if !lies => Lie::Say(answer.to_vec()),
            0 => Lie::Last(answer[..answer.len() / 2].to_vec()),
            1 => Lie::Slowly(answer.to_vec()),
            2 => Lie::ForEver(answer[..answer.len() / 2].to_vec(), random(dice, 4096)),
            _ => Lie::Say(garbled(dice, answer)),
        }
    });
    let job = "echo $$ > pid; while [ ! -e go ]; do sleep 0.1; done; echo done >> log";
    let options = ["-t", "4s", "--grace", "200ms", "--store", &by_way_of(&world, liar)];
    let holder = world.run("k", &options, job).env("DLOCK_OP_TIMEOUT", "2s").any_stderr().spawn();
    let pid = world.wait_for_pid("pid");
    let born = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The next holder checks whether the previous job can still do something.
    let looks = "read -r pid < pid; read -r _ _ state _ < /proc/$pid/stat || state=X
        case $state in Z | X) ;; *) [ -e over ] || echo overlap >> log ;; esac; echo next >> log";
    let waiter = world.run("k", &["-w", "60s", "-t", "20s"], &format!("{looks} 2> /dev/null"));
    let waiter = waiter.env("DLOCK_OP_TIMEOUT", "20s").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    is_bad.store(true, Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(6);
    let mut holder = holder;
    while Instant::now() < until && !holder.has_ended() {
        sleep(Duration::from_millis(20));
    }
    is_bad.store(false, Ordering::Relaxed);
    world.write("go", "");
    let output = holder.output_within(OUTAGE);
    let case = format!("{backend:?}, seed {seed}, one of {often}: {}", output.stderr);
    assert!(matches!(output.end(), End::Status(0 | 79)), "{:?} {case}", output.end());
    let is_same = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let since =
            |stat: &str| stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20)).map(str::to_owned);
        since(&stat) == since(&born)
    });
    assert!(!is_same || !proc::alive(pid), "the job outlives what ran it: {case}");
    let is_done = world.lines("done") == 1;
    assert!(is_done || output.end() == End::Status(79), "{case}");
    // The job ended by itself, and the lease before the release reached the server.
    let is_late = output.stderr.contains("was lost before the command ended");
    assert!(!is_done || is_late || output.end() == End::Status(0), "{case}");
    assert!(output.stderr.lines().all(|line| line.starts_with("dlock: ")), "{case}");
    let said = waiter.output_within(OUTAGE);
    assert_eq!(said.end(), End::Status(0), "{case}, and whoever waits: {}", said.stderr);
    wait_until("the next one has run", || world.lines("next") == 1);
    assert_eq!(world.lines("overlap"), 0, "{case}");
}
