//! How is something done in a process of its own? What may leave threads behind, before the guard is forked: of that
//! nothing stays but what it says. And what goes on in the background when its caller has gone.

use super::bond::{Pin, leave_standard_streams, leave_stderr, null};
use crate::exit::Ended;
use crate::sys::{self, Fork, Waited};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::IntoRawFd as _;

/// What `work` says in another process. This process must have one thread. Nothing that comes back: it ended early.
pub fn apart(work: impl FnOnce() -> Vec<u8>) -> io::Result<Vec<u8>> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork()? {
        Fork::Child => {
            drop(reader);
            // A panic must end this process: unwinding further would make a second dlock of it.
            let work = || File::from(writer).write_all(&work());
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            sys::exit_now(if matches!(done, Ok(Ok(()))) { 0 } else { 70 })
        }
        Fork::Parent(pid) => {
            drop(writer);
            let mut said = Vec::new();
            let read = File::from(reader).read_to_end(&mut said);
            sys::wait_for(pid);
            read.map(|_| said)
        }
    }
}

/// A process that went to the background.
#[derive(Debug)]
pub struct Detached {
    pid: i32,
    /// What it said on stdout before it gave that up, or ended.
    pub said: Vec<u8>,
}

/// Has `work` done by a process in a session of its own, which has of its caller stderr alone, and `keep`. Returns when that
/// process has given up stdout. Until [`leave_caller`] it gets TERM when this one ends.
pub fn detach(keep: Option<&Pin>, work: impl FnOnce() -> u8) -> io::Result<Detached> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let caller = getpid();
    match sys::fork()? {
        Fork::Child => {
            let begin = || {
                set_parent_process_death_signal(Some(Signal::TERM))?;
                setsid()?;
                dup2_stdin(null()?)?;
                dup2_stdout(writer)?;
                // It is closed with the rest.
                let _ = reader.into_raw_fd();
                let mut fds = vec![0, 1, 2];
                fds.extend(keep.map(Pin::raw_fd));
                sys::close_all_but(&mut fds);
                if getppid() == Some(caller) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
            };
            // A panic must end this process: unwinding further would make a second dlock of it.
            let all = || begin().map_or(70, |()| work());
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all));
            sys::exit_now(i32::from(done.unwrap_or(70)))
        }
        Fork::Parent(pid) => {
            drop(writer);
            let mut said = Vec::new();
            File::from(reader).read_to_end(&mut said)?;
            Ok(Detached { pid, said })
        }
    }
}

/// In a process that was detached: from now on nothing is left of its caller, which goes on.
pub fn leave_caller() -> io::Result<()> {
    set_parent_process_death_signal(None)?;
    leave_stderr()?;
    leave_standard_streams()
}

impl Detached {
    /// Waits for its end, and says how it ended.
    pub fn status(&self) -> Option<Ended> {
        match sys::wait_for(self.pid) {
            Waited::Child(_, raw) => Ended::of(raw),
            Waited::NoChild | Waited::Nothing => None,
        }
    }

    /// Asks it to end, and waits for that.
    pub fn end(&self) {
        // It has not been reaped, so the id is its own.
        let _ = sys::kill(self.pid, libc::SIGTERM);
        sys::wait_for(self.pid);
    }
}
