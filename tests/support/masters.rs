//! Several independent redis-servers for one test, and dlock on all of them together.

use super::certificates::Authority;
use super::dlock::Dlock;
use super::redis::Redis;
use super::wait::wait_until;
use super::world::{World, certify};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// How far the first master's clock is ahead of this machine's, and each further master's of the
/// one before.
const AHEAD_US: i64 = 3_600_000_000;

/// The masters. Dropping them kills them.
pub struct Masters {
    // Before the world: fields are dropped in order, and the servers run in its directory.
    masters: Vec<Redis>,
    world: World,
}

impl Masters {
    /// Masters that have been up for longer than any lease: their clocks are ahead, each by another
    /// hour, so they count at once, also after a restart.
    pub fn aged(count: usize) -> Self {
        Self::start(count, |_| Vec::new(), ahead)
    }

    /// The same, over TLS.
    pub fn aged_with_tls(count: usize, authority: &Authority) -> Self {
        Self::start(count, |home| certify(authority, home), ahead)
    }

    /// Masters that have just been started.
    pub fn fresh(count: usize) -> Self {
        Self::start(count, |_| Vec::new(), |_| Vec::new())
    }

    fn start(
        count: usize,
        options: impl Fn(&Path) -> Vec<&'static str>,
        environment: impl Fn(usize) -> Vec<(&'static str, OsString)>,
    ) -> Self {
        let world = World::without_redis();
        let masters = (0..count).map(|at| {
            let home = world.path(&format!("master{at}"));
            fs::create_dir(&home).expect("a directory for a master");
            Redis::start_within(&home, &options(&home), environment(at))
        });
        Self { masters: masters.collect(), world }
    }

    /// The directory in which jobs run, and the masters.
    pub fn apart(self) -> (World, Vec<Redis>) {
        (self.world, self.masters)
    }

    /// The directory in which jobs run.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Makes the masters the default store of the directory.
    pub fn use_own_store(&mut self) {
        self.world.use_store(url(&self.ports()));
    }

    /// One of the masters.
    pub fn at(&self, at: usize) -> &Redis {
        &self.masters[at]
    }

    /// One of the masters, to kill or restart it.
    pub fn at_mut(&mut self, at: usize) -> &mut Redis {
        &mut self.masters[at]
    }

    /// Number of masters.
    pub fn len(&self) -> usize {
        self.masters.len()
    }

    /// The ports, in the order of the URL.
    pub fn ports(&self) -> Vec<u16> {
        self.masters.iter().map(Redis::port).collect()
    }

    /// The store URL for dlock.
    pub fn url(&self) -> String {
        url(&self.ports())
    }

    /// dlock with arguments, on these masters.
    pub fn dlock(&self, args: &[&str]) -> Dlock<'_> {
        self.world.dlock(args).env("DLOCK_STORE", self.url())
    }

    /// `dlock run -k KEY options -- sh -c SCRIPT` on these masters.
    pub fn run(&self, key: &str, options: &[&str], script: &str) -> Dlock<'_> {
        self.world.run(key, options, script).env("DLOCK_STORE", self.url())
    }

    /// What `dlock status --json KEY` says of a key.
    #[track_caller]
    pub fn status(&self, key: &str) -> Value {
        let output = self.dlock(&["status", "--json", key]).any_stdout().run();
        let json: Value = serde_json::from_str(&output.stdout).expect("status --json prints JSON");
        json.get(0).expect("status of one key has one entry").clone()
    }

    /// Waits until dlock can take a lock on these masters with these options.
    #[track_caller]
    pub fn wait_until_counted(&self, options: &[&str]) {
        wait_until("the masters are counted", || {
            let mut probe = self.run("probe", options, "true").any_stderr().spawn();
            while !probe.has_ended() {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            probe.output().status.success()
        });
    }
}

/// A store URL for the servers, or proxies, on these ports.
pub fn url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+quorum://{}", hosts.join(","))
}

/// The environment that sets a master's clock ahead.
fn ahead(at: usize) -> Vec<(&'static str, OsString)> {
    let ahead = AHEAD_US * (1 + i64::try_from(at).expect("a few"));
    let shim = steered_clock().as_os_str().to_owned();
    vec![("LD_PRELOAD", shim), ("STEERED_OFFSET", ahead.to_string().into())]
}

/// The library behind `steered_clock.c`.
pub fn steered_clock() -> &'static Path {
    static BUILT: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    let (library, _) = BUILT.get_or_init(|| {
        let home = tempfile::tempdir().expect("a directory");
        let library = home.path().join("steered_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/steered_clock.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("cc is installed").success(), "cc cannot build the clock");
        // Some servers run as users of their own.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        (library, home)
    });
    library
}
