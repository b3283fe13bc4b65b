//! Servers that ask for a password, and how an administrator replaces it.

use super::Way;
use crate::support::cluster::Cluster;
use crate::support::dlock::Dlock;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::masters::{self, Masters};
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::replicated;
use crate::support::sentinel::{self, Sentinel, admit_watchers};
#[cfg(feature = "etcd")]
use crate::support::wait::wait_for;
use crate::support::wait::wait_until;
use crate::support::world::World;
use std::any::Any;
#[cfg(feature = "etcd")]
use std::io::Write as _;
#[cfg(feature = "etcd")]
use std::process::{Command, Stdio};
use std::time::Duration;

pub const FIRST: &str = "f1rst-s3same";

pub const SECOND: &str = "s3cond-s3same";

/// A store with a user whose password can be changed.
pub struct Door {
    pub world: World,
    /// Makes the server accept that password and no other.
    pub change: Box<dyn Fn(&str)>,
    /// Ends the connections of that user.
    pub hang_up: Box<dyn Fn()>,
    pub _server: Box<dyn Any>,
}

pub fn redis() -> Door {
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

/// The sentinel has a user with the same password, too.
pub fn sentinels() -> Door {
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

pub fn cluster() -> Door {
    let mut world = World::without_redis();
    let nodes = Cluster::start(&world, 2);
    world.use_store(nodes.url(&[0]).replace("//", "//app@"));
    of_several(world, nodes.masters)
}

pub fn quorum() -> Door {
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
pub fn postgres() -> Door {
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
pub fn mysql() -> Door {
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
pub fn etcd() -> Door {
    let mut world = World::without_redis();
    let server = std::rc::Rc::new(Etcd::start(&world.path(""), 1, &["--bcrypt-cost=8"]));
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
        // A client that logged in with the former password is no longer accepted.
        hang_up: Box::new(|| {}),
        _server: Box::new(server),
    }
}

impl Door {
    pub fn dlock<'w>(&'w self, way: Way, call: Dlock<'w>) -> Dlock<'w> {
        match way {
            Way::File => call.env("DLOCK_PASSWORD_FILE", self.world.path("word")),
            Way::SlowCommand => {
                call.env("DLOCK_PASSWORD_COMMAND", "sleep 0.3; echo run >> runs; cat word; echo rest")
            }
        }
    }

    pub fn holders(&self) -> serde_json::Value {
        let status = self.dlock(Way::File, self.world.dlock(["status", "--json", "k"]));
        let said = status.any_stderr().any_stdout().run().stdout;
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")[0].clone()
    }

    /// Waits for the next renewal.
    pub fn after_renewal(&self) {
        let renewed = || self.holders()["holders"][0]["renewed_at"].clone();
        let before = renewed();
        wait_until("a renewal", || renewed() != before);
    }

    /// Changes the password at the server and a little later where dlock reads it, as an
    /// administrator does.
    pub fn rotate(&self, word: &str) {
        (self.change)(word);
        (self.hang_up)();
        // Some attempts are refused. That must have no effect.
        std::thread::sleep(Duration::from_millis(500));
        self.world.write("word", &format!("{word}\n"));
    }

    pub fn shows_nothing(&self, text: &str) {
        assert!(!text.contains(FIRST) && !text.contains(SECOND), "{text}");
    }
}
