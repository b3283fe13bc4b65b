//! A cluster of servers with a leader: the faults that can happen to it, and the scenarios under
//! its locks meanwhile.

use super::dlock::End;
use super::hand_over::JOB;
use super::outages::EndOfAll;
use super::proc;
use super::storm::{Dice, is_soak};
use super::wait::{OUTAGE, wait_until, wait_within};
use super::world::World;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// A cluster whose members can be killed, stopped and cut off.
pub trait Cluster {
    /// Which member leads.
    fn leader(&self) -> usize;
    /// The URL of these members.
    fn url_of(&self, members: &[usize]) -> String;
    fn kill(&mut self, member: usize);
    /// Starts a killed member again.
    fn run(&mut self, member: usize);
    fn signal(&self, member: usize, signal: Signal);
    /// Cuts a member off from the others until [`Cluster::join`]. Its clients still reach it.
    fn cut_off(&self, member: usize);
    fn join(&self);
    /// Waits until every running member serves.
    fn wait_until_it_serves(&self);
}

/// Outages of three members in turn: one stands still, the leader is cut off from the others, all
/// stand still, the leader is killed.
pub fn outages_of(cluster: &mut impl Cluster) -> impl FnMut() {
    let mut round = 0;
    move || {
        round += 1;
        let leader = cluster.leader();
        // The length of the outage is part of the test.
        let lasts = |seconds| sleep(Duration::from_secs(seconds));
        match round % 4 {
            0 => {
                cluster.kill(leader);
                lasts(1);
                cluster.run(leader);
            }
            1 => {
                cluster.signal(round / 4 % 3, Signal::STOP);
                lasts(2);
                cluster.signal(round / 4 % 3, Signal::CONT);
            }
            2 => {
                cluster.cut_off(leader);
                lasts(3);
                cluster.join();
            }
            _ => {
                (0..3).for_each(|member| cluster.signal(member, Signal::STOP));
                lasts(1);
                (0..3).for_each(|member| cluster.signal(member, Signal::CONT));
            }
        }
        cluster.wait_until_it_serves();
    }
}

/// The leader is cut off from the others; the holder and a waiter reach only the leader.
pub fn a_leader_is_cut_off(world: &World, cluster: &impl Cluster) {
    is_cut_off(world, cluster, cluster.leader());
}

/// A follower is cut off; the holder and a waiter reach only the follower.
pub fn a_follower_is_cut_off(world: &World, cluster: &impl Cluster) {
    is_cut_off(world, cluster, (cluster.leader() + 1) % 3);
}

/// A job that says whether the one in `pid` still lives, with its state. A zombie is dead; who reaps it
/// may wait for a processor.
pub const AFTER_A_CUT: &str = "read -r pid < pid; state=$(sed 's/.*) \\(.\\).*/\\1/' /proc/$pid/stat 2> /dev/null); \
    case $state in '' | Z | X) ;; *) echo both $state >> log ;; esac; echo next >> log";

/// A member is cut off from the others; the holder and a waiter reach only that member. It renews
/// nothing, and the others grant the lock when no process of the job is alive.
fn is_cut_off(world: &World, cluster: &impl Cluster, member: usize) {
    let alone = cluster.url_of(&[member]);
    let others = cluster.url_of(&[(member + 1) % 3, (member + 2) % 3]);
    let job = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let options = ["-t", "5s", "--grace", "300ms", "--store", &alone];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    world.wait_for_pid("pid");
    let waiter = world.run("k", &["-w", "--store", &alone], "echo last >> log").any_stderr().spawn();
    wait_until("it waits", || world.waiters("k") == 1);
    cluster.cut_off(member);
    let next = world.run("k", &["-w", "--store", &others], AFTER_A_CUT).any_stderr().spawn();
    next.finish_within(OUTAGE);
    world.run("other", &["--store", &alone], "true").status(69).any_stderr().run();
    holder.finish();
    cluster.join();
    waiter.finish_within(OUTAGE);
    assert_eq!(world.log(), ["next", "last"]);
}

/// The leader is killed again and again: holders and waiters notice nothing, and the other members
/// serve newcomers.
pub fn leaders_are_killed(world: &World, cluster: &mut impl Cluster, ttl: &str) {
    let holder = world.run("k", &["-t", ttl], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let jobs = (1..=3).map(|number| format!("echo {number} >> log"));
    let waiters = world.queue("k", &["-w", "-t", ttl], jobs);
    for round in 0..if is_soak() { 6 } else { 2 } {
        let began = Instant::now();
        let leader = cluster.leader();
        cluster.kill(leader);
        let newcomer = world.run(&format!("other{round}"), &["-w"], "true").any_stderr().spawn();
        newcomer.finish_within(OUTAGE);
        cluster.run(leader);
        cluster.wait_until_it_serves();
        if is_soak() {
            // A leader is killed every ten seconds for a minute.
            sleep(Duration::from_secs(10).saturating_sub(began.elapsed()));
        }
    }
    world.wait_for_waiters("k", 3);
    world.write("go", "");
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    assert_eq!(world.log(), ["up", "done", "1", "2", "3"]);
}

/// All members stand still for half of a lease of `ttl` seconds.
pub fn all_stand_still_for_half_a_lease(world: &World, cluster: &impl Cluster, ttl: u64) {
    let lease = format!("{ttl}s");
    let holder = world.run("k", &["-t", &lease], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-t", &lease, "-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    (0..3).for_each(|member| cluster.signal(member, Signal::STOP));
    // The outage itself. On a busy machine the time to elect a leader again is part of the outage.
    sleep(Duration::from_secs(if is_soak() { ttl / 2 } else { ttl / 4 }));
    (0..3).for_each(|member| cluster.signal(member, Signal::CONT));
    cluster.wait_until_it_serves();
    wait_within(OUTAGE, "it is held", || (world.state("k") == "held").then_some(()));
    assert_eq!(world.fence("k"), fence);
    world.write("go", "");
    holder.finish();
    waiter.finish_within(OUTAGE);
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// All members are gone, or stand still, for longer than a lease: the job is dead in time, and the
/// message says why.
pub fn all_are_gone_for_good(world: &World, cluster: &impl Cluster, signal: Signal) {
    let job = "trap 'echo term >> log' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "5s", "--grace", "300ms"], job).status(79).any_stderr().spawn();
    let pid = world.wait_for_pid("pid");
    (0..3).for_each(|member| cluster.signal(member, signal));
    holder.finish();
    assert!(!proc::alive(pid), "dead before dlock says that the lock is lost");
    assert!(world.log().contains(&"term".to_owned()));
}

/// Increments a number by reading it and writing it back, and a register that refuses smaller
/// fences than it has seen.
const ADD: &str = r#"
register() { flock "$k.mutex" sh -c '
    read -r seen value < "$1.register"
    [ "$2" -ge "$seen" ] || { echo "$2 $seen" >> "$1.refused"; exit 1; }
    echo "$2 ${3-$value}" > "$1.register.new"; mv "$1.register.new" "$1.register"
    if [ "${3+set}" ]; then echo "$3" >> "$1.behind"; else echo "$value"; fi' sh "$k" "$DLOCK_FENCE" "$@"; }
k=$DLOCK_KEY
number=$(cat "$k.plain"); value=$(register) || exit 1
sleep 0.02
echo $((number + 1)) > "$k.plain.new.$$"; mv "$k.plain.new.$$" "$k.plain"; echo $((number + 1)) >> "$k.added"
register $((value + 1))
"#;

/// As in Jepsen's report on the locks of etcd: several workers read, change and write values back
/// under short leases, until enough increments succeeded, during one outage after the other. No
/// increment may be lost. Under a second lock dlock, guard and job are also stopped together for
/// longer than a lease, as when a machine stands still: then only the register that checks the
/// fence must be right.
pub fn increments_through_outages(world: &World, times: usize, options: &[&str], mut outage: impl FnMut()) {
    let each = (times / 50).max(10);
    for key in ["kept", "paused"] {
        world.write(&format!("{key}.plain"), "0\n");
        world.write(&format!("{key}.register"), "0 0\n");
        ["added", "behind", "refused"].iter().for_each(|log| world.write(&format!("{key}.{log}"), ""));
    }
    let (ran, one_has_ended, began) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
    let is_over = || ran.load(Ordering::Relaxed) >= times || one_has_ended.load(Ordering::Relaxed);
    let (mut outages, lost, pauses) = (0, AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for worker in 0..6 {
            let (ran, lost, pauses, end) = (&ran, &lost, &pauses, EndOfAll(&one_has_ended));
            scope.spawn(move || {
                let _end = end;
                let mut dice = Dice(worker + 1);
                let (key, is_paused) = if worker < 4 { ("kept", false) } else { ("paused", true) };
                while !is_over() {
                    let mut run = world.run(key, &[&["-w"], options].concat(), ADD).any_stderr().spawn();
                    if is_paused && dice.roll(4) == 0 {
                        wait_within(OUTAGE, "it runs", || {
                            (run.has_ended() || has_job(run.pid())).then_some(())
                        });
                        sleep(Duration::from_millis(dice.roll(40)));
                        stand_still(run.pid(), Duration::from_secs(3));
                        pauses.fetch_add(1, Ordering::Relaxed);
                    }
                    // The time for an election, and then for a session to end.
                    wait_within(OUTAGE, "it ends", || run.has_ended().then_some(()));
                    let output = run.output();
                    let expected: &[i32] = if is_paused { &[0, 1, 69, 79] } else { &[0, 69, 79] };
                    assert!(expected.iter().any(|status| output.end() == End::Status(*status)), "{output:?}");
                    if !is_paused {
                        let counter = if output.end() == End::Status(0) { ran } else { lost };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _end = EndOfAll(&one_has_ended);
        while !is_over() {
            let goal = ran.load(Ordering::Relaxed) + each;
            outage();
            outages += 1;
            // Some succeed between two outages.
            wait_within(OUTAGE, "some succeed", || {
                (is_over() || ran.load(Ordering::Relaxed) >= goal).then_some(())
            });
        }
    });
    let numbers = |name: &str| -> Vec<String> { world.read(name).lines().map(str::to_owned).collect() };
    let twice = |name: &str| {
        let all = numbers(name);
        all.len() - all.iter().collect::<BTreeSet<_>>().len()
    };
    println!(
        "{} increments, {} behind the fence, {outages} outages in {:?}; {} runs lost the lock or never had it. Of the other lock {} \
         were paused: {} increments, of which {} lost; {} behind the fence, which refused {} times",
        numbers("kept.added").len(),
        numbers("kept.behind").len(),
        began.elapsed(),
        lost.into_inner(),
        pauses.into_inner(),
        numbers("paused.added").len(),
        twice("paused.added"),
        numbers("paused.behind").len(),
        numbers("paused.refused").len(),
    );
    assert_eq!(twice("kept.added"), 0, "two have added to the same number: {:?}", numbers("kept.added"));
    assert_eq!(numbers("kept.refused"), [""; 0], "nobody came after a later one");
    for key in ["kept", "paused"] {
        assert_eq!(twice(&format!("{key}.behind")), 0, "the fence has let both in: {key}");
    }
    assert!(numbers("kept.behind").len() >= times);
}

fn has_job(dlock: i32) -> bool {
    proc::children(dlock).into_iter().any(|guard| !proc::children(guard).is_empty())
}

/// Stops dlock, its guard and its job for a while.
fn stand_still(dlock: i32, time: Duration) {
    let mut all = vec![dlock];
    let mut at = 0;
    while at < all.len() {
        proc::signal(all[at], Signal::STOP);
        all.extend(proc::children(all[at]));
        at += 1;
    }
    sleep(time);
    // The job continues first: it does what it was about to do before its keepers stop it.
    let (keepers, job) = all.split_at(all.len().min(2));
    job.iter().for_each(|pid| proc::signal(*pid, Signal::CONT));
    sleep(Duration::from_millis(50));
    keepers.iter().for_each(|pid| proc::signal(*pid, Signal::CONT));
}
