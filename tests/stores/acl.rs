//! The least rights of the documents are enough and none too many, and the message when one is
//! missing.

use crate::support::cluster::Cluster;
use crate::support::dlock::{Dlock, End};
use crate::support::masters::{self, Masters};
use crate::support::redis::Redis;
use crate::support::replicated;
use crate::support::sentinel::{self, Sentinel, admit_watchers};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The section of the documents about rights.
fn section() -> String {
    let stores = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stores.md"));
    let stores = stores.expect("docs/stores.md");
    let (_, section) = stores.split_once("\n### ACL\n").expect("a section about rights");
    section.split("\n##").next().expect("text").to_owned()
}

/// The words of the documented ACL line, with a password.
pub fn line() -> Vec<String> {
    let section = section();
    let line = section.lines().find(|line| line.starts_with("ACL SETUSER dlock ")).expect("the line");
    line.replace("PASSWORD", "hush").split_whitespace().map(str::to_owned).collect()
}

fn grant(world: &World, words: &[String]) {
    world.redis().ask::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The same dlock, as the user with few rights.
fn as_user(dlock: Dlock<'_>) -> Dlock<'_> {
    dlock.env("DLOCK_USERNAME", "dlock").env("DLOCK_PASSWORD", "hush")
}

#[test]
fn the_documented_line_is_enough() {
    let world = World::new(Backend::Redis);
    grant(&world, &line());
    let run = |key, options: &[&str], script| as_user(world.run(key, options, script));
    let dlock = |words: &[&str]| as_user(world.dlock(words)).any_stdout().any_stderr();
    let until_go = "echo started >> log; while [ ! -e go ]; do sleep 0.1; done";

    run("k", &[], "true").run();
    run("tick", &["--min-hold", "1h"], "true").run();
    run("tick", &[], "true").status(75).any_stderr().run();
    let holder = run("k", &["-t", "6s", "--reason", "why"], until_go).any_stderr().spawn();
    world.wait_for_log("started");
    world.redis().after_renewal("dlock:k");
    run("k", &[], "true").status(75).any_stderr().run();
    run("k", &["-w", "300ms"], "true").status(75).any_stderr().run();
    let waiter = run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    wait_until("it waits", || dlock(&["status", "--json", "k"]).run().stdout.contains("waiting_ms"));
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.lines("waited"), 1);

    // A value of another program.
    world.redis().ask::<()>(&["SET", "dlock:foreign", "x"]);
    run("foreign", &["-w", "300ms"], "true").status(75).any_stderr().run();
    world.redis().ask::<()>(&["RPUSH", "dlock:list", "x"]);
    run("list", &[], "true").status(75).any_stderr().run();
    let table = dlock(&["status"]).run().stdout;
    assert!(table.contains("foreign") && table.contains("tick"), "{table}");
    dlock(&["release", "foreign", "--force", "--now", "-y"]).run();

    // Taken by an operator, released by token, released by the guard.
    let job = "echo $DLOCK_TOKEN > token.tmp; mv token.tmp token; exec sleep 1000";
    let lost = run("lost", &["-t", "6s"], job).status(79).any_stderr().spawn();
    wait_until("it runs", || !world.read("token").is_empty());
    dlock(&["release", "lost", "--token-file", "token"]).run();
    lost.finish();
    let forced = run("forced", &["-t", "6s"], "echo forced >> log; exec sleep 1000");
    let forced = forced.status(79).any_stderr().spawn();
    world.wait_for_log("forced");
    dlock(&["release", "forced", "--force"]).run();
    forced.finish();
    let killed = run("killed", &["-t", "1h"], "echo killed >> log; exec sleep 1000");
    let killed = killed.dies_of(9).any_stderr().spawn();
    world.wait_for_log("killed");
    killed.signal(Signal::KILL);
    wait_until("the guard gives it back", || {
        dlock(&["status", "--json", "killed"]).run().stdout.contains("\"free\"")
    });
    killed.finish();

    let denied: Vec<redis::Value> = world.redis().ask(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "the server refused nothing: {denied:?}");
    // doctor comes last, because it uses more than what is needed.
    let doctor = dlock(&["doctor"]).run().stdout;
    assert!(!doctor.contains("bad") && !doctor.contains("not known"), "{doctor}");
}

/// The rights in the documented line that begins with `begin`.
fn further(begin: &str) -> Vec<String> {
    let section = section();
    let (_, rest) = section.split_once(&format!("\n- {begin}")).expect("a line about it");
    let item = rest.split("\n- ").next().and_then(|item| item.split("\n\n").next()).expect("text");
    let words = item.split(['`', ' ']).filter(|word| word.starts_with('+'));
    words.map(str::to_owned).collect()
}

/// For Sentinel, Cluster and several masters: the further documented rights are enough, and each of
/// them is used.
#[test]
fn replicated_servers_need_the_documented_rights() {
    let mut world = World::without_redis();
    let (master, _replicas) = replicated::start(&world, 1);
    let rights = further("For `--replicas`");
    assert_eq!(rights, ["+wait", "+role"]);
    world.use_store(master.url());
    with_each(&world, &[&master], &rights, &["--replicas", "all"]);

    let mut rights = further("With sentinels");
    let own = rights.pop().expect("a right");
    admit_watchers(&master);
    let login = format!("user dlock on >sesame {own}\nuser default on nopass ~* &* +@all");
    let sentinel = Sentinel::start(&world, master.port(), 1, 1, &login);
    world.write("word", "sesame");
    let word = world.path("word");
    let login = format!("?sentinel-username=dlock&sentinel-password-file={}", word.display());
    world.use_store(sentinel::url(&[sentinel.port()]) + &login);
    with_each(&world, &[&master], &rights, &[]);

    let nodes = Cluster::start(&world, 2);
    let other = 1 - nodes.owner("dlock:k");
    world.use_store(nodes.url(&[other]));
    let rights = further("In a cluster");
    assert_eq!(rights, ["+cluster|slots", "+asking"]);
    // ASKING is needed while a slot moves.
    with_each(&world, &nodes.masters.iter().collect::<Vec<_>>(), &rights[..1], &[]);
}

/// A run succeeds with all of these rights beside the documented line. Without one of them the
/// message names it.
fn with_each(world: &World, servers: &[&Redis], rights: &[String], options: &[&str]) {
    let let_in = |without: Option<&String>| {
        let mut words = line();
        words.extend(rights.iter().filter(|right| Some(*right) != without).cloned());
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        servers.iter().for_each(|server| server.ask::<()>(&words));
    };
    for (number, right) in rights.iter().enumerate() {
        let_in(Some(right));
        // A key of its own: without the right the guard may still be releasing it when dlock has
        // ended.
        let run = as_user(world.run(&format!("k{number}"), options, "touch ran"));
        let said = run.status(77).stderr_like("dlock: .*\n").run().stderr;
        assert!(said.contains(&format!("'{}'", right.trim_start_matches('+'))), "without {right}: {said}");
    }
    assert!(!world.path("ran").exists());
    let_in(None);
    as_user(world.run("k", options, "true")).run();
}

/// Each right is used, and the message names it when it is missing.
#[test]
fn a_command_that_is_missing_is_named() {
    let world = World::new(Backend::Redis);
    let line = line();
    let mut unnoticed = Vec::new();
    for right in line.iter().filter(|word| word.starts_with('+')) {
        let command = right.trim_start_matches('+').to_uppercase();
        world.redis().ask::<()>(&["FLUSHALL"]);
        world.redis().ask::<()>(&["SET", "dlock:foreign", "x"]);
        world.redis().ask::<()>(&["RPUSH", "dlock:list", "x"]);
        grant(&world, &line);
        as_user(world.run("k", &["--min-hold", "1h"], "true")).run();
        as_user(world.run("again", &[], "true")).run();
        as_user(world.run("slots", &["-n", "2", "--min-hold", "1h"], "true")).run();
        let waiter = world.run("k", &["-w"], "exec sleep 1000").dies_of(15).any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        grant(&world, &line.iter().filter(|word| *word != right).cloned().collect::<Vec<_>>());
        let doctor = as_user(world.dlock(["doctor"])).spawn().output().stdout;
        // Without TIME or scripts doctor cannot check anything else.
        let is_told =
            ["+time", "+eval"].contains(&right.as_str()) || doctor.contains(&format!("give it {right} "));
        assert!(is_told, "without {right}: {doctor}");
        let attempts: [&[&str]; 10] = [
            &["run", "-k", "new", "--", "true"],
            &["status"],
            &["status", "again"],
            &["run", "-k", "foreign", "-w", "200ms", "--", "true"],
            &["run", "-k", "list", "--", "true"],
            &["run", "-k", "k", "-w", "200ms", "--", "true"],
            &["run", "-k", "shared", "-s", "--", "true"],
            &["run", "-k", "slots", "-n", "2", "--", "true"],
            // First in one queue and behind another waiter in the other.
            &["run", "-k", "other", "-k", "k", "-w", "200ms", "--", "true"],
            &["release", "k", "--force", "--now", "-y"],
        ];
        let mut named = false;
        for words in attempts {
            let output = as_user(world.dlock(words)).spawn().output();
            let said = output.stderr.to_uppercase();
            // The lock is free: 75 would mean that a missing right is taken for a foreign value.
            assert!(!words.contains(&"new") || output.end() != End::Status(75), "without {right}: {said}");
            // dlock names it in a script, the server elsewhere.
            let is_named =
                said.contains(&format!("NEEDS: {command},")) || said.contains(&format!("'{command}'"));
            if output.end() == End::Status(77) {
                assert!(is_named, "without {right}, {words:?}: {said}");
                assert!(output.stderr.contains(&world.url()) && said.lines().count() == 1, "{said}");
            }
            // A failure after the job is a warning.
            named |= is_named;
        }
        waiter.signal(Signal::TERM);
        waiter.finish();
        if !named {
            unnoticed.push(right.as_str());
        }
    }
    // A history and counters that cannot be written do not prevent a release. The other rights are
    // for observers of a lock and for doctor.
    unnoticed.retain(|right| !["+hincrby", "+lpush", "+zremrangebyscore", "+info"].contains(right));
    assert_eq!(unnoticed, [""; 0]);
}

/// A key that the user may not access is not taken for a foreign holder's.
#[test]
fn keys_that_are_missing_are_named() {
    let world = World::new(Backend::Redis);
    for patterns in [
        &["~other*"][..],
        &["~dlock:*"],
        &["~dlock.*"],
        &["~dlock:*", "~dlock.*:{dlock:*}:other:*"],
        // All keys that a script declares, not those derived in it.
        &[
            "~dlock:*",
            "~dlock.hold*",
            "~dlock.due*",
            "~dlock.kept*",
            "~dlock.queue*",
            "~dlock.fence*",
            "~dlock.log*",
            "~dlock.stat*",
            "~dlock.watch*",
        ],
    ] {
        let mut words = line();
        words.retain(|word| !word.starts_with('~'));
        words.extend(patterns.iter().map(ToString::to_string));
        grant(&world, &words);
        let run = as_user(world.run("k", &[], "echo ran >> log")).status(77).stderr_like("dlock: .*\n");
        let said = run.run().stderr;
        assert!(said.contains("~dlock") && said.contains(&world.url()), "{patterns:?}: {said}");
    }
    assert_eq!(world.log(), [""; 0]);
}

/// Gives a user the documented line for this prefix.
fn admit_team(server: &Redis, user: &str, prefix: &str, further: &[&str]) {
    let words = line().into_iter().map(|word| match &*word {
        "dlock" => user.to_owned(),
        word if word.starts_with('~') => word.replace("dlock:", prefix),
        _ => word,
    });
    let words: Vec<String> = words.chain(further.iter().map(ToString::to_string)).collect();
    server.ask::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

fn as_team<'w>(team: &str, dlock: Dlock<'w>) -> Dlock<'w> {
    let dlock = dlock.env("DLOCK_USERNAME", team).env("DLOCK_PASSWORD", "hush");
    dlock.env("DLOCK_PREFIX", format!("{team}:"))
}

/// Two teams, each with a prefix and the documented line for it. Each command works on the team's
/// own locks; none reads or changes those of the other team.
#[test]
fn teams_cannot_touch_each_others_locks() {
    let world = World::new(Backend::Redis);
    for team in ["a", "b"] {
        admit_team(world.redis(), team, &format!("{team}:"), &[]);
    }
    let keys = ["k", "{tag}k"];
    for team in ["a", "b"] {
        every_command(&world, team, &keys);
    }
    let denied: Vec<redis::Value> = world.redis().ask(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "the server refused nothing: {denied:?}");
    let before = snapshot(&world);
    let all: Vec<String> = world.redis().ask(&["KEYS", "*"]);
    let theirs = all.iter().filter(|key| key.starts_with("a:") || key.contains("}:a:")).collect::<Vec<_>>();
    assert!(theirs.len() > 20, "{theirs:?}");

    // No key of the other team can be read, whatever command asks.
    let mut other = redis::Client::open(format!("redis://b:hush@127.0.0.1:{}", world.redis().port()))
        .and_then(|client| client.get_connection())
        .expect("a connection");
    for key in theirs {
        let said = redis::cmd("EXISTS").arg(key).query::<i64>(&mut other).expect_err(key);
        assert_eq!(said.code(), Some("NOPERM"), "{key}");
    }
    let attempts: [&[&str]; 14] = [
        &["run", "-k", "k", "--", "true"],
        &["run", "-k", "held", "-w", "100ms", "--", "true"],
        &["hold", "-k", "k", "--pid", "1"],
        &["acquire", "-k", "{tag}k"],
        &["status", "held"],
        &["history", "k"],
        &["history", "--refused", "held"],
        &["watch", "held"],
        &["wait", "-w", "100ms", "held"],
        &["pause", "k", "--for", "1h", "--reason", "r"],
        &["resume", "paused"],
        &["forget", "k"],
        &["release", "held", "-y"],
        &["release", "held", "--force", "--now", "-y"],
    ];
    for words in attempts {
        let said = as_team("b", world.dlock(words)).env("DLOCK_PREFIX", "a:").status(77).any_stderr().run();
        assert!(said.stderr.contains("~PREFIX* ~dlock.*:{*}:PREFIX*"), "{words:?}: {}", said.stderr);
        assert_eq!(said.stdout, "", "{words:?}");
    }
    let shown = as_team("b", world.dlock(["status", "--all", "--json"])).any_stdout().run().stdout;
    assert!(shown.contains("held") && !shown.contains("a:"), "{shown}");
    assert_eq!(snapshot(&world), before, "the other team's locks are as they were");
    for team in ["a", "b"] {
        let doctor = as_team(team, world.dlock(["doctor"])).any_stdout().any_stderr().run().stdout;
        assert!(doctor.contains("all that locks need") && !doctor.contains("other prefixes"), "{doctor}");
    }
}

/// The same in a cluster and with several masters, where `doctor` also notices a user with too many
/// rights, whose question a server may answer by a redirection.
#[test]
fn teams_in_a_cluster_and_on_several_masters() {
    let (world, masters) = Masters::aged(3).apart();
    let nodes = Cluster::start(&world, 2);
    let of_cluster = (nodes.url(&[0]), nodes.masters.iter().collect::<Vec<_>>());
    let ports: Vec<u16> = masters.iter().map(Redis::port).collect();
    for (url, servers) in [of_cluster, (masters::url(&ports), masters.iter().collect())] {
        let further = ["+cluster|slots", "+asking"];
        for server in &servers {
            admit_team(server, "a", "a:", &further);
            admit_team(server, "b", "b:", &further);
        }
        let dlock = |team, words: &[&str]| as_team(team, world.dlock(words)).env("DLOCK_STORE", &url);
        for key in ["k", "{tag}k", "other"] {
            dlock("a", &["run", "-k", key, "--min-hold", "4m", "--", "true"]).run();
            dlock("a", &["run", "-k", key, "-w", "200ms", "--", "true"]).status(75).any_stderr().run();
            dlock("a", &["pause", key, "--for", "1h", "--reason", "r"]).any_stderr().run();
            for words in [&["run", "-k", key, "--", "true"][..], &["release", key, "--force", "--now", "-y"]]
            {
                dlock("b", words).env("DLOCK_PREFIX", "a:").status(77).any_stderr().run();
            }
            dlock("a", &["status", key]).any_stdout().run();
            dlock("a", &["release", key, "--force", "--now", "-y"]).any_stderr().run();
        }
        let doctor = |team| dlock(team, &["doctor"]).spawn().output().stdout;
        assert!(doctor("a").contains("all that locks need") && !doctor("a").contains("other prefixes"));
        servers.iter().for_each(|server| server.ask::<()>(&["ACL", "SETUSER", "b", "~dlock.*"]));
        assert!(doctor("b").matches("other prefixes").count() >= servers.len(), "{}", doctor("b"));
    }
}

/// Each command on a team's own locks. Leaves one held, one paused, and history.
fn every_command(world: &World, team: &str, keys: &[&str]) {
    let ours = |dlock| as_team(team, dlock);
    let dlock = |words: &[&str]| ours(world.dlock(words)).any_stdout().any_stderr();
    for key in keys {
        ours(world.run(key, &["--once-per", "1h"], "true")).run();
        ours(world.run(key, &["--once-per", "1h", "-v"], "true")).any_stderr().run();
        dlock(&["forget", key]).run();
        ours(world.run(key, &["-s"], "true")).run();
        ours(world.run(key, &["-n", "2"], "true")).run();
        dlock(&["pause", key, "--for", "1h", "--reason", "r"]).run();
        ours(world.run(key, &[], "true")).status(75).any_stderr().run();
        dlock(&["resume", key]).run();
        let script = r#"lock=$("$0" acquire -q --export -k "$1") && eval "$lock" && "$0" renew "$1" && "$0" check && "$0" release -q "$1""#;
        ours(world.dlock([*key]).under(&["sh", "-c", script])).any_stdout().any_stderr().run();
        let holder =
            ours(world.run(key, &["-t", "6s"], "touch up; exec sleep 1000")).status(79).any_stderr().spawn();
        wait_until("it runs", || world.path("up").exists());
        let waiter = ours(world.run(key, &["-w"], "true")).any_stderr().spawn();
        let watcher = dlock(&["watch", "--json", key]).spawn();
        wait_until("it waits", || dlock(&["status", "--json", key]).run().stdout.contains("waiting_ms"));
        dlock(&["release", "-y", key]).run();
        holder.finish();
        waiter.finish();
        watcher.signal(Signal::TERM);
        watcher.finish();
        fs::remove_file(world.path("up")).expect("the mark");
        for words in [&["history", key][..], &["history", "--refused", key], &["wait", key], &["status", key]]
        {
            dlock(words).run();
        }
    }
    ours(world.run("{tag}one", &["-k", "{tag}two"], "true")).run();
    for words in [&["metrics"][..], &["status"], &["status", "*"], &["history"], &["wait", "*"]] {
        dlock(words).run();
    }
    dlock(&["pause", "paused", "--for", "1h", "--reason", "r"]).run();
    ours(world.run("held", &["--min-hold", "1h"], &format!("echo {team} >> log"))).run();
}

/// The value of each key that does not expire soon.
fn snapshot(world: &World) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = world.redis().ask(&["KEYS", "*"]);
    let lasting = |key: &String| world.redis().ask::<i64>(&["PTTL", key]) > 600_000;
    let dump = |key: String| (key.clone(), world.redis().ask(&["DUMP", &key]));
    keys.into_iter().filter(lasting).map(dump).collect()
}

/// A command that is added to a script or to the client, or removed, must also be in the documents.
#[test]
fn the_documents_name_every_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis");
    let mut used = BTreeSet::new();
    let mut pending = vec![root.with_extension("rs"), root];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("a directory").flatten().map(|entry| entry.path()));
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            for start in ["call('", "cmd(\"", "call(\""] {
                used.extend(text.split(start).skip(1).filter_map(|rest| {
                    let word = rest.split(['\'', '"']).next()?.to_lowercase();
                    (!word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(word)
                }));
            }
        }
    }
    // Every user may use AUTH.
    assert!(used.remove("auth"));
    // INFO is used by doctor and for several masters.
    used.insert("info".to_owned());
    let text = section();
    let documented = text.split('+').skip(1).filter_map(|rest| {
        let word = rest.split(|c: char| !c.is_ascii_lowercase()).next()?;
        (!word.is_empty()).then(|| word.to_owned())
    });
    assert_eq!(used, documented.collect());
}
