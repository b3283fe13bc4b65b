//! Runs CMD under dlock, and stops the whole job in time. The guard, a process between dlock and
//! CMD, knows until when the job may run, and stops it then, whatever has happened to dlock. This
//! module handles deadlines, terminals and processes, and knows nothing of locks and stores.
//!
//! ```text
//! dlock (child subreaper) ── guard (child subreaper, own group) ── CMD ── …
//! ```
//!
//! - dlock orders the start, relays signals and moves the limits on; only the guard sends TERM and
//!   KILL.
//! - If dlock is killed, the guard sees its socket close, stops the job and calls `on_orphaned`.
//! - If dlock is stopped or hangs, the limits stay where they are, and the guard acts on them.
//! - If the guard is killed, dlock (a subreaper too) adopts the job and stops it.
//! - If the guard is stopped or hangs, and the KILL is overdue, dlock kills the guard, adopts the
//!   job and stops it. If the job has ended, dlock finds that out by itself.
//! - If the guard was stopped just before it started CMD, and TERM is due, CMD does not start.
//! - If both are killed at the same moment, the job runs on, and nothing of dlock is left to stop
//!   it.

mod adopt;
mod bond;
mod cgroup;
mod cgroup_members;
mod foreign;
mod foreign_children;
mod guard;
mod limits;
mod pidfd;
mod pin;
mod process_tree;
mod procfs;
mod protocol;
mod separate;
mod signals;
mod stop;
mod tty;

pub use bond::{Bond, NOT_PRINTED, Words, is_stdin_alive, is_stdin_hung_up, leave_standard_streams};
pub use limits::{Limits, LimitsSender};
pub use pin::{NoPin, OVER, Pin};
pub use separate::{detach, in_separate_process, outlive_caller};
pub use signals::{ENDING, Inherited, Interrupt, Received, Sender, is_guard, next_signal, prepare};
pub use tty::{Group, group};

pub use crate::sys::{die_of, stop_by};

/// Whether this process descends from another one.
pub fn is_ancestor(pid: i32) -> bool {
    procfs::is_below(procfs::own_pid(), pid)
}

use crate::clock::{Moment, Timer};
use crate::exit::{Ended, OnLost};
use crate::sys::{self, Fork};
use adopt::Adopted;
use foreign::Foreign;
use process_tree::ProcessTree;
use protocol::Order;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The process name of a guard.
const GUARD_NAME: &CStr = c"dlock-guard";
/// If the guard has shown no sign of killing this long after the KILL was due, dlock treats it as
/// hung.
const OVERDUE: Duration = Duration::from_millis(5);
/// Longest time without progress for a guard that is killing (it counts each process that it
/// signals), if [`adopt::patience`] is not shorter; and longest delay before a stopped guard
/// reports that its job has ended.
const STALLED: Duration = Duration::from_millis(250);

/// What to do when CMD has ended by itself and other processes of the job are still alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// Leave them alone; the job is over.
    Leave,
    /// Wait for the last of them. Until then they are the job, and are stopped like it.
    Await,
}

/// Which processes have already received a signal that dlock relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reached {
    /// No process.
    Nobody,
    /// Every process in the caller's group: the terminal sent the signal.
    CallerGroup,
}

/// What is to run, and how it is to be stopped.
#[derive(Debug)]
pub struct Plan {
    /// The command. The first element is looked up in PATH.
    pub argv: Vec<OsString>,
    /// The job of a `dlock hold`, in place of a command.
    pub bond: Option<Bond>,
    /// The process group that CMD runs in.
    pub group: Group,
    /// Time between TERM and KILL when the job is stopped for another reason than its limits.
    pub grace: Duration,
    /// Longest time that CMD may run.
    pub max_run: Option<Duration>,
    /// What to do when the limits pass.
    pub on_lost: OnLost,
    /// If the job takes long to kill, TERM may come before its limit, but no earlier than this long
    /// before the KILL.
    pub spare: Duration,
    /// Time from the KILL by the limits until the job must be dead.
    pub margin: Duration,
    /// What to do with the processes that CMD leaves behind.
    pub leftovers: Leftovers,
    /// Descriptors that the guard keeps open besides 2 and its own. It closes all others once CMD
    /// has started.
    pub keep: Vec<RawFd>,
}

/// Why the job was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// Its limits passed. Also used when dlock takes over from a guard that hung past them.
    LeaseRanOut,
    /// [`Guard::lost`] was called.
    Lost,
    /// [`Guard::stop`] was called.
    Asked,
    /// It reached `max_run`.
    MaxRun,
    /// dlock is gone.
    CallerGone,
    /// The guard is gone.
    GuardGone,
    /// The watcher of a hold was killed, or has failed.
    WatcherGone,
}

/// A process that could not be signalled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Its name from the kernel, up to 15 bytes; may contain control characters.
    pub name: String,
}

/// Why CMD was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotStarted {
    /// CMD cannot be executed: the errno (ENOENT: there is no such command).
    Errno(i32),
    /// TERM was due before the guard could start CMD.
    TooLate,
}

/// What the guard reports to dlock about the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// CMD could not be started. The last event.
    NotStarted(NotStarted),
    /// CMD was stopped by this signal. The rest of the job may still run.
    Suspended { signal: i32 },
    /// CMD was continued.
    Continued,
    /// CMD has ended by itself, and the guard waits for what it left behind. `Ended` follows.
    CommandEnded {
        /// How CMD ended.
        status: Ended,
    },
    /// The process of a hold has ended, and the guard waits for these processes, which it left
    /// behind, and for so many more.
    Left { rest: Vec<Process>, more: usize },
    /// The guard has begun to stop the job. The job has got TERM, unless the KILL was due already.
    Stopping { reason: StopReason },
    /// dlock may not signal this process of the job. The job counts as ended only after the process
    /// has ended by itself. Reported once for each process.
    Refused(Process),
    /// The job is over. If it was stopped, none of its processes is left. If CMD ended by itself,
    /// what it left behind runs on and is not signalled, or has ended, too ([`Leftovers::Await`]).
    /// Only `Died` may follow.
    Ended {
        /// How CMD ended; `None` if that is unknown because the guard died too early.
        status: Option<Ended>,
        /// Why the job was stopped; `None` if it ended by itself.
        reason: Option<StopReason>,
    },
    /// The guard is gone. If the job has not ended, dlock stops it during the next calls of
    /// [`Guard::next_event`], and `Ended` follows.
    Died,
}

/// What the guard reports to its own callback when dlock is gone. Runs in the guard's process.
#[derive(Debug)]
pub enum Orphaned {
    /// The guard may not signal this process, nothing else of the job is left, and the guard waits
    /// for it to end.
    Refused(Process),
    /// Nothing is left to watch. The guard ends after this.
    Over {
        /// Whether CMD had been started.
        started: bool,
        /// How CMD ended, if it was started and that is known.
        status: Option<Ended>,
        /// Why the job was stopped, if it was.
        reason: Option<StopReason>,
    },
}

/// dlock's handle on the guard. If it is dropped, the guard stops the job, as if dlock had died.
#[derive(Debug)]
pub struct Guard {
    pid: i32,
    /// The guard has been reaped, so `pid` may belong to another process.
    reaped: bool,
    link: OwnedFd,
    limits: LimitsSender,
    /// The modes of the terminal when CMD was started.
    modes: Option<tty::Modes>,
    /// Set from the start of CMD on, and while dlock stops an adopted job.
    timer: Timer,
    armed: Moment,
    beats: u64,
    grace: Duration,
    /// Longest time without progress for a guard that is killing.
    patience: Duration,
    on_lost: OnLost,
    leftovers: Leftovers,
    /// Children of dlock that are not part of the job.
    foreign_children: Vec<i32>,
    /// The last check found the job ended and the guard stopped.
    guard_stuck: bool,
    /// The process that the lock of a `dlock hold` is for, which dlock did not start.
    target: Option<Pin>,
    /// The deadline passed to [`Guard::lost`].
    kill_by: Option<Moment>,
    /// The status from [`Event::CommandEnded`].
    status: Option<Ended>,
    /// The reason from [`Event::Stopping`].
    stopping: Option<StopReason>,
    watch: WatchedBy,
}

/// Who watches the job.
#[derive(Debug)]
enum WatchedBy {
    Guard,
    /// dlock itself; the guard is gone.
    Adopted(Box<Adopted>),
    /// The job is over.
    Over,
    /// The job is over, and the guard's end has been reported.
    Gone,
}

impl Guard {
    /// Forks the guard. This process must have one thread. The guard calls `on_orphaned` once dlock
    /// is gone (killed, or after [`Guard::leave_to_it`]), with the memory as it was at the fork. The
    /// callback may block, and the descriptors that it uses must be in `keep`. In dlock it is
    /// dropped before this returns. Before `Orphaned::Over` it should print only where printing
    /// cannot block: a full pipe without a reader would hang the guard.
    pub fn fork(plan: Plan, inherited: &Inherited, on_orphaned: impl FnMut(Orphaned)) -> io::Result<Self> {
        let argv = plan.argv.iter().map(|arg| CString::new(arg.as_bytes())).collect::<Result<_, _>>()?;
        let limits = LimitsSender::new()?;
        let (link, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let timer = Timer::new()?;
        let target = plan.bond.as_ref().and_then(|bond| bond.process.clone());
        let foreign_children = if sys::has_children() { procfs::own_children() } else { Vec::new() };
        let caller = rustix::process::getpid().as_raw_pid();
        let caller_group = Pid::from_raw(sys::own_group());
        let forked_at = Moment::now();
        match sys::fork()? {
            Fork::Child => {
                drop(link);
                let foreign = target.map(|target| Foreign::new(target, [caller, procfs::own_pid()]));
                guard::run(
                    guard::Setup {
                        plan,
                        argv,
                        caller_group,
                        caller,
                        forked_at,
                        tree: ProcessTree::new(vec![caller], foreign, limits),
                        mask: inherited.mask,
                        child_ignored: inherited.ignored_child,
                        link: far,
                        limits,
                    },
                    on_orphaned,
                )
            }
            Fork::Parent(pid) => Ok(Self {
                pid,
                reaped: false,
                link,
                limits,
                modes: None,
                timer,
                armed: Moment::from_boot(Duration::MAX),
                beats: 0,
                grace: plan.grace,
                patience: adopt::patience(plan.margin),
                on_lost: plan.on_lost,
                leftovers: plan.leftovers,
                foreign_children,
                guard_stuck: false,
                target,
                kill_by: None,
                status: None,
                stopping: None,
                watch: WatchedBy::Guard,
            }),
        }
    }

    /// The guard's process id. A CONT from the guard is meant for dlock, and must not be relayed.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether CMD is stopped now. The event that says so may be old: if dlock was stopped too, it
    /// reads the event much later.
    pub fn is_cmd_stopped(&self) -> bool {
        self.limits.cmd().is_some_and(procfs::is_stopped)
    }

    /// When one of these is readable, call [`Guard::next_event`] once. Each call may change them.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        let timer = self.timer.as_fd();
        match self.watch {
            WatchedBy::Guard | WatchedBy::Over => [self.link.as_fd(), timer],
            WatchedBy::Adopted(_) | WatchedBy::Gone => [timer, timer],
        }
    }

    /// Where to set new limits.
    pub fn limits(&self) -> LimitsSender {
        self.limits
    }

    /// Starts CMD within these limits, with these variables set or unset.
    pub fn start(&mut self, env: &[(OsString, Option<OsString>)], limits: Limits) -> io::Result<()> {
        self.limits.set(limits);
        self.modes = tty::Modes::save(Pid::from_raw(sys::own_group()));
        // Arm the timer before the start: what can fail must fail while nothing runs.
        if self.on_lost == OnLost::Stop {
            self.arm(limits.kill_at.after(OVERDUE))?;
        }
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        let mut part = Vec::new();
        let mut length = 0;
        for (name, value) in env {
            let more = 16 + name.len() + value.as_ref().map_or(0, |value| value.len() + 1);
            if length + more >= protocol::LONGEST {
                self.send(&Order::Environment(std::mem::take(&mut part)))?;
                length = 0;
            }
            length += more;
            part.push((bytes(name), value.as_ref().map(bytes)));
        }
        self.send(&Order::Start(part))
    }

    /// The lock is lost: the guard sends TERM now, and KILL at `kill_by`, or when the limits pass
    /// if that is earlier. Without effect under [`OnLost::Warn`].
    pub fn lost(&mut self, kill_by: Moment) -> io::Result<()> {
        // If the order cannot be sent, the guard is gone or hung, and the timer below handles that.
        let _ = self.send(&Order::Lost(kill_by));
        if self.on_lost == OnLost::Stop && matches!(self.watch, WatchedBy::Guard) {
            self.kill_by = Some(kill_by);
            self.arm(self.bound().after(OVERDUE))?;
        }
        Ok(())
    }

    /// Has the guard stop the job because it was asked to end. The job gets its full grace, unless
    /// its limits end it earlier.
    pub fn stop(&mut self) {
        // If the order cannot be sent, dlock acts when the limits pass.
        let _ = self.send(&Order::Stop);
    }

    /// Passes a signal on to CMD, or to its group if dlock made that; never to another process that
    /// got CMD's id later. Once CMD has ended, the signal goes to every process that the guard
    /// waits for and that `reached` does not include.
    pub fn relay(&mut self, signal: i32, reached: Reached) {
        // If the guard does not read, the signal is dropped. The limits take care of a guard that
        // hangs.
        let _ = self.send(&Order::Relay(signal, reached));
    }

    /// The processes of the job now, as /proc shows them.
    pub fn processes(&self) -> Vec<Process> {
        procfs::below(self.pid)
    }

    fn send(&self, order: &Order) -> io::Result<()> {
        let datagram = protocol::encode(order);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(&self.link, &datagram, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // Only the parts of a huge environment can fill the socket of a guard that reads.
                Err(Errno::AGAIN) if matches!(order, Order::Environment(_) | Order::Start(_)) => {
                    if !wait_on(&self.link, PollFlags::OUT, Duration::from_secs(1))? {
                        return Err(Errno::AGAIN.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next event; `None` if there is none now. Does not wait.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        let event = self.newest_event()?;
        if let (Some(Event::Ended { reason: Some(_), .. }), Some(modes)) = (&event, &self.modes) {
            modes.restore();
        }
        Ok(event)
    }

    fn newest_event(&mut self) -> io::Result<Option<Event>> {
        match self.watch {
            WatchedBy::Adopted(_) => return self.step(),
            WatchedBy::Gone => return Ok(None),
            WatchedBy::Guard | WatchedBy::Over => {}
        }
        let mut datagram = [0u8; 256];
        let length = loop {
            match rustix::net::recv(&self.link, &mut datagram, RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                // ECONNRESET comes once, before what the guard sent, if the guard ended with orders
                // of dlock unread.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return self.act_for_it(),
                Err(error) => return Err(error.into()),
            }
        };
        let event = protocol::decode(&datagram[..length]);
        match event {
            Some(Event::Ended { .. } | Event::NotStarted(_)) => self.watch = WatchedBy::Over,
            Some(Event::CommandEnded { status }) => self.status = Some(status),
            Some(Event::Stopping { reason }) => self.stopping = Some(reason),
            None => return self.adopt(StopReason::GuardGone).map(Some),
            Some(_) => {}
        }
        Ok(event)
    }

    fn arm(&mut self, at: Moment) -> io::Result<()> {
        self.armed = at;
        self.timer.set(Some(at))
    }

    /// Ends the guard when the job has ended and the lock has been given back.
    pub fn dismiss(mut self) {
        // The guard has nothing left to do. KILL also ends a stopped guard, without waiting for it
        // to wake and read an order. It must be reaped here: the init of a container may never do
        // it.
        self.end_guard();
    }

    /// Leaves the rest to the guard: it stops the job, if there is one, and calls `on_orphaned`.
    /// Waits up to `within` for it to end. Returns whether it has; if not, it goes on by itself.
    pub fn leave_to_it(self, within: Duration) -> io::Result<bool> {
        // Without this order, the guard would print messages as if dlock had been killed.
        let _ = self.send(&Order::Finish);
        rustix::net::shutdown(&self.link, Shutdown::Write)?;
        let gone = wait_on(&self.link, PollFlags::empty(), within)?;
        if gone {
            sys::wait_for(self.pid);
        }
        Ok(gone)
    }
}

/// Waits until a descriptor is ready or its other end is closed. False on timeout.
fn wait_on(fd: &OwnedFd, flags: PollFlags, within: Duration) -> io::Result<bool> {
    let until = Moment::now().after(within);
    loop {
        let left = Timespec::try_from(until.left()).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(fd, flags)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
