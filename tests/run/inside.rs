//! A dlock inside a job reaches the same store, wherever that was set outside, and finds its own
//! lock there. No password is passed on.

use crate::support::dlock::BINARY;
use crate::support::world::{Backend, World, on_every_store};
use std::fs;

on_every_store!(
    a_job_finds_its_lock_if_a_flag_named_the_store,
    a_script_finds_the_lock_that_it_acquired,
    a_held_key_is_found_in_its_own_store,
    a_config_file_named_by_a_flag_applies_inside,
);

/// Where the password is set, and the options and variables that name it.
type Way<'a> = (&'static str, &'a [&'a str], &'a [(&'a str, &'a str)]);

const SECRET: &str = "op3n s3same's";

/// `dlock` as a function: the binary under test.
const D: &str = "dlock() { \"$D\" \"$@\"; }\n";

/// A shell script, in which `$U` is the store, and DLOCK_STORE is not set.
fn script<'w>(world: &'w World, text: &str) -> crate::support::dlock::Dlock<'w> {
    world.write("script", &format!("{D}{text}"));
    let call = world.dlock([""; 0]).under(&["sh", "script"]).env("D", BINARY);
    call.env("U", world.url()).env("DLOCK_STORE", "redis://127.0.0.1:1").env("DLOCK_CONNECT_TIMEOUT", "0.3")
}

fn a_job_finds_its_lock_if_a_flag_named_the_store(backend: Backend) {
    let world = World::new(backend);
    world.script("job", &format!("#!/bin/sh\n{D}dlock check && dlock check k && dlock run -k k -c 'echo nested $DLOCK_PREFIX'
        dlock status --json k | grep -c '\"state\": \"held\"'; dlock renew -q; echo $DLOCK_STORE; echo ${{DLOCK_USERNAME-none}}"));
    let said = format!("nested p:\n1\n{}\nnone\n", world.url());
    script(&world, "dlock run --store $U --prefix p: -k k ./job").stdout(&said).run();
    // The same without a prefix. A run that is covered by another hold of the tree gets that hold's
    // store and prefix.
    let text = "dlock run --store $U --prefix= -k k -- sh -c '
        $D run --store file:$PWD/other --prefix x: -k l -- sh -c \"
            echo \\$DLOCK_STORE \\$DLOCK_PREFIX; $D run --store $U --prefix= -k k -- sh -c \\\"
                echo \\\\\\$DLOCK_STORE \\\\\\$DLOCK_PREFIX.\\\"\"'";
    let said = format!("file:{} x:\n{} .\n", world.path("other").display(), world.url());
    script(&world, text).stdout(&said).run();
}

fn a_script_finds_the_lock_that_it_acquired(backend: Backend) {
    let world = World::new(backend);
    let text =
        "lock=$(dlock acquire --store $U --prefix \"it's:\" --export -k k -t 10m) || exit; eval \"$lock\"
        dlock check && dlock check k && dlock renew && dlock run -k k -- echo nested && dlock release k
        dlock check k; echo $?";
    let like = "dlock: k in .* is not held any more.*\n";
    script(&world, text).stdout("nested\n79\n").stderr_like(like).run();
}

/// DLOCK_HELD names the store of the lock, even if the variables name another one.
fn a_held_key_is_found_in_its_own_store(backend: Backend) {
    let world = World::new(backend);
    let text = "lock=$(dlock acquire --store $U --prefix p: --export -k k -t 10m) || exit; eval \"$lock\"
        export DLOCK_STORE=redis://127.0.0.1:1; unset DLOCK_PREFIX
        dlock check && dlock check k && dlock renew k -t 20m && dlock renew || exit
        dlock check k --store file:$PWD/other; echo $?
        dlock check k --prefix q:; echo $?
        dlock release -k k; echo $?; dlock check k; echo $?";
    let like = "(dlock: this process runs under no lock of k in .*: it holds k in .*\n){2}\
                dlock: k in .* is not held any more.*\n";
    let call = script(&world, text).stdout("79\n79\n0\n79\n").stderr_like(like).run();
    assert!(call.stderr.contains(&world.shown()), "{}", call.stderr);
}

fn a_config_file_named_by_a_flag_applies_inside(backend: Backend) {
    let world = World::new(backend);
    world.write("own.toml", &format!("store = {:?}\nprefix = 'own:'\nttl = 20\n", world.url()));
    let text = "unset DLOCK_STORE; cd /; dlock run --config $OLDPWD/own.toml -k k -- sh -c '$D check && $D check k && echo yes'";
    script(&world, text).stdout("yes\n").run();
}

/// The same user and password work inside, however they were given, and dlock adds no password to
/// the job's environment.
#[test]
fn a_login_that_works_outside_works_inside() {
    let users =
        ["--user", "default", "off", "--user", "app", "on", &format!(">{SECRET}"), "~*", "&*", "+@all"];
    let world = World::with_redis(&users);
    let port = world.redis().port();
    world.write("secrets/password", &format!("{SECRET}\n"));
    let bare = format!("redis://127.0.0.1:{port}");
    let encoded = "op3n%20s3same%27s";
    let full = format!("redis://app:{encoded}@127.0.0.1:{port}");
    world.write("full.toml", &format!("store = '{full}'\n"));
    world.write("apart.toml", &format!("store = '{bare}'\nusername = 'app'\npassword = \"{SECRET}\"\n"));
    world.write(
        "file.toml",
        &format!("store = '{bare}'\nusername = 'app'\npassword-file = 'secrets/password'\n"),
    );
    // Without DLOCK_STORE, DLOCK_HELD names the store. A password that was only in the URL is lost
    // then.
    let job = "cd / && $D check && $D check k || exit
        [ \"$URL\" ] || env -u DLOCK_STORE $D check k || exit
        echo yes; env";
    let ways: [Way<'_>; 9] = [
        ("file", &["--store", &bare, "--username", "app", "--password-file", "secrets/password"], &[]),
        // The variables are wrong, and the flags override them.
        (
            "file",
            &["--store", &bare, "--username", "app", "--password-file", "secrets/password"],
            &[("DLOCK_PASSWORD", "wrong"), ("DLOCK_USERNAME", "nobody")],
        ),
        (
            "file",
            &[],
            &[("DLOCK_STORE", &bare), ("DLOCK_USERNAME", "app"), ("DLOCK_PASSWORD_FILE", "secrets/password")],
        ),
        ("variable", &["--store", &bare], &[("DLOCK_USERNAME", "app"), ("DLOCK_PASSWORD", SECRET)]),
        ("url", &[], &[("DLOCK_STORE", &full)]),
        ("url", &["--store", &bare, "--username", "app"], &[("DLOCK_STORE", &full)]),
        ("config", &["--config", "full.toml"], &[]),
        ("config", &["--config", "apart.toml"], &[]),
        ("file", &["--config", "file.toml"], &[]),
    ];
    for (way, options, variables) in ways {
        let call =
            world.dlock(["run", "-k", "k"]).args(options).args(["--", "sh", "-c", job]).env("D", BINARY);
        let call = variables
            .iter()
            .fold(call.env_remove("DLOCK_STORE"), |call, (name, value)| call.env(name, value));
        let call = call.env("URL", if way == "url" { "only" } else { "" });
        let output = call.any_stdout().run().stdout;
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.first(), Some(&"yes"), "{way} {options:?} {variables:?}: {output}");
        let value = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        assert_eq!(value("DLOCK_USERNAME"), Some("app"), "{way} {options:?}");
        let file = world.path("secrets/password").display().to_string();
        assert_eq!(value("DLOCK_PASSWORD_FILE"), (way == "file").then_some(&*file), "{way} {options:?}");
        if !["url", "variable"].contains(&way) {
            assert!(!output.contains(SECRET) && !output.contains(encoded), "{way} {options:?}: {output}");
            assert_eq!(value("DLOCK_STORE"), Some(&*bare), "{way} {options:?}");
        }
    }
    // A password in a flag is not passed on. The job needs DLOCK_PASSWORD.
    let job = "echo $DLOCK_STORE; $D check -q; echo $?; DLOCK_PASSWORD=$P $D check; echo $?";
    let call = world.dlock(["run", "-k", "k", "--store", &full, "--", "sh", "-c", job]).env("D", BINARY);
    let call = call.env_remove("DLOCK_STORE").env("P", SECRET);
    call.stdout(&format!("{bare}\n78\n0\n")).any_stderr().run();
}

/// The outer run warns that the job does not get the password, and a dlock inside says what is
/// missing.
#[test]
fn a_password_in_a_flag_is_reported_missing_inside() {
    let world = World::with_redis(&["--requirepass", "sesame"]);
    let url = format!("redis://:sesame@127.0.0.1:{}", world.redis().port());
    for words in ["check", "status", "run -k other true", "run -k k true", "acquire -k other"] {
        let job = format!("$D {words} 2> inner; echo $?");
        let call = world.dlock(["run", "-k", "k", "--store", &url, "--", "sh", "-c", &job]);
        let call = call.env("D", BINARY).env_remove("DLOCK_STORE").stdout("77\n");
        let warned = "dlock: every user of this machine can see a password on the command line, .* does not get it; use --password-file .*\n";
        call.stderr_like(warned).run();
        let inner = world.read("inner");
        assert!(
            inner.contains("the surrounding dlock run") && inner.contains("give it --password-file there"),
            "{inner}"
        );
    }
    // Without a surrounding run the message does not mention one.
    let url = format!("redis://127.0.0.1:{}", world.redis().port());
    let call = world.dlock(["status"]).env("DLOCK_STORE", url).status(77).any_stderr().run();
    assert!(!call.stderr.contains("surrounding"), "{}", call.stderr);
}

/// Here the parameter is the authority that issued the server's certificate.
#[test]
fn a_url_is_passed_on_with_its_parameters() {
    let authority = crate::support::certificates::Authority::new("the test's own");
    let world = World::with_tls(&authority, &[]);
    let url = format!("rediss://localhost:{}?ca={}", world.redis().port(), world.path("ca.pem").display());
    let job = "$D check && echo $DLOCK_STORE; DLOCK_STORE=file:$PWD/x $D check k && echo yes";
    let call = world.dlock(["run", "-k", "k", "--store", &url, "--", "sh", "-c", job]).env("D", BINARY);
    call.env_remove("DLOCK_STORE").stdout(&format!("{url}\nyes\n")).run();
}

/// User and password do not apply to a directory and are not set inside. A directory with an odd
/// name is found.
#[test]
fn a_directory_has_no_user() {
    let world = World::without_redis();
    fs::create_dir(world.path("a@b c")).expect("a directory");
    let url = format!("file:{}/a@b%20c", world.path("").display());
    world.write("password", "x\n");
    let job = "echo ${DLOCK_USERNAME-none} ${DLOCK_PASSWORD_FILE-none}; $D check; DLOCK_STORE=file:$PWD/x $D check k; echo $?";
    let call = world.dlock(["run", "-k", "k", "--store", &url, "--", "sh", "-c", job]).env("D", BINARY);
    let call = call.env("DLOCK_USERNAME", "u").env("DLOCK_PASSWORD_FILE", "password");
    call.stdout("none none\n0\n").run();
}

/// The default means a different server on each machine, so the outer run reports it. Inside the
/// job it is not reported again.
#[test]
fn the_built_in_default_store_is_reported() {
    let world = World::without_redis();
    for words in
        [&["run", "-q", "-k", "dlock-test-of-the-default", "true"][..], &["acquire", "-qk", "x", "-t", "1s"]]
    {
        let call = world.dlock(words).env_remove("DLOCK_STORE").any_stdout().any_stderr().spawn().output();
        let said = "dlock: no setting names a store, so redis://127.0.0.1:6379 is used, ";
        assert!(call.stderr.starts_with(said) && call.stderr.contains("/etc/dlock.toml"), "{}", call.stderr);
        assert_eq!(call.stderr.matches("no setting names").count(), 1, "{}", call.stderr);
        // If nothing listens there, a second line follows, but only one of them says how to set a
        // store.
        assert_eq!(call.stderr.matches("DLOCK_STORE").count(), 1, "{}", call.stderr);
    }
    let call = world.dlock(["status"]).env_remove("DLOCK_STORE").any_stdout().any_stderr().spawn().output();
    assert!(!call.stderr.contains("no setting names"), "{}", call.stderr);
    // A setting that names the same store is enough.
    world.write("config/dlock.toml", "store = 'redis://127.0.0.1:6379'\n");
    let call = world.dlock(["run", "-k", "dlock-test-of-the-default", "true"]).env_remove("DLOCK_STORE");
    let call = call.any_stdout().any_stderr().spawn().output();
    assert!(!call.stderr.contains("no setting names"), "{}", call.stderr);
}

/// An empty variable is refused, unless a flag sets the store.
#[test]
fn a_flag_overrides_an_empty_store_variable() {
    let world = World::without_redis();
    let url = world.url();
    world.dlock(["run", "-k", "k", "--store", &url, "true"]).env("DLOCK_STORE", "").run();
    world.dlock(["--store", &url, "status"]).env("DLOCK_STORE", "").any_stdout().run();
    world.dlock(["run", "-k", "k", "true"]).env("DLOCK_STORE", "").status(78).any_stderr().run();
}
