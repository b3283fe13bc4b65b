//! Real ZooKeeper servers. Scenarios share one, each with a node of its own there; a scenario that
//! kills its server or wants an ensemble has its own.

mod ensemble;

pub use ensemble::Ensemble;

use super::masters::steered_clock;
use super::redis::next_port;
use super::wait::{wait_for, wait_until};
use super::world::{World, suite_home};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{fs, thread};

/// Debian's path. ZOOKEEPER_JARS names another one.
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar:/usr/share/java/netty-codec.jar:\
     /usr/share/java/netty-resolver.jar";

/// Settings for clients over TLS.
pub const TLS: [&str; 3] = [
    "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
    "ssl.keyStore.type=PEM",
    "ssl.trustStore.type=PEM",
];

/// Sessions may be as short and as long as leases are.
const SETTINGS: [&str; 6] = [
    "minSessionTimeout=400",
    "maxSessionTimeout=90000000",
    "maxClientCnxns=0",
    "admin.enableServer=false",
    "4lw.commands.whitelist=*",
    "clientPortAddress=127.0.0.1",
];

/// A server. Dropping it kills it.
pub struct ZooKeeper {
    port: u16,
    home: PathBuf,
    child: Option<Child>,
    /// How far the server's clock is ahead, in microseconds.
    offset: i64,
    /// The file with the step of the clock, if the clock can be stepped.
    steps: Option<PathBuf>,
}

impl ZooKeeper {
    /// Starts a single server in a directory of its own below `home`, with further settings,
    /// `name=value`.
    pub fn start(home: &Path, settings: &[&str]) -> Self {
        let mut server = Self::prepare(home, "zookeeper", settings);
        server.run();
        server
    }

    /// The same with a clock that can be [stepped](Self::step_clock) while it runs.
    pub fn start_steered(home: &Path, settings: &[&str]) -> Self {
        let mut server = Self::prepare(home, "zookeeper", settings);
        let steps = server.home.join("steps");
        fs::write(&steps, 0i64.to_ne_bytes()).expect("a file");
        server.steps = Some(steps);
        server.run();
        server
    }

    /// The server that all scenarios share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (tell, hear) = mpsc::channel();
            // The server is stopped when the thread that started it ends (PR_SET_PDEATHSIG).
            thread::spawn(move || {
                tell.send(Self::start(suite_home(), &[])).expect("somebody waits for it");
                loop {
                    thread::park();
                }
            });
            hear.recv().expect("a server")
        })
    }

    /// The URL of a node that no other scenario uses.
    pub fn new_url(&self) -> String {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        self.url(&format!("/w{}", NUMBER.fetch_add(1, Ordering::Relaxed)))
    }

    /// The URL of a node on the server.
    pub fn url(&self, chroot: &str) -> String {
        format!("zookeeper://127.0.0.1:{}{chroot}", self.port)
    }

    fn prepare(home: &Path, name: &str, settings: &[&str]) -> Self {
        let home = home.join(name);
        fs::create_dir(&home).expect("a directory");
        let port = free_port();
        let mut text = format!("dataDir={}\nclientPort={port}\n", home.join("data").display());
        // The given settings come later and win.
        for setting in ["tickTime=200"].iter().chain(&SETTINGS).chain(settings) {
            let (key, _) = setting.split_once('=').expect("name=value");
            let is_other = |line: &&str| !line.starts_with(&format!("{key}="));
            text = text.lines().filter(is_other).map(|line| format!("{line}\n")).collect();
            text += &format!("{setting}\n");
        }
        fs::create_dir(home.join("data")).expect("a directory");
        fs::write(home.join("zoo.cfg"), text).expect("a file");
        Self { port, home, child: None, offset: 0, steps: None }
    }

    /// Starts the server, and does not wait for it.
    pub fn spawn(&mut self) {
        self.remove_empty_logs();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.join("log"));
        let log = log.expect("a log");
        let mut command = Command::new("setpriv");
        if self.offset != 0 || self.steps.is_some() {
            command.env("LD_PRELOAD", steered_clock()).env("STEERED_OFFSET", self.offset.to_string());
            command.envs(self.steps.as_ref().map(|steps| ("STEERED_STEPS", steps)));
        }
        command.args(["--pdeathsig", "KILL", "--", "java", "-Xmx128m", "-XX:+UseSerialGC"]);
        command.args(["-XX:TieredStopAtLevel=1", "-Dzookeeper.preAllocSize=256"]);
        command.args(["-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true"]);
        // After a failed election the servers wait for each other for up to 10 s, and a server that
        // was cut off waits twice as long each time.
        command.args(["-Dzookeeper.leader.maxTimeToWaitForEpoch=2000"]);
        command.args(["-Dzookeeper.fastleader.maxNotificationInterval=1000"]);
        command.args(["-Djava.awt.headless=true", "-cp"]);
        command.arg(jars());
        command.args(["org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]);
        command.current_dir(&self.home).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.child = Some(command.spawn().expect("java; ./test --stores installs it"));
    }

    /// Starts the server again.
    pub fn run(&mut self) {
        self.spawn();
        wait_until("ZooKeeper serves", || {
            let ended = self.child.as_mut().expect("it runs").try_wait().expect("our child");
            let log = || fs::read_to_string(self.home.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "ZooKeeper ends with {ended:?} when it starts: {}", log());
            self.serves()
        });
    }

    /// A server that is killed while it begins a transaction log leaves an empty file. ZooKeeper
    /// 3.8.0 ends at each later start with an EOFException, until that file is removed. It holds no
    /// change.
    fn remove_empty_logs(&self) {
        let files = fs::read_dir(self.home.join("data/version-2")).into_iter().flatten().flatten();
        for file in files.filter(|file| file.file_name().to_string_lossy().starts_with("log.")) {
            if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
                fs::remove_file(file.path()).expect("a file of this test");
            }
        }
    }

    /// Sets the clock ahead of this machine's by `ahead` seconds, from the next start on.
    pub fn set_clock(&mut self, ahead: i64) {
        self.offset = ahead * 1_000_000;
    }

    /// Sets the clock of a server [started](Self::start_steered) for that ahead by `ahead` seconds
    /// while it runs.
    pub fn step_clock(&self, ahead: i64) {
        // The file is mapped: a change in place is seen at once.
        let steps = fs::OpenOptions::new().write(true).open(self.steps.as_ref().expect("it can be stepped"));
        steps.expect("a file").write_all(&(ahead * 1_000_000).to_ne_bytes()).expect("a step");
    }

    /// Whether the server accepts clients.
    pub fn serves(&self) -> bool {
        self.say("srvr").is_some_and(|said| said.contains("Mode: "))
    }

    /// The answer to a four-letter word.
    pub fn say(&self, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said)
    }

    /// Runs a command in ZooKeeper's own client.
    pub fn command(&self, arguments: &[&str]) -> String {
        self.shell(arguments, "")
    }

    /// Runs lines of ZooKeeper's own client in one session. Returns what it printed.
    pub fn script(&self, lines: &str) -> String {
        self.shell(&[], lines)
    }

    fn shell(&self, arguments: &[&str], lines: &str) -> String {
        let mut java = Command::new("java")
            .args(["-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(format!("{}:/usr/share/java/commons-cli.jar", jars()))
            .args(["org.apache.zookeeper.ZooKeeperMain", "-server", &format!("127.0.0.1:{}", self.port)])
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("java");
        java.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
        String::from_utf8_lossy(&java.wait_with_output().expect("java").stdout).into_owned()
    }

    /// Creates a persistent node that everybody may change, without a login. Returns the code.
    pub fn create_open(&self, path: &str) -> i32 {
        self.ask(1, &[&text(path)[..], &text(""), &OPEN].concat()).0
    }

    /// The nodes below a world's node, each with its path.
    pub fn below(&self, world: &World) -> Vec<String> {
        let said = self.command(&["ls", "-R", &chroot(world)]);
        let path = |line: &&str| line.starts_with(&format!("{}/", chroot(world)));
        said.lines().filter(path).map(str::to_owned).collect()
    }

    /// Removes the node of the world's unused lock `k` at once.
    pub fn forget_at_once(&self, world: &World) {
        let path = text(&format!("{}/dlock/locks/dlock:k", chroot(world)));
        assert_eq!(self.ask(2, &[&path[..], &[255; 4]].concat()).0, 0, "it is removed");
    }

    /// The data of a node of a world.
    pub fn get(&self, world: &World, node: &str) -> String {
        let (code, answer) = self.ask(4, &[&text(&format!("{}/{node}", chroot(world)))[..], &[0]].concat());
        assert_eq!(code, 0, "{node} is read");
        let (length, rest) = answer.split_first_chunk().expect("a length");
        String::from_utf8_lossy(&rest[..u32::from_be_bytes(*length) as usize]).into_owned()
    }

    /// Sets the data of a node of a world; creates the node if it is missing.
    pub fn put(&self, world: &World, node: &str, data: &[u8]) {
        let path = text(&format!("{}/{node}", chroot(world)));
        let length = u32::try_from(data.len()).expect("a length").to_be_bytes();
        let body = [&path[..], &length, data].concat();
        if self.ask(5, &[&body[..], &[255; 4]].concat()).0 == NO_NODE {
            assert_eq!(self.ask(1, &[&body[..], &OPEN].concat()).0, 0, "{node} is made");
        }
    }

    /// Removes a node of a world, if it exists, and all nodes directly below it.
    pub fn remove(&self, world: &World, node: &str) {
        let path = format!("{}/{node}", chroot(world));
        let (code, answer) = self.ask(8, &[&text(&path)[..], &[0]].concat());
        if code == NO_NODE {
            return;
        }
        let mut rest = answer.get(4..).expect("a list");
        while let Some((length, behind)) = rest.split_first_chunk() {
            let (name, behind) = behind.split_at(u32::from_be_bytes(*length) as usize);
            let below = format!("{path}/{}", String::from_utf8_lossy(name));
            self.ask(2, &[&text(&below)[..], &[255; 4]].concat());
            rest = behind;
        }
        assert_eq!(self.ask(2, &[&text(&path)[..], &[255; 4]].concat()).0, 0, "{node} is removed");
    }

    /// Sends a request of a kind in a session of its own. Returns the code and the body of the
    /// answer.
    fn ask(&self, kind: u8, body: &[u8]) -> (i32, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let mut ask = |body: &[u8]| {
            let length = u32::try_from(body.len()).expect("a length").to_be_bytes();
            stream.write_all(&[&length, body].concat()).expect("it takes it");
            let mut length = [0; 4];
            stream.read_exact(&mut length).expect("an answer");
            let mut answer = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut answer).expect("an answer");
            answer
        };
        // A new session of 5 s, with an empty password of 16 bytes.
        ask(&[&[0; 12], 5000u32.to_be_bytes().as_slice(), &[0; 8], &[0, 0, 0, 16], &[0; 17]].concat());
        let answer = ask(&[&[0, 0, 0, 1, 0, 0, 0, kind][..], body].concat());
        let (code, rest) = answer.get(12..).and_then(|rest| rest.split_first_chunk()).expect("a code");
        (i32::from_be_bytes(*code), rest.to_vec())
    }

    /// Removes all locks of a world.
    pub fn forget(&self, world: &World) {
        let said = self.command(&["deleteall", &format!("{}/dlock/locks", chroot(world))]);
        assert!(!said.contains("Exception"), "{said}");
    }

    /// Number of requests to the server since it was started.
    pub fn requests(&self) -> usize {
        self.count("zk_packets_received")
    }

    /// Number of events that it has sent since then: whatever it sent that was no answer.
    pub fn told(&self) -> usize {
        self.count("zk_packets_sent").saturating_sub(self.requests())
    }

    fn count(&self, name: &str) -> usize {
        let said = self.say("mntr").expect("an answer");
        let figure = said.lines().find_map(|line| line.strip_prefix(name));
        figure.and_then(|figure| figure.trim().parse().ok()).expect("a number")
    }

    /// Whether the server leads the others.
    pub fn leads(&self) -> bool {
        self.say("srvr").is_some_and(|said| said.contains("Mode: leader"))
    }

    /// Number of snapshots, as far as the files still exist.
    pub fn snapshots(&self) -> usize {
        let names = fs::read_dir(self.home.join("data/version-2")).expect("its data");
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.starts_with("snapshot.")).count()
    }

    /// Session and number of each request that changed something, in order, from the transaction
    /// logs.
    pub fn changes(&self) -> Vec<(i64, i32)> {
        let paths = fs::read_dir(self.home.join("data/version-2")).expect("its data");
        let paths = paths.map(|entry| entry.expect("a file").path());
        let mut logs: Vec<PathBuf> = paths
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")))
            .collect();
        logs.sort();
        let mut changes = Vec::new();
        for log in logs {
            let log = fs::read(log).expect("a log");
            // The format: a head; then for each request a checksum, its length, and the request
            // with one byte behind it.
            let mut rest = &log[16..];
            while let Some((length, body)) = rest.get(8..).and_then(<[u8]>::split_first_chunk::<4>) {
                let length = u32::from_be_bytes(*length) as usize;
                let (Some(next), Some((session, body))) = (body.get(length + 1..), body.split_first_chunk())
                else {
                    break;
                };
                if length == 0 {
                    break;
                }
                let number = body.first_chunk().expect("a number");
                changes.push((i64::from_be_bytes(*session), i32::from_be_bytes(*number)));
                rest = next;
            }
        }
        changes
    }

    /// The ephemeral nodes and the sessions.
    pub fn sessions(&self) -> String {
        self.say("dump").expect("an answer")
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(child.id().cast_signed()));
        kill_process(pid.expect("it runs"), signal).expect("it runs");
    }

    /// Ends the server as a loss of power would.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.take().expect("it runs").wait().expect("it ends");
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn jars() -> String {
    std::env::var("ZOOKEEPER_JARS").unwrap_or_else(|_| JARS.to_owned())
}

/// ZooKeeper's code for a missing node.
const NO_NODE: i32 = -101;

/// The end of a request that creates a persistent node with all rights for world:anyone.
const OPEN: [u8; 31] = *b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\0\0\0\0";

/// A text with its length in front.
fn text(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("a length").to_be_bytes(), text.as_bytes()].concat()
}

fn chroot(world: &World) -> String {
    format!("/{}", world.url().rsplit('/').next().expect("a node"))
}

pub fn free_port() -> u16 {
    wait_for("a free port for ZooKeeper", || {
        let port = next_port();
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}
