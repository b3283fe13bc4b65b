//! The guard: starts CMD when dlock orders it, sleeps until a limit passes or something happens,
//! and stops the job when it must. Everything here runs in the guard's own process, in one thread.

use super::bond::{self, Bond, Pin};
use super::limits::{Limits, LimitsSender};
use super::process_tree::{ProcessTree, Sweep};
use super::procfs::own_pid;
use super::protocol::{self, Change, Order};
use super::stop::Stop;
use super::{Ended, Event, GUARD_NAME, Group, Leftovers, NotStarted, Orphaned, Process, Reached, StopReason};
use crate::clock::{Moment, Timer};
use crate::exit::OnLost;
use crate::sys::{self, Disposition, Fork, SignalSet, Stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// If no order comes for this long (in nanoseconds), dlock is waiting for the lock, and the guard
/// prepares the start of CMD.
const READY_AFTER: i64 = 100_000_000;

/// What dlock hands to the guard at the fork.
pub(super) struct Setup {
    pub argv: Vec<CString>,
    pub bond: Option<Bond>,
    pub group: Group,
    /// `None` if it has no id here: its leader is outside this PID namespace.
    pub caller_group: Option<Pid>,
    pub caller: i32,
    pub grace: Duration,
    pub max_run: Option<Duration>,
    pub on_lost: OnLost,
    pub spare: Duration,
    pub leftovers: Leftovers,
    pub tree: ProcessTree,
    pub keep: Vec<RawFd>,
    pub mask: SignalSet,
    pub child_ignored: bool,
    pub link: OwnedFd,
    pub limits: LimitsSender,
}

/// Runs the guard in this process. Never returns.
pub(super) fn run(setup: Setup, on_orphaned: impl FnMut(Orphaned)) -> ! {
    // A panic must end the guard: if it unwound further, this process would go on as a second
    // dlock. dlock sees the end and stops the job.
    let watch = || Watcher::new(setup, on_orphaned).and_then(|mut watch| watch.run());
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(watch));
    sys::exit_now(if matches!(done, Ok(Ok(()))) { 0 } else { 70 })
}

struct Watcher<F> {
    setup: Setup,
    on_orphaned: F,
    children: OwnedFd,
    timer: Timer,
    armed: Option<Moment>,
    buffer: Vec<u8>,
    changes: Vec<Change>,
    cmd: Option<Cmd>,
    /// CMD's stack, prepared while dlock waited for the lock.
    stack: Option<Stack>,
    state: JobState,
    /// dlock is gone, or has left the rest to the guard.
    is_orphaned: bool,
    /// dlock sent `Order::Finish`, and has printed all messages itself.
    may_finish_quietly: bool,
    /// No child is left, as far as is known.
    no_child: bool,
    /// The limit for which the cost of killing the job was last measured, and that cost.
    measured: Option<(Moment, Duration)>,
    unsent: VecDeque<Vec<u8>>,
    /// Reported when dlock is gone and only these are left.
    refused: Vec<Process>,
}

enum JobState {
    /// CMD has not been started, or could not be.
    Idle,
    /// CMD runs; or it has ended, and the guard waits for what it left behind.
    Running {
        since: Moment,
    },
    Stopping(Stop),
    /// The job has ended. Nothing is signalled any more.
    Ended {
        reason: Option<StopReason>,
    },
}

struct Cmd {
    pid: i32,
    status: Option<Ended>,
    was_stopped: bool,
}

impl<F: FnMut(Orphaned)> Watcher<F> {
    fn new(setup: Setup, on_orphaned: F) -> io::Result<Self> {
        // Blocked, not ignored: an ignored signal stays ignored across exec, so CMD would inherit
        // it. Blocking also keeps the terminal from stopping a background process that writes to
        // it.
        sys::set_mask(SignalSet::ALL);
        // CMD could not rejoin a group without an id, so the guard stays in it.
        if setup.group == Group::Own || setup.caller_group.is_some() {
            rustix::process::setpgid(None, None)?;
        }
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        rustix::thread::set_name(GUARD_NAME)?;
        Ok(Self {
            setup,
            on_orphaned,
            children: sys::signalfd(SignalSet::of(&[libc::SIGCHLD]))?,
            timer: Timer::new()?,
            armed: None,
            buffer: vec![0],
            changes: Vec::new(),
            cmd: None,
            stack: None,
            state: JobState::Idle,
            is_orphaned: false,
            may_finish_quietly: false,
            no_child: true,
            measured: None,
            unsent: VecDeque::new(),
            refused: Vec::new(),
        })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.arm()?;
            let ready = self.wait()?;
            if ready.nothing {
                self.prepare_start();
                continue;
            }
            // Orders first: a limit that was moved in time counts, however late the guard wakes.
            // Then the children, so that a job that has ended by itself is not stopped.
            if ready.link {
                self.read_orders(ready.closed)?;
            }
            if ready.children {
                // The signal only wakes the guard. `reap` asks the kernel which child changed.
                let _ = rustix::io::read(&self.children, &mut [0u8; 512]);
                self.reap();
            }
            self.act_when_due();
            self.flush();
            if self.is_orphaned && self.is_finished() {
                return Ok(());
            }
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let (read, hangup) = (PollFlags::IN, PollFlags::HUP | PollFlags::RDHUP);
        let mut heard = read | PollFlags::RDHUP;
        if !self.unsent.is_empty() {
            heard |= PollFlags::OUT;
        }
        let mut fds = [
            PollFd::new(&self.timer, read),
            PollFd::new(&self.children, read),
            PollFd::new(&self.setup.link, heard),
        ];
        // Once dlock is gone no order can come, and the closed socket would always be ready.
        let link = !self.is_orphaned;
        if !link {
            fds[2] = PollFd::new(&self.timer, read);
        }
        let is_ready = self.stack.is_some() || !matches!(self.state, JobState::Idle);
        let limit = (!is_ready).then_some(Timespec { tv_sec: 0, tv_nsec: READY_AFTER });
        loop {
            match poll(&mut fds, limit.as_ref()) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let ready = |at: usize| !fds[at].revents().is_empty();
        Ok(Ready {
            nothing: !(0..fds.len()).any(ready),
            children: ready(1),
            link: link && fds[2].revents().intersects(read | hangup),
            closed: link && fds[2].revents().intersects(hangup),
        })
    }

    /// Takes one order. If dlock is gone, takes all of them first, so that an order to start is not
    /// obeyed after dlock's end.
    fn read_orders(&mut self, closed: bool) -> io::Result<()> {
        let mut start = false;
        loop {
            // A datagram may be long, but rarely is: read its length first.
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
            if let Ok((_, length)) = rustix::net::recv(&self.setup.link, [0u8; 0].as_mut_slice(), flags) {
                self.buffer.resize(length.max(1), 0);
            }
            match rustix::net::recv(&self.setup.link, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.is_orphaned = true;
                    self.unsent.clear();
                    return Ok(());
                }
                Ok((length, _)) => match protocol::decode(&self.buffer[..length]) {
                    Some(Order::Environment(changes)) => self.changes.extend(changes),
                    Some(Order::Start(changes)) => {
                        self.changes.extend(changes);
                        start = true;
                    }
                    Some(Order::Relay(signal, reached)) => self.relay(signal, reached),
                    Some(Order::Lost(deadline)) => self.lost(deadline),
                    Some(Order::Stop) => self.stop_on_request(),
                    Some(Order::Finish) => self.may_finish_quietly = true,
                    None => {}
                },
                Err(Errno::AGAIN) => break,
                // CONNRESET comes once, before the end of the stream, if dlock ended with events
                // unread.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(error) => return Err(error.into()),
            }
            if !closed {
                break;
            }
        }
        if start && let Err(error) = self.start() {
            let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
            self.send_event(&Event::NotStarted(NotStarted::Errno(errno)));
        }
        Ok(())
    }

    fn start(&mut self) -> io::Result<()> {
        if self.cmd.is_some() {
            return Ok(());
        }
        let now = Moment::now();
        if self.obeys_limits() && self.setup.limits.get().term_at <= now {
            self.send_event(&Event::NotStarted(NotStarted::TooLate));
            return Ok(());
        }
        let (pid, failed) = match &self.setup.bond {
            Some(bond) => {
                let pid = self.start_watcher(bond)?;
                if bond.is_detached {
                    bond::leave_stderr()?;
                }
                (pid, None)
            }
            None => self.start_cmd()?,
        };
        if let Some(errno) = failed {
            sys::wait_for(pid);
            self.setup.limits.set_cmd(0);
            self.send_event(&Event::NotStarted(NotStarted::Errno(errno)));
            return Ok(());
        }
        self.cmd = Some(Cmd { pid, status: None, was_stopped: false });
        self.state = JobState::Running { since: now };
        self.no_child = false;
        self.close_the_rest();
        Ok(())
    }

    /// Returns CMD's id, and the errno if it could not be executed.
    fn start_cmd(&mut self) -> io::Result<(i32, Option<i32>)> {
        let stack = self.stack.take().unwrap_or_else(|| self.new_stack());
        let changes = std::mem::take(&mut self.changes);
        sys::spawn(stack, || {
            // CMD notes its id itself, first of all: if the guard is stopped here, dlock still
            // knows which process to look for.
            self.setup.limits.set_cmd(own_pid());
            become_cmd(&self.setup, changes)
        })
    }

    fn start_watcher(&self, bond: &Bond) -> io::Result<i32> {
        match sys::fork()? {
            Fork::Parent(pid) => Ok(pid),
            Fork::Child => {
                self.setup.limits.set_cmd(own_pid());
                // Like CMD, it must be in the terminal's group to read from it.
                let _ = join_group(&self.setup);
                bond.watch()
            }
        }
    }

    /// The slack is for a script that exec hands to /bin/sh: the C library builds a second argv on
    /// the stack.
    fn new_stack(&self) -> Stack {
        Stack::new((self.setup.argv.len() + 8) * size_of::<usize>())
    }

    /// Prepares the start of CMD while dlock waits for the lock.
    fn prepare_start(&mut self) {
        let mut stack = self.new_stack();
        stack.touch();
        self.stack = Some(stack);
    }

    /// Closes the descriptors that were inherited for CMD: a reader of CMD's output must see its
    /// end when CMD ends, not when the guard does.
    fn close_the_rest(&mut self) {
        let mut keep =
            vec![2, self.setup.link.as_raw_fd(), self.children.as_raw_fd(), self.timer.as_fd().as_raw_fd()];
        keep.extend(&self.setup.keep);
        keep.extend(self.setup.bond.as_ref().and_then(|bond| bond.process.as_ref()).map(Pin::raw_fd));
        sys::close_all_but(&mut keep);
    }

    fn reap(&mut self) {
        let before = self.status();
        let mut sweep = Sweep::default();
        self.setup.tree.reap(&mut sweep);
        self.take(&sweep);
        let (JobState::Running { .. }, Some(status)) = (&self.state, self.status()) else { return };
        if self.setup.bond.is_some() && status != Ended::Code(0) {
            // The watcher was killed, and the process that it watched is still alive.
            let deadline = Moment::now().after(self.setup.grace).min(self.bound());
            return self.stop(StopReason::GuardGone, deadline);
        }
        // A process hands its children to the nearest subreaper before it can be reaped itself. So
        // as long as any descendant lives, the guard has a child; with no child left, the whole job
        // has ended.
        let leaves = || self.setup.leftovers == Leftovers::Leave && !self.setup.tree.has_guard();
        if self.no_child || leaves() {
            self.end(None);
        } else if before.is_none() {
            self.send_event(&Event::CommandEnded { status });
        }
    }

    /// Records what has happened to CMD.
    fn take(&mut self, sweep: &Sweep) {
        self.no_child |= sweep.no_child;
        for &(pid, raw) in &sweep.changed {
            // Once CMD has been reaped, its id may belong to another process of the job.
            let cmd = self.cmd.as_mut().filter(|cmd| cmd.pid == pid && cmd.status.is_none());
            let Some(cmd) = cmd else { continue };
            if let Some(status) = Ended::of(raw) {
                cmd.status = Some(status);
            } else {
                self.pause(raw);
            }
        }
    }

    fn status(&self) -> Option<Ended> {
        self.cmd.as_ref().and_then(|cmd| cmd.status)
    }

    /// Handles a stop or continuation of CMD.
    fn pause(&mut self, raw: i32) {
        let Some(cmd) = &mut self.cmd else { return };
        let stopped = raw & 0xff == 0x7f;
        let event = if stopped { Event::Stopped { signal: raw >> 8 & 0xff } } else { Event::Continued };
        let woken = cmd.was_stopped && !stopped;
        cmd.was_stopped = stopped;
        // These two may repeat without end while a stopped dlock does not read.
        if self.unsent.is_empty() {
            self.send_event(&event);
        }
        let caller_lives =
            rustix::process::getppid().is_some_and(|parent| parent.as_raw_pid() == self.setup.caller);
        if woken && self.setup.group == Group::Caller && caller_lives {
            // dlock stopped itself along with CMD. If somebody continues CMD alone, dlock must
            // renew again.
            let _ = sys::kill(self.setup.caller, libc::SIGCONT);
        }
    }

    fn end(&mut self, reason: Option<StopReason>) {
        self.state = JobState::Ended { reason };
        self.send_event(&Event::Ended { status: self.status(), reason });
    }

    fn relay(&mut self, signal: i32, reached: Reached) {
        let (JobState::Running { .. } | JobState::Stopping(_), Some(cmd)) = (&self.state, &self.cmd) else {
            return;
        };
        if cmd.status.is_some() {
            if let (JobState::Running { .. }, Some(signal)) = (&self.state, Signal::from_named_raw(signal)) {
                let caller_group = self.setup.caller_group.map_or(0, Pid::as_raw_pid);
                let but = (reached == Reached::CallerGroup).then_some(caller_group);
                self.setup.tree.relay(signal, but);
            }
            return;
        }
        // CMD has not been reaped, so no other process can have its id, nor a group that it leads.
        if self.setup.group == Group::Caller || sys::kill(-cmd.pid, signal).is_err() {
            // If CMD now belongs to another user, the guard may not signal it. Neither could the
            // signal's sender.
            let _ = sys::kill(cmd.pid, signal);
        }
    }

    fn lost(&mut self, deadline: Moment) {
        if !self.obeys_limits() {
            return;
        }
        let deadline = deadline.min(self.bound());
        match &mut self.state {
            JobState::Running { .. } => self.stop(StopReason::Lost, deadline),
            JobState::Stopping(stop) => stop.hasten(StopReason::Lost, deadline),
            JobState::Idle | JobState::Ended { .. } => {}
        }
    }

    fn stop_on_request(&mut self) {
        if let JobState::Running { .. } = self.state {
            self.stop(StopReason::Asked, Moment::now().after(self.setup.grace));
        }
    }

    fn obeys_limits(&self) -> bool {
        self.setup.on_lost == OnLost::Stop
    }

    /// When TERM is due by the limits: earlier than `term_at` if this job takes long to kill. The
    /// cost is measured only when it could matter; until then this returns the moment to measure
    /// it.
    fn term_due(&mut self, limits: Limits, now: Moment) -> Option<Moment> {
        if !self.obeys_limits() {
            return None;
        }
        let earliest = limits.term_at.min(limits.kill_at.before(self.setup.spare));
        if earliest == limits.term_at || now < earliest {
            return Some(earliest);
        }
        let known = self.measured.filter(|(for_limit, _)| *for_limit == limits.kill_at);
        let (_, cost) = known.unwrap_or_else(|| (limits.kill_at, self.setup.tree.look().1));
        self.measured = Some((limits.kill_at, cost));
        Some(limits.term_at.before(cost).max(earliest))
    }

    /// The latest moment for a KILL by the limits.
    fn bound(&self) -> Moment {
        if self.obeys_limits() { self.setup.limits.get().kill_at } else { Moment::from_boot(Duration::MAX) }
    }

    fn stop(&mut self, reason: StopReason, deadline: Moment) {
        self.setup.limits.set_stopping();
        let (stop, refused) = Stop::begin(&mut self.setup.tree, reason, deadline);
        self.state = JobState::Stopping(stop);
        self.send_event(&Event::Stopping { reason });
        self.note(refused);
    }

    fn note(&mut self, refused: Vec<Process>) {
        for process in refused {
            self.send_event(&Event::Refused(process.clone()));
            self.refused.push(process);
        }
    }

    /// Checks the clock and whether dlock is gone, and does what is due.
    fn act_when_due(&mut self) {
        let now = Moment::now();
        let limits = self.setup.limits.get();
        let ran_out = self.term_due(limits, now).is_some_and(|at| at <= now);
        let grace_ends = now.after(self.setup.grace);
        match &mut self.state {
            JobState::Running { .. } if ran_out => self.stop(StopReason::LeaseRanOut, limits.kill_at),
            JobState::Running { .. } if self.is_orphaned => {
                let is_on_input = self.setup.bond.as_ref().is_some_and(|bond| bond.process.is_none());
                // The program at the other end of stdin cannot be stopped. It gets the rest of the
                // lease to end.
                let deadline = if is_on_input { limits.kill_at } else { grace_ends.min(self.bound()) };
                self.stop(StopReason::CallerGone, deadline);
            }
            JobState::Running { since }
                if self.setup.max_run.is_some_and(|most| since.after(most) <= now) =>
            {
                self.stop(StopReason::MaxRun, grace_ends);
            }
            JobState::Stopping(stop) if stop.reason().is_unhurried() && ran_out => {
                stop.hasten(StopReason::LeaseRanOut, limits.kill_at);
            }
            JobState::Stopping(stop) if stop.reason().is_unhurried() && self.is_orphaned => {
                stop.hasten(StopReason::CallerGone, grace_ends);
            }
            _ => {}
        }
        self.go_on_stopping();
    }

    fn go_on_stopping(&mut self) {
        let bound = self.bound();
        let first = self.cmd.as_ref().filter(|cmd| cmd.status.is_none()).map(|cmd| match self.setup.group {
            Group::Own => -cmd.pid,
            Group::Caller => cmd.pid,
        });
        let JobState::Stopping(stop) = &mut self.state else { return };
        let mut sweep = Sweep::default();
        if !self.no_child {
            sweep = stop.step(&mut self.setup.tree, bound, first);
        }
        // As long as any descendant lives, the guard has a child.
        let last = self.no_child || sweep.no_child;
        let reason = stop.reason();
        self.take(&sweep);
        self.note(sweep.refused);
        if last {
            self.setup.tree.remove_cgroup();
            self.end(Some(reason));
        } else if self.is_orphaned && sweep.only_refused {
            for process in std::mem::take(&mut self.refused) {
                (self.on_orphaned)(Orphaned::Refused(process));
            }
        }
    }

    /// Whether nothing is left to do, with dlock gone. If so, the last report has been made too.
    fn is_finished(&mut self) -> bool {
        let reason = match self.state {
            JobState::Idle => None,
            JobState::Ended { reason } => reason,
            JobState::Running { .. } | JobState::Stopping(_) => return false,
        };
        let started = !matches!(self.state, JobState::Idle);
        if !started {
            // CMD will never need these descriptors.
            self.close_the_rest();
        }
        if reason.is_none() || self.may_finish_quietly {
            // No message follows, so a reader of dlock's messages must not wait for the guard to
            // close stderr.
            let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            let _ = null.and_then(rustix::stdio::dup2_stderr);
        }
        let status = self.status();
        (self.on_orphaned)(Orphaned::Over { started, status, reason });
        true
    }

    /// Sends an event to dlock, or queues it if dlock does not read now.
    fn send_event(&mut self, event: &Event) {
        if !self.is_orphaned {
            self.unsent.push_back(protocol::encode(event));
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some(datagram) = self.unsent.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.setup.link, datagram, flags) {
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // Sent. Or dlock is gone, which the next read shows.
                _ => drop(self.unsent.pop_front()),
            }
        }
    }

    /// Sets the timer to the next moment at which something may be due.
    fn arm(&mut self) -> io::Result<()> {
        let term_at = self.term_due(self.setup.limits.get(), Moment::now());
        let bound = self.bound();
        let at = match &self.state {
            JobState::Idle | JobState::Ended { .. } => None,
            JobState::Running { since } => {
                let max_run = self.setup.max_run.map(|most| since.after(most));
                term_at.into_iter().chain(max_run).min()
            }
            JobState::Stopping(stop) => {
                let other = term_at.filter(|_| stop.reason().is_unhurried());
                other.into_iter().chain([stop.wake(bound)]).min()
            }
        };
        // A moment that has passed is set again: that first makes the timer unreadable.
        if at != self.armed || at.is_some_and(Moment::passed) {
            self.timer.set(at)?;
            self.armed = at;
        }
        Ok(())
    }
}

impl StopReason {
    /// Whether the lock is still held, so that a loss may still replace this reason.
    fn is_unhurried(self) -> bool {
        matches!(self, Self::MaxRun | Self::Asked)
    }
}

struct Ready {
    /// The wait timed out.
    nothing: bool,
    children: bool,
    link: bool,
    closed: bool,
}

fn join_group(setup: &Setup) -> rustix::io::Result<()> {
    match (setup.group, setup.caller_group) {
        (Group::Caller, None) => Ok(()),
        (Group::Caller, group) => rustix::process::setpgid(None, group),
        (Group::Own, _) => rustix::process::setpgid(None, None),
    }
}

/// Executes CMD as dlock's caller would have started it. Returns only on failure.
fn become_cmd(setup: &Setup, changes: Vec<Change>) -> io::Error {
    if let Err(error) = join_group(setup) {
        return error.into();
    }
    let without: Vec<Vec<u8>> = changes.iter().map(|(name, _)| name.clone()).collect();
    let with = changes.into_iter().filter_map(|(name, value)| Some(CString::new([name, value?].join(&b'='))));
    let with: Vec<CString> = match with.collect() {
        Ok(with) => with,
        Err(error) => return io::Error::from(error),
    };
    for signal in sys::OF_WRITES.into_iter().filter(|signal| !sys::was_ignored(*signal)) {
        sys::dispose(signal, Disposition::Default);
    }
    if setup.child_ignored {
        sys::dispose(libc::SIGCHLD, Disposition::Ignore);
    }
    sys::close(sys::closed_at_start());
    sys::set_mask(setup.mask);
    sys::exec(&setup.argv, &without, &with)
}
