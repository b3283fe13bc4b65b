//! The stores that a scenario is played on, and a client with a token of its own.

use crate::stores::memory::{Memory, MemoryStore};
#[cfg(feature = "sql")]
use crate::support::database::Kind;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::masters::Masters;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
#[cfg(any(feature = "sql", feature = "zookeeper"))]
use crate::support::target::{local, target};
use crate::support::world::World;
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use dlock::clock::Moment;
use dlock::exit::Ended;
use dlock::lock::{Fence, Key, Mode, Name, Names, Owner, Token};
use dlock::rules::{Acquired, Ask, End, FailurePause, Left, Patience, Ran, Renew, Renewal, Terms};
#[cfg(feature = "etcd")]
use dlock::store::etcd::EtcdStore;
use dlock::store::file::FileStore;
use dlock::store::net::Address;
use dlock::store::quorum::QuorumStore;
use dlock::store::redis::{RedisStore, Target};
#[cfg(feature = "sql")]
use dlock::store::sql::SqlStore;
#[cfg(feature = "zookeeper")]
use dlock::store::zookeeper::ZooKeeperStore;
use dlock::store::{Store, Which};
use std::time::Duration;

pub const TTL: Duration = Duration::from_secs(30);

/// The store that a scenario runs on.
pub enum Stage {
    Server(World),
    Masters(Masters),
    Directory(World),
    Memory(Memory),
    #[cfg(feature = "mysql")]
    Mysql(World),
    #[cfg(feature = "postgres")]
    Postgres(World),
    #[cfg(feature = "etcd")]
    Etcd(World),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(World),
}

/// A client with a token and a store of its own.
pub struct Person {
    pub store: Box<dyn Store>,
    pub token: Token,
    pub names: Names,
    pub mode: Mode,
    pub terms: Terms,
}

impl Stage {
    pub fn store(&self) -> Box<dyn Store> {
        let target = |port| Target {
            address: Address::Tcp { host: "127.0.0.1".into(), port },
            database: 0,
            username: None,
            password: None,
            tls: None,
            shown: "here".into(),
            connect_timeout: Duration::from_secs(20),
            op_timeout: Duration::from_secs(20),
        };
        match self {
            Self::Server(world) => Box::new(RedisStore::new(target(world.redis().port()))),
            Self::Masters(masters) => {
                let targets = masters.ports().into_iter().map(target).collect();
                Box::new(QuorumStore::new(targets, masters.url(), Duration::from_secs(60), |_| {}))
            }
            Self::Directory(world) => {
                Box::new(FileStore::open(&world.path("locks"), "file:/locks").expect("a directory"))
            }
            Self::Memory(memory) => Box::new(MemoryStore::new(memory.clone())),
            #[cfg(feature = "mysql")]
            Self::Mysql(world) => Box::new(SqlStore::mysql(database(world, Mysql::shared().port()))),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(world) => Box::new(ZooKeeperStore::open(ensemble(world))),
            #[cfg(feature = "postgres")]
            Self::Postgres(world) => Box::new(SqlStore::postgres(database(world, Postgres::shared().port()))),
            #[cfg(feature = "etcd")]
            Self::Etcd(world) => Box::new(EtcdStore::etcd(Etcd::shared().target(&world.url()))),
        }
    }

    /// Number of clients that sleep in the database until a lock is released.
    #[cfg(feature = "sql")]
    pub fn sleeping(&self) -> usize {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(world) => Kind::Mysql.sleeping(world),
            #[cfg(feature = "postgres")]
            Self::Postgres(world) => Kind::Postgres.sleeping(world),
            _ => 0,
        }
    }

    pub fn found(&self, prefix: &str) -> Vec<Name> {
        self.store().find(prefix, Which::Known).expect("a list").names
    }

    pub fn person(&self, keys: &[&str], mode: Mode) -> Person {
        let (mut store, token) = (self.store(), Token::random().expect("a token"));
        store.prepare(&token).expect("a store that can be prepared");
        let mut names = keys.iter().map(|key| name(key));
        let names = Names::new(names.next().expect("a key"), names);
        Person { store, token, names, mode, terms: Terms::default() }
    }

    pub fn one(&self) -> Person {
        self.person(&["k"], Mode::Exclusive)
    }
}

/// The ZooKeeper node of a world.
#[cfg(feature = "zookeeper")]
fn ensemble(world: &World) -> dlock::store::net::target::Target {
    let url = world.url();
    let chroot = url.rsplit('/').next().expect("a node");
    target(vec![local(ZooKeeper::shared().port())], None, &format!("/{chroot}"))
}

/// The database of a world.
#[cfg(feature = "sql")]
fn database(world: &World, port: u16) -> dlock::store::net::target::Target {
    target(vec![local(port)], Some("app"), world.database())
}

pub fn name(key: &str) -> Name {
    Name::new("conform:", &Key::new(key).expect("a key")).expect("a name")
}

pub fn deadline() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

fn ended() -> End {
    End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false, fence: None, pause: None }
}

impl Person {
    pub fn ask(&self, patience: Patience) -> Ask {
        let owner = Owner { host: "here".into(), ..Owner::default() };
        let (token, mode, ttl, min_hold) = (self.token.clone(), self.mode, TTL, Duration::ZERO);
        let (terms, waited) = (self.terms.clone(), Duration::ZERO);
        Ask { token, mode, ttl, min_hold, owner, patience, terms, waited, has_waited: false }
    }

    pub fn asks(&mut self, ask: &Ask) -> Acquired {
        self.store.acquire(&self.names, ask, deadline()).expect("an answer")
    }

    pub fn tries(&mut self) -> Acquired {
        self.asks(&self.ask(Patience::None))
    }

    #[track_caller]
    pub fn holds(&mut self) -> Fence {
        match self.tries() {
            Acquired::Granted(grant) => grant.fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    #[track_caller]
    pub fn waits(&mut self, ahead: u64) {
        match self.asks(&self.ask(Patience::Queue)) {
            Acquired::Waiting(waiting) => assert_eq!(waiting.ahead, ahead),
            other => panic!("does not wait: {other:?}"),
        }
    }

    /// Sleeps as a waiter does until it is granted the lock.
    #[track_caller]
    pub fn is_served(&mut self) -> Fence {
        let end = deadline();
        loop {
            match self.asks(&self.ask(Patience::Queue)) {
                Acquired::Granted(grant) => return grant.fence,
                Acquired::Waiting(waiting) if !end.passed() => {
                    let next = Moment::now().after(waiting.next);
                    self.store.sleep(&self.names, &self.token, next).expect("a sleep");
                }
                other => panic!("never granted: {other:?}"),
            }
        }
    }

    #[track_caller]
    pub fn is_busy(&mut self) {
        let answer = self.tries();
        assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
    }

    pub fn renews(&mut self) -> Renewal {
        self.renews_under(None)
    }

    pub fn renews_under(&mut self, fence: Option<Fence>) -> Renewal {
        let renew = Renew { token: &self.token, fence, ttl: TTL, rest: None };
        self.store.renew(&self.names, &renew, deadline()).expect("an answer")
    }

    pub fn leaves(&mut self) -> Left {
        self.leaves_under(None)
    }

    pub fn leaves_under(&mut self, fence: Option<Fence>) -> Left {
        self.store.leave(&self.names, &self.token, &End { fence, ..ended() }, deadline()).expect("an answer")
    }

    /// Gives back the hold of a run that failed, with `--pause-on-failure`.
    pub fn fails(&mut self, reason: &str) -> Left {
        let pause = Some(FailurePause { lasts: Duration::from_secs(3600), reason: reason.into() });
        self.store.leave(&self.names, &self.token, &End { pause, ..ended() }, deadline()).expect("an answer")
    }

    pub fn proves(&mut self) -> Option<Fence> {
        let proof = self.store.prove(&self.names, &self.token, None, deadline()).expect("an answer");
        proof.map(|proof| proof.fence)
    }
}
