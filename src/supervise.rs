//! How does CMD run under dlock, and how is all of it stopped in time? By a guard: a process between dlock and CMD that
//! knows until when the job may run, and stops it then, whatever has become of dlock. Here are deadlines, terminals and
//! processes; of locks and stores nothing is known.
//!
//! ```text
//! dlock (child subreaper) ── guard (child subreaper, own group) ── CMD ── …
//! ```
//!
//! - dlock says start, relays signals and keeps moving the limits; the guard alone sends TERM and KILL.
//! - dlock killed: the guard sees its socket close, stops the job and calls what it was given for that case.
//! - dlock stopped or hung: the limits stay where they are, and the guard acts by them.
//! - The guard killed: dlock adopts the job, being a subreaper too, and stops it.
//! - The guard stopped or hung: when the kill is overdue, dlock kills the guard, adopts the job and stops it. When the job
//!   has ended meanwhile, dlock finds out by itself.
//! - Both killed at the same moment: the job lives on, and nothing of ours is left to stop it.

mod adopt;
mod apart;
mod bond;
mod cgroup;
mod foreign;
mod gathering;
mod guard;
mod limits;
mod process_tree;
mod procfs;
mod protocol;
mod signals;
mod stop;
mod strangers;
mod strike;
mod tty;

pub use apart::{apart, detach, leave_caller};
pub use bond::{Bond, NoPin, OVER, Pin, Words, is_stdin_alive, is_stdin_hung_up, leave_standard_streams};
pub use limits::{Limits, LimitsSender};
pub use signals::{Alarm, ENDING, Inherited, Received, Sender, is_guard, next_signal, prepare};
pub use tty::{Group, group};

pub use crate::sys::{die_of, stop_by};

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
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// The name of a guard's process.
const GUARD_NAME: &CStr = c"dlock-guard";
/// How long after the kill was due the guard may have given no sign of it before dlock takes it for hung.
const OVERDUE: Duration = Duration::from_millis(5);
/// How long a guard that has begun to kill may show no progress (it counts every process it signals), and how long one
/// whose job has ended may keep that to itself.
const STALLED: Duration = Duration::from_millis(250);

/// What to do when CMD has ended by itself and other processes of the job live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// Leave them alone; the job is over.
    Leave,
    /// Wait for the last of them; until then they are the job, and stopped like it.
    Await,
}

/// Whom a signal that is relayed has reached already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reached {
    /// Nobody.
    Nobody,
    /// Every process in the caller's group: the terminal sent it.
    CallerGroup,
}

/// What is to run, and how it is to be stopped.
#[derive(Debug)]
pub struct Plan {
    /// The command; the first is looked for in PATH.
    pub argv: Vec<OsString>,
    /// What the job is in place of a command.
    pub bond: Option<Bond>,
    /// The process group it runs in.
    pub group: Group,
    /// Between TERM and KILL when the job is stopped for another reason than its limits.
    pub grace: Duration,
    /// How long it may run.
    pub max_run: Option<Duration>,
    /// What to do when the limits pass.
    pub on_lost: OnLost,
    /// By how much the limits may be anticipated, at most, for a job that takes long to kill.
    pub spare: Duration,
    /// What to do with what CMD leaves behind.
    pub leftovers: Leftovers,
    /// Descriptors that the guard keeps open, besides 2. All others it closes once CMD has been started.
    pub keep: Vec<RawFd>,
}

/// Why the job was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// Its limits passed; also when dlock had to step in for a hung guard because of that.
    LeaseRanOut,
    /// [`Guard::lost`] said so.
    Lost,
    /// [`Guard::stop`] said so.
    Asked,
    /// It ran for as long as it may.
    MaxRun,
    /// dlock is gone.
    CallerGone,
    /// The guard is gone.
    GuardGone,
}

/// A process that could not be signalled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its name as the kernel has it, of up to 15 bytes; may contain control characters.
    pub name: String,
}

/// Why CMD was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotStarted {
    /// It cannot be executed; the system's number for the reason (ENOENT: there is no such command).
    Errno(i32),
    /// The limits had passed when the guard came to it.
    TooLate,
}

/// What dlock hears of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// CMD could not be started. Nothing follows.
    NotStarted(NotStarted),
    /// CMD was stopped by this signal; the rest of the job may run.
    Stopped {
        /// The signal.
        signal: i32,
    },
    /// CMD was continued.
    Continued,
    /// CMD has ended by itself, and what it left behind is waited for. `Ended` follows.
    CommandEnded {
        /// How it ended.
        status: Ended,
    },
    /// The whole job has been sent TERM.
    Stopping {
        /// Why.
        reason: StopReason,
    },
    /// A process of the job may not be signalled. Until it has ended by itself the job does not count as ended. Said
    /// once for each.
    Refused(Process),
    /// All is over. If the job was stopped, nothing of it is left; if CMD ended by itself, what it left behind runs on
    /// and will not be touched, or has ended, too ([`Leftovers::Await`]). Nothing follows but perhaps `Died`.
    Ended {
        /// How CMD ended; `None` if that cannot be known, because the guard died too early.
        status: Option<Ended>,
        /// Why the job was stopped; `None` if it ended by itself.
        reason: Option<StopReason>,
    },
    /// The guard is gone. Unless the job has ended, dlock stops it now, while [`Guard::next_event`] is called, and `Ended`
    /// follows.
    Died,
}

/// What the guard tells when dlock is gone, from the guard's own process.
#[derive(Debug)]
pub enum Orphaned {
    /// This process may not be signalled, and nothing else of the job is left: the guard waits for it to end.
    Refused(Process),
    /// Nothing is left to watch; the guard ends after this.
    Over {
        /// Whether CMD had been started.
        started: bool,
        /// How CMD ended, if it was started and that is known.
        status: Option<Ended>,
        /// Why the job was stopped, if it was.
        reason: Option<StopReason>,
    },
}

/// The guard, as dlock sees it. Dropping it is like dying: the guard stops the job.
#[derive(Debug)]
pub struct Guard {
    pid: i32,
    /// Its id may be another's now.
    reaped: bool,
    link: OwnedFd,
    limits: LimitsSender,
    /// Set from the start of CMD on, and when adopting.
    timer: Timer,
    armed: Moment,
    beats: u64,
    grace: Duration,
    on_lost: OnLost,
    leftovers: Leftovers,
    /// Children of dlock that are not of the job.
    apart: Vec<i32>,
    /// The job had ended when the guard was last looked after.
    late: bool,
    /// The foreign process that is the job.
    target: Option<Pin>,
    /// What [`Guard::lost`] said.
    kill_by: Option<Moment>,
    /// What [`Event::CommandEnded`] said.
    status: Option<Ended>,
    /// What [`Event::Stopping`] said.
    stopping: Option<StopReason>,
    watch: WatchedBy,
}

/// Who watches the job.
#[derive(Debug)]
enum WatchedBy {
    Guard,
    /// dlock itself, the guard being gone.
    Adopted(Box<Adopted>),
    /// Nobody need.
    Over,
    /// Nobody need, and the guard's end has been told.
    Gone,
}

impl Guard {
    /// Makes the guard. This process must have one thread. `alone` is called in the guard once dlock is gone (killed, or
    /// after [`Guard::finish`]), with everything as it was at the fork; it may block. Descriptors that it uses must be in
    /// `keep`. In dlock it is dropped before this returns. Until `Orphaned::Over` it should print only to what cannot block:
    /// the guard would hang on a pipe that nobody reads.
    pub fn fork(plan: Plan, inherited: &Inherited, on_orphaned: impl FnMut(Orphaned)) -> io::Result<Self> {
        let argv = plan.argv.into_iter().map(|arg| CString::new(arg.into_vec())).collect::<Result<_, _>>()?;
        let limits = LimitsSender::new()?;
        let (link, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let timer = Timer::new()?;
        let target = plan.bond.as_ref().and_then(|bond| bond.process.clone());
        let apart = if sys::has_children() { procfs::own_children() } else { Vec::new() };
        let caller = rustix::process::getpid().as_raw_pid();
        let caller_group = Pid::from_raw(sys::own_group());
        match sys::fork()? {
            Fork::Child => {
                drop(link);
                let foreign = target.map(|target| Foreign::new(target, [caller, procfs::own_pid()]));
                guard::run(
                    guard::Setup {
                        argv,
                        bond: plan.bond,
                        group: plan.group,
                        caller_group,
                        caller,
                        grace: plan.grace,
                        max_run: plan.max_run,
                        on_lost: plan.on_lost,
                        spare: plan.spare,
                        leftovers: plan.leftovers,
                        tree: ProcessTree::new(vec![caller], foreign, limits),
                        keep: plan.keep,
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
                timer,
                armed: Moment::from_boot(Duration::MAX),
                beats: 0,
                grace: plan.grace,
                on_lost: plan.on_lost,
                leftovers: plan.leftovers,
                apart,
                late: false,
                target,
                kill_by: None,
                status: None,
                stopping: None,
                watch: WatchedBy::Guard,
            }),
        }
    }

    /// The guard's process id. A CONT that this process sends is its own business, and not to be relayed.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// CMD's process id, once it has been started. No event tells of the start: that would wake dlock at the very moment
    /// that CMD needs the processor.
    pub fn cmd(&self) -> Option<i32> {
        self.limits.cmd()
    }

    /// Whether CMD is stopped now. The event that says so may be heard long after, by a dlock that was stopped too.
    pub fn is_cmd_stopped(&self) -> bool {
        self.cmd().is_some_and(procfs::is_stopped)
    }

    /// When one of these is readable, [`Guard::next_event`] is to be called, once. They may change with each call of it.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        let timer = self.timer.as_fd();
        match self.watch {
            WatchedBy::Guard | WatchedBy::Over => [self.link.as_fd(), timer],
            WatchedBy::Adopted(_) | WatchedBy::Gone => [timer, timer],
        }
    }

    /// Where new limits go.
    pub fn limits(&self) -> LimitsSender {
        self.limits
    }

    /// Has CMD started, with these variables set or unset, to run within these limits.
    pub fn start(&mut self, env: &[(OsString, Option<OsString>)], limits: Limits) -> io::Result<()> {
        self.limits.set(limits);
        // Before CMD is let go: what can fail must fail while nothing runs.
        // A kill that is due already is no sign of a hung guard: it will not start CMD.
        if self.on_lost == OnLost::Stop {
            self.arm(limits.kill_at.after(OVERDUE).max(Moment::now().after(STALLED)))?;
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

    /// The right to run is gone: the job is asked to end now and killed at `kill_by`, or when its limits pass if that is
    /// earlier. Without effect where the loss is only to be warned of.
    pub fn lost(&mut self, kill_by: Moment) -> io::Result<()> {
        // A guard that has no ear for it is gone or hung, and dealt with as that.
        let _ = self.send(&Order::Lost(kill_by));
        if self.on_lost == OnLost::Stop && matches!(self.watch, WatchedBy::Guard) {
            self.kill_by = Some(kill_by);
            self.arm(self.bound().after(OVERDUE))?;
        }
        Ok(())
    }

    /// Somebody asked for the job to end: it gets its grace, whatever was said about losses.
    pub fn stop(&mut self) {
        // As above; and when the limits pass, a guard that is hung is dealt with.
        let _ = self.send(&Order::Stop);
    }

    /// Passes a signal on to CMD, to its group if dlock made that; never to a process that has CMD's id after it. Once CMD
    /// has ended: to every process that is waited for and not yet `reached`.
    pub fn relay(&mut self, signal: i32, reached: Reached) {
        // A guard that does not listen is dealt with elsewhere, and a signal need not wait for it.
        let _ = self.send(&Order::Relay(signal, reached));
    }

    /// The processes of the job at the moment, as /proc shows them.
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
                // Only the parts of a huge environment can fill the socket of a guard that listens.
                Err(Errno::AGAIN) if matches!(order, Order::Environment(_) | Order::Start(_)) => {
                    if !wait_on(&self.link, PollFlags::OUT, Duration::from_secs(1))? {
                        return Err(Errno::AGAIN.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What has happened; `None` if nothing of note. Does not wait.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        match self.watch {
            WatchedBy::Adopted(_) => return self.step(),
            WatchedBy::Gone => return Ok(None),
            WatchedBy::Guard | WatchedBy::Over => {}
        }
        let mut datagram = [0u8; 256];
        let length = loop {
            match rustix::net::recv(&self.link, &mut datagram, RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                // ECONNRESET is said once, before what the guard sent: it ended with words of ours unread.
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

    /// Ends the guard when all is done: the job has ended, and what had to be given back has been.
    pub fn done(self) {
        if !self.reaped {
            // The guard has nothing left to lose: this ends also one that is stopped, without waiting for it to wake and
            // read a goodbye. It has not been reaped, so the id is its own. Reaped it must be: the init of a container
            // may never do it.
            let _ = sys::kill(self.pid, libc::SIGKILL);
            sys::wait_for(self.pid);
        }
    }

    /// Leaves the rest to the guard: it stops the job, if there is one, and calls `alone`. Waits so long for it; says
    /// whether it is through. If not it will go on by itself.
    pub fn finish(self, within: Duration) -> io::Result<bool> {
        // Unsaid, it only makes the guard tell of what it does as if dlock had been killed.
        let _ = self.send(&Order::Finish);
        rustix::net::shutdown(&self.link, Shutdown::Write)?;
        let gone = wait_on(&self.link, PollFlags::empty(), within)?;
        if gone {
            sys::wait_for(self.pid);
        }
        Ok(gone)
    }
}

/// Waits until a descriptor is ready, or its other end gone; false if that took too long.
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
