//! What does the guard do? It starts CMD on dlock's word, sleeps until a limit passes or something happens, and stops
//! the job when it must. Everything here runs in the guard's own process, in one thread, and ends with it.

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

/// A guard that has heard nothing for so long makes ready, in nanoseconds: its dlock waits for the lock.
const READY_AFTER: i64 = 100_000_000;

/// What the guard is given at its birth.
pub(super) struct Setup {
    pub argv: Vec<CString>,
    pub bond: Option<Bond>,
    pub group: Group,
    /// `None` if it has no name here: its leader is outside of this PID namespace.
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

/// Is the guard, until its end.
pub(super) fn run(setup: Setup, on_orphaned: impl FnMut(Orphaned)) -> ! {
    // A panic must end the guard: unwinding further would make a second dlock of it. dlock sees the end, and stops the
    // job.
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
    /// Made ready for CMD while there was time for it.
    stack: Option<Stack>,
    state: JobState,
    /// dlock is gone, or has left the rest to us.
    is_orphaned: bool,
    /// dlock said so, and has told what there was to tell.
    told_to_finish: bool,
    /// There is no child left, as far as is known.
    no_child: bool,
    /// What killing the job was last measured to take, and for which limit.
    measured: Option<(Moment, Duration)>,
    unsent: VecDeque<Vec<u8>>,
    /// To be told when dlock is gone and only they are left.
    refused: Vec<Process>,
}

enum JobState {
    /// CMD has not been started, or could not be.
    Idle,
    /// CMD runs; or it has ended, and what it left behind is waited for.
    Running {
        since: Moment,
    },
    Stopping(Stop),
    /// The job has ended, and from now on nothing is signalled.
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
        // Blocked, not ignored: what is ignored stays so across exec, and CMD would inherit it. Blocking also keeps the
        // terminal from stopping a background process that writes to it.
        sys::set_mask(SignalSet::ALL);
        // A group without a name could not be joined again by CMD, so then we stay in it.
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
            told_to_finish: false,
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
                self.make_ready();
                continue;
            }
            // Orders first: a limit that was moved in time counts, however late we come to it. Then the ends, so that
            // what has ended by itself is not stopped.
            if ready.link {
                self.listen(ready.closed)?;
            }
            if ready.children {
                // Which child it was is asked of the kernel; the signal only wakes.
                let _ = rustix::io::read(&self.children, &mut [0u8; 512]);
                self.reap();
            }
            self.judge();
            self.flush();
            if self.is_orphaned && self.is_through() {
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
        // Once orphaned there is nothing more to hear, and a closed socket would wake us for ever.
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

    /// Takes one order; all of them if dlock is gone, so that a start with nobody behind it is not begun.
    fn listen(&mut self, closed: bool) -> io::Result<()> {
        let mut start = false;
        loop {
            // A datagram may be long, and is nearly always short.
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
                    Some(Order::Stop) => self.asked(),
                    Some(Order::Finish) => self.told_to_finish = true,
                    None => {}
                },
                Err(Errno::AGAIN) => break,
                // Said once, before the end: dlock went with words of ours unread.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(error) => return Err(error.into()),
            }
            if !closed {
                break;
            }
        }
        if start && let Err(error) = self.start() {
            let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
            self.tell(&Event::NotStarted(NotStarted::Errno(errno)));
        }
        Ok(())
    }

    fn start(&mut self) -> io::Result<()> {
        if self.cmd.is_some() {
            return Ok(());
        }
        let now = Moment::now();
        if self.heeds_limits() && self.setup.limits.get().term_at <= now {
            self.tell(&Event::NotStarted(NotStarted::TooLate));
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
            self.tell(&Event::NotStarted(NotStarted::Errno(errno)));
            return Ok(());
        }
        self.cmd = Some(Cmd { pid, status: None, was_stopped: false });
        self.state = JobState::Running { since: now };
        self.no_child = false;
        self.close_the_rest();
        Ok(())
    }

    /// Its id, and why it could not be executed.
    fn start_cmd(&mut self) -> io::Result<(i32, Option<i32>)> {
        let stack = self.stack.take().unwrap_or_else(|| self.new_stack());
        let changes = std::mem::take(&mut self.changes);
        sys::spawn(stack, || {
            // CMD notes its id itself, first of all. If the guard is stopped here, dlock knows which process to look for.
            self.setup.limits.set_cmd(own_pid());
            become_cmd(&self.setup, changes)
        })
    }

    fn start_watcher(&self, bond: &Bond) -> io::Result<i32> {
        match sys::fork()? {
            Fork::Parent(pid) => Ok(pid),
            Fork::Child => {
                self.setup.limits.set_cmd(own_pid());
                // As CMD, it must be in the terminal's group to read from it.
                let _ = join_group(&self.setup);
                bond.watch()
            }
        }
    }

    /// For the script that exec hands to /bin/sh the C library builds another argv on the stack.
    fn new_stack(&self) -> Stack {
        Stack::new((self.setup.argv.len() + 8) * size_of::<usize>())
    }

    /// The lock is waited for. What can be done before it comes will not have to be done then.
    fn make_ready(&mut self) {
        let mut stack = self.new_stack();
        stack.touch();
        self.stack = Some(stack);
    }

    /// Closes what was inherited for CMD: a reader of CMD's output must see its end when CMD ends, not when we do.
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
            // The watcher was killed, and what it watched lives on.
            let deadline = Moment::now().after(self.setup.grace).min(self.bound());
            return self.stop(StopReason::GuardGone, deadline);
        }
        // A process hands its children to the nearest subreaper before it can be reaped itself. So as long as any
        // descendant lives there is a child here, and that there is none is the end of all, exactly.
        let leaves = || self.setup.leftovers == Leftovers::Leave && !self.setup.tree.has_guard();
        if self.no_child || leaves() {
            self.end(None);
        } else if before.is_none() {
            self.tell(&Event::CommandEnded { status });
        }
    }

    /// What has become of the children.
    fn take(&mut self, sweep: &Sweep) {
        self.no_child |= sweep.no_child;
        for &(pid, raw) in &sweep.changed {
            // Once CMD has been reaped, its id may be that of another process of the job.
            let cmd = self.cmd.as_mut().filter(|cmd| cmd.pid == pid && cmd.status.is_none());
            let Some(cmd) = cmd else { continue };
            if let Some(status) = Ended::of(raw) {
                cmd.status = Some(status);
            } else {
                self.pause(raw);
            }
        }
    }

    /// How CMD ended, if it has.
    fn status(&self) -> Option<Ended> {
        self.cmd.as_ref().and_then(|cmd| cmd.status)
    }

    /// CMD was stopped or continued.
    fn pause(&mut self, raw: i32) {
        let Some(cmd) = &mut self.cmd else { return };
        let stopped = raw & 0xff == 0x7f;
        let event = if stopped { Event::Stopped { signal: raw >> 8 & 0xff } } else { Event::Continued };
        let woken = cmd.was_stopped && !stopped;
        cmd.was_stopped = stopped;
        // These two may repeat without end while a stopped dlock does not listen.
        if self.unsent.is_empty() {
            self.tell(&event);
        }
        let caller_lives =
            rustix::process::getppid().is_some_and(|parent| parent.as_raw_pid() == self.setup.caller);
        if woken && self.setup.group == Group::Caller && caller_lives {
            // dlock stopped itself along with CMD. Where somebody continues CMD alone, dlock must go on renewing.
            let _ = sys::kill(self.setup.caller, libc::SIGCONT);
        }
    }

    fn end(&mut self, reason: Option<StopReason>) {
        self.state = JobState::Ended { reason };
        self.tell(&Event::Ended { status: self.status(), reason });
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
        // CMD has not been reaped, so neither its id nor that of a group it leads can be another's.
        if self.setup.group == Group::Caller || sys::kill(-cmd.pid, signal).is_err() {
            // A process that has become another user's is not ours to signal; its sender could not have done it either.
            let _ = sys::kill(cmd.pid, signal);
        }
    }

    fn lost(&mut self, deadline: Moment) {
        if !self.heeds_limits() {
            return;
        }
        let deadline = deadline.min(self.bound());
        match &mut self.state {
            JobState::Running { .. } => self.stop(StopReason::Lost, deadline),
            JobState::Stopping(stop) => stop.hasten(StopReason::Lost, deadline),
            JobState::Idle | JobState::Ended { .. } => {}
        }
    }

    fn asked(&mut self) {
        if let JobState::Running { .. } = self.state {
            self.stop(StopReason::Asked, Moment::now().after(self.setup.grace));
        }
    }

    fn heeds_limits(&self) -> bool {
        self.setup.on_lost == OnLost::Stop
    }

    /// When TERM is due by the limits: earlier than they say where killing this job takes long. Before it could be any
    /// earlier that is not known, and then the moment to find out is answered.
    fn term_due(&mut self, limits: Limits, now: Moment) -> Option<Moment> {
        if !self.heeds_limits() {
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

    /// The latest moment for a kill by the limits.
    fn bound(&self) -> Moment {
        if self.heeds_limits() { self.setup.limits.get().kill_at } else { Moment::from_boot(Duration::MAX) }
    }

    fn stop(&mut self, reason: StopReason, deadline: Moment) {
        self.setup.limits.set_stopping();
        let (stop, refused) = Stop::begin(&mut self.setup.tree, reason, deadline);
        self.state = JobState::Stopping(stop);
        self.tell(&Event::Stopping { reason });
        self.note(refused);
    }

    fn note(&mut self, refused: Vec<Process>) {
        for process in refused {
            self.tell(&Event::Refused(process.clone()));
            self.refused.push(process);
        }
    }

    /// Looks at the clock and at what has become of dlock, and does what is due.
    fn judge(&mut self) {
        let now = Moment::now();
        let limits = self.setup.limits.get();
        let ran_out = self.term_due(limits, now).is_some_and(|at| at <= now);
        let grace_ends = now.after(self.setup.grace);
        match &mut self.state {
            JobState::Running { .. } if ran_out => self.stop(StopReason::LeaseRanOut, limits.kill_at),
            JobState::Running { .. } if self.is_orphaned => {
                let is_on_input = self.setup.bond.as_ref().is_some_and(|bond| bond.process.is_none());
                // The program at the other end of stdin cannot be stopped. It has the rest of the lease to end.
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
        // As long as any descendant lives there is a child here.
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

    /// Whether, with dlock gone, nothing is left to do; then the rest has been done too.
    fn is_through(&mut self) -> bool {
        let reason = match self.state {
            JobState::Idle => None,
            JobState::Ended { reason } => reason,
            JobState::Running { .. } | JobState::Stopping(_) => return false,
        };
        let started = !matches!(self.state, JobState::Idle);
        if !started {
            // CMD will not need them any more.
            self.close_the_rest();
        }
        if reason.is_none() || self.told_to_finish {
            // There is nothing to tell, and whoever reads dlock's messages need not wait for us.
            let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            let _ = null.and_then(rustix::stdio::dup2_stderr);
        }
        let status = self.status();
        (self.on_orphaned)(Orphaned::Over { started, status, reason });
        true
    }

    /// Says something to dlock; keeps it for later if dlock does not listen now.
    fn tell(&mut self, event: &Event) {
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
                // Sent; or dlock is gone, which the next read will show.
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
        // A moment that has passed must be set again, for setting it makes the timer unreadable first.
        if at != self.armed || at.is_some_and(Moment::passed) {
            self.timer.set(at)?;
            self.armed = at;
        }
        Ok(())
    }
}

impl StopReason {
    /// Whether the lock is still held, so that what is worse may come in between.
    fn is_unhurried(self) -> bool {
        matches!(self, Self::MaxRun | Self::Asked)
    }
}

struct Ready {
    /// Nothing came for a while.
    nothing: bool,
    children: bool,
    link: bool,
    closed: bool,
}

/// Joins the process group that the job belongs in.
fn join_group(setup: &Setup) -> rustix::io::Result<()> {
    match (setup.group, setup.caller_group) {
        (Group::Caller, None) => Ok(()),
        (Group::Caller, group) => rustix::process::setpgid(None, group),
        (Group::Own, _) => rustix::process::setpgid(None, None),
    }
}

/// Becomes CMD, as dlock's caller would have started it. Returns only if that failed.
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
