//! Another program writes into the store. Whatever it makes of a lock's records, dlock says so in a
//! line about that lock, shows all others, and neither crashes nor hangs.

use crate::support::dlock::{End, Running, finish_all};
use crate::support::masters::Masters;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use redis::cmd;
use serde_json::{Map, Value, json};
use std::fs;

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

/// Owners that dlock never writes.
fn owners() -> Vec<Value> {
    let owner = |field: &str, value: Value| {
        let mut owner = json!({ "host": "h", "pid": 1, "user": "u", "command": "c", "reason": null });
        owner[field] = value;
        owner
    };
    vec![
        owner("host", json!("W".repeat(65_536))),
        owner("command", json!("夜".repeat(70_000))),
        owner("reason", json!("\u{1}".repeat(70_000))),
        owner("pid", json!(-1)),
        owner("pid", json!("x".repeat(300_000))),
        owner("user", json!({ "deep": { "deeper": [[[null, 1e300]]] } })),
    ]
}

/// Numbers that dlock never writes.
fn numbers() -> Vec<Value> {
    vec![
        json!("-1"),
        json!("nan"),
        json!(1e300),
        json!(u64::MAX),
        json!(0.5),
        json!("9".repeat(400)),
        json!([]),
        json!("x".repeat(300_000)),
    ]
}

/// What dlock writes nowhere in a record.
fn others() -> Vec<Value> {
    vec![Value::Null, json!(5), json!("x".repeat(300_000)), json!([1]), json!({ "a": [] })]
}

/// Runs every command that reads. The good lock is always shown, and each message about the other
/// one is a line of its own.
#[track_caller]
fn look_around(world: &World, what: &str) {
    let looks: [(&[&str], &str); 5] = [
        (&["status"], "good"),
        (&["status", "bad", "good", "--json"], "good"),
        (&["history", "bad"], ""),
        (&["metrics"], "key=\"good\""),
        (&["run", "-k", "bad", "--", "true"], ""),
    ];
    for (words, shown) in looks {
        let output =
            world.dlock(words).env("DLOCK_OP_TIMEOUT", "20s").any_stdout().any_stderr().spawn().output();
        let case = format!("{what:.60}: {words:?}: {:.400}", output.stderr);
        assert!(matches!(output.end(), End::Status(0 | 69 | 75)), "{:?} {case}", output.end());
        assert!(output.stdout.contains(shown), "{case}");
        assert!(output.stderr.lines().all(|line| line.starts_with("dlock: ")), "{case}");
        assert!(output.stderr.lines().count() <= 1 && output.stderr.len() <= 4096, "{case}");
    }
}

/// Two runs that hold both locks until `go` exists.
fn hold(world: &World) -> Vec<Running> {
    let holders = ["bad", "good"].map(|key| world.run(key, &["-t", "5m"], HOLD).any_stderr().spawn());
    world.wait_for_lines("up", 2);
    holders.into()
}

#[test]
fn a_forged_hold_or_end_is_a_line_about_that_lock() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    world.run("bad", &[], "exit 3").status(3).run();
    let holders = hold(&world);
    let (hold_key, log_key) = ("dlock.hold:{dlock:bad}:dlock:bad", "dlock.log:{dlock:bad}:dlock:bad");
    let token: String = redis.ask(&["GET", "dlock:bad"]);
    let hold: String = redis.ask(&["HGET", hold_key, &token]);
    let end: String = redis.ask(&["LINDEX", log_key, "0"]);
    for (record, field, values) in [
        (&hold, "owner", owners()),
        (&hold, "fence", numbers()),
        (&hold, "since", numbers()),
        (&hold, "until", numbers()),
        (&hold, "cool", numbers()),
        (&hold, "asked", owners()),
        (&hold, "slot", numbers()),
        (&hold, "phase", others()),
        (&end, "owner", owners()),
        (&end, "since", numbers()),
        (&end, "by", owners()),
        (&end, "outcome", others()),
    ] {
        for value in values {
            let mut forged: Value = serde_json::from_str(record).expect("an object");
            forged[field] = value.clone();
            let forged = forged.to_string();
            if record == &hold {
                redis.ask::<i64>(&["HSET", hold_key, &token, &forged]);
            } else {
                redis.ask::<String>(&["LSET", log_key, "0", &forged]);
            }
            look_around(&world, &format!("field {field} of {record:.20} {value}"));
        }
        redis.ask::<i64>(&["HSET", hold_key, &token, &hold]);
        redis.ask::<String>(&["LSET", log_key, "0", &end]);
    }
    // No JSON, no UTF-8, and what Lua's JSON library reads and cannot write.
    for forged in [
        &b"["[..],
        &b"[".repeat(100_000),
        b"\xff{\xfe}",
        &hold.replace("\"pid\":", "\"pid\":nan,\"p\":").into_bytes(),
    ] {
        cmd("HSET").arg(hold_key).arg(&token).arg(forged).exec(&mut redis.connect()).expect("HSET");
        look_around(&world, &String::from_utf8_lossy(forged));
        redis.ask::<i64>(&["HSET", hold_key, &token, &hold]);
        cmd("LSET").arg(log_key).arg(0).arg(forged).exec(&mut redis.connect()).expect("LSET");
        look_around(&world, &String::from_utf8_lossy(forged));
        redis.ask::<String>(&["LSET", log_key, "0", &end]);
    }
    world.write("go", "");
    // Some changes end the hold itself.
    holders.into_iter().for_each(|holder| drop(holder.output()));
}

/// What was announced is kept beside the lock. Whatever is there, one run announces, and the next does not.
#[test]
fn a_forged_announcement_silences_nobody() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    let redis = world.redis();
    let refused = || {
        let run = world.run("k", &["-q", "--once-per", "day", "-w", "10ms"], "true").status(75);
        run.any_stderr().run().stderr.lines().count()
    };
    assert_eq!((refused(), refused()), (1, 0));
    let said = "dlock.said:{dlock:k}:dlock:k";
    let good: String = redis.ask(&["GET", said]);
    for forged in [
        "[1e999, {}]",
        "{\"gave-up\": 5, \"failed\": Infinity}",
        "{\"gave-up\": {\"at\": 1e999, \"pause\": nan, \"by\": []}}",
        &good.replace("\"at\":", "\"at\":-1e999,\"was\":"),
        &good.replace("\"by\":", "\"by\":{},\"was\":"),
    ] {
        redis.ask::<()>(&["SET", said, forged]);
        assert_eq!((refused(), refused()), (1, 0), "{forged}");
    }
    // What else is there does not matter.
    redis.ask::<()>(&["SET", said, &good.replace("\"at\":", "\"more\":1e999,\"at\":")]);
    assert_eq!(refused(), 0);
    world.write("go", "");
    holder.finish();
}

/// A record that the scripts accept as a hold is shown, and can be taken away.
#[test]
fn a_hold_with_strange_optional_fields_is_a_hold() {
    for strange in [
        json!({ "asked": 5 }),
        json!({ "attempt": "", "not_replaceable": null }),
        json!({ "superseded": [1], "slot": "" }),
    ] {
        let world = World::new(Backend::Redis);
        let redis = world.redis();
        let job = world.run("k", &["-t", "5m"], HOLD).any_stderr().spawn();
        world.wait_for_log("up");
        let (hold_key, token) = ("dlock.hold:{dlock:k}:dlock:k", redis.ask::<String>(&["GET", "dlock:k"]));
        let hold: String = redis.ask(&["HGET", hold_key, &token]);
        let mut forged: Map<String, Value> = serde_json::from_str(&hold).expect("an object");
        forged.extend(strange.as_object().expect("an object").clone());
        redis.ask::<i64>(&["HSET", hold_key, &token, &json!(forged).to_string()]);
        let status = world.dlock(["status", "k"]).any_stdout().run().stdout;
        assert!(status.contains("held"), "{strange}: {status}");
        world.dlock(["release", "--force", "-y", "k"]).any_stderr().run();
        world.write("go", "");
        job.output();
    }
}

/// The line names the lock. A command about that lock only has failed.
#[test]
fn the_line_names_the_lock_and_the_fault() {
    let world = World::new(Backend::Redis);
    let holders = hold(&world);
    let redis = world.redis();
    let (hold_key, token) = ("dlock.hold:{dlock:bad}:dlock:bad", redis.ask::<String>(&["GET", "dlock:bad"]));
    let hold: String = redis.ask(&["HGET", hold_key, &token]);
    let mut forged: Value = serde_json::from_str(&hold).expect("an array");
    forged["owner"] = json!({ "host": "W".repeat(65_536) });
    redis.ask::<i64>(&["HSET", hold_key, &token, &forged.to_string()]);
    let line = "dlock: bad is not shown: [^\n]*a text of 65536 bytes[^\n]*\n";
    let status = world.dlock(["status"]).any_stdout().stderr_like(line).run().stdout;
    assert!(status.contains("good") && !status.contains("WWW"), "{status}");
    let status =
        world.dlock(["status", "bad", "good"]).status(69).any_stdout().stderr_like(line).run().stdout;
    assert!(status.contains("good"), "{status}");
    let watch = world.dlock(["watch", "-v"]).any_stdout().any_stderr().spawn();
    wait_until("it watches the other one", || {
        watch.messages().contains("watching from now on") && watch.messages().contains("bad is not watched")
    });
    redis.ask::<i64>(&["HSET", hold_key, &token, &hold]);
    world.write("go", "");
    finish_all(holders);
    wait_until("the other one's end is told", || watch.printed().contains("released good"));
    watch.signal(rustix::process::Signal::TERM);
    watch.finish();
}

/// JSON in Lua has numbers of 14 digits, and another program may want a key for ever.
#[test]
fn a_foreign_key_with_an_endless_ttl_is_busy() {
    let world = World::new(Backend::Redis);
    for ttl in ["99999999999999", "200000000000000", "4000000000000000"] {
        world.redis().ask::<()>(&["SET", "dlock:k", "theirs", "PX", ttl]);
        for options in [&[][..], &["-w", "100ms"]] {
            world.run("k", options, "echo ran >> log").status(75).any_stderr().run();
        }
        let output = world.dlock(["status", "k", "--json"]).any_stdout().run();
        assert!(output.stdout.contains("\"foreign\""), "{ttl}: {}", output.stdout);
    }
}

/// Many locks are read in one batch; a fault in one hides none of the others.
#[test]
fn a_damaged_lock_among_many_hides_none() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let token = |at: usize| format!("{at:032x}");
    let hold = |owner: Value| {
        json!({
            "phase": "held", "fence": "7", "since": "7", "until": 9_000_000_000_000_u64, "cool": 0, "confirmed": true, "waited": 0,
            "owner": owner
        })
    };
    for at in 0..300 {
        redis.ask::<()>(&["SET", &format!("dlock:n{at}"), &token(at), "EX", "900"]);
        let hold = hold(json!({ "host": "h", "user": "u", "command": "c", "pid": 7 }));
        redis.ask::<i64>(&[
            "HSET",
            &format!("dlock.hold:{{dlock:n{at}}}:dlock:n{at}"),
            &token(at),
            &hold.to_string(),
        ]);
    }
    // The script fails on some of them, and returns unreadable data for others.
    for at in [30, 250] {
        redis.ask::<()>(&["SET", &format!("dlock.queue:{{dlock:n{at}}}:dlock:n{at}"), "x"]);
    }
    let hold = hold(json!({ "pid": "no number" }));
    for at in [60, 200] {
        let key = format!("dlock.hold:{{dlock:n{at}}}:dlock:n{at}");
        redis.ask::<i64>(&["HSET", &key, &token(at), &hold.to_string()]);
    }
    for words in [&["status"][..], &["metrics"]] {
        let output = world.dlock(words).any_stdout().any_stderr().run();
        let shown = |at: &usize| {
            output.stdout.contains(&format!("n{at} ")) || output.stdout.contains(&format!("\"n{at}\""))
        };
        let missing: Vec<usize> = (0..300).filter(|at| !shown(at)).collect();
        assert_eq!(missing, [30, 60, 200, 250], "{}{}", output.stdout, output.stderr);
        assert_eq!(output.stderr.lines().count(), 4, "{}", output.stderr);
    }
}

#[test]
fn a_quorum_survives_forged_records() {
    let masters = Masters::aged(3);
    let holders = ["bad", "good"].map(|key| masters.run(key, &["-t", "5m"], HOLD).any_stderr().spawn());
    masters.world().wait_for_lines("up", 2);
    let key = "dlock.quorum:{dlock:bad}:dlock:bad";
    let token: String = masters.at(0).ask(&["GET", "dlock:bad"]);
    let holds = [0, 1, 2].map(|at| masters.at(at).ask::<String>(&["HGET", key, &token]));
    let forge = |at: usize, hold: &str| masters.at(at).ask::<i64>(&["HSET", key, &token, hold]);
    for value in owners() {
        for (at, hold) in holds.iter().enumerate() {
            let mut forged: Value = serde_json::from_str(hold).expect("an object");
            forged["owner"] = value.clone();
            forge(at, &forged.to_string());
        }
        let status = masters.dlock(&["status"]).env("DLOCK_OP_TIMEOUT", "20s");
        let output = status.any_stdout().any_stderr().spawn().output();
        assert_eq!(output.end(), End::Status(0), "{value:.60}: {:.400}", output.stderr);
        assert!(
            output.stdout.contains("good") && !output.stdout.contains("bad"),
            "{value:.60}: {}",
            output.stdout
        );
        assert!(output.stderr.starts_with("dlock: bad is not shown: "), "{:.400}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{:.400}", output.stderr);
    }
    for (at, hold) in holds.iter().enumerate() {
        forge(at, hold);
    }
    masters.world().write("go", "");
    finish_all(holders);
}

/// The damaged record can belong to any lock; the others are shown all the same.
#[test]
fn a_damaged_file_hides_no_other_lock() {
    let world = World::new(Backend::File);
    world.run("bad", &[], "true").run();
    let locks = world.path("locks");
    let files = || fs::read_dir(&locks).expect("a directory").flatten().map(|entry| entry.path());
    let record = files().find(|path| path.extension().is_some_and(|kind| kind == "json")).expect("a record");
    fs::write(&record, "rubbish").expect("it can be written");
    let holder = world.run("good", &["-t", "1m"], HOLD).any_stderr().spawn();
    world.wait_for_log("up");
    let name = record.file_name().expect("a name").to_string_lossy().into_owned();
    let line =
        |end: &str| format!("dlock: [^\n]*{name} is not a record of dlock's[^\n]*; its lock is not {end}\n");
    let status = world.dlock(["status"]).any_stdout().stderr_like(&line("shown")).run().stdout;
    assert!(status.contains("good"), "{status}");
    let metrics = world.dlock(["metrics"]).any_stdout().stderr_like(&line("counted")).run().stdout;
    assert!(metrics.contains("good"), "{metrics}");
    world.dlock(["status", "bad"]).status(69).any_stderr().run();
    assert_eq!(fs::read_to_string(&record).expect("it is there"), "rubbish");
    world.write("go", "");
    holder.finish();
}
