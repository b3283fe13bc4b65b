//! Is it calm at size? Thousands of holders and waiters on real servers, through dlock's own store
//! and lease code: how many jobs an outage, a failover and a restart disturb, how much the servers
//! have to do, and what becomes of a herd of `run`s that all come within a second. `./bench size`
//! runs it, and benches/README.md explains what it prints.
//!
//! This process starts the servers and the workers, copies of itself that have some thousands of
//! holders each, as many as one process may have descriptors for.

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use servers::{Servers, Store};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};
use tally::{Answer, Order, Phase, Role, Tally, Task};

mod herd;
mod server;
mod servers;
mod tally;
mod worker;

/// Most descriptors of a holder: two event descriptors, the connection, one to listen on, and in an
/// outage those of a second attempt.
const DESCRIPTORS: u64 = 10;
/// Most threads of a holder, in an outage: the lease thread and two attempts beside each other.
const THREADS: usize = 3;
/// Most holders of a worker. A process has 65,530 mappings by default, and each thread has two.
const WORKER_MOST: u64 = 5_000;
/// Stack of a thread. Smaller than a huge page, or each stack may take one.
const STACK: usize = 256 * 1024;

/// Whether Ctrl-C or TERM has come.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Measures how calm many holders are.
#[derive(Debug, Parser)]
#[command(name = "size")]
struct Options {
    /// The stores [default: all]
    stores: Vec<Store>,
    /// Number of holders, each with a lock of its own [default: redis 10000, pgbouncer 1000, else 2000]
    #[arg(long, value_name = "N")]
    holders: Option<usize>,
    /// Number of waiters, for locks of the first 50 holders [default: a fifth of the holders]
    #[arg(long, value_name = "N")]
    waiters: Option<usize>,
    /// Number of runs that come within a second
    #[arg(long, value_name = "N", default_value_t = 5000)]
    herd: usize,
    /// How long it is watched, without the outage itself
    #[arg(long, value_name = "DUR", default_value = "300", value_parser = dlock::cli::duration::parse_positive)]
    seconds: Duration,
    /// The lease of the holders
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = dlock::cli::duration::parse_positive)]
    ttl: Duration,
    /// Set by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let done = match &*words {
        [_, worker, task] if worker == "worker" => worker::main(task),
        _ => measure_all(&Options::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("size: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(options: &Options) -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))?;
    let descriptors = raise_descriptors()?;
    let all = [Store::Redis, Store::Sentinel, Store::Pgbouncer, Store::Etcd, Store::Zookeeper];
    let stores = if options.stores.is_empty() { &all[..] } else { &options.stores };
    println!(
        "| | holders, waiters | jobs disturbed | servers, clients | requests a second | longest renewal \
         | longest time without one: quiet, outage, failover, restart, herd | herd: got, busy, failed | longest run, all over |"
    );
    println!("|{}", "---|".repeat(9));
    let mut failed = Vec::new();
    for store in stores {
        match Measurement::begin(*store, options, descriptors).and_then(Measurement::finish) {
            Ok((row, tally)) => {
                println!("{row}");
                let mut remarks: Vec<_> = tally.remarks.into_iter().collect();
                remarks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
                remarks.iter().take(8).for_each(|(text, count)| eprintln!("size: {count} times: {text}"));
            }
            Err(error) if INTERRUPTED.load(Ordering::Relaxed) => return Err(error),
            Err(error) => {
                eprintln!("size: {store}: {error:#}");
                failed.push(store.to_string());
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("not measured: {}", failed.join("; ")) }
}

/// Sleeps, unless the user wants to end it.
fn pause(span: Duration) -> Result<()> {
    let until = Instant::now() + span;
    loop {
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => thread::sleep(left.min(Duration::from_millis(100))),
        }
    }
}

/// Allows this process, its workers and its servers as many descriptors as it may.
fn raise_descriptors() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("the limit of open files")?;
    Ok(limit.maximum.unwrap_or(1 << 20))
}

/// One store while it is measured.
struct Measurement<'a> {
    store: Store,
    options: &'a Options,
    descriptors: u64,
    holders: usize,
    waiters: usize,
    // Ended before the servers are.
    workers: Vec<Worker>,
    servers: Servers,
    began: Instant,
    quiet: Option<Load>,
}

/// What servers and clients had to do in the quiet.
struct Load {
    servers: f64,
    clients: f64,
    requests: f64,
}

impl<'a> Measurement<'a> {
    /// Starts the servers, and has all holders hold and all waiters wait.
    fn begin(store: Store, options: &'a Options, descriptors: u64) -> Result<Self> {
        let holders = options.holders.unwrap_or(store.holders());
        let waiters = if holders == 0 { 0 } else { options.waiters.unwrap_or(holders / 5) };
        check_limits(store, holders, waiters, options.herd, descriptors)?;
        let servers = Servers::start(store, options.ttl, descriptors)?;
        let (workers, began, quiet) = (Vec::new(), Instant::now(), None);
        let mut new = Self { store, options, descriptors, holders, waiters, workers, servers, began, quiet };
        new.say(&format!("{holders} holders and {waiters} waiters arrive"));
        new.workers = new.start(Role::Hold, holders)?;
        let mut waiting = new.start(Role::Wait, waiters)?;
        new.workers.append(&mut waiting);
        // By then all of them listen for a request to end.
        pause(Duration::from_secs(2))?;
        Ok(new)
    }

    fn say(&self, what: &str) {
        eprintln!("size: {}, {:.0} s: {what}", self.store, self.began.elapsed().as_secs_f64());
    }

    /// Starts the workers for a role, and waits until they are up.
    fn start(&self, role: Role, all: usize) -> Result<Vec<Worker>> {
        let most =
            usize::try_from((self.descriptors.saturating_sub(200) / DESCRIPTORS).clamp(1, WORKER_MOST))?;
        let mut workers = Vec::new();
        for first in (0..all).step_by(most) {
            let url = self.servers.url(self.workers.len() + workers.len());
            let count = most.min(all - first);
            workers.push(Worker::start(&Task { role, url, ttl: self.options.ttl, first, count })?);
        }
        for worker in &workers {
            match worker.answer()? {
                Answer::Up => {}
                other => bail!("a worker is not ready: {other:?}"),
            }
        }
        Ok(workers)
    }

    /// Goes through the phases. Returns the row of the table.
    fn finish(mut self) -> Result<(String, Tally)> {
        let mut tally = Tally::default();
        let phases = if self.holders == 0 { Vec::new() } else { self.store.phases() };
        let is_herd = self.options.herd > 0;
        let each = self.options.seconds / u32::try_from(phases.len() + usize::from(is_herd))?.max(1);
        for phase in phases {
            self.enter(phase)?;
            if phase == Phase::Quiet {
                self.quiet = Some(self.load(each)?);
                continue;
            }
            let began = Instant::now();
            self.servers.begin(phase).with_context(|| format!("{phase:?}"))?;
            self.say(&format!("{phase:?}, {:.1} s", began.elapsed().as_secs_f64()));
            pause(each)?;
        }
        if is_herd {
            let herd = self.start(Role::Herd(self.options.herd), self.options.herd)?;
            self.enter(Phase::Herd)?;
            herd.iter().try_for_each(|worker| worker.order(Order::Phase(Phase::Herd)))?;
            for worker in &herd {
                tally.add(worker.report()?);
            }
            if self.holders > 0 {
                pause(each)?;
            }
        }
        for worker in &self.workers {
            tally.add(worker.report()?);
        }
        self.servers.check()?;
        self.say("over");
        Ok((self.row(&tally), tally))
    }

    fn enter(&self, phase: Phase) -> Result<()> {
        self.workers.iter().try_for_each(|worker| worker.order(Order::Phase(phase)))
    }

    /// What servers and clients do for so long.
    fn load(&self, span: Duration) -> Result<Load> {
        let clients = || self.workers.iter().map(|worker| server::processor_time(worker.child.id())).sum();
        let read = || -> Result<(Duration, Duration, u64)> {
            Ok((self.servers.spent(), clients(), self.servers.requests()?))
        };
        let (began, before) = (Instant::now(), read()?);
        pause(span)?;
        let after = read()?;
        let took = began.elapsed().as_secs_f64();
        Ok(Load {
            servers: after.0.saturating_sub(before.0).as_secs_f64() / took,
            clients: after.1.saturating_sub(before.1).as_secs_f64() / took,
            requests: after.2.saturating_sub(before.2) as f64 / took,
        })
    }

    fn row(&self, tally: &Tally) -> String {
        let (none, ttl) = ("–".to_owned(), self.options.ttl.as_secs_f64());
        let seconds = |span: Duration| format!("{:.2} s", span.as_secs_f64());
        let quiet = tally.phases.get(&Phase::Quiet).filter(|spell| spell.renewals > 0);
        let gap = |phase| match tally.phases.get(&phase) {
            Some(spell) if !spell.longest_gap.is_zero() => {
                format!("{:.2}", spell.longest_gap.as_secs_f64() / ttl)
            }
            _ => none.clone(),
        };
        let gaps = [Phase::Quiet, Phase::Outage, Phase::Failover, Phase::Restart, Phase::Herd].map(gap);
        let (shares, requests) = match &self.quiet {
            Some(load) => (
                format!("{:.0} %, {:.0} % of a core", 100.0 * load.servers, 100.0 * load.clients),
                format!("{:.0}", load.requests),
            ),
            None => (none.clone(), none.clone()),
        };
        let (runs, times) = if self.options.herd == 0 {
            (none.clone(), none.clone())
        } else {
            let herd = &tally.herd;
            let failed: Vec<_> =
                herd.failed.iter().map(|(status, count)| format!("{count} with {status}")).collect();
            let failed = if failed.is_empty() { "0".into() } else { failed.join(", ") };
            (
                format!("{}, {}, {failed}", herd.got, herd.busy),
                [herd.longest, herd.over_after].map(seconds).join(", "),
            )
        };
        let cells = [
            format!("{}, ttl {ttl} s", self.store),
            format!("{}, {}", self.holders, self.waiters),
            tally.disturbed().to_string(),
            shares,
            requests,
            quiet.map_or(none.clone(), |spell| seconds(spell.longest_renewal)),
            format!("{} ttl", gaps.join(", ")),
            runs,
            times,
        ];
        format!("| {} |", cells.join(" | "))
    }
}

/// Refuses what the machine cannot bear, and warns of limits that would be measured in place of
/// dlock.
fn check_limits(store: Store, holders: usize, waiters: usize, herd: usize, descriptors: u64) -> Result<()> {
    // Of the members of a cluster, each has a part of the connections only.
    let is_alone = matches!(store, Store::Redis | Store::Pgbouncer);
    let usual = 2 * holders + waiters + 200;
    // In an outage each holder opens a third connection, beside the others.
    let most = usual + holders.max(herd);
    if is_alone && usual as u64 > descriptors {
        bail!(
            "the server needs {usual} open files, and may have {descriptors}: raise the hard limit (ulimit -Hn), or take fewer holders"
        );
    }
    if is_alone && most as u64 > descriptors {
        eprintln!(
            "size: {store}: the server may be asked for {most} connections at a time, and may have {descriptors} open files"
        );
    }
    let threads = THREADS * holders + waiters + herd;
    for what in ["threads-max", "pid_max"] {
        let most = fs::read_to_string(format!("/proc/sys/kernel/{what}")).unwrap_or_default();
        if most.trim().parse::<usize>().is_ok_and(|most| most < threads + 1000) {
            eprintln!(
                "size: {store}: up to {threads} threads may be wanted, and kernel.{what} is {}: raise it with sysctl",
                most.trim()
            );
        }
    }
    Ok(())
}

/// A worker process. It ends when it is dropped.
struct Worker {
    child: Child,
    answers: Receiver<Result<Answer>>,
}

impl Worker {
    fn start(task: &Task) -> Result<Self> {
        let own = std::env::current_exe()?;
        let mut child = Command::new(own)
            .args(["worker", &serde_json::to_string(task)?])
            .env("RUST_MIN_STACK", STACK.to_string())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let (tell, answers) = channel();
        let said = child.stdout.take().context("a worker without output")?;
        thread::spawn(move || {
            for line in BufReader::new(said).lines() {
                let answer = line.map_err(Into::into).and_then(|line| {
                    serde_json::from_str(&line).with_context(|| format!("a worker said {line}"))
                });
                if tell.send(answer).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, answers })
    }

    fn order(&self, order: Order) -> Result<()> {
        let mut input = self.child.stdin.as_ref().context("a worker without input")?;
        writeln!(input, "{}", serde_json::to_string(&order)?).context("a worker is gone")
    }

    fn answer(&self) -> Result<Answer> {
        loop {
            pause(Duration::ZERO)?;
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("a worker has died"),
                Ok(Ok(Answer::Failed(why))) => return Err(anyhow!(why).context("a worker has failed")),
                Ok(answer) => return answer,
            }
        }
    }

    fn report(&self) -> Result<Tally> {
        self.order(Order::Report)?;
        match self.answer()? {
            Answer::Counted(tally) => Ok(tally),
            other => bail!("a worker said {other:?} in place of its counts"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
