//! The guard of a run, and its job: what stops it, and when.

use super::super::Planted;
use super::super::dice::Dice;
use super::super::judge::Job;
use super::super::network::{Net, SimStore};
use super::super::time::{MS, MachineId, Nanos, Processes, SECOND, Sim, TaskId};
use super::{Link, Plan, leave, locked, moment, nanos};
use crate::clock::Moment;
use crate::rules::{Grant, Ran};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) struct Guard {
    pub(super) net: Arc<Net>,
    pub(super) plan: Plan,
    pub(super) link: Arc<Link>,
    pub(super) dice: Dice,
    pub(super) processes: Processes,
    pub(super) term_sent: bool,
    /// When a job that got TERM is killed, in nanoseconds of the machine's clock.
    pub(super) kill_by: u64,
}

impl Guard {
    pub(super) fn run(mut self, task: TaskId) {
        let sim = Arc::clone(&self.net.sim);
        loop {
            if self.link.finish.load(Ordering::Relaxed) {
                return;
            }
            let is_orphaned = sim.is_dead(self.processes.dlock);
            let start = locked(&self.link.start).take();
            if let Some(grant) = start.filter(|_| !is_orphaned) {
                self.start(task, grant);
            }
            let next = match self.link.job() {
                None if is_orphaned => break,
                None => None,
                Some(job) if self.net.judge().is_over(job) => {
                    if is_orphaned {
                        break;
                    }
                    sim.wake_process(self.processes.dlock);
                    None
                }
                Some(job) => {
                    let next = self.watch(task, job, is_orphaned);
                    if is_orphaned && self.net.planted == Planted::GivesBackFirst {
                        break;
                    }
                    Some(next)
                }
            };
            sim.park(task, next.unwrap_or(sim.now() + 3600 * SECOND));
        }
        // Gives back what dlock held or asked for, by its token.
        let store = SimStore { net: Arc::clone(&self.net), machine: self.plan.machine, task, observer: None };
        let ran = if self.link.job().is_some() { Ran::Yes } else { Ran::No };
        leave(&self.net, store, &self.plan, ran);
    }

    /// Sends TERM or KILL to the job, if it is time. Returns when to check again.
    fn watch(&mut self, task: TaskId, job: usize, is_orphaned: bool) -> Nanos {
        let (sim, now) = (Arc::clone(&self.net.sim), Moment::now());
        let (term_at, kill_at) = self.limits();
        let is_asked = is_orphaned || self.link.stop.load(Ordering::Relaxed);
        if !self.term_sent && (is_asked || now >= term_at) {
            self.term_sent = true;
            // TERM is followed by CONT.
            sim.cont(self.processes.job);
            self.end_at(task, job, sim.now() + self.plan.ends_in, Ends::ByForce);
            self.kill_by = nanos(now.after(Duration::from_nanos(self.plan.grace)));
        }
        let kill_at =
            kill_at.min(moment(self.kill_by)).min(moment(self.link.kill_by.load(Ordering::Relaxed)));
        if now >= kill_at {
            let takes = self.dice.below(5 * MS);
            self.end_at(task, job, sim.now() + takes, Ends::ByForce);
            return sim.now() + 3600 * SECOND;
        }
        sim.true_time(task, if self.term_sent { kill_at } else { term_at.min(kill_at) })
    }

    fn limits(&self) -> (Moment, Moment) {
        let late = match self.net.planted {
            Planted::KillsLate => self.plan.ask.ttl / 3,
            _ => Duration::ZERO,
        };
        let read = |cell: &AtomicU64| moment(cell.load(Ordering::Relaxed)).after(late);
        (read(&self.link.term_at), read(&self.link.kill_at))
    }

    fn start(&self, task: TaskId, grant: Grant) {
        let sim = &self.net.sim;
        if self.link.stop.load(Ordering::Relaxed) || self.limits().0 <= Moment::now() {
            if self.net.planted != Planted::StartsTooLate {
                self.link.too_late.store(true, Ordering::Relaxed);
                sim.wake_process(self.processes.dlock);
                return;
            }
            let later = Moment::now().after(self.plan.ask.ttl / 2);
            self.link.on_renewed(later, later);
        }
        let now = sim.now();
        let job = Job {
            token: self.plan.ask.token.clone(),
            machine: self.plan.machine,
            processes: self.processes,
            ttl: u64::try_from(self.plan.ask.ttl.as_nanos()).unwrap_or(0),
            grace: self.plan.grace,
            due: Nanos::MAX,
            names: self.plan.names.iter().map(|name| name.as_str().to_owned()).collect(),
            mode: self.plan.ask.mode,
            fence: grant.fence.0,
            slot: grant.slot,
            start: now,
            end: None,
            was_left_alone: false,
            read: BTreeMap::new(),
        };
        sim.tell(|| format!("job starts: {job:?}, {:?}", self.plan));
        let job = self.net.judge().start(job, self.plan.ask.min_hold);
        *locked(&self.link.job) = Some(job);
        self.end_at(task, job, now + self.plan.lasts, Ends::ByItself);
        let net = Arc::clone(&self.net);
        sim.at(now + self.plan.writes_after, move |_| net.judge().write(job));
    }

    fn end_at(&self, guard: TaskId, job: usize, at: Nanos, how: Ends) {
        let (processes, machine, link) = (self.processes, self.plan.machine, Arc::clone(&self.link));
        let ending = Ending { job, processes, machine, link, guard, how };
        ending.begin(&self.net, at);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    ByItself,
    ByForce,
}

/// The end of a job; its guard and its dlock learn of it. On a suspended machine nothing happens,
/// and a stopped job does not end by itself.
struct Ending {
    job: usize,
    processes: Processes,
    machine: MachineId,
    link: Arc<Link>,
    guard: TaskId,
    how: Ends,
}

impl Ending {
    fn begin(self, net: &Arc<Net>, at: Nanos) {
        let net = Arc::clone(net);
        let sim = Arc::clone(&net.sim);
        sim.at(at, move |sim: &Arc<Sim>| {
            let runs_from = match self.how {
                Ends::ByItself => sim.process_runs_from(self.processes.job),
                Ends::ByForce => sim.machine_runs_from(self.machine),
            };
            if runs_from > sim.now() {
                self.begin(&net, runs_from + MS);
                return;
            }
            sim.tell(|| format!("job {} ends {:?}", self.job, self.how));
            let due = sim.true_time(self.guard, self.link.due());
            net.judge().end(self.job, sim.now(), self.how == Ends::ByItself, due);
            sim.wake(self.guard);
            sim.wake_process(self.processes.dlock);
        });
    }
}
