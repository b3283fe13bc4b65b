//! Starts CMD, as dlock's caller would have started it, or the watcher of a bond in its place.

use super::{Cmd, GuardProcess, JobState, Setup};
use crate::clock::Moment;
use crate::supervise::bond::Bond;
use crate::supervise::pin::Pin;
use crate::supervise::procfs::own_pid;
use crate::supervise::protocol::Change;
use crate::supervise::tty::Modes;
use crate::supervise::{Event, Group, Leftovers, NotStarted, Orphaned};
use crate::sys::{self, Disposition, Fork};
use rustix::fs::fstat;
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

impl<F: FnMut(Orphaned)> GuardProcess<F> {
    pub fn start(&mut self) -> io::Result<()> {
        if self.cmd.is_some() {
            return Ok(());
        }
        let since = Moment::now();
        if self.setup.is_too_late() {
            self.send_event(&Event::NotStarted(NotStarted::TooLate));
            return Ok(());
        }
        if self.setup.plan.bond.is_some() && self.setup.plan.leftovers == Leftovers::Await {
            // A caller that knows of the grant may rely on this look.
            self.setup.tree.follow_foreign();
        }
        self.modes = Modes::save(self.setup.caller_group);
        let (pid, failed) = match &self.setup.plan.bond {
            Some(bond) => self.start_watcher(bond)?,
            None => self.start_cmd()?,
        };
        if let Some(why) = failed {
            sys::wait_for(pid);
            self.setup.limits.set_cmd(0);
            self.send_event(&Event::NotStarted(why));
            return Ok(());
        }
        if let Some(file) = self.setup.plan.bond.as_ref().and_then(|bond| bond.stderr.as_ref()) {
            rustix::stdio::dup2_stderr(file)?;
        }
        self.cmd = Some(Cmd { pid, status: None, was_stopped: false });
        self.state = JobState::Running { since };
        self.no_child = false;
        self.close_the_rest();
        Ok(())
    }

    /// Returns CMD's id, and why it was not executed.
    fn start_cmd(&mut self) -> io::Result<(i32, Option<NotStarted>)> {
        let changes = std::mem::take(&mut self.changes);
        sys::spawn(&self.setup.argv, || become_cmd(&self.setup, changes))
    }

    /// Returns the watcher's id, and why it does not watch.
    fn start_watcher(&self, bond: &Bond) -> io::Result<(i32, Option<NotStarted>)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        match sys::fork()? {
            Fork::Parent(pid) => {
                drop(writer);
                // Returns when the watcher has looked at the limits.
                let _ = retry_on_intr(|| rustix::io::read(&reader, &mut [0u8]));
                let watches = self.setup.limits.cmd() == Some(pid);
                Ok((pid, (!watches).then_some(NotStarted::TooLate)))
            }
            Fork::Child => {
                drop(reader);
                // As before exec: the hold must not be reported as granted once TERM is due.
                if self.setup.is_too_late() {
                    sys::exit_now(0);
                }
                self.setup.limits.set_cmd(own_pid());
                drop(writer);
                // Like CMD, it must be in the terminal's group to read from it.
                let _ = join_group(&self.setup);
                bond.watch()
            }
        }
    }

    /// Closes the descriptors that were inherited for CMD: a reader of CMD's output must see its
    /// end when CMD ends, not when the guard does.
    pub fn close_the_rest(&mut self) {
        let mut keep =
            vec![2, self.setup.link.as_raw_fd(), self.children.as_raw_fd(), self.timer.as_fd().as_raw_fd()];
        keep.extend(&self.setup.plan.keep);
        keep.extend(self.setup.plan.bond.as_ref().and_then(|bond| bond.process.as_ref()).map(Pin::raw_fd));
        // SAFETY: the guard uses no other descriptor, and drops nothing: see `run`.
        #[expect(unsafe_code, reason = "only the guard knows which descriptors it uses")]
        unsafe {
            sys::close_all_but(&mut keep);
        }
    }
}

fn join_group(setup: &Setup) -> rustix::io::Result<()> {
    match (setup.plan.group, setup.caller_group) {
        (Group::Caller, None) => Ok(()),
        (Group::Caller, group) => rustix::process::setpgid(None, group),
        (Group::Own, _) => rustix::process::setpgid(None, None),
    }
}

/// The variables by which systemd names the process that it has started, if they name dlock: with
/// the id of this process, which becomes CMD. A program takes the sockets of its unit only if it is
/// the one that they name.
fn named_by_systemd(caller: i32) -> Vec<Change> {
    let caller = caller.to_string();
    let names = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"].into_iter();
    let own = own_pid().to_string().into_bytes();
    let ours = names.filter(|name| std::env::var(name).is_ok_and(|pid| pid == caller));
    let mut changes: Vec<Change> = ours.map(|name| (name.into(), Some(own.clone()))).collect();
    // The number of the same process's pidfd, which only some kernels tell.
    if changes.iter().any(|(name, _)| name == b"LISTEN_PID") {
        let pin = pidfd_open(getpid(), PidfdFlags::empty()).and_then(fstat);
        let number = pin.ok().map(|pin| pin.st_ino.to_string().into_bytes());
        changes.extend(std::env::var_os("LISTEN_PIDFDID").map(|_| (b"LISTEN_PIDFDID".into(), number)));
    }
    changes
}

/// Executes CMD as dlock's caller would have started it. Returns only on failure.
fn become_cmd(setup: &Setup, changes: Vec<Change>) -> NotStarted {
    let failed = |error: io::Error| NotStarted::Errno(error.raw_os_error().unwrap_or(libc::EINVAL));
    if let Err(error) = join_group(setup) {
        return failed(error.into());
    }
    let changes = [changes, named_by_systemd(setup.caller)].concat();
    let without: Vec<Vec<u8>> = changes.iter().map(|(name, _)| name.clone()).collect();
    let with = changes.into_iter().filter_map(|(name, value)| Some(CString::new([name, value?].join(&b'='))));
    let with: Vec<CString> = match with.collect() {
        Ok(with) => with,
        Err(error) => return failed(error.into()),
    };
    for signal in sys::OF_WRITES.into_iter().filter(|signal| !sys::was_ignored(*signal)) {
        sys::dispose(signal, Disposition::Default);
    }
    if setup.child_ignored {
        sys::dispose(libc::SIGCHLD, Disposition::Ignore);
    }
    sys::set_mask(setup.mask);
    // The guard may have been stopped since its own look, and dlock with it.
    if setup.is_too_late() {
        return NotStarted::TooLate;
    }
    // CMD records its id itself: if the guard is stopped here, dlock still knows which process to
    // look for.
    setup.limits.set_cmd(own_pid());
    failed(sys::exec(&setup.argv, &without, &with))
}
