//! One `dlock run` of a fleet: its main thread, its guard and its job. The code that acquires,
//! waits and renews is the real one; the rest is modelled here, with the same times.

mod guard;

use super::Planted;
use super::dice::Dice;
use super::network::{Net, SimStore};
use super::time::{MS, MachineId, Nanos, Processes, SECOND, TaskId};
use crate::clock::Moment;
use crate::exit::Ended;
use crate::lease::event_fd::EventFd;
use crate::lease::keeper::{Keeper, Keeping};
use crate::lease::obtain::{Progress, Step};
use crate::lease::stores::Stores;
use crate::lease::{Report, Request, Until, give_back};
use crate::lock::{Names, Period, Token};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Blocker, End, FailurePause, Grant, Left, Notice, Ran, Refusal};
use crate::store::Store as _;
use guard::Guard;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long after a due KILL the guard may show no progress, as in src/supervise.rs.
const OVERDUE: Duration = Duration::from_millis(5);

/// What a run does.
#[derive(Debug, Clone)]
pub struct Plan {
    pub machine: MachineId,
    pub at: Nanos,
    pub names: Names,
    pub ask: Ask,
    pub until: Wants,
    pub schedule: Schedule,
    pub grace: Nanos,
    /// How long the job runs if it is not disturbed.
    pub lasts: Nanos,
    /// How long it takes to end when it gets TERM.
    pub ends_in: Nanos,
    /// When its writes arrive, after its start.
    pub writes_after: Nanos,
}

#[derive(Debug, Clone, Copy)]
pub enum Wants {
    Now,
    Within(Duration),
    InTheEnd,
}

/// What dlock and its guard share.
struct Link {
    /// Nanoseconds of the machine's clock.
    term_at: AtomicU64,
    kill_at: AtomicU64,
    /// When the job must be dead after its lock was lost.
    kill_by: AtomicU64,
    start: Mutex<Option<Grant>>,
    stop: AtomicBool,
    finish: AtomicBool,
    too_late: AtomicBool,
    job: Mutex<Option<usize>>,
}

impl Link {
    fn on_renewed(&self, term_at: Moment, kill_at: Moment) {
        self.kill_at.fetch_max(nanos(kill_at), Ordering::Relaxed);
        self.term_at.fetch_max(nanos(term_at), Ordering::Relaxed);
    }

    fn job(&self) -> Option<usize> {
        *locked(&self.job)
    }

    /// When the job must be dead, by what dlock last told the guard.
    fn due(&self) -> Moment {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        moment(read(&self.kill_at).min(read(&self.kill_by)))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(at: Moment) -> u64 {
    u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn moment(nanos: u64) -> Moment {
    Moment::from_boot(Duration::from_nanos(nanos))
}

/// Begins a run when it is time, unless its machine is dead.
pub fn begin(net: &Arc<Net>, plan: Plan, mut dice: Dice) -> Processes {
    let new = || net.sim.process(plan.machine);
    let processes = Processes { dlock: new(), guard: new(), job: new() };
    let (net, sim) = (Arc::clone(net), Arc::clone(&net.sim));
    sim.at(plan.at, move |sim| {
        if sim.is_dead(processes.dlock) {
            return;
        }
        let link = Arc::new(Link::new());
        let guard = Guard {
            net: Arc::clone(&net),
            plan: plan.clone(),
            link: Arc::clone(&link),
            dice: Dice(dice.next()),
            processes,
            term_sent: false,
            kill_by: u64::MAX,
        };
        let guard = sim.spawn(processes.guard, move |task| guard.run(task));
        let main = Main { net, plan, link, dice, guard, processes };
        sim.spawn(processes.dlock, move |task| main.run(task));
    });
    processes
}

impl Link {
    fn new() -> Self {
        Self {
            term_at: AtomicU64::new(0),
            kill_at: AtomicU64::new(0),
            kill_by: AtomicU64::new(u64::MAX),
            start: Mutex::new(None),
            stop: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            too_late: AtomicBool::new(false),
            job: Mutex::new(None),
        }
    }
}

struct Main {
    net: Arc<Net>,
    plan: Plan,
    link: Arc<Link>,
    dice: Dice,
    guard: TaskId,
    processes: Processes,
}

impl Main {
    fn run(mut self, task: TaskId) {
        let sim = Arc::clone(&self.net.sim);
        let (say, reports) = channel();
        let keeper = Arc::new(Keeper {
            stores: Stores::new(Box::new(self.store(task))),
            request: self.request(),
            on_renewed: {
                let link = Arc::clone(&self.link);
                Box::new(move |term_at, kill_at| link.on_renewed(term_at, kill_at))
            },
            reports: say,
            has_report: EventFd::new().expect("a descriptor"),
            stop_listening: EventFd::new().expect("a descriptor"),
            claims: AtomicUsize::new(0),
            has_renewed: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            rest: OnceLock::new(),
        });
        let (of_thread, net, store) = (Arc::clone(&keeper), Arc::clone(&self.net), self.store(task));
        sim.spawn(self.processes.dlock, move |thread| {
            let store = SimStore { task: thread, observer: Some(task), ..store };
            *of_thread.stores.lock() = Box::new(store);
            let Keeper { stores, request, .. } = &*of_thread;
            let mut progress = Progress::begin();
            net.judge().tries(&request.ask, net.sim.now());
            let report = &mut |report| of_thread.report(report);
            let obtained = loop {
                match progress.step(&mut **stores.lock(), request, None, report) {
                    Step::GoesOn => {}
                    Step::Held(fence, sent) => break Some((fence, sent)),
                    Step::Over => break None,
                }
            };
            if let Some((fence, sent)) = obtained {
                of_thread.keep(Keeping::new(fence, sent, &request.schedule));
            }
        });
        self.supervise(task, &reports);
        keeper.stores.close();
        // Waits for a request that is under way, as the real mutex does.
        while !keeper.stores.is_free() {
            self.sleep(task, MS);
        }
        let ran = if self.link.job().is_some() { Ran::Yes } else { Ran::No };
        leave(&self.net, self.store(task), &self.plan, ran);
        self.link.finish.store(true, Ordering::Relaxed);
        sim.wake(self.guard);
        sim.kill(self.processes.dlock);
    }

    fn store(&self, task: TaskId) -> SimStore {
        SimStore { net: Arc::clone(&self.net), machine: self.plan.machine, task, observer: None }
    }

    fn request(&self) -> Request {
        let Plan { names, ask, schedule, .. } = &self.plan;
        let until = match self.plan.until {
            Wants::Now => Until::No,
            Wants::Within(span) => Until::At(Moment::now().after(span)),
            Wants::InTheEnd => Until::Forever,
        };
        let timeout = Duration::from_secs(1);
        Request {
            names: names.clone(),
            ask: Ask { patience: until.patience(), ..ask.clone() },
            until,
            schedule: *schedule,
            connect_timeout: timeout,
            op_timeout: timeout,
        }
    }

    /// Supervises until nothing is left to supervise.
    fn supervise(&mut self, task: TaskId, reports: &Receiver<Report>) {
        let sim = Arc::clone(&self.net.sim);
        let mut is_ordered = false;
        loop {
            match reports.try_recv() {
                Ok(Report::Granted { grant, sent }) => {
                    // A delay between two steps of a process, as on a busy machine.
                    let most = if self.dice.one_in(8) { 900 * MS } else { MS };
                    let hesitates = self.dice.below(most);
                    self.sleep(task, hesitates);
                    let schedule = &self.plan.schedule;
                    self.link.on_renewed(schedule.term_at(sent), schedule.kill_at(sent));
                    *locked(&self.link.start) = Some(grant);
                    is_ordered = true;
                    sim.wake(self.guard);
                }
                Ok(Report::Lost { kill_by, .. }) => {
                    self.link.kill_by.fetch_min(nanos(kill_by), Ordering::Relaxed);
                    self.link.stop.store(true, Ordering::Relaxed);
                    sim.wake(self.guard);
                }
                Ok(Report::Asked(_)) => {
                    self.link.stop.store(true, Ordering::Relaxed);
                    sim.wake(self.guard);
                }
                Ok(Report::Busy(blocker)) => return self.note(task, &blocker),
                Ok(Report::Waiting(_) | Report::Trouble { .. } | Report::Recovered) => {}
                Ok(_) => return,
                Err(_) => {
                    let (job, is_stopped) = (self.link.job(), self.link.stop.load(Ordering::Relaxed));
                    let is_over = job.is_some_and(|job| self.net.judge().is_over(job));
                    let gives_up = is_stopped && (!is_ordered || self.net.planted == Planted::GivesBackFirst);
                    if is_over || gives_up || self.link.too_late.load(Ordering::Relaxed) {
                        return;
                    }
                    if sim.is_dead(self.processes.guard) {
                        // The guard is dead, so dlock kills the job.
                        let takes = self.dice.below(3 * MS);
                        self.sleep(task, takes);
                        if let Some(job) = self.link.job() {
                            let due = sim.true_time(task, self.link.due());
                            self.net.judge().end(job, sim.now(), false, due);
                        }
                        return;
                    }
                    // A guard that misses its deadline does not run, so dlock does its work.
                    let trusted = job.is_none() || self.net.planted == Planted::TrustsTheGuard;
                    let overdue = self.link.due().after(OVERDUE);
                    if !trusted && overdue.passed() {
                        sim.kill(self.processes.guard);
                        self.net.judge().is_down(self.processes.guard, sim.now(), Nanos::MAX);
                        continue;
                    }
                    let later = sim.now() + 3600 * SECOND;
                    sim.park(task, if trusted { later } else { later.min(sim.true_time(task, overdue)) });
                }
            }
        }
    }

    /// The lock was not obtained: the store says whether that is to be announced.
    fn note(&self, task: TaskId, blocker: &Blocker) {
        let Ask { owner, terms, token, .. } = &self.plan.ask;
        let waited = match self.plan.until {
            Wants::Within(span) => Some(span),
            Wants::Now | Wants::InTheEnd => None,
        };
        let notice = Notice::busy(blocker, terms.once_per.map(Period::Span), waited);
        let notice = notice.map(|notice| Notice { by: token.secret().to_owned(), ..notice });
        let refusal = Refusal::busy(owner, blocker, waited).with(notice);
        let name = &self.plan.names.as_slice()[blocker.at];
        let _ = self.store(task).refuse(name, &refusal, Moment::now().after(Duration::from_secs(1)));
    }

    fn sleep(&self, task: TaskId, span: Nanos) {
        let sim = &self.net.sim;
        let until = sim.now() + span;
        while sim.now() < until {
            sim.park(task, until);
        }
    }
}

/// Gives the lock back, and tells the judge if that succeeded.
fn leave(net: &Arc<Net>, mut store: SimStore, plan: &Plan, ran: Ran) {
    let job = net.judge().has_succeeded(&plan.ask.token).then_some(Ended::Code(0));
    let by = Moment::now().after(Duration::from_secs(1));
    let (token, terms) = (&plan.ask.token, &plan.ask.terms);
    let lasts = terms.pause_on_failure.filter(|_| job.is_none());
    let pause = lasts.map(|lasts| FailurePause { lasts, reason: String::new() });
    let end = End { ran, job, once_per: terms.once_per.is_some(), fence: None, pause };
    net.sim.tell(|| format!("{token:?} is given back: {ran:?}"));
    if let Ok(Left::Released { .. } | Left::Already) = give_back(&mut store, &plan.names, token, &end, by) {
        net.judge().left(token);
    }
}

/// The token of a run.
pub fn token(number: u64) -> Token {
    Token::parse(&format!("{:032x}", u128::from(Dice(number).next()))).expect("32 digits")
}
