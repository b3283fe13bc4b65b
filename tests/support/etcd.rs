//! A real cluster of etcd with one member or several. Scenarios share a cluster of one member, each
//! with keys of its own there; a scenario that kills or configures members has its own.

use super::members::Cluster;
use super::redis::next_port;
use super::target::{local, target};
use super::wait::{OUTAGE, wait_for, wait_within};
use super::wires::Wires;
use super::world::suite_home;
use dlock::store::net::target::Target;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;

/// The cluster. Dropping it kills its members.
pub struct Etcd {
    members: Vec<Member>,
    home: PathBuf,
    options: Vec<String>,
    /// `http` or `https`.
    scheme: &'static str,
    /// What is between the members.
    wires: Wires,
}

struct Member {
    /// The port for clients, the port for the other members, and the port of the proxy through
    /// which they reach it.
    client: u16,
    peer: u16,
    door: u16,
    child: Option<Child>,
}

/// The first request of a connection says in its head which member sent it.
fn greet(near: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = near.read(&mut buffer).ok().filter(|count| *count > 0)?;
        head.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8_lossy(&head);
    let from = text.lines().find_map(|line| line.strip_prefix("X-Server-From: ")).unwrap_or_default();
    Some((from.to_owned(), head))
}

impl Etcd {
    /// Starts `members` members in a directory below `home`, with further options.
    pub fn start(home: &Path, members: usize, options: &[&str]) -> Self {
        let mut etcd = Self::new(home, members, options);
        for member in 0..members {
            etcd.run(member);
        }
        etcd.wait_until_it_serves();
        etcd
    }

    fn new(home: &Path, members: usize, options: &[&str]) -> Self {
        let home = home.join("etcd");
        fs::create_dir(&home).expect("a directory");
        let wires = Wires::default();
        let member = |number| {
            let (client, peer) = (free_port(), free_port());
            Member { client, peer, door: wires.door(number, peer, greet), child: None }
        };
        let members = (0..members).map(member).collect();
        // For leases of a second, and without waiting for the disk.
        let usual = ["--heartbeat-interval=50", "--election-timeout=500", "--unsafe-no-fsync"];
        let options = usual.iter().chain(options).map(ToString::to_string).collect();
        Self { members, home, options, scheme: "http", wires }
    }

    /// Starts one member with TLS, and does not wait for it.
    pub fn start_secure(home: &Path, options: &[&str]) -> Self {
        let mut etcd = Self::new(home, 1, options);
        etcd.scheme = "https";
        etcd.run(0);
        etcd
    }

    /// The server that all scenarios share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (tell, hear) = mpsc::channel();
            // The server is stopped when the thread that started it ends (PR_SET_PDEATHSIG).
            thread::spawn(move || {
                tell.send(Self::start(suite_home(), 1, &[])).expect("somebody waits for it");
                loop {
                    thread::park();
                }
            });
            hear.recv().expect("a cluster")
        })
    }

    /// Starts a member again.
    pub fn run(&mut self, number: usize) {
        let url = |port| format!("http://127.0.0.1:{port}");
        let all = self.members.iter().enumerate().map(|(at, member)| format!("m{at}={}", url(member.door)));
        let all = all.collect::<Vec<_>>().join(",");
        let member = &mut self.members[number];
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.home.join(format!("m{number}.log")));
        let log = log.expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "etcd", "--name", &format!("m{number}")]);
        command.arg("--data-dir").arg(self.home.join(format!("m{number}")));
        let clients = format!("{}://127.0.0.1:{}", self.scheme, member.client);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &url(member.peer)]);
        command.args(["--initial-advertise-peer-urls", &url(member.door)]);
        command.args(["--initial-cluster", &all, "--initial-cluster-state", "new"]);
        command.args(&self.options);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        member.child = Some(command.spawn().expect("etcd; ./test --stores installs it"));
    }

    /// Waits until every running member answers a write.
    pub fn wait_until_it_serves(&self) {
        for member in self.members.iter().filter(|member| member.child.is_some()) {
            wait_within(OUTAGE, "etcd serves", || {
                let put = ["--dial-timeout=1s", "--command-timeout=1s", "put", "is-it-there", "yes"];
                etcdctl(&[member.client], &put).ok()
            });
        }
    }

    /// A URL with a prefix that no other scenario uses.
    pub fn new_url(&self) -> String {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        format!("{}/w{}", self.url(), NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// The URL of the whole cluster.
    pub fn url(&self) -> String {
        self.url_of(&(0..self.members.len()).collect::<Vec<_>>())
    }

    /// The store's target for such a URL.
    pub fn target(&self, url: &str) -> Target {
        let servers = self.members.iter().map(|member| local(member.client)).collect();
        target(servers, None, url.rsplit('/').next().expect("a prefix"))
    }

    /// The port of a member for clients.
    pub fn port(&self, number: usize) -> u16 {
        self.members[number].client
    }

    /// Runs etcdctl on all running members.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// The same for a request that may fail.
    pub fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let ports: Vec<u16> =
            self.members.iter().filter(|member| member.child.is_some()).map(|member| member.client).collect();
        etcdctl(&ports, args)
    }

    /// Puts bytes under a key.
    pub fn put(&self, key: &str, value: &[u8]) {
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&format!("--endpoints=127.0.0.1:{}", self.port(0)), "put", key])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("etcdctl; ./test --stores installs it");
        child.stdin.take().expect("a pipe").write_all(value).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "{key} is put");
    }

    /// The keys of such a URL.
    pub fn keys(&self, url: &str) -> Vec<String> {
        let keys = self.ctl(&["get", "--prefix", "--keys-only", &prefix(url)]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Keys of such a URL that must be gone when no process holds or waits. Records and ends stay.
    /// So does a suspended waiter, until its ticket is forgotten.
    pub fn leftovers(&self, url: &str) -> Vec<String> {
        let is_suspended = |key: &str| {
            key.contains("/wait/")
                && self.ctl(&["get", "--print-value-only", key]).contains("\"is_queued\":false")
        };
        let stays =
            |key: &String| key.contains("/lock/") || key.contains("/end/") || is_suspended(key.as_str());
        self.keys(url).into_iter().filter(|key| !stays(key)).collect()
    }

    /// Removes the keys of such a URL.
    pub fn forget(&self, url: &str) {
        self.ctl(&["del", "--prefix", &prefix(url)]);
    }

    /// The sum of the first member's metrics whose names begin so.
    pub fn count(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port(0))).expect("it is there");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it hears");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it answers");
        let counted = said.lines().filter(|line| line.starts_with(name));
        counted.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Sends a member a signal.
    pub fn signal(&self, number: usize, signal: Signal) {
        let child = self.members[number].child.as_ref();
        let pid = child.and_then(|child| Pid::from_raw(child.id().cast_signed()));
        kill_process(pid.expect("it runs"), signal).expect("it runs");
    }

    /// Has a member shut down in order, and waits for its end.
    pub fn stop(&mut self, number: usize) {
        self.signal(number, Signal::TERM);
        self.members[number].child.take().expect("it runs").wait().expect("it ends");
    }

    /// Kills a member.
    pub fn kill(&mut self, number: usize) {
        self.signal(number, Signal::KILL);
        self.members[number].child.take().expect("it runs").wait().expect("it ends");
    }

    /// Which member leads.
    pub fn leader(&self) -> usize {
        wait_for("a leader", || {
            (0..self.members.len()).find(|number| {
                let member = &self.members[*number];
                let status = member
                    .child
                    .as_ref()
                    .and_then(|_| etcdctl(&[member.client], &["endpoint", "status"]).ok());
                status.is_some_and(|status| status.split(", ").nth(4) == Some("true"))
            })
        })
    }
}

impl Cluster for Etcd {
    fn leader(&self) -> usize {
        Self::leader(self)
    }

    fn url_of(&self, members: &[usize]) -> String {
        let members: Vec<String> =
            members.iter().map(|member| format!("127.0.0.1:{}", self.port(*member))).collect();
        format!("etcd://{}", members.join(","))
    }

    fn kill(&mut self, member: usize) {
        Self::kill(self, member);
    }

    fn run(&mut self, member: usize) {
        Self::run(self, member);
    }

    fn signal(&self, member: usize, signal: Signal) {
        Self::signal(self, member, signal);
    }

    fn cut_off(&self, member: usize) {
        let all = self.ctl(&["member", "list"]);
        let id = all.lines().find(|line| line.contains(&format!(" m{member}, ")));
        let id = id.and_then(|line| line.split(',').next()).expect("a member");
        self.wires.cut_off(member, id.to_owned());
    }

    fn join(&self) {
        self.wires.join();
    }

    fn wait_until_it_serves(&self) {
        Self::wait_until_it_serves(self);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut child) = member.child.take() {
                drop(child.kill());
                drop(child.wait());
            }
        }
    }
}

fn prefix(url: &str) -> String {
    format!("{}/", url.rsplit('/').next().expect("a prefix"))
}

fn free_port() -> u16 {
    wait_for("a free port for etcd", || {
        let port = next_port();
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}

fn etcdctl(ports: &[u16], args: &[&str]) -> Result<String, String> {
    let endpoints: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", endpoints.join(",")))
        .args(args)
        .output()
        .expect("etcdctl; ./test --stores installs it");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
