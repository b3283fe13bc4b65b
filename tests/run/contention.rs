//! Many runs want one lock: one runs at a time, in order of arrival, and the others report the
//! holder.

use crate::support::dlock::End;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use std::time::{Duration, Instant};

const CONTENDERS: usize = 30;
/// The first waiters, whose jobs last longer than it takes to wake the next one.
const SLOW: usize = 7;

on_every_store!(
    one_of_many_runs_and_the_others_report_the_holder,
    many_waiters_run_one_at_a_time_in_order_and_are_woken_at_once,
    a_granted_waiter_has_a_whole_lease,
    a_crowd_that_comes_at_once_runs_one_at_a_time,
    a_run_without_wait_does_not_overtake,
    a_wait_that_runs_out_ends_busy,
    keys_and_prefixes_do_not_meet,
    a_waiter_reports_after_a_while_that_it_waits,
);

fn one_of_many_runs_and_the_others_report_the_holder(backend: Backend) {
    let world = World::new(backend);
    let job = "echo ran $PPID >> log; while [ ! -e enough ]; do sleep 0.1; done";
    let mut contenders = (0..CONTENDERS)
        .map(|_| world.run("nightly", &["--label", "the-nightly-backup"], job).spawn())
        .collect::<Vec<_>>();
    wait_until("all but one give up", || {
        contenders.iter_mut().filter_map(|one| one.has_ended().then_some(())).count() == CONTENDERS - 1
    });
    assert_eq!(world.log().len(), 1, "one job ran");
    let position = contenders.iter_mut().position(|one| !one.has_ended()).expect("one holds");
    let holder = contenders.remove(position);
    for loser in contenders {
        let output = loser.output();
        assert_eq!(output.end(), End::Status(75), "{}", output.stderr);
        let lines = output.stderr.lines().collect::<Vec<_>>();
        let [line] = lines[..] else { panic!("one line, not {lines:?}") };
        assert!(line.starts_with("dlock: "), "{line}");
        assert!(line.contains("nightly"), "it names the key: {line}");
        // The grant and the record of its owner are one step, so a busy run always knows the
        // holder.
        assert!(
            line.contains('@') && line.contains(&holder.pid().to_string()),
            "it names the holder: {line}"
        );
        assert!(line.contains("the-nightly-backup"), "it says what runs: {line}");
    }
    world.write("enough", "");
    holder.finish();
    assert_eq!(world.state("nightly"), "free");
}

/// A waiter does not have to poll.
fn many_waiters_run_one_at_a_time_in_order_and_are_woken_at_once(backend: Backend) {
    let world = World::new(backend);
    let first = world.run("queue", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let job = |number| {
        let lasts = if number < SLOW { "0.3" } else { "0.01" };
        format!("date +%s%3N >> times; echo start {number} >> log; sleep {lasts}; echo end {number} >> log")
    };
    let waiting = world.queue("queue", &["--wait"], (0..CONTENDERS).map(job));
    world.write("go", "");
    first.finish();
    for waiter in waiting {
        waiter.finish();
    }
    let expected = (0..CONTENDERS).flat_map(|i| [format!("start {i}"), format!("end {i}")]);
    assert_eq!(world.log()[1..], expected.collect::<Vec<_>>());
    let times = world.read("times").lines().map(|line| line.parse().expect("a time")).collect::<Vec<u64>>();
    let mut gaps = times[..SLOW].windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    gaps.sort_unstable();
    // Without a wake-up the next waiter polls when this run has just begun, and again 1.6 s later.
    assert!(gaps[gaps.len() / 2] < 1000, "{gaps:?}");
}

/// A granted waiter confirms before its job starts. From then on it has the lease that it
/// requested, not the few seconds in which it had to confirm.
fn a_granted_waiter_has_a_whole_lease(backend: Backend) {
    let world = World::new(backend);
    let hold =
        |name: &str| format!("echo {name} $DLOCK_FENCE >> log; while [ ! -e {name} ]; do sleep 0.1; done");
    let first = world.run("k", &[], &hold("first")).spawn();
    wait_until("the first runs", || world.log().len() == 1);
    let second = world.run("k", &["-w", "-t", "10m"], &hold("second")).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("first", "");
    first.finish();
    wait_until("the second runs", || world.log().len() == 2);
    let status = world.status("k");
    assert!(status["holders"][0]["lease_ms"].as_u64() > Some(60_000), "{status}");
    assert_eq!(world.log()[1], format!("second {}", world.fence("k")));
    world.write("second", "");
    second.finish();
}

fn a_crowd_that_comes_at_once_runs_one_at_a_time(backend: Backend) {
    let world = World::new(backend);
    let job = "echo start >> log; sleep 0.01; echo end >> log";
    let crowd =
        (0..CONTENDERS).map(|_| world.run("crowd", &["-w"], job).any_stderr().spawn()).collect::<Vec<_>>();
    for one in crowd {
        one.finish();
    }
    let log = world.log();
    assert_eq!(log.len(), 2 * CONTENDERS);
    assert!(log.chunks(2).all(|pair| pair == ["start", "end"]), "{log:?}");
}

fn a_run_without_wait_does_not_overtake(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let job = "echo waited >> log; while [ ! -e done ]; do sleep 0.1; done";
    let waiter = world.run("k", &["-w"], job).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    // From here on the lock is the waiter's, even if the waiter does not know it yet.
    for _ in 0..5 {
        world.run("k", &[], "echo overtook >> log").status(75).stderr_like("dlock: .*k.*\n").run();
    }
    world.write("done", "");
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

fn a_wait_that_runs_out_ends_busy(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let busy = "dlock: .*k.*\n";
    world.run("k", &["-w", "300ms"], "echo ran >> log").status(75).stderr_like(busy).run();
    world.run("k", &["-w", "0"], "echo ran >> log").status(75).stderr_like(busy).run();
    world.run("k", &["-w0.1", "-E", "7"], "echo ran >> log").status(7).stderr_like(busy).run();
    world.run("k", &["-E", "0"], "echo ran >> log").status(0).stderr_like(busy).run();
    world.run("k", &["-q"], "echo ran >> log").status(75).run();
    assert_eq!(world.waiters("k"), 0, "who gave up does not stand in the queue");
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

fn keys_and_prefixes_do_not_meet(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("a", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    world.run("b", &[], "echo another key >> log").run();
    world.run("a", &["--prefix", "other:"], "echo another prefix >> log").run();
    world.run("A", &[], "echo another case >> log").run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "another key", "another prefix", "another case"]);
}

/// Without a terminal the message is delayed, so that cron sends no mail about a wait of seconds.
/// It is printed once.
fn a_waiter_reports_after_a_while_that_it_waits(backend: Backend) {
    let world = World::new(backend);
    let hold = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["--label", "the-long-one"], hold).spawn();
    world.wait_for_log("up");
    let quiet = world.run("k", &["-w", "-q"], "true").spawn();
    world.wait_for_waiters("k", 1);
    let waiter = world
        .run("k", &["-w"], "echo waited >> log")
        .stderr_like("dlock: waiting .*\ndlock: got k .*\n")
        .spawn();
    world.wait_for_waiters("k", 2);
    assert_eq!(waiter.messages(), "");
    wait_until("it says what it waits for", || waiter.messages().ends_with('\n'));
    let message = waiter.messages();
    assert!(message.contains("the-long-one") && message.contains(&holder.pid().to_string()), "{message}");
    world.write("go", "");
    holder.finish();
    quiet.finish();
    waiter.finish();
}

/// The last request may take only what is left of the wait. If it times out, the request that
/// leaves the queue shows whether the store answers.
#[test]
fn a_wait_that_ends_during_a_request_ends_busy() {
    let world = World::new(Backend::Redis);
    let holder =
        world.run("k", &["-t", "60s"], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let waiter = world
        .run("k", &["-w", "6s", "--op-timeout", "30s"], "echo no >> log")
        .status(75)
        .any_stderr()
        .spawn();
    world.wait_for_waiters("k", 1);
    world.redis().pause();
    let over = Instant::now() + Duration::from_secs(7);
    wait_until("the wait is over", || Instant::now() > over);
    world.redis().resume();
    waiter.finish();
    world.write("go", "");
    holder.finish();
    assert_eq!((world.log(), world.waiters("k")), (vec!["up".into()], 0));
}
