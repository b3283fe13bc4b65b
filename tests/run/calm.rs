//! An outage of less than half a lease, or one cut of all slow connections, disturbs no job, and
//! does not flood the store with connections; on every store, with many holders.

#[cfg(feature = "sql")]
use crate::support::database::{Kind, Server};
use crate::support::dlock::{BINARY, Running};
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::haproxy::HaProxy;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::storm::is_soak;
use crate::support::wait::wait_until;
use crate::support::world::World;
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

/// The server of a store, which can be stopped as if its machine hung.
enum Place {
    Redis(Redis),
    #[cfg(feature = "sql")]
    Database(Server),
    #[cfg(feature = "etcd")]
    Etcd(Etcd),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(ZooKeeper),
}

/// A world whose store is reached through a proxy.
struct Scene {
    // Before the world, because fields are dropped in order, and the server runs in the world's
    // directory.
    place: Place,
    /// Between the proxy and the server, in some scenes.
    _haproxy: Option<HaProxy>,
    proxy: Proxy,
    world: World,
}

/// Starts the server of a scene.
type Make = fn(&World) -> Place;

macro_rules! on_every_server {
    ($($scenario:ident),+ $(,)?) => {
        mod on_redis {
            $(#[test] fn $scenario() { super::$scenario(super::redis); })+
        }
        #[cfg(feature = "mysql")]
        mod on_mysql {
            $(#[test] fn $scenario() { super::$scenario(super::mysql); })+
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[test] fn $scenario() { super::$scenario(super::postgres); })+
        }
        #[cfg(feature = "etcd")]
        mod on_etcd {
            $(#[test] fn $scenario() { super::$scenario(super::etcd); })+
        }
        #[cfg(feature = "zookeeper")]
        mod on_zookeeper {
            $(#[test] fn $scenario() { super::$scenario(super::zookeeper); })+
        }
    };
}

on_every_server!(
    an_outage_of_nearly_half_a_lease_disturbs_nobody_and_costs_few_connections,
    a_cut_of_slow_connections_disturbs_nobody,
    a_store_that_stays_away_ends_every_hold_in_time,
    a_crowd_on_a_long_line_is_no_outage,
    a_watch_on_a_long_line_soon_finds_new_keys,
);

fn redis(world: &World) -> Place {
    Place::Redis(Redis::start(&world.path(""), &[]))
}

#[cfg(feature = "mysql")]
fn mysql(world: &World) -> Place {
    Place::Database(Server::start(Kind::Mysql, &world.path(""), Kind::Mysql.for_many()))
}

#[cfg(feature = "postgres")]
fn postgres(world: &World) -> Place {
    Place::Database(Server::start(Kind::Postgres, &world.path(""), Kind::Postgres.for_many()))
}

#[cfg(feature = "etcd")]
fn etcd(world: &World) -> Place {
    Place::Etcd(Etcd::start(&world.path(""), 1, &[]))
}

#[cfg(feature = "zookeeper")]
fn zookeeper(world: &World) -> Place {
    Place::ZooKeeper(ZooKeeper::start(&world.path(""), &[]))
}

impl Place {
    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            #[cfg(feature = "sql")]
            Self::Database(server) => server.url(),
            #[cfg(feature = "etcd")]
            Self::Etcd(server) => server.url(),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(server) => server.url("/calm"),
        }
    }

    fn stop(&self) {
        match self {
            Self::Redis(server) => server.pause(),
            #[cfg(feature = "sql")]
            Self::Database(server) => server.pause(),
            #[cfg(feature = "etcd")]
            Self::Etcd(server) => server.signal(0, Signal::STOP),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(server) => server.signal(Signal::STOP),
        }
    }

    fn resume(&self) {
        match self {
            Self::Redis(server) => server.resume(),
            #[cfg(feature = "sql")]
            Self::Database(server) => server.resume(),
            #[cfg(feature = "etcd")]
            Self::Etcd(server) => server.signal(0, Signal::CONT),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(server) => server.signal(Signal::CONT),
        }
    }
}

impl Scene {
    fn new(make: Make) -> Self {
        Self::before(make, |_, _| None)
    }

    /// The same with HAProxy behind the proxy that counts. A client never sees that the server's
    /// listen backlog is full: HAProxy accepts its connection all the same.
    fn behind_haproxy(make: Make) -> Self {
        Self::before(make, |world, port| Some(HaProxy::before(&world.path(""), port)))
    }

    fn before(make: Make, between: impl FnOnce(&World, u16) -> Option<HaProxy>) -> Self {
        let mut world = World::without_redis();
        let place = make(&world);
        let url = place.url();
        let port = port_of(&url);
        let haproxy = between(&world, port);
        let proxy = Proxy::before(haproxy.as_ref().map_or(port, HaProxy::port));
        world.use_store(url.replace(&format!(":{port}"), &format!(":{}", proxy.port())));
        Self { place, _haproxy: haproxy, proxy, world }
    }

    /// Starts `count` jobs, each with its own lock, and waits until all hold it. They end when `go`
    /// exists.
    fn holders(&self, count: usize, ttl: Duration) -> Vec<Running> {
        let ttl = format!("{}ms", ttl.as_millis());
        let job = "echo up >> log; until [ -e go ]; do sleep 0.2; done";
        let start = |number| {
            let key = format!("k{number}");
            self.world.run(&key, &["-q", "-w", "-t", &ttl], job).any_stderr().spawn()
        };
        let jobs = (0..count).map(start).collect();
        wait_until("all hold their locks", || self.world.log().len() == count);
        jobs
    }

    /// Starts a process, and holds a lock for it with `dlock hold`.
    fn hold(&self, key: &str, ttl: Duration, status: i32) -> (Running, Child) {
        let process = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let (ttl, pid) = (format!("{}ms", ttl.as_millis()), process.id().to_string());
        let hold = self
            .world
            .dlock(["hold", "-k", key, "-t", &ttl, "--pid", &pid])
            .status(status)
            .any_stderr()
            .spawn();
        wait_until("it is held", || self.world.state(key) == "held");
        (hold, process)
    }

    /// Every job ends by itself, with its own status.
    fn finish(&self, jobs: Vec<Running>) {
        self.world.write("go", "");
        for job in jobs {
            job.finish();
        }
    }
}

fn port_of(url: &str) -> u16 {
    let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    authority.and_then(|authority| authority.rsplit(':').next()?.parse().ok()).expect("a port")
}

/// The outage is a little shorter than half a lease, because this machine may be busy.
/// benches/calm.py measures the exact bound. There are more holders than ZooKeeper's listen backlog
/// has room for (50).
fn an_outage_of_nearly_half_a_lease_disturbs_nobody_and_costs_few_connections(make: Make) {
    let scene = Scene::behind_haproxy(make);
    let (count, ttl) = if is_soak() { (100, Duration::from_secs(30)) } else { (60, Duration::from_secs(12)) };
    let jobs = scene.holders(count, ttl);
    let (hold, mut process) = scene.hold("process", ttl, 0);
    // A holder opens its notification channel after a second.
    sleep(Duration::from_millis(1500));
    let before = scene.proxy.connections();
    scene.place.stop();
    sleep(ttl * 4 / 10);
    scene.place.resume();
    // A whole lease: a job whose lock was not renewed in time is stopped by then.
    sleep(ttl);
    let new = scene.proxy.connections() - before;
    assert_eq!(process.try_wait().expect("our child"), None, "what is held is disturbed");
    process.kill().expect("it lives");
    process.wait().expect("our child");
    hold.finish();
    scene.finish(jobs);
    // One beside the renewal, one for the notification channel, and one if the machine is busy.
    assert!(new <= 3 * count, "{new} new connections of {count} holders");
}

fn a_cut_of_slow_connections_disturbs_nobody(make: Make) {
    let scene = Scene::new(make);
    scene.proxy.go_far(Duration::from_millis(100));
    let ttl = Duration::from_secs(10);
    let jobs = scene.holders(5, ttl);
    sleep(ttl / 8);
    scene.proxy.cut();
    sleep(ttl);
    scene.finish(jobs);
}

/// Runs that lose every race for the lock are told that it is busy (75), and not that the store is
/// away (69).
fn a_crowd_on_a_long_line_is_no_outage(make: Make) {
    let scene = Scene::new(make);
    scene.proxy.go_far(Duration::from_millis(100));
    let runs = r#"for i in 1 2 3; do "$@"; echo "$?" >> statuses; done"#;
    let crowd: Vec<_> = (0..24)
        .map(|number| {
            let wait = ["--wait=1s"];
            let wait = if number % 3 == 0 { &wait[..] } else { &[] };
            let args = [&["run", "-q", "-k", "k", "-t", "15s"], wait, &["--", "true"]].concat();
            let mut shell = scene.world.command("sh");
            shell.args(["-c", runs, "sh", BINARY]).args(args).env("DLOCK_STORE", scene.world.url());
            shell.env("DLOCK_OP_TIMEOUT", "2s");
            shell.stderr(std::fs::File::create(scene.world.path(&format!("said{number}"))).expect("a file"));
            shell.spawn().expect("sh")
        })
        .collect();
    for mut shell in crowd {
        assert!(shell.wait().expect("our child").success());
    }
    // What arrived too late is given back.
    wait_until("nobody holds it", || scene.world.state("k") == "free");
    let statuses = scene.world.read("statuses");
    let said = || (0..24).map(|number| scene.world.read(&format!("said{number}"))).collect::<String>();
    assert!(statuses.lines().any(|status| status == "0"), "{statuses}{}", said());
    assert!(statuses.lines().all(|status| ["0", "75"].contains(&status)), "{statuses}{}", said());
}

/// A watch searches more rarely where a search is a load. Its first search takes long because it
/// connects, which is no load.
fn a_watch_on_a_long_line_soon_finds_new_keys(make: Make) {
    let scene = Scene::new(make);
    scene.proxy.go_far(Duration::from_millis(150));
    let watch = scene.world.dlock(["watch", "-v", "--json"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    scene.world.run("k", &["--store", &scene.place.url()], "true").any_stderr().run();
    wait_until("it is told", || watch.printed().contains("granted"));
    watch.signal(Signal::TERM);
    watch.finish();
}

/// The lease ends no later than one ttl after the last answer of the store. The extra eighth is for
/// a busy machine; tests/run/lease/deadline.rs checks the exact moment.
fn a_store_that_stays_away_ends_every_hold_in_time(make: Make) {
    let scene = Scene::new(make);
    let ttl = Duration::from_secs(6);
    let mut held: Vec<_> = (0..3).map(|number| scene.hold(&format!("k{number}"), ttl, 79)).collect();
    scene.place.stop();
    sleep(ttl + ttl / 8);
    for (_, process) in &mut held {
        assert!(process.try_wait().expect("our child").is_some(), "it lives when the lease is over");
    }
    scene.place.resume();
    held.into_iter().for_each(|(hold, _)| drop(hold.finish()));
}
