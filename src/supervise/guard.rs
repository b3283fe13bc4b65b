//! The guard starts CMD when dlock orders it (`start`), sleeps until something happens (`children`)
//! or a limit passes, and stops the job when it must (`due`). Everything here runs in the guard's
//! own process, in one thread. This file has the loop, and the messages from and to dlock.

use super::limits::LimitsSender;
use super::process_tree::ProcessTree;
use super::protocol::{self, Change, Order};
use super::stop::Stop;
use super::tty::Modes;
use super::{Ended, Event, GUARD_NAME, Group, NotStarted, Orphaned, Plan, Process, StopReason};
use crate::clock::{Moment, Timer};
use crate::exit::OnLost;
use crate::sys::{self, SignalSet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::time::Duration;

mod children;
mod due;
mod start;

/// What dlock hands to the guard at the fork.
pub(super) struct Setup {
    pub plan: Plan,
    /// The command of the plan.
    pub argv: Vec<CString>,
    /// `None` if it has no id here: its leader is outside this PID namespace.
    pub caller_group: Option<Pid>,
    pub caller: i32,
    /// Read by the caller.
    pub forked_at: Moment,
    pub tree: ProcessTree,
    pub mask: SignalSet,
    pub child_ignored: bool,
    pub link: OwnedFd,
    pub limits: LimitsSender,
}

impl Setup {
    /// Whether TERM is due, so that CMD must not start any more.
    fn is_too_late(&self) -> bool {
        self.plan.on_lost == OnLost::Stop && self.limits.get().term_at.passed()
    }
}

/// Runs the guard in this process. Never returns.
pub(super) fn run(setup: Setup, on_orphaned: impl FnMut(Orphaned)) -> ! {
    // A panic must end the guard: if it unwound further, this process would go on as a second
    // dlock. dlock sees the end and stops the job.
    // It is not dropped: descriptors were closed by number, and would be closed a second time.
    let watch = || GuardProcess::new(setup, on_orphaned).and_then(|guard| ManuallyDrop::new(guard).run());
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(watch));
    sys::exit_now(if matches!(done, Ok(Ok(()))) { 0 } else { 70 })
}

struct GuardProcess<F> {
    setup: Setup,
    on_orphaned: F,
    children: OwnedFd,
    timer: Timer,
    armed: Option<Moment>,
    buffer: Vec<u8>,
    changes: Vec<Change>,
    cmd: Option<Cmd>,
    /// The modes of the terminal when CMD was started.
    modes: Option<Modes>,
    state: JobState,
    /// When to look for what the process of a hold with `--tree` has started.
    follow_at: Moment,
    /// When to look at all of it, and not only at the process's own children.
    follow_all_at: Moment,
    /// The pause before that look.
    follow_pause: Duration,
    /// dlock is gone, or has left the rest to the guard.
    is_orphaned: bool,
    /// dlock sent `Order::Finish`: it has printed all messages itself.
    may_finish_quietly: bool,
    /// No child is left, as far as is known.
    no_child: bool,
    /// The limit for which the cost of killing the job was last measured, and that cost.
    measured: Option<(Moment, Duration)>,
    unsent: VecDeque<Vec<u8>>,
    /// Processes that may not be signalled. The guard prints them when dlock is gone and nothing
    /// else is left.
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

impl<F: FnMut(Orphaned)> GuardProcess<F> {
    fn new(setup: Setup, on_orphaned: F) -> io::Result<Self> {
        // On older kernels, if a process calls unshare(2) and then executes dlock, the guard is in
        // another time namespace than dlock. With a clock that is behind dlock's, the guard would
        // stop the job too late.
        if Moment::now() < setup.forked_at {
            return Err(io::Error::other("the guard's clock is behind that of dlock"));
        }
        // Blocked, not ignored: an ignored signal stays ignored across exec, so CMD would inherit
        // it. Blocking also keeps the terminal from stopping a background process that writes to
        // it.
        sys::set_mask(SignalSet::ALL);
        // If the caller's group has no id here, CMD could not rejoin it, so the guard stays in it.
        if setup.plan.group == Group::Own || setup.caller_group.is_some() {
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
            modes: None,
            state: JobState::Idle,
            follow_at: Moment::now(),
            follow_all_at: Moment::now(),
            follow_pause: Duration::ZERO,
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
            // Orders first, then the children, so that no limit stops a job that has ended by
            // itself.
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
            if self.is_orphaned && self.finish_if_over() {
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
        loop {
            match poll(&mut fds, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let ready = |at: usize| !fds[at].revents().is_empty();
        Ok(Ready {
            children: ready(1),
            link: link && fds[2].revents().intersects(read | hangup),
            closed: link && fds[2].revents().intersects(hangup),
        })
    }

    /// Takes one order. If dlock is gone, takes all of them and starts nothing.
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
                    self.restore_terminal();
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

    fn end(&mut self, reason: Option<StopReason>) {
        self.state = JobState::Ended { reason };
        self.send_event(&Event::Ended { status: self.status(), reason });
        if self.is_orphaned {
            self.restore_terminal();
        }
    }

    /// Restores the modes of the terminal once, when dlock is gone: as soon as the foreground is not
    /// the job's own. dlock's caller goes on while the job is stopped, and may set modes of its own
    /// (no echo, for a password).
    fn restore_terminal(&mut self) {
        let stops = matches!(
            self.state,
            JobState::Running { .. } | JobState::Stopping(_) | JobState::Ended { reason: Some(_) }
        );
        self.modes = self.modes.take().filter(|modes| stops && !modes.restore());
    }

    /// Whether nothing is left to do after dlock is gone. If so, calls `on_orphaned` for the last
    /// time.
    fn finish_if_over(&mut self) -> bool {
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
}

struct Ready {
    children: bool,
    link: bool,
    closed: bool,
}
