//! Passwords that change while locks are held and waited for. They are read from a file, or printed by a command, before each
//! connection. Nothing of them is shown, whatever the command does.

use crate::support::cluster::Cluster;
use crate::support::dlock::{BINARY, Dlock};
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::masters::{self, Masters};
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::sentinel::{self, Sentinel, admit_watchers};
#[cfg(feature = "etcd")]
use crate::support::wait::wait_for;
use crate::support::wait::wait_until;
use crate::support::world::World;
use crate::support::{proc, replicated};
use rustix::process::Signal;
use std::any::Any;
#[cfg(feature = "etcd")]
use std::io::Write as _;
#[cfg(feature = "etcd")]
use std::process::{Command, Stdio};
use std::time::Duration;

const JOB: &str = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.05; done; echo done >> log";
const FIRST: &str = "f1rst-s3same";
const SECOND: &str = "s3cond-s3same";

/// A store with a user whose password can be changed.
struct Door {
    world: World,
    /// Has the server take that password, and no other.
    change: Box<dyn Fn(&str)>,
    /// Ends the connections of that user.
    hang_up: Box<dyn Fn()>,
    _server: Box<dyn Any>,
}

fn redis() -> Door {
    let user = ["--user", "app", "on", &format!(">{FIRST}"), "~*", "&*", "+@all"];
    let world = World::with_redis(&user);
    let url = format!("redis://app@127.0.0.1:{}", world.redis().port());
    let address = world.redis().url();
    let ask = move |words: &[&str]| {
        let client = ::redis::Client::open(address.as_str()).expect("a URL");
        let mut connection = client.get_connection().expect("the test's own server");
        ::redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).expect("an answer");
    };
    let again = ask.clone();
    let mut door = Door {
        world,
        change: Box::new(move |word| {
            ask(&["ACL", "SETUSER", "app", "resetpass", &format!(">{word}")]);
        }),
        hang_up: Box::new(move || again(&["CLIENT", "KILL", "USER", "app"])),
        _server: Box::new(()),
    };
    door.world.use_store(url);
    door
}

/// The sentinel has a user with the same password.
fn sentinels() -> Door {
    let mut world = World::without_redis();
    let (master, _) = replicated::start(&world, 0);
    admit_watchers(&master);
    let add = |word: &str| format!("user app on >{word} ~* &* +@all");
    master.ask::<()>(&["ACL", "SETUSER", "app", "on", &format!(">{FIRST}"), "~*", "&*", "+@all"]);
    let rules = format!("user dlock on >sesame ~* &* +@all\n{}\nuser default off", add(FIRST));
    let sentinel = Sentinel::start(&world, master.port(), 1, 0, &rules);
    let word = world.path("word");
    let query = format!("?sentinel-username=app&sentinel-password-file={}", word.display());
    world.use_store(sentinel::url(&[sentinel.port()]).replace("//", "//app@") + &query);
    let servers = std::rc::Rc::new((master, sentinel));
    let (changed, ended) = (servers.clone(), servers.clone());
    Door {
        world,
        change: Box::new(move |word| {
            let words = ["ACL", "SETUSER", "app", "resetpass", &format!(">{word}")];
            changed.0.ask::<()>(&words);
            changed.1.ask::<()>(&words);
        }),
        hang_up: Box::new(move || {
            ended.0.ask::<i64>(&["CLIENT", "KILL", "USER", "app"]);
            ended.1.ask::<i64>(&["CLIENT", "KILL", "USER", "app"]);
        }),
        _server: Box::new(servers),
    }
}

fn cluster() -> Door {
    let mut world = World::without_redis();
    let nodes = Cluster::start(&world, 2);
    world.use_store(nodes.url(&[0]).replace("//", "//app@"));
    of_several(world, nodes.masters)
}

fn quorum() -> Door {
    let (mut world, masters) = Masters::aged(3).apart();
    let ports: Vec<u16> = masters.iter().map(Redis::port).collect();
    world.use_store(masters::url(&ports).replace("//", "//app@"));
    of_several(world, masters)
}

/// All of these servers have the user.
fn of_several(world: World, servers: Vec<Redis>) -> Door {
    let add = |word: &str| format!(">{word}");
    for server in &servers {
        server.ask::<()>(&["ACL", "SETUSER", "app", "on", &add(FIRST), "~*", "&*", "+@all"]);
    }
    let servers = std::rc::Rc::new(servers);
    let (changed, ended) = (servers.clone(), servers.clone());
    Door {
        world,
        change: Box::new(move |word| {
            for server in &*changed {
                server.ask::<()>(&["ACL", "SETUSER", "app", "resetpass", &add(word)]);
            }
        }),
        hang_up: Box::new(move || {
            for server in &*ended {
                server.ask::<i64>(&["CLIENT", "KILL", "USER", "app"]);
            }
        }),
        _server: Box::new(servers),
    }
}

#[cfg(feature = "postgres")]
fn postgres() -> Door {
    let mut world = World::without_redis();
    let server = std::rc::Rc::new(Postgres::start(&world.path(""), &[]));
    world.use_store(server.admit_guest(FIRST));
    let (changed, ended) = (server.clone(), server.clone());
    Door {
        world,
        change: Box::new(move |word| {
            changed.ask("postgres", &format!("ALTER ROLE guest PASSWORD '{word}'"));
        }),
        hang_up: Box::new(move || {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'guest'";
            ended.ask("postgres", end);
        }),
        _server: Box::new(server),
    }
}

#[cfg(feature = "mysql")]
fn mysql() -> Door {
    let mut world = World::without_redis();
    let server = std::rc::Rc::new(Mysql::start(&world.path(""), &[]));
    server.ask(
        "ops",
        &format!(
            "CREATE USER guest@localhost IDENTIFIED BY '{FIRST}'; GRANT ALL ON ops.* TO guest@localhost"
        ),
    );
    world.use_store(format!("mysql+unix://guest@{}?db=ops", server.socket().display()));
    let (changed, ended) = (server.clone(), server.clone());
    Door {
        world,
        change: Box::new(move |word| {
            changed.ask("ops", &format!("ALTER USER guest@localhost IDENTIFIED BY '{word}'"));
        }),
        hang_up: Box::new(move || {
            ended.ask("ops", "KILL USER guest@localhost");
        }),
        _server: Box::new(server),
    }
}

#[cfg(feature = "etcd")]
fn etcd() -> Door {
    let mut world = World::without_redis();
    let server = std::rc::Rc::new(Etcd::start(&world.path(""), 1, &[]));
    let add = format!("user add app:{FIRST}");
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        &add,
        "role add dlock",
        "role grant-permission dlock readwrite --prefix dlock/",
        "user grant-role app dlock",
        "auth enable",
    ] {
        wait_for(command, || server.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    world.use_store(server.url().replace("//", "//app@"));
    let changed = server.clone();
    Door {
        world,
        change: Box::new(move |word| {
            wait_for("the password is changed", || {
                let mut ctl = Command::new("etcdctl");
                ctl.env("ETCDCTL_API", "3").arg(format!("--endpoints=127.0.0.1:{}", changed.port(0)));
                ctl.args(["--user=root:rootpw", "user", "passwd", "app", "--interactive=false"]);
                let mut child = ctl.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("etcdctl");
                writeln!(child.stdin.take().expect("a pipe"), "{word}").expect("it reads");
                child.wait().expect("the child is ours").success().then_some(())
            });
        }),
        // Whoever has shown the former password is not believed any more.
        hang_up: Box::new(|| {}),
        _server: Box::new(server),
    }
}

/// How dlock gets the password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    File,
    /// It takes longer than an attempt to renew may.
    SlowCommand,
}

impl Door {
    fn dlock<'w>(&'w self, way: Way, call: Dlock<'w>) -> Dlock<'w> {
        match way {
            Way::File => call.env("DLOCK_PASSWORD_FILE", self.world.path("word")),
            Way::SlowCommand => {
                call.env("DLOCK_PASSWORD_COMMAND", "sleep 0.3; echo run >> runs; cat word; echo rest")
            }
        }
    }

    fn holders(&self) -> serde_json::Value {
        let status = self.dlock(Way::File, self.world.dlock(["status", "--json", "k"]));
        let said = status.any_stderr().any_stdout().run().stdout;
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")[0].clone()
    }

    /// Waits until a renewal has come after now.
    fn after_renewal(&self) {
        let renewed = || self.holders()["holders"][0]["renewed_at"].clone();
        let before = renewed();
        wait_until("a renewal", || renewed() != before);
    }

    /// Changes the password at the server, and a little later where dlock reads it, as those do that change passwords.
    fn rotate(&self, word: &str) {
        (self.change)(word);
        (self.hang_up)();
        // Some attempts meet the refusal. However many they are, nothing follows from it.
        std::thread::sleep(Duration::from_millis(500));
        self.world.write("word", &format!("{word}\n"));
    }

    fn shows_nothing(&self, text: &str) {
        assert!(!text.contains(FIRST) && !text.contains(SECOND), "{text}");
    }
}

/// The job goes on, whoever waits has his turn, and the lock is given back.
fn a_new_password_disturbs_nobody(door: &Door) {
    let world = &door.world;
    for way in [Way::File, Way::SlowCommand] {
        world.write("word", &format!("{FIRST}\n"));
        let run = |options: &[&str], job: &str| door.dlock(way, world.run("k", options, job)).any_stderr();
        let holder = run(&["-t", "10s", "-v"], JOB).spawn();
        world.wait_for_log("up");
        let waiter = run(&["-t", "10s", "-v", "-w", "60s"], "echo next >> log").spawn();
        wait_until("it waits", || match world.url().starts_with("redis+quorum") {
            false => door.holders()["waiters"].as_array().is_some_and(|all| all.len() == 1),
            // It has no queue to look at.
            true => waiter.messages().contains("waiting"),
        });
        for word in [SECOND, FIRST] {
            door.rotate(word);
            door.after_renewal();
            door.after_renewal();
        }
        for pid in [holder.pid(), holder.guard()] {
            door.shows_nothing(&(proc::arguments(pid) + &proc::name(pid)));
        }
        world.write("go", "");
        let (held, waited) = (holder.finish(), waiter.finish());
        door.shows_nothing(&(held.stderr + &waited.stderr));
        assert_eq!(world.log(), ["up", "done", "next"], "{way:?}");
        assert_eq!(door.holders()["state"], "free", "{way:?}");
        for file in ["go", "log"] {
            std::fs::remove_file(world.path(file)).expect("a file");
        }
    }
    assert!(world.read("runs").lines().count() >= 6, "before each connection");
}

/// The guard, which gives the lock back when its dlock was killed, has the new password, too.
fn the_guard_has_the_new_password(door: &Door) {
    let world = &door.world;
    for way in [Way::File, Way::SlowCommand] {
        world.write("word", &format!("{FIRST}\n"));
        let holder = door.dlock(way, world.run("k", &["-t", "60s"], JOB)).dies_of(9).any_stderr().spawn();
        world.wait_for_log("up");
        (door.change)(SECOND);
        (door.hang_up)();
        world.write("word", &format!("{SECOND}\n"));
        holder.signal(Signal::KILL);
        holder.finish();
        wait_until("the guard gives it back", || door.holders()["state"] == "free");
        (door.change)(FIRST);
        std::fs::remove_file(world.path("log")).expect("a file");
    }
}

macro_rules! on_every_door {
    ($($(#[$attribute:meta])* $door:ident),+ $(,)?) => {
        $($(#[$attribute])* mod $door {
            #[test]
            fn a_new_password_disturbs_nobody() {
                super::a_new_password_disturbs_nobody(&super::$door());
            }
            #[test]
            fn the_guard_has_the_new_password() {
                super::the_guard_has_the_new_password(&super::$door());
            }
        })+
    };
}

on_every_door!(
    redis,
    sentinels,
    cluster,
    quorum,
    #[cfg(feature = "postgres")]
    postgres,
    #[cfg(feature = "mysql")]
    mysql,
    #[cfg(feature = "etcd")]
    etcd,
);

/// A command that prints no password is 77, and nothing of what it prints is shown.
#[test]
fn a_command_that_fails_is_77_and_its_output_is_not_shown() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    for (command, said) in [
        ("cat word; cat word >&2; exit 3", "has failed (exit status: 3)"),
        ("cat word; kill -9 $$", "has failed (signal: 9"),
        ("cat word | cut -c 40-", "has printed nothing"),
        ("true", "has printed nothing"),
        ("printf '\\377\\n'", "has printed what is not valid UTF-8"),
        (
            "head -c 1000000 /dev/zero | tr '\\0' x",
            "has printed a first line that is too long for a password",
        ),
        ("cat word; no-such-program", "has failed (exit status: 127)"),
        ("sed s/s3same/wr0ng/ word", "refused the user name or the password"),
    ] {
        for format in ["text", "json"] {
            let options = ["-v", "--log-format", format, "--password-command", command];
            let run = door.world.run("k", &options, "touch ran").status(77).any_stderr().run().stderr;
            assert!(run.contains(said) && run.contains("redis://127.0.0.1"), "{command}: {run}");
            assert!(!run.contains("s3same") && !run.contains("wr0ng"), "{command}: {run}");
        }
    }
    assert!(!door.world.path("ran").exists());
}

/// The first line counts, however much follows, and whoever else has the output open.
#[test]
fn the_first_line_counts() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\r\n"));
    for command in
        ["cat word; head -c 1000000 /dev/zero", "cat word", "tr -d '\\r\\n' < word", "sleep 60 & cat word"]
    {
        door.world.run("k", &["--password-command", command], "true").run();
    }
}

/// When the time to connect is over, nothing of it is left.
#[test]
fn a_command_that_hangs_is_killed() {
    let door = redis();
    // The guard of each run tries to leave the queue, and runs the command, too: each run has names of its own.
    let hangs = "echo $$ > $RUN-shell.tmp; sleep 1000 & echo $! > $RUN-sleep.pid; mv $RUN-shell.tmp $RUN-shell.pid; \
                 trap '' TERM INT HUP; while :; do sleep 1; done";
    let gone = |run: &str, what: &str| {
        let pids = ["shell", "sleep"].map(|process| door.world.wait_for_pid(&format!("{run}-{process}.pid")));
        wait_until(what, || !pids.into_iter().any(proc::alive));
    };
    let run = |name: &str, limit: &str| {
        let options = ["-w", "--connect-timeout", limit, "--password-command", hangs];
        door.world.run("k", &options, "touch ran").env("RUN", name).any_stderr()
    };
    let said = run("first", "1s").status(77).run().stderr;
    assert!(said.contains("has not ended within the connect timeout, 1s, and was killed"), "{said}");
    gone("first", "it is killed at the connect timeout");
    // Nor is anything left where dlock is told to end meanwhile.
    let waiter = run("second", "8s").dies_of(2).spawn();
    door.world.wait_for_pid("second-shell.pid");
    waiter.signal(Signal::INT);
    waiter.finish();
    gone("second", "it ends with its dlock");
    // Nor is its own process where dlock could not see to that.
    let alone = "echo $$ > shell.tmp; mv shell.tmp shell.pid; exec sleep 1000";
    let options = ["--connect-timeout", "2s", "--password-command", alone];
    let status = door.world.dlock(["status"]).args(options).dies_of(9).any_stderr().spawn();
    let pid = door.world.wait_for_pid("shell.pid");
    status.signal(Signal::KILL);
    status.finish();
    wait_until("its time is over", || !proc::alive(pid));
    assert!(!door.world.path("ran").exists());
}

/// It is in a session of its own, with no descriptor but the first three, and no signal blocked.
#[test]
fn a_command_has_nothing_of_its_caller() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    // The shell itself has signals blocked while it waits.
    let command = "ls -l /proc/$$/fd > fds; cut -d ' ' -f 6 /proc/$$/stat > session; echo $$ >> session; \
                   grep SigBlk /proc/self/status > blocked; cat word";
    let run = door.world.run("k", &["--password-command", command], "true");
    run.after_shell("exec 9> mutex; flock 9").run();
    let fds = door.world.read("fds");
    assert!(fds.contains("/dev/null") && !fds.contains("mutex"), "{fds}");
    // From 10 on they are the shell's own.
    assert!((3..10).all(|fd| !fds.contains(&format!(" {fd} -> "))), "{fds}");
    let session = door.world.read("session");
    let session: Vec<_> = session.lines().collect();
    assert_eq!(session[0], session[1], "it leads its session");
    assert_eq!(door.world.read("blocked").trim(), "SigBlk:\t0000000000000000");
}

/// The vault may be away while the password is as good as it was.
#[test]
fn a_password_that_cannot_be_read_any_more_is_shown_as_it_was() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    for way in ["--password-file=lent", "--password-command=cat lent"] {
        door.world.write("lent", &format!("{FIRST}\n"));
        let holder = door.world.run("k", &["-t", "10s", way], JOB).any_stderr().spawn();
        door.world.wait_for_log("up");
        std::fs::remove_file(door.world.path("lent")).expect("a file");
        (door.hang_up)();
        door.after_renewal();
        door.after_renewal();
        door.world.write("go", "");
        holder.finish();
        assert_eq!(door.world.log(), ["up", "done"], "{way}");
        for file in ["go", "log"] {
            std::fs::remove_file(door.world.path(file)).expect("a file");
        }
    }
}

/// A descriptor is another one by the time of the next connection.
#[test]
fn a_password_on_stdin_is_read_once() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    let script = "sleep 1000 > /dev/null 2>&1 & exec \"$D\" hold -k h --pid $! --background --password-file /dev/stdin < word";
    let held = door
        .world
        .command("sh")
        .args(["-c", script])
        .env("D", BINARY)
        .env("DLOCK_STORE", door.world.url())
        .output()
        .expect("a shell");
    assert!(held.status.success(), "{}", String::from_utf8_lossy(&held.stderr));
    door.world.write("word", "nothing\n");
    (door.hang_up)();
    door.world.write("word", &format!("{FIRST}\n"));
    let release = door.dlock(Way::File, door.world.dlock(["release", "h", "-y"]));
    release.any_stdout().any_stderr().run();
}

/// A dlock inside of the job runs the same command.
#[test]
fn a_job_is_handed_the_command() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    let job = "echo $DLOCK_PASSWORD_COMMAND > inner; $D check && exec $D run -k k -- $D check k";
    let run = door.world.run("k", &["--password-command", "cat word"], job).env("DLOCK_PASSWORD", "wr0ng");
    run.env("D", BINARY).run();
    assert_eq!(door.world.read("inner"), "cat word\n");
}

/// Where the password is from is told, and never what it is.
#[test]
fn doctor_says_where_the_password_is_from() {
    let door = redis();
    door.world.write("word", &format!("{FIRST}\n"));
    let word = door.world.path("word").display().to_string();
    let of_file = format!("from {word}, read before each connection (DLOCK_PASSWORD_FILE)");
    for (variable, value, says) in [
        ("DLOCK_PASSWORD", FIRST, "from DLOCK_PASSWORD"),
        ("DLOCK_PASSWORD_FILE", &word, &of_file),
        (
            "DLOCK_PASSWORD_COMMAND",
            "cat word",
            "from a command, run before each connection (DLOCK_PASSWORD_COMMAND)",
        ),
    ] {
        let doctor = door.world.dlock(["doctor"]).env(variable, value).any_stdout().any_stderr().run().stdout;
        assert!(doctor.contains(says), "{variable}: {doctor}");
        door.shows_nothing(&doctor);
    }
}
