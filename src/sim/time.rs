//! Virtual time. Every process of the fleet is a thread; only one of them runs at a time, and time
//! passes only when that one sleeps or waits. So a fleet takes no longer than its computing, and
//! the same seed gives the same history. Machines have clocks of their own. Machines and their
//! processes may be stopped, suspended and killed.

use crate::clock::{Moment, simulated};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// True time, which no machine knows: nanoseconds since the start of the fleet.
pub type Nanos = u64;

pub const MS: Nanos = 1_000_000;
pub const SECOND: Nanos = 1000 * MS;

/// The panic payload that unwinds a killed thread.
struct Killed;

pub type TaskId = usize;
pub type ProcessId = usize;
pub type MachineId = usize;

/// The processes of a run.
#[derive(Debug, Clone, Copy)]
pub struct Processes {
    pub dlock: ProcessId,
    pub guard: ProcessId,
    pub job: ProcessId,
}

type Call = Box<dyn FnOnce(&Arc<Sim>) + Send>;

enum Event {
    Wake { task: TaskId, turn: u64 },
    Call(Call),
}

struct Task {
    process: ProcessId,
    /// Counts the waits of the task: a wake-up for an earlier wait is ignored.
    turn: u64,
    signal: Arc<Condvar>,
    is_done: bool,
}

struct Process {
    machine: MachineId,
    is_dead: bool,
    stopped_until: Nanos,
}

struct Machine {
    /// Its clock at the start of the fleet.
    began: Nanos,
    /// How much faster than true time its clock runs, in millionths.
    drift: i64,
    is_dead: bool,
    suspended_until: Nanos,
    /// How long it has been suspended in all.
    suspended: Nanos,
}

#[derive(Default)]
struct State {
    now: Nanos,
    seq: u64,
    events: BTreeMap<(Nanos, u64), Event>,
    tasks: Vec<Task>,
    processes: Vec<Process>,
    machines: Vec<Machine>,
    running: TaskId,
    threads: Vec<JoinHandle<()>>,
    panics: Vec<String>,
}

/// A fleet's time.
pub struct Sim {
    state: Mutex<State>,
    /// Whether clocks stand still while their machine is suspended, as CLOCK_MONOTONIC does: a
    /// planted fault.
    stands: bool,
    /// Whether to print what happens.
    is_told: bool,
}

/// The clock that a thread of the fleet reads.
struct Clock {
    sim: Arc<Sim>,
    task: TaskId,
}

impl simulated::Clock for Clock {
    fn now(&self) -> Moment {
        self.sim.local_now(self.task)
    }

    fn sleep_until(&self, at: Moment) {
        let until = self.sim.true_time(self.task, at);
        while self.sim.now() < until {
            self.sim.park(self.task, until);
        }
    }
}

impl Sim {
    /// The caller's thread becomes the first task, of a machine of its own.
    pub fn new(stands: bool) -> Arc<Self> {
        let is_told = std::env::var_os("DLOCK_FLEET").is_some();
        let sim = Arc::new(Self { state: Mutex::default(), stands, is_told });
        let machine = sim.machine(0, 0);
        let process = sim.process(machine);
        let task = sim.add(process);
        simulated::set(Rc::new(Clock { sim: Arc::clone(&sim), task }));
        sim
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Nanos {
        self.state().now
    }

    /// Prints what happens, when one fleet is played again.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            println!("{:>10} us  {}", self.now() / 1000, what());
        }
    }

    pub fn machine(&self, began: Nanos, drift: i64) -> MachineId {
        let machine = Machine { began, drift, is_dead: false, suspended_until: 0, suspended: 0 };
        let mut state = self.state();
        state.machines.push(machine);
        state.machines.len() - 1
    }

    pub fn process(&self, machine: MachineId) -> ProcessId {
        let mut state = self.state();
        let is_dead = state.machines[machine].is_dead;
        state.processes.push(Process { machine, is_dead, stopped_until: 0 });
        state.processes.len() - 1
    }

    fn add(&self, process: ProcessId) -> TaskId {
        let mut state = self.state();
        state.tasks.push(Task { process, turn: 0, signal: Arc::default(), is_done: false });
        state.tasks.len() - 1
    }

    /// Starts a thread of a process.
    pub fn spawn(self: &Arc<Self>, process: ProcessId, work: impl FnOnce(TaskId) + Send + 'static) -> TaskId {
        let task = self.add(process);
        let sim = Arc::clone(self);
        let body = move || {
            simulated::set(Rc::new(Clock { sim: Arc::clone(&sim), task }));
            let run = || {
                sim.await_turn(sim.state(), task);
                work(task);
            };
            let ended = catch_unwind(AssertUnwindSafe(run));
            let mut state = sim.state();
            if let Err(payload) = ended
                && !payload.is::<Killed>()
            {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                state.panics.push(text.unwrap_or_default());
            }
            state.tasks[task].is_done = true;
            drop(sim.dispatch(state));
        };
        let thread = thread::Builder::new().stack_size(512 * 1024).spawn(body).expect("a thread");
        let mut state = self.state();
        state.threads.push(thread);
        let now = state.now;
        state.push(now, Event::Wake { task, turn: 0 });
        task
    }

    /// Runs `call` at this time, whatever has become of the caller.
    pub fn at(&self, at: Nanos, call: impl FnOnce(&Arc<Sim>) + Send + 'static) {
        let mut state = self.state();
        let at = at.max(state.now);
        state.push(at, Event::Call(Box::new(call)));
    }

    /// Waits until the task is [woken](Sim::wake), or until `until`.
    pub fn park(self: &Arc<Self>, task: TaskId, until: Nanos) {
        let mut state = self.state();
        state.tasks[task].turn += 1;
        let turn = state.tasks[task].turn;
        let until = until.max(state.now);
        state.push(until, Event::Wake { task, turn });
        let state = self.dispatch(state);
        self.await_turn(state, task);
    }

    pub fn wake(&self, task: TaskId) {
        let mut state = self.state();
        let (now, turn) = (state.now, state.tasks[task].turn);
        state.push(now, Event::Wake { task, turn });
    }

    /// Handles events until a task may run, and lets that task run.
    fn dispatch<'s>(self: &'s Arc<Self>, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        loop {
            let ((at, _), event) = state.events.pop_first().expect("somebody always waits");
            state.now = state.now.max(at);
            match event {
                Event::Call(call) => {
                    drop(state);
                    call(self);
                    state = self.state();
                }
                Event::Wake { task, turn } => {
                    if state.tasks[task].is_done || state.tasks[task].turn != turn {
                        continue;
                    }
                    let later = state.runs_from(state.tasks[task].process);
                    if later > state.now {
                        state.push(later, Event::Wake { task, turn });
                        continue;
                    }
                    state.running = task;
                    state.tasks[task].signal.notify_one();
                    return state;
                }
            }
        }
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, task: TaskId) {
        let signal = Arc::clone(&state.tasks[task].signal);
        while state.running != task {
            state = signal.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_dead = state.is_dead(state.tasks[task].process);
        drop(state);
        if is_dead {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Wakes all threads of a process.
    pub fn wake_process(&self, process: ProcessId) {
        self.state().wake_all(|task| task.process == process);
    }

    /// Kills a process: none of its threads does anything more.
    pub fn kill(&self, process: ProcessId) {
        let mut state = self.state();
        state.processes[process].is_dead = true;
        state.wake_all(|task| task.process == process);
    }

    pub fn is_dead(&self, process: ProcessId) -> bool {
        self.state().is_dead(process)
    }

    /// Stops a process until `until`, or longer if it is stopped for longer already.
    pub fn stop(&self, process: ProcessId, until: Nanos) {
        let process = &mut self.state().processes[process];
        process.stopped_until = process.stopped_until.max(until);
    }

    pub fn machine_of(&self, process: ProcessId) -> MachineId {
        self.state().processes[process].machine
    }

    /// Continues a process.
    pub fn cont(&self, process: ProcessId) {
        self.state().processes[process].stopped_until = 0;
    }

    /// When a process runs again; now, if it runs.
    pub fn process_runs_from(&self, process: ProcessId) -> Nanos {
        let state = self.state();
        state.runs_from(process).max(state.now)
    }

    pub fn kill_machine(&self, machine: MachineId) {
        let mut state = self.state();
        state.machines[machine].is_dead = true;
        let inhabitants: Vec<bool> =
            state.processes.iter().map(|process| process.machine == machine).collect();
        state.wake_all(|task| inhabitants[task.process]);
    }

    /// Suspends a machine. Returns false if it is suspended already, or dead.
    pub fn suspend(&self, machine: MachineId, until: Nanos) -> bool {
        let mut state = self.state();
        let now = state.now;
        let machine = &mut state.machines[machine];
        if machine.is_dead || machine.suspended_until > now {
            return false;
        }
        machine.suspended += until.saturating_sub(now);
        machine.suspended_until = until;
        true
    }

    /// When a machine runs again; now, if it runs.
    pub fn machine_runs_from(&self, machine: MachineId) -> Nanos {
        let state = self.state();
        state.machines[machine].suspended_until.max(state.now)
    }

    fn local_now(&self, task: TaskId) -> Moment {
        let state = self.state();
        let machine = &state.machines[state.processes[state.tasks[task].process].machine];
        let stood = if self.stands { machine.suspended } else { 0 };
        let passed = i128::from(state.now.saturating_sub(stood));
        let nanos = i128::from(machine.began) + passed * i128::from(1_000_000 + machine.drift) / 1_000_000;
        Moment::from_boot(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }

    /// The true time of a moment on the task's machine.
    pub fn true_time(&self, task: TaskId, at: Moment) -> Nanos {
        let state = self.state();
        let machine = &state.machines[state.processes[state.tasks[task].process].machine];
        let stood = if self.stands { machine.suspended } else { 0 };
        let local = i128::try_from(at.since_boot().as_nanos()).unwrap_or(i128::MAX / 2_000_000);
        let passed = (local - i128::from(machine.began)) * 1_000_000 / i128::from(1_000_000 + machine.drift);
        // Rounded up, so that the task does not wake too early again and again.
        u64::try_from(passed + i128::from(stood) + 2).unwrap_or(if passed < 0 { 0 } else { u64::MAX })
    }

    /// Ends the fleet. Returns the panics of its threads.
    pub fn finish(self: &Arc<Self>, me: TaskId) -> Vec<String> {
        let others = {
            let mut state = self.state();
            let mine = state.tasks[me].process;
            for at in 0..state.processes.len() {
                if at != mine {
                    state.processes[at].is_dead = true;
                }
            }
            state.events.clear();
            state.wake_all(|task| task.process != mine);
            std::mem::take(&mut state.threads)
        };
        let later = self.now() + SECOND;
        self.park(me, later);
        for thread in others {
            // Its panic is recorded already.
            let _ = thread.join();
        }
        std::mem::take(&mut self.state().panics)
    }
}

impl State {
    fn push(&mut self, at: Nanos, event: Event) {
        self.seq += 1;
        self.events.insert((at, self.seq), event);
    }

    fn is_dead(&self, process: ProcessId) -> bool {
        let process = &self.processes[process];
        process.is_dead || self.machines[process.machine].is_dead
    }

    /// When a process runs again. A dead one runs at once, to its end.
    fn runs_from(&self, process: ProcessId) -> Nanos {
        if self.is_dead(process) {
            return 0;
        }
        let process = &self.processes[process];
        process.stopped_until.max(self.machines[process.machine].suspended_until)
    }

    fn wake_all(&mut self, which: impl Fn(&Task) -> bool) {
        let woken: Vec<(TaskId, u64)> = self
            .tasks
            .iter()
            .enumerate()
            .filter(|(_, task)| which(task))
            .map(|(at, task)| (at, task.turn))
            .collect();
        for (task, turn) in woken {
            self.push(self.now, Event::Wake { task, turn });
        }
    }
}
