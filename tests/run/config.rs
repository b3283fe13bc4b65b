//! Precedence of settings: flag, variable, config file, default. No setting is ignored silently.

use crate::support::world::{Backend, World};

/// The prefix in force, read from the lock's key on the server.
#[track_caller]
fn prefix_in_force(world: &World, options: &[&str], variable: Option<&str>) -> String {
    let call = world.run("k", options, "exit 0");
    let call = match variable {
        Some(value) => call.env("DLOCK_PREFIX", value),
        None => call,
    };
    call.run();
    let fences =
        world.redis().keys().into_iter().filter(|key| key.starts_with("dlock.fence:")).collect::<Vec<_>>();
    world.redis().ask::<()>(&["FLUSHALL"]);
    let [fence] = &fences[..] else { panic!("one fence, not {fences:?}") };
    let name = fence.rsplit_once("}:").expect("a tag").1;
    name.strip_suffix('k').expect("the key").to_owned()
}

#[test]
fn the_nearer_setting_wins() {
    let world = World::new(Backend::Redis);
    assert_eq!(prefix_in_force(&world, &[], None), "dlock:");
    world.write("config/dlock.toml", "prefix = \"file:\"\n");
    assert_eq!(prefix_in_force(&world, &[], None), "file:");
    world.write("other.toml", "prefix = \"other:\"\n");
    assert_eq!(prefix_in_force(&world, &["--config", "other.toml"], None), "other:");
    assert_eq!(prefix_in_force(&world, &["--config", "other.toml"], Some("variable:")), "variable:");
    assert_eq!(prefix_in_force(&world, &["--prefix", "flag:"], Some("variable:")), "flag:");
    assert_eq!(prefix_in_force(&world, &["--prefix="], Some("variable:")), "");
    assert_eq!(prefix_in_force(&world, &[], Some("")), "", "empty means no prefix");
    // If --config is given, no other file is read.
    world.write("empty.toml", "");
    assert_eq!(prefix_in_force(&world, &["--config", "empty.toml"], None), "dlock:");
}

#[test]
fn a_config_file_names_the_store_and_the_defaults_of_run() {
    let world = World::new(Backend::Redis);
    let text = format!(
        "store = {:?}\nttl = \"20s\"\nbusy-exit-code = 9\ngrace = 1.5\nmax-run = \"1s\"\n",
        world.url()
    );
    world.write("config/dlock.toml", &text);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["--max-run", "1h"], job).env_remove("DLOCK_STORE").spawn();
    world.wait_for_log("up");
    let left = world.redis().ask::<i64>(&["PTTL", "dlock:k"]);
    assert!((10_001..=20_000).contains(&left), "the ttl is the file's: {left}");
    world.run("k", &[], "true").env_remove("DLOCK_STORE").status(9).any_stderr().run();
    world.run("k", &["-E", "8"], "true").env_remove("DLOCK_STORE").status(8).any_stderr().run();
    world.write("go", "");
    holder.finish();
    world.run("l", &[], "exec sleep 1000").env_remove("DLOCK_STORE").status(124).any_stderr().run();
}

#[test]
fn messages_say_where_the_store_was_set() {
    let world = World::without_redis();
    let nowhere = "redis://127.0.0.1:1";
    let words = ["run", "-k", "k", "--", "true"];
    let call =
        world.dlock(words).env("DLOCK_STORE", nowhere).status(69).stderr_like("dlock: .*(\n.*)?\n").run();
    assert!(call.stderr.contains(nowhere) && call.stderr.contains("DLOCK_STORE"), "{}", call.stderr);
    let call =
        world.dlock(["run", "-k", "k", "--store", nowhere, "--", "true"]).status(69).any_stderr().run();
    assert!(call.stderr.contains(nowhere) && call.stderr.contains("--store"), "{}", call.stderr);
    world.write("config/dlock.toml", &format!("store = \"{nowhere}\"\n"));
    let call = world.dlock(words).env_remove("DLOCK_STORE").status(69).any_stderr().run();
    assert!(call.stderr.contains(nowhere) && call.stderr.contains("dlock.toml"), "{}", call.stderr);
    assert!(call.stderr.contains("not run"), "it says whether CMD ran: {}", call.stderr);
}

#[test]
fn a_url_names_user_password_and_database() {
    let world = World::with_redis(&["--user", "alice", "on", ">wonder%land", "~*", "&*", "+@all"]);
    let port = world.redis().port();
    let url = format!("redis://alice:wonder%25land@127.0.0.1:{port}/3");
    let job = "echo $DLOCK_FENCE";
    world.run("k", &["--min-hold", "1m"], job).env("DLOCK_STORE", &url).stdout_like("[0-9]+\n").run();
    assert_eq!(world.redis().keys(), [""; 0], "nothing in database 0");
    world.run("k", &[], job).env("DLOCK_STORE", &url).status(75).any_stderr().run();
    let call = world.run("k", &[], job).env("DLOCK_STORE", format!("redis://127.0.0.1:{port}/3"));
    let call = call.env("DLOCK_USERNAME", "alice").env("DLOCK_PASSWORD", "wonder%land");
    call.status(75).any_stderr().run();
}

#[test]
fn a_unix_socket_is_a_store() {
    let world = World::new(Backend::Redis);
    let url = format!("redis+unix://{}", world.redis().socket().display());
    world.run("k", &["--min-hold", "1m"], "exit 4").env("DLOCK_STORE", url).status(4).run();
    assert_eq!(world.state("k"), "cooling");
}

/// Without HOME no file of the user is read or created elsewhere.
#[test]
fn without_home_there_is_no_users_file() {
    let world = World::new(Backend::Redis);
    world.write(".config/dlock.toml", "prefix = \"home:\"\n");
    let call = |key: &str| world.run(key, &["--min-hold", "1m"], "true").env_remove("XDG_CONFIG_HOME");
    call("a").run();
    call("b").env_remove("HOME").run();
    assert!(world.redis().get("home:a").is_some());
    assert!(world.redis().get("dlock:b").is_some());
}

#[test]
fn help_shows_no_values_and_everything_is_explained() {
    let world = World::without_redis();
    for words in
        [&["--help"][..], &["run", "--help"], &["run", "-h"], &["status", "--help"], &["release", "--help"]]
    {
        let call = world.dlock(words).env("DLOCK_PASSWORD", "sesame").env("DLOCK_STORE", "redis://:sesame@h");
        let output = call.any_stdout().run();
        assert!(!output.stdout.contains("sesame"), "{words:?}");
        assert!(!output.stdout.is_empty());
    }
    world.dlock(["--version"]).stdout_like("dlock [0-9.]+\n").run();
}

#[test]
fn messages_can_be_json() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let by_flag = world.run("k", &["--log-format", "json"], "true").status(75).any_stderr().run();
    let by_variable =
        world.run("k", &[], "true").env("DLOCK_LOG_FORMAT", "json").status(75).any_stderr().run();
    let fault = world.run("k", &["--log-format", "json", "--store", "redis://127.0.0.1:1"], "true");
    let fault = fault.env_remove("DLOCK_STORE").status(69).any_stderr().run();
    for output in [by_flag, by_variable, fault] {
        assert!(!output.stderr.is_empty());
        for line in output.stderr.lines() {
            let message: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(message.is_object(), "{line}");
        }
    }
    let busy = world.run("k", &["--log-format", "json", "-E", "9"], "true").status(9).any_stderr().run();
    let busy: serde_json::Value = serde_json::from_str(&busy.stderr).expect("one message");
    assert_eq!((&busy["event"], &busy["key"], &busy["status"]), (&"busy".into(), &"k".into(), &9.into()));
    assert_eq!(busy["store"], world.shown());
    assert_eq!((&busy["holder"]["pid"], &busy["holder"]["ttl_ms"]), (&holder.pid().into(), &30_000.into()));
    world.write("go", "");
    holder.finish();
}
