//! A worker process: some thousands of holders, waiters, or runs of the herd, in threads, through
//! the code of `dlock run` from the URL to the release. What is missing is the guard: its decision
//! to stop the job is taken here, by the times that the lease thread gives it.

use crate::herd;
use crate::tally::{Answer, Order, Phase, Role, Spell, Tally, Task};
use anyhow::{Context as _, Result, anyhow, bail};
use dlock::cli::Common;
use dlock::clock::Moment;
use dlock::commands::context::Context;
use dlock::config::{Environment, Settings};
use dlock::lease::event_fd::EventFd;
use dlock::lease::{Lease, Loss, Report, Request, Until};
use dlock::lock::{By, Key, Mode, Name, Names, Owner, Token, Ttl};
use dlock::output::Printer;
use dlock::rules::schedule::Schedule;
use dlock::rules::{Ask, Blocker, Terms};
use dlock::store::Error;
use dlock::store::net::budget;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The grace of `dlock run`, by default.
const GRACE: Duration = Duration::from_secs(10);
/// Number of locks that the waiters wait for, those of the first holders.
const QUEUES: usize = 50;
/// Number of holders of a worker that ask for their locks at the same time.
const STARTERS: usize = 16;
/// How often the reports of the lease threads are read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What all threads of a worker share.
pub struct Worker {
    task: Task,
    context: Context,
    ttl: Ttl,
    tally: Mutex<(Phase, Tally)>,
    /// Never readable: nothing interrupts these runs.
    calm: EventFd,
}

/// How asking for a lock ended.
pub enum Obtained {
    /// When the request that was granted was sent.
    Lock(Moment),
    Busy(Box<Blocker>),
    Failed(Error),
}

/// Does the task, and prints what came of it.
pub fn main(task: &str) -> Result<()> {
    let answer = match serde_json::from_str(task).context("the task of a worker").and_then(work) {
        Ok(tally) => Answer::Counted(tally),
        Err(error) => Answer::Failed(format!("{error:#}")),
    };
    tell(&answer)
}

fn tell(answer: &Answer) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

fn work(task: Task) -> Result<Tally> {
    budget::limit_nothing();
    // Only the URL counts, and no setting of this machine.
    let common = Common { store: vec![task.url.clone().into()], quiet: true, ..Common::default() };
    let environment = Environment { variables: BTreeMap::new(), machine_file: "/nonexistent".into() };
    let settings = Settings::resolve(&common, &environment)?;
    let printer = Printer::new(&settings);
    let context = Context::with(settings, printer);
    let ttl = Ttl::new(task.ttl).map_err(|why| anyhow!(why))?;
    let (tally, calm) = (Mutex::new((Phase::Start, Tally::default())), EventFd::new()?);
    let worker = Arc::new(Worker { task, context, ttl, tally, calm });
    match worker.task.role {
        Role::Hold => worker.hold()?,
        Role::Wait => worker.wait()?,
        Role::Herd(_) => {}
    }
    tell(&Answer::Up)?;
    for line in stdin().lock().lines() {
        match (serde_json::from_str(&line?)?, worker.task.role) {
            (Order::Phase(Phase::Herd), Role::Herd(all)) => herd::run(&worker, all)?,
            (Order::Phase(phase), _) => worker.tally().0 = phase,
            (Order::Report, _) => return Ok(worker.tally().1.clone()),
        }
    }
    bail!("the coordinator is gone")
}

impl Worker {
    fn tally(&self) -> MutexGuard<'_, (Phase, Tally)> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self, add: impl FnOnce(&mut Tally)) {
        add(&mut self.tally().1);
    }

    fn spell(&self, add: impl FnOnce(&mut Spell)) {
        let (phase, tally) = &mut *self.tally();
        add(tally.phases.entry(*phase).or_default());
    }

    fn schedule(&self) -> Schedule {
        Schedule::new(self.ttl, GRACE, self.context.settings.op_timeout)
    }

    /// What `dlock run` does to ask for a lock, up to the first request.
    pub fn lease(
        &self,
        key: &str,
        until: Until,
        on_renewed: impl Fn(Moment, Moment) + Send + Sync + 'static,
    ) -> Result<Lease> {
        let key = Key::new(key).map_err(|why| anyhow!(why))?;
        let names = Names::from(Name::new("dlock:", &key).map_err(|why| anyhow!(why))?);
        let token = Token::random()?;
        let mut store = self.context.open()?;
        store.prepare(&token)?;
        let ask = Ask {
            token,
            mode: Mode::Exclusive,
            ttl: self.ttl.get(),
            min_hold: Duration::ZERO,
            owner: Owner {
                host: "web-1.example.org".into(),
                pid: 12345,
                user: "deploy".into(),
                command: "/usr/local/bin/report --daily".into(),
                reason: None,
                by: By::Run,
                ttl: Some(self.ttl.get()),
                once_per: None,
                rest: None,
            },
            patience: until.patience(),
            terms: Terms::default(),
            waited: Duration::ZERO,
            has_waited: false,
        };
        let settings = &self.context.settings;
        let (connect_timeout, op_timeout) = (settings.connect_timeout, settings.op_timeout);
        let request = Request { names, ask, until, schedule: self.schedule(), connect_timeout, op_timeout };
        Ok(Lease::new(store, request, on_renewed)?)
    }

    /// Asks for the lock until that is decided. Calls `waits` with each heartbeat in the queue.
    pub fn obtain(&self, lease: &Lease, mut waits: impl FnMut()) -> Obtained {
        loop {
            while let Some(report) = lease.next_report() {
                match report {
                    Report::Granted { sent, .. } => return Obtained::Lock(sent),
                    Report::Busy(blocker) | Report::Contended(blocker) => {
                        return Obtained::Busy(Box::new(blocker));
                    }
                    Report::Failed(error) => return Obtained::Failed(error),
                    Report::TooSlow => {
                        return Obtained::Failed(Error::Unavailable("answers came too late".into()));
                    }
                    Report::Waiting(_) => waits(),
                    Report::Trouble { .. } | Report::Recovered => {}
                    other => return Obtained::Failed(Error::Garbled(format!("{other:?}"))),
                }
            }
            if !lease.acquire_step(self.calm.as_fd(), None) {
                return Obtained::Failed(Error::Garbled("nothing was decided".into()));
            }
        }
    }

    /// Starts the waiters. Returns when all of them are in the queue.
    fn wait(self: &Arc<Self>) -> Result<()> {
        let (tell, told) = channel();
        for number in self.numbers() {
            let (worker, tell) = (Arc::clone(self), tell.clone());
            let wait = move || {
                let mut is_queued = false;
                let said = match worker.lease(&key(number % QUEUES), Until::Forever, |_, _| {}) {
                    Ok(lease) => match worker.obtain(&lease, || {
                        if !std::mem::replace(&mut is_queued, true) {
                            let _ = tell.send(());
                        }
                    }) {
                        // It keeps the lock until its lease is over: its holder has lost it.
                        Obtained::Lock(_) => "a waiter was granted the lock".into(),
                        Obtained::Busy(_) => "a waiter was refused".into(),
                        Obtained::Failed(error) => format!("a waiter failed: {error}"),
                    },
                    Err(error) => format!("a waiter failed: {error:#}"),
                };
                worker.count(|tally| tally.remark(said));
            };
            thread::Builder::new().spawn(wait).context("a thread for a waiter")?;
        }
        drop(tell);
        let queued = told.iter().take(self.task.count).count();
        if queued < self.task.count {
            bail!("a waiter did not get into the queue: {:?}", self.tally().1.remarks);
        }
        Ok(())
    }

    /// The numbers of its holders, waiters or runs.
    pub fn numbers(&self) -> std::ops::Range<usize> {
        self.task.first..self.task.first + self.task.count
    }

    /// Acquires the locks, some at a time, and has them watched. Returns when all are held.
    fn hold(self: &Arc<Self>) -> Result<()> {
        let next = AtomicUsize::new(self.task.first);
        let (hand_over, holders) = channel();
        let watcher = Arc::clone(self);
        thread::Builder::new().spawn(move || watcher.watch(&holders)).context("a thread")?;
        let failed = thread::scope(|scope| {
            let start = |hand_over: Sender<Holder>| -> Result<()> {
                let mut number = next.fetch_add(1, Ordering::Relaxed);
                while self.numbers().contains(&number) {
                    let holder = self.holder(number).with_context(|| key(number))?;
                    hand_over.send(holder).map_err(|_| anyhow!("nobody watches the holders"))?;
                    number = next.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            };
            let starters: Vec<_> = (0..STARTERS)
                .map(|_| {
                    let hand_over = hand_over.clone();
                    scope.spawn(move || start(hand_over))
                })
                .collect();
            let joined = starters.into_iter().map(|starter| starter.join());
            joined.map(|done| done.unwrap_or_else(|_| Err(anyhow!("a thread died")))).find_map(Result::err)
        });
        failed.map_or(Ok(()), Err)
    }

    /// Acquires one lock.
    fn holder(self: &Arc<Self>, number: usize) -> Result<Holder> {
        let schedule = self.schedule();
        let now = Moment::now();
        let term_after = schedule.term_at(now).since(now);
        let job = Arc::new(Mutex::new(Job { sent: now, term_at: now, disturbed: false }));
        let (worker, renewed) = (Arc::clone(self), Arc::clone(&job));
        let on_renewed = move |term_at: Moment, _: Moment| {
            let mut job = lock(&renewed);
            let (now, sent) = (Moment::now(), term_at.before(term_after));
            job.check(&worker, now);
            worker.spell(|spell| {
                spell.renewals += 1;
                spell.longest_renewal = spell.longest_renewal.max(now.since(sent));
                spell.longest_gap = spell.longest_gap.max(now.since(job.sent));
            });
            (job.sent, job.term_at) = (sent, term_at);
        };
        let lease = self.lease(&key(number), Until::Forever, on_renewed)?;
        match self.obtain(&lease, || {}) {
            Obtained::Lock(sent) => {
                let mut job = lock(&job);
                (job.sent, job.term_at) = (sent, schedule.term_at(sent));
            }
            Obtained::Busy(_) => bail!("it is busy"),
            Obtained::Failed(error) => return Err(error.into()),
        }
        Ok(Holder { lease, job })
    }

    /// Does for all holders what the main thread of each `dlock run` does while its job runs, and
    /// what its guard does at the time of TERM.
    fn watch(&self, arrivals: &Receiver<Holder>) {
        let limit = Timespec::try_from(LOOK_EVERY).ok();
        let mut holders: Vec<Holder> = Vec::new();
        loop {
            holders.extend(arrivals.try_iter());
            let fds = holders.iter().map(|holder| PollFd::from_borrowed_fd(holder.lease.fd(), PollFlags::IN));
            let mut fds: Vec<_> = fds.collect();
            // An interrupted poll is repeated below.
            let _ = poll(&mut fds, limit.as_ref());
            let now = Moment::now();
            let mut longest_gap = Duration::ZERO;
            for (holder, fd) in holders.iter().zip(&fds) {
                let mut job = lock(&holder.job);
                job.check(self, now);
                longest_gap = longest_gap.max(now.since(job.sent));
                drop(job);
                if !fd.revents().is_empty() || holder.lease.next().is_some_and(Moment::passed) {
                    self.read_reports(holder);
                }
            }
            self.spell(|spell| spell.longest_gap = spell.longest_gap.max(longest_gap));
            // Reports that come in a crowd are read together.
            thread::sleep(LOOK_EVERY / 4);
        }
    }

    fn read_reports(&self, holder: &Holder) {
        while let Some(report) = holder.lease.next_report() {
            match report {
                // TERM came long before.
                Report::Lost { how: Loss::Deadline, .. } => {}
                Report::Lost { how, .. } => {
                    lock(&holder.job).disturb(self, &format!("the lock was lost: {how:?}"));
                }
                Report::Asked(asker) => {
                    lock(&holder.job).disturb(self, &format!("asked to end by {asker:?}"))
                }
                Report::Trouble { error, .. } => {
                    self.count(|tally| tally.remark(format!("trouble of a holder: {error}")));
                }
                _ => {}
            }
        }
    }
}

/// A lock that is held, and the job under it.
struct Holder {
    lease: Lease,
    job: Arc<Mutex<Job>>,
}

/// A job that does nothing, as its guard sees it.
struct Job {
    /// When the request of the last success was sent.
    sent: Moment,
    /// When it gets TERM if there is no other.
    term_at: Moment,
    disturbed: bool,
}

impl Job {
    /// What the guard's timer does.
    fn check(&mut self, worker: &Worker, now: Moment) {
        if now >= self.term_at {
            self.disturb(worker, "no renewal in time");
        }
    }

    /// Counts each job once. It goes on, so that the load stays the same.
    fn disturb(&mut self, worker: &Worker, why: &str) {
        if !std::mem::replace(&mut self.disturbed, true) {
            worker.spell(|spell| spell.disturbed += 1);
            worker.count(|tally| tally.remark(format!("a job was disturbed: {why}")));
        }
    }
}

fn key(number: usize) -> String {
    format!("hold-{number}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
