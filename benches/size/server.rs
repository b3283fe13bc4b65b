//! One server process: how it is started, asked, signalled and ended.

use crate::pause;
use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for an answer of a server, and for its end.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const ENDS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Redis,
    Sentinel,
    Postgres,
    Pgbouncer,
    Etcd,
    ZooKeeper,
}

impl Program {
    /// The signal that ends it in order, without waiting for clients.
    pub const fn ends_by(self) -> Signal {
        if matches!(self, Self::Postgres) { Signal::INT } else { Signal::TERM }
    }
}

pub struct Server {
    pub program: Program,
    pub port: u16,
    words: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    /// Processor time of those that were ended.
    spent: Duration,
}

impl Server {
    pub fn new(program: Program, home: &Path, port: u16, words: &[&str]) -> Self {
        let words = words.iter().map(ToString::to_string).collect();
        Self {
            program,
            port,
            words,
            log: home.join(format!("log{port}")),
            child: None,
            spent: Duration::ZERO,
        }
    }

    pub fn postgres(home: &Path, port: u16) -> Result<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").context("/usr/lib/postgresql")?;
        let bin = versions.flatten().map(|version| version.path().join("bin")).max();
        let bin = bin.context("no version of PostgreSQL is installed")?;
        let place = home.join("postgres");
        fs::create_dir(&place).with_context(|| place.display().to_string())?;
        home_for_all(&place)?;
        let program = |name: &str| bin.join(name).display().to_string();
        let data = place.join("data").display().to_string();
        let initdb = ["--username=app", "--auth=trust", "--encoding=UTF8", "--locale=C", "-D", &data];
        let made = as_user(Program::Postgres, &program("initdb")).args(initdb).output().context("initdb")?;
        if !made.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        let (program, port_is) = (program("postgres"), format!("port={port}"));
        let socket = format!("unix_socket_directories={}", place.display());
        let words =
            [&program, "-D", &data, "-c", &port_is, "-c", &socket, "-c", "listen_addresses=127.0.0.1"];
        Ok(Self::new(Program::Postgres, home, port, &words))
    }

    /// Starts it if it does not run.
    pub fn run(&mut self) -> Result<()> {
        let Some((program, words)) = self.words.split_first().filter(|_| self.child.is_none()) else {
            return Ok(());
        };
        let log = OpenOptions::new().create(true).append(true).open(&self.log).context("its log")?;
        let mut command = as_user(self.program, program);
        command.args(words).process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    pub const fn has_data(&self) -> bool {
        !matches!(self.program, Program::Sentinel | Program::Pgbouncer)
    }

    /// Whether it serves.
    pub fn serves(&self) -> bool {
        match self.program {
            Program::Redis | Program::Sentinel => redis::<String>(self.port, &["PING"]).is_ok(),
            Program::Postgres => psql(self.port, "SELECT 1").is_ok(),
            Program::Pgbouncer => TcpStream::connect(("127.0.0.1", self.port)).is_ok(),
            Program::Etcd => self.etcd_leader().is_some_and(|(_, leader)| leader != "0"),
            Program::ZooKeeper => self.say(b"srvr").is_ok_and(|said| said.contains("Mode: ")),
        }
    }

    /// Whether it leads the others, if it is of etcd or ZooKeeper.
    pub fn leads(&self) -> bool {
        match self.program {
            Program::Etcd => self.etcd_leader().is_some_and(|(own, leader)| own == leader),
            Program::ZooKeeper => self.say(b"srvr").is_ok_and(|said| said.contains("Mode: leader")),
            _ => false,
        }
    }

    /// The numbers of this member and of the leader that it knows.
    fn etcd_leader(&self) -> Option<(String, String)> {
        let said = self.say(b"POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}").ok()?;
        let status: serde_json::Value = serde_json::from_str(said.split_once("\r\n\r\n")?.1.trim()).ok()?;
        Some((status["header"]["member_id"].as_str()?.into(), status["leader"].as_str()?.into()))
    }

    /// Number of requests that it has counted since it was started, if that is what it counts.
    pub fn requests(&self) -> Result<u64> {
        let after = |said: &str, word: &str| {
            let number = said.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
            number.with_context(|| format!("no {word} in the answer of the server"))
        };
        match self.program {
            Program::Redis => {
                after(&redis::<String>(self.port, &["INFO", "stats"])?, "total_commands_processed:")
            }
            Program::Postgres => {
                let sum = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database";
                psql(self.port, sum)?.trim().parse().context("the transactions of PostgreSQL")
            }
            Program::Etcd => {
                let said = self.say(b"GET /metrics HTTP/1.0\r\n\r\n")?;
                let counts = said.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
                Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64)
            }
            Program::ZooKeeper => after(&self.say(b"srvr")?, "Received:"),
            Program::Sentinel | Program::Pgbouncer => Ok(0),
        }
    }

    /// Sends something, and reads until the server closes the connection.
    fn say(&self, said: &[u8]) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.write_all(said)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// The last lines of its log.
    pub fn last_words(&self) -> Option<String> {
        let log = fs::read_to_string(&self.log).ok()?;
        let lines: Vec<_> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(5)..)?;
        Some(format!("{} on port {}: {}", self.words.first()?, self.port, last.join("\n    ")))
    }

    /// Processor time until now, of those that were ended as well.
    pub fn spent(&self) -> Duration {
        let now = self.child.as_ref().map(|child| processor_time(child.id()));
        self.spent + now.unwrap_or_default()
    }

    /// Signals its first process.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            send(child.id(), signal);
        }
    }

    /// Signals all of its processes.
    pub fn signal_all(&self, signal: Signal) {
        // A process that has stopped starts no other.
        self.signal(signal);
        for pid in self.child.iter().flat_map(|child| tree(child.id())) {
            send(pid, signal);
        }
    }

    /// Ends it with a signal, and waits for its end.
    pub fn stop(&mut self, signal: Signal) -> Result<()> {
        self.spent = self.spent();
        self.signal(signal);
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let began = Instant::now();
        while child.try_wait()?.is_none() {
            if began.elapsed() > ENDS_WITHIN {
                self.child = Some(child);
                bail!("a server did not end within {ENDS_WITHIN:?}: {}", self.words.join(" "));
            }
            if let Err(error) = pause(Duration::from_millis(10)) {
                self.child = Some(child);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Fails if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.child.as_mut().map(Child::try_wait).transpose()?.flatten() {
            None => Ok(()),
            Some(status) => Err(anyhow!("{status}: {}", self.last_words().unwrap_or_default())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if self.program == Program::Postgres {
            // Killed, it would leave shared memory behind.
            tree(child.id()).into_iter().for_each(|pid| send(pid, Signal::CONT));
            send(child.id(), Signal::QUIT);
        } else {
            drop(child.kill());
        }
        drop(child.wait());
    }
}

/// A program, as the user as whom it consents to run. It is killed when this process ends.
fn as_user(program: Program, path: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", if program == Program::Postgres { "QUIT" } else { "KILL" }]);
    if geteuid().is_root() && matches!(program, Program::Postgres | Program::Pgbouncer) {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.args(["--", path]).env("LC_ALL", "C").current_dir("/");
    command
}

/// Lets every user write to a directory.
pub fn home_for_all(home: &Path) -> Result<()> {
    let anybody = fs::Permissions::from_mode(0o777);
    fs::set_permissions(home, anybody).with_context(|| home.display().to_string())
}

/// Sends one command to a Redis or a sentinel.
pub fn redis<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> Result<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_connection_with_timeout(ANSWERS_WITHIN)?;
    connection.set_read_timeout(Some(ANSWERS_WITHIN))?;
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command.query(&mut connection).with_context(|| words.join(" "))
}

/// Runs a statement as the administrator.
fn psql(port: u16, statement: &str) -> Result<String> {
    let port = port.to_string();
    let words = ["-h", "127.0.0.1", "-p", &port, "-U", "app", "-XAtqw", "-d", "postgres", "-c", statement];
    let output = Command::new("psql").args(words).output().context("psql")?;
    if !output.status.success() {
        bail!("psql: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Parent and the four times of a process: its own in user mode and in the kernel, and the same of
/// the children that it has waited for. In clock ticks.
fn stat(pid: u32) -> Option<(u32, [u64; 4])> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((u32::try_from(number(1)?).ok()?, [number(11)?, number(12)?, number(13)?, number(14)?]))
}

/// A process and all below it.
fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some((parent, _)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        found.extend(children.remove(pid).unwrap_or_default());
        at += 1;
    }
    found
}

/// Processor time of a process, of all below it, and of the children that it has waited for.
pub fn processor_time(root: u32) -> Duration {
    let times = |pid: u32| stat(pid).map(|(_, times)| times).unwrap_or_default();
    let below: u64 = tree(root).into_iter().skip(1).map(|pid| times(pid)[0] + times(pid)[1]).sum();
    let ticks = times(root).iter().sum::<u64>() + below;
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
