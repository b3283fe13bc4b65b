//! A password gets to the server and nowhere else: not into `ps`, `status`, messages or records,
//! however it was given and whatever goes wrong.

use crate::support::dlock::{Dlock, Output};
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};

const SECRET: &str = "op3n-s3same";
const WRONG: &str = "wr0ng-s3same";

/// The ways to give a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    UrlInVariable,
    UrlInFlag,
    UrlInConfig,
    Variable,
    FileByVariable,
    FileByFlag,
    Config,
}

const WAYS: [Way; 7] = [
    Way::UrlInVariable,
    Way::UrlInFlag,
    Way::UrlInConfig,
    Way::Variable,
    Way::FileByVariable,
    Way::FileByFlag,
    Way::Config,
];

/// A store whose password is [`SECRET`].
struct Door {
    #[cfg(feature = "postgres")]
    _server: Option<Postgres>,
    world: World,
}

impl Door {
    fn redis() -> Self {
        Self {
            #[cfg(feature = "postgres")]
            _server: None,
            world: World::with_redis(&["--requirepass", SECRET]),
        }
    }

    #[cfg(feature = "postgres")]
    fn postgres() -> Self {
        let mut world = World::without_redis();
        let server = Postgres::start(&world.path(""), &[]);
        world.use_store(server.admit_guest(SECRET));
        Self { _server: Some(server), world }
    }
}

mod door_on_redis {
    use super::Door;

    #[test]
    fn every_way_logs_in_and_shows_nothing() {
        super::every_way_logs_in_and_shows_nothing(&Door::redis());
    }

    #[test]
    fn a_wrong_password_is_77_and_not_shown() {
        super::a_wrong_password_is_77_and_not_shown(&Door::redis());
    }
}

#[cfg(feature = "postgres")]
mod door_on_postgres {
    use super::Door;

    #[test]
    fn every_way_logs_in_and_shows_nothing() {
        super::every_way_logs_in_and_shows_nothing(&Door::postgres());
    }

    #[test]
    fn a_wrong_password_is_77_and_not_shown() {
        super::a_wrong_password_is_77_and_not_shown(&Door::postgres());
    }
}

fn with_password<'w>(world: &'w World, way: Way, plain: &str, password: &str, words: &[&str]) -> Dlock<'w> {
    let url = match plain.split_once('@') {
        Some((user, host)) => format!("{user}:{password}@{host}"),
        None => plain.replace("//", &format!("//:{password}@")),
    };
    // With the newline that an editor adds.
    world.write("password", &format!("{password}\n"));
    let command = words.split_first().expect("a subcommand");
    let call = |options: &[&str]| world.dlock([command.0]).args(options).args(command.1);
    match way {
        Way::UrlInVariable => call(&[]).env("DLOCK_STORE", url),
        Way::UrlInFlag => call(&["--store", &url]).env_remove("DLOCK_STORE"),
        Way::UrlInConfig => {
            world.write("c.toml", &format!("store = {url:?}\n"));
            call(&["--config", "c.toml"]).env_remove("DLOCK_STORE")
        }
        Way::Variable => call(&[]).env("DLOCK_STORE", plain).env("DLOCK_PASSWORD", password),
        Way::FileByVariable => call(&[]).env("DLOCK_STORE", plain).env("DLOCK_PASSWORD_FILE", "password"),
        Way::FileByFlag => call(&["--password-file", "password"]).env("DLOCK_STORE", plain),
        Way::Config => {
            world.write("c.toml", &format!("password = {password:?}\n"));
            call(&["--config", "c.toml"]).env("DLOCK_STORE", plain)
        }
    }
}

#[track_caller]
fn silent_about(output: &Output, secret: &str, what: &str) {
    assert!(!output.stdout.contains(secret) && !output.stderr.contains(secret), "{what}: {output:?}");
}

fn every_way_logs_in_and_shows_nothing(Door { world, .. }: &Door) {
    let url = &world.url();
    for way in WAYS {
        let words = [
            "run",
            "-k",
            "k",
            "-v",
            "--",
            "sh",
            "-c",
            "env | grep ^DLOCK_HELD; echo $$ > job.pid; sed -n 1p < go",
        ];
        let made = world.command("mkfifo").arg("go").status().expect("mkfifo");
        assert!(made.success());
        let holder = with_password(world, way, url, SECRET, &words).any_stdout().any_stderr().spawn();
        world.wait_for_pid("job.pid");
        for pid in [holder.pid(), holder.guard()] {
            let shown = proc::arguments(pid) + &proc::name(pid);
            // A password on the command line is visible in `ps`, and dlock warns of that.
            assert!(way == Way::UrlInFlag || !shown.contains(SECRET), "{way:?}: {shown}");
        }
        let busy = with_password(world, way, url, SECRET, &["run", "-k", "k", "-v", "--", "true"]);
        silent_about(&busy.status(75).any_stderr().run(), SECRET, "busy");
        for words in [&["status", "k"][..], &["status", "--json"], &["status", "-v"]] {
            let status = with_password(world, way, url, SECRET, words);
            silent_about(&status.any_stdout().any_stderr().run(), SECRET, "status");
        }
        std::fs::write(world.path("go"), "\n").expect("the fifo");
        let output = holder.finish();
        silent_about(&output, SECRET, "run");
        let warned = output.stderr.contains("command line") || output.stderr.contains("argv");
        assert_eq!(warned, way == Way::UrlInFlag, "{way:?}: {}", output.stderr);
        for name in ["go", "job.pid"] {
            std::fs::remove_file(world.path(name)).expect("a file");
        }
    }
    for entry in std::fs::read_dir(world.path("")).expect("the world").flatten() {
        let text = std::fs::read(entry.path()).unwrap_or_default();
        let ours = ["password", "c.toml"].iter().any(|name| entry.file_name() == *name);
        assert!(ours || !String::from_utf8_lossy(&text).contains(SECRET), "{:?}", entry.path());
    }
}

fn a_wrong_password_is_77_and_not_shown(Door { world, .. }: &Door) {
    let url = &world.url();
    for way in WAYS {
        for words in
            [&["run", "-k", "k", "--", "touch", "ran"][..], &["status"], &["release", "k", "--force"]]
        {
            let output = with_password(world, way, url, WRONG, words).status(77).any_stderr().run();
            silent_about(&output, WRONG, "wrong");
            let from = match way {
                Way::UrlInVariable => "the password is from DLOCK_STORE\n",
                Way::UrlInFlag => "the password is from --store\n",
                Way::UrlInConfig | Way::Config => "c.toml line 1\n",
                Way::Variable => "the password is from DLOCK_PASSWORD\n",
                Way::FileByVariable => "password, read before each connection (DLOCK_PASSWORD_FILE)\n",
                Way::FileByFlag => "password, read before each connection (--password-file)\n",
            };
            let is_ours = |line: &str| line.contains(from.trim_end()) && !line.contains("set by");
            assert!(output.stderr.lines().any(is_ours), "{way:?}: {}", output.stderr);
            assert!(output.stderr.contains(&world.shown().replace("//guest@", "//")), "{}", output.stderr);
            let lines = output.stderr.lines().filter(|line| !line.contains("command line"));
            assert!(matches!(lines.count(), 1 | 2), "{way:?}: {}", output.stderr);
        }
    }
    // The server needs a password, and none is given.
    let words = ["run", "-k", "k", "--", "touch", "ran"];
    world.dlock(words).env("DLOCK_STORE", world.url()).status(77).stderr_like("dlock: .*(\n.*)?\n").run();
    assert!(!world.path("ran").exists());
}

#[test]
fn an_unreachable_store_is_69_and_the_password_not_shown() {
    const URLS: &[&str] = &[
        "redis://127.0.0.1:1",
        #[cfg(feature = "postgres")]
        "postgres://app@127.0.0.1:1/d",
    ];
    let world = World::without_redis();
    for way in WAYS {
        for words in [&["run", "-k", "k", "-v", "--", "touch", "ran"][..], &["status"]] {
            for url in URLS {
                let output = with_password(&world, way, url, SECRET, words).status(69).any_stderr().run();
                silent_about(&output, SECRET, "unreachable");
                assert!(output.stderr.contains("127.0.0.1:1"), "{}", output.stderr);
            }
        }
    }
    let bad = ["redis://:op3n-s3same@127.0.0.1:99999", "http://u:op3n-s3same@h", "redis://:op3n-s3same@h h"];
    for url in bad {
        let output = world.dlock(["status"]).env("DLOCK_STORE", url).spawn().output();
        silent_about(&output, SECRET, url);
    }
}

/// A new connection logs in like the first one.
#[test]
fn the_password_is_sent_again_on_a_new_connection() {
    // A client without a password may connect, but is refused all that dlock does.
    let any = ["--user", "default", "on", "nopass", "~*", "-@all", "+client", "+pexpiretime"];
    let app = ["--user", "app", "on", ">op3n-s3same", "~*", "&*", "+@all"];
    let world = World::with_redis(&[&any[..], &app].concat());
    let url = format!("redis://app:{SECRET}@127.0.0.1:{}", world.redis().port());
    let job = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "6s"], job).env("DLOCK_STORE", url).any_stderr().spawn();
    world.wait_for_log("up");
    for _ in 0..3 {
        world.redis().ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        world.redis().after_renewal("dlock:k");
    }
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// A password command may ask a vault, which a failing login must not flood.
#[test]
fn a_password_command_is_left_in_peace() {
    let world = World::with_redis(&["--user", "app", "on", ">old", "~*", "&*", "+@all"]);
    let set = |password: &str| {
        world.redis().ask::<()>(&["ACL", "SETUSER", "app", "resetpass", password]);
    };
    let url = format!("redis://app@127.0.0.1:{}", world.redis().port());
    let job = "echo up >> log; until [ -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "12s"], job).env("DLOCK_STORE", url).any_stderr();
    let holder = holder.env("DLOCK_PASSWORD_COMMAND", "date +%s%N >> runs; echo old").spawn();
    world.wait_for_log("up");
    set(">new");
    world.redis().ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let runs = || world.read("runs").lines().count();
    wait_until("it runs again and again", || runs() >= 4);
    let ran = world.read("runs");
    set(">old");
    world.write("go", "");
    holder.finish();
    let times: Vec<u64> = ran.lines().map(|line| line.parse().expect("a time")).collect();
    // The first one was accepted.
    let gaps: Vec<u64> = times.windows(2).skip(1).map(|two| two[1] - two[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= 1_000_000_000), "{gaps:?}");
}

#[test]
fn a_missing_right_is_77() {
    let world =
        World::with_redis(&["--user", "reader", "on", "nopass", "~*", "&*", "+@read", "+@connection"]);
    let call = world.run("k", &[], "touch ran").env("DLOCK_USERNAME", "reader").env("DLOCK_PASSWORD", "x");
    let output = call.status(77).stderr_like("dlock: .*(\n.*)?\n").run();
    for part in [&*world.url(), "docs/stores.md"] {
        assert!(output.stderr.contains(part), "{}", output.stderr);
    }
    assert!(!world.path("ran").exists());
    let doctor = world.dlock(["doctor"]).env("DLOCK_USERNAME", "reader").env("DLOCK_PASSWORD", "x");
    let doctor = doctor.status(69).any_stdout().run().stdout;
    assert!(doctor.contains("with the rights that docs/stores.md names"), "{doctor}");
}

/// Redis reports that in several ways, and the user must do something else than for a wrong
/// password.
#[test]
fn a_password_that_the_server_does_not_have_is_77() {
    let world = World::with_redis(&[]);
    let call = world.run("k", &[], "touch ran").env("DLOCK_PASSWORD", WRONG);
    let said = call.status(77).stderr_like("dlock: .* has no password, but one is given; .*\n").run().stderr;
    assert!(said.contains(&world.url()) && !said.contains(WRONG), "{said}");
    assert!(!world.path("ran").exists());
}

on_every_store!(a_token_is_not_shown);

/// A token is a secret as well: only the job gets it.
fn a_token_is_not_shown(backend: Backend) {
    let world = World::new(backend);
    let job = "echo $DLOCK_TOKEN > token.tmp; mv token.tmp token; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-v"], job).any_stderr().spawn();
    wait_until("the job runs", || !world.read("token").is_empty());
    let token = world.read("token").trim().to_owned();
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["status", "-v", "k"],
        &["run", "-v", "-k", "k", "--", "true"],
    ] {
        silent_about(&world.dlock(words).spawn().output(), &token, "token");
    }
    assert!(!proc::arguments(holder.pid()).contains(&token));
    world.write("go", "");
    silent_about(&holder.finish(), &token, "token");
}
