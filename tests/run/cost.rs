//! What a run costs, in numbers that do not depend on the machine: round trips, commands, bytes,
//! threads, page faults, system calls. Times are measured in benches/. If a change exceeds a bound,
//! fix the change, or raise the bound and say why in the same commit. The bounds are those of a
//! debug build, which is larger than a release.

use crate::support::dlock::BINARY;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::Redis;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often the server was sent a command.
fn calls(redis: &Redis, command: &str) -> u64 {
    counted(redis, "commandstats", &format!("cmdstat_{command}:calls="))
}

/// The number that follows `before` in a section of INFO; 0 if it is missing.
fn counted(redis: &Redis, section: &str, before: &str) -> u64 {
    let info: String = redis.ask(&["INFO", section]);
    let rest = info.split_once(before).map_or("", |(_, rest)| rest);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap_or(0)
}

/// With the connection these are three round trips, even with a password and a database number.
#[test]
fn a_run_that_need_not_wait_makes_two_requests() {
    let world = World::with_redis(&["--requirepass", "sesame"]);
    let redis: fn(&World, &[&str]) -> String = |world, words| {
        let mut connection =
            redis::Client::open(format!("redis+unix://{}?pass=sesame", world.redis().socket().display()))
                .and_then(|client| client.get_connection())
                .expect("a connection");
        crate::support::redis::ask(&mut connection, words).expect("an answer")
    };
    let proxy = Proxy::before(world.redis().port());
    let requests = |key: &str, options: &[&str]| {
        // The proxy only counts: the fault is planned for a request that never comes.
        proxy.plan(usize::MAX, Fault::Swallowed);
        world
            .run(key, options, "exit 3")
            .env("DLOCK_STORE", format!("redis://127.0.0.1:{}/3", proxy.port()))
            .env("DLOCK_PASSWORD", "sesame")
            .status(3)
            .run();
        proxy.seen()
    };
    requests("k", &[]);
    assert_eq!(requests("k", &[]), 2, "one takes the lock, one gives it back");
    assert_eq!(requests("due", &["--once-per", "week", "--expect", "day"]), 2, "the same for a tick");
    assert_eq!(redis(&world, &["SCRIPT", "FLUSH"]), "OK");
    assert_eq!(requests("k", &[]), 3, "a server that knows no script costs one more");
}

/// A script may call it before each of its steps.
#[test]
fn a_check_makes_one_request() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let script = r#"lock=$("$D" acquire -k k -t 1h --export) || exit; eval "$lock"; "$D" check && printf %s "$DLOCK_HELD" > held"#;
    let mut command = world.command("sh");
    command.args(["-c", script]).env("D", BINARY).env("DLOCK_STORE", proxy.url());
    assert!(command.status().expect("sh").success());
    for words in [&["check"][..], &["check", "k"]] {
        proxy.plan(usize::MAX, Fault::Swallowed);
        let check = world.dlock(words).env("DLOCK_STORE", proxy.url());
        check.env("DLOCK_HELD", world.read("held")).run();
        assert_eq!(proxy.seen(), 1, "{words:?}");
    }
}

#[test]
fn a_run_sends_little_to_the_server() {
    let world = World::new(Backend::Redis);
    let run = || drop(world.run("k", &[], "true").run());
    run();
    let redis = world.redis();
    let heard = || counted(redis, "stats", "total_net_input_bytes:");
    let before = heard();
    let of_asking = heard() - before;
    assert_eq!(redis.ask::<String>(&["CONFIG", "RESETSTAT"]), "OK");
    let before = heard();
    run();
    let bytes = heard() - before - of_asking;
    assert!((1..=1300).contains(&bytes), "{bytes} bytes went to the server");
    assert_eq!(calls(redis, "evalsha"), 2);
    let info: String = redis.ask(&["INFO", "commandstats"]);
    // Commands of the test's own client.
    let own = ["_info", "_config", "_client"];
    let all = info.lines().filter(|line| !own.iter().any(|own| line.contains(own)));
    let all: u64 =
        all.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok()).sum();
    assert!(all <= 42, "{all} commands, those in scripts included:\n{info}");
}

/// The cost of one waiter does not depend on how many there are.
#[test]
fn a_hand_over_costs_the_same_in_any_crowd() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    // Loads the scripts into the server.
    world.run("k", &[], "true").run();
    let per_waiter = |crowd: usize| {
        let holder = world.run("k", &[], "while [ ! -e go ]; do sleep 0.1; done").spawn();
        world.wait_for_state("k", "held");
        let waiters: Vec<_> =
            (0..crowd).map(|_| world.run("k", &["-w", "-q"], "echo ran >> log").spawn()).collect();
        world.wait_for_waiters("k", crowd);
        let (asked, began) = (calls(redis, "evalsha"), Instant::now());
        world.write("go", "");
        holder.finish();
        waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
        std::fs::remove_file(world.path("go")).expect("the file is there");
        // A waiter sends a heartbeat every 1.6 s.
        let heartbeats = (began.elapsed().as_secs() + 2) * crowd as u64;
        let asked = calls(redis, "evalsha") - asked - 1;
        assert!(asked >= 2 * crowd as u64, "each confirms its grant and gives it back");
        asked.saturating_sub(heartbeats) as f64 / crowd as f64
    };
    let (few, many) = (per_waiter(3), per_waiter(20));
    assert!(few <= 2.0 && many <= 2.0, "{few} requests a hand-over among 3, {many} among 20");
}

/// Makes `locks` locks that are held, each with `ends` ended runs in its log.
fn hold_many(redis: &Redis, locks: usize, ends: usize) {
    let script = r#"
        local now = redis.call('TIME')[1]
        local owner = { host = 'h', pid = 7, user = 'u', command = 'c' }
        for at = 0, ARGV[1] - 1 do
            local name, token = 'dlock:n' .. at, string.format('%032x', at)
            local rest = '{' .. name .. '}:' .. name
            redis.call('SET', name, token, 'EX', 900)
            redis.call('SET', 'dlock.fence:' .. rest, '7')
            local hold = { phase = 'held', fence = '7', since = now .. '000000', ['until'] = (now + 900) * 1000, cool = 0,
                confirmed = true, waited = 0, owner = owner }
            redis.call('HSET', 'dlock.hold:' .. rest, token, cjson.encode(hold))
            local ended = { outcome = 'released', owner = owner, fence = '6', since = now * 1000, ended = now * 1000, waited = 0 }
            for _ = 1, ARGV[2] do redis.call('LPUSH', 'dlock.log:' .. rest, cjson.encode(ended)) end
        end"#;
    redis.ask::<()>(&["EVAL", script, "0", &locks.to_string(), &ends.to_string()]);
}

/// Neither one request for each lock, nor one request so large that it blocks the server.
#[test]
fn many_locks_are_read_in_few_requests() {
    const LOCKS: usize = 300;
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let look = |words: &[&str]| {
        let before = calls(redis, "evalsha") + calls(redis, "eval");
        let stdout = world.dlock(words).any_stdout().run().stdout;
        let asked = calls(redis, "evalsha") + calls(redis, "eval") - before;
        let seen = (0..LOCKS)
            .filter(|at| stdout.contains(&format!("n{at}\"")) || stdout.contains(&format!("n{at} ")));
        assert_eq!(seen.count(), LOCKS, "{stdout}");
        asked
    };
    hold_many(redis, LOCKS, 0);
    for words in [&["status"][..], &["status", "--json"], &["metrics"]] {
        look(words);
        let asked = look(words);
        assert!(asked <= 8, "{words:?}: {asked} requests");
    }
    hold_many(redis, LOCKS, 64);
    let (short, long) = (look(&["status"]), look(&["status", "--json"]));
    assert!(short <= 8 && (15..=60).contains(&long), "{short} and {long} requests");
}

/// Each waiter near the head reads how long the last runs took. The cost must not grow with the
/// queue.
#[test]
fn a_waiter_does_not_read_all_other_waiters() {
    const OTHERS: u64 = 500;
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let holder = world.run("k", &[], "while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_state("k", "held");
    let looks = calls(redis, "lrange");
    let waiter = world.run("k", &["-w", "-q"], "true").spawn();
    let queue = "dlock.queue:{dlock:k}:dlock:k";
    wait_until("it stands in the queue", || redis.ask::<u64>(&["ZCARD", queue]) == 1);
    let script = r#"
        local now = redis.call('TIME')[1]
        for at = 1, ARGV[1] do
            local token = string.format('%032x', at)
            redis.call('ZADD', 'dlock.queue:{dlock:k}:dlock:k', (now + 900) .. '000000', token)
            redis.call('SET', 'dlock.waiter:{dlock:k}:dlock:k:' .. token, cjson.encode({ mode = 'exclusive', since = now .. '000000',
                names = { '{dlock:k}:dlock:k' }, stale_at = (now + 900) * 1000, terms = {},
                owner = { host = 'h', pid = 7, user = 'u', command = 'c' } }))
        end"#;
    redis.ask::<()>(&["EVAL", script, "0", &OTHERS.to_string()]);
    let before = calls(redis, "get");
    wait_until("it has read the log", || calls(redis, "lrange") > looks);
    let read = calls(redis, "get") - before;
    assert!(read < OTHERS / 2, "{read} records of waiters are read");
    redis.ask::<()>(&["DEL", queue]);
    world.write("go", "");
    holder.finish();
    waiter.finish();
}

/// Threads of dlock, the memory of its own that it has written to, and what of that its guard has written to since it
/// was forked, in KiB, while the job runs. Page faults would count as well what of the program the
/// machine had not at hand.
fn seen_by_the_job(world: &World) -> [u64; 3] {
    let look = "d=$(cut -d' ' -f4 /proc/$PPID/stat); ls /proc/$d/task | wc -l; \
                sed -n 's/^Anonymous: *\\([0-9]*\\) kB/\\1/p' /proc/$d/smaps_rollup; \
                sed -n 's/^Private_Dirty: *\\([0-9]*\\) kB/\\1/p' /proc/$PPID/smaps_rollup";
    let output = world.run("k", &[], look).any_stdout().run();
    let numbers: Vec<u64> =
        output.stdout.lines().map(|line| line.trim().parse().expect("a number")).collect();
    numbers.try_into().expect("three numbers")
}

#[test]
fn a_short_run_starts_no_thread_and_touches_little_memory() {
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let [threads, of_dlock, of_guard] = seen_by_the_job(&world);
        assert_eq!(threads, 1, "a lock that is free is taken without a thread");
        assert!(of_dlock <= 2000 && of_guard <= 500, "{of_dlock} KiB of dlock, {of_guard} KiB of its guard");
    }
}

/// A waiter that is granted the lock has no other thread to wake.
#[test]
fn a_wait_starts_no_thread() {
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let holder = world.run("k", &[], "while [ ! -e go ]; do sleep 0.1; done").spawn();
        world.wait_for_state("k", "held");
        let look = "ls /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/task | wc -l >> log";
        let waiter = world.run("k", &["-w", "-q"], look).spawn();
        world.wait_for_waiters("k", 1);
        world.write("go", "");
        holder.finish();
        waiter.finish();
        assert_eq!(world.log(), ["1"], "{backend:?}: threads");
    }
}

/// Between two renewals neither dlock nor its guard wakes.
#[test]
fn a_holder_sleeps_between_renewals() {
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let holder =
            world.run("k", &["-t", "10m"], "echo up >> log; while [ ! -e over ]; do sleep 0.2; done").spawn();
        world.wait_for_log("up");
        let switches = |pid: i32| -> u64 {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("dlock lives").flatten();
            let status =
                tasks.map(|task| std::fs::read_to_string(task.path().join("status")).unwrap_or_default());
            let number = |status: String| {
                let rest = status.split_once("\nvoluntary_ctxt_switches:")?.1;
                rest.lines().next()?.trim().parse::<u64>().ok()
            };
            status.filter_map(number).sum()
        };
        let threads =
            || std::fs::read_dir(format!("/proc/{}/task", holder.pid())).expect("dlock lives").count();
        wait_until("it listens for an operator", || threads() == 2);
        let all = || switches(holder.pid()) + switches(holder.guard());
        let mut before = all();
        wait_until("it has settled", || {
            sleep(Duration::from_millis(300));
            before == std::mem::replace(&mut before, all())
        });
        // The time in which nothing may wake: no condition says that nothing happened.
        sleep(Duration::from_secs(2));
        assert_eq!(all(), before, "times that something woke");
        world.write("over", "");
        holder.finish();
    }
}

/// Needs strace(1), and permission to trace.
#[test]
fn a_run_makes_few_system_calls() {
    for (backend, most) in [(Backend::Redis, 280), (Backend::File, 320)] {
        let world = World::new(backend);
        let run = || {
            let counts = world.path("counts");
            let mut strace = world.command("strace");
            strace.args(["-f", "-c", "-o"]).arg(&counts).arg(BINARY).args([
                "run",
                "-k",
                "k",
                "--",
                "/bin/true",
            ]);
            let traced = strace.env("DLOCK_STORE", world.url()).env_remove("LD_LIBRARY_PATH").output();
            traced.is_ok_and(|output| output.status.success()).then(|| world.read("counts"))
        };
        run();
        let Some(counts) = run() else {
            eprintln!("skipped: there is no strace here, or no leave to trace");
            return;
        };
        let total = counts.lines().rev().find(|line| line.ends_with("total")).expect("a last line");
        let calls: u64 =
            total.split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("a number");
        assert!(calls <= most, "{calls} system calls of dlock, its guard and true:\n{counts}");
    }
}
