//! Runs work in a separate process. That is either work that may leave threads behind, which must
//! not exist when the guard is forked; or a hold that goes on in the background when its caller has
//! ended.

use super::bond::null;
use super::pin::{OVER, Pin};
use crate::exit::Ended;
use crate::sys::{self, Fork, Waited};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::IntoRawFd as _;

/// Runs `work` in another process and returns its output, empty or cut short if it ended early. It
/// ends with this process, which must have one thread.
pub fn in_separate_process(work: impl FnOnce() -> Vec<u8>) -> io::Result<Vec<u8>> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let caller = getpid();
    match sys::fork()? {
        Fork::Child => {
            drop(reader);
            let _goes_on = set_parent_process_death_signal(Some(Signal::KILL));
            if getppid() != Some(caller) {
                sys::exit_now(70);
            }
            // A panic must end this process: if it unwound further, it would go on as a second
            // dlock.
            let work = || File::from(writer).write_all(&work());
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            sys::exit_now(if matches!(done, Ok(Ok(()))) { 0 } else { 70 })
        }
        Fork::Parent(pid) => {
            drop(writer);
            let mut printed = Vec::new();
            let read = File::from(reader).read_to_end(&mut printed);
            sys::wait_for(pid);
            read.map(|_| printed)
        }
    }
}

/// A process in the background.
#[derive(Debug)]
pub struct Detached {
    pid: i32,
    /// What it writes to stdout, until it gives that up or ends.
    pub stdout: File,
}

/// Runs `work` in a process with its own session, which keeps only the caller's stderr and `keep`.
/// Until it calls [`outlive_caller`], that process gets TERM when this one ends.
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
                // `close_all_but` closes it.
                let _ = reader.into_raw_fd();
                let mut fds = vec![0, 1, 2];
                fds.extend(keep.map(Pin::raw_fd));
                // SAFETY: what this process has inherited otherwise is neither used nor dropped: it
                // ends by `exit_now`, and `work` opens what it needs.
                #[expect(unsafe_code, reason = "only this process knows which descriptors it uses")]
                unsafe {
                    sys::close_all_but(&mut fds);
                }
                if getppid() == Some(caller) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
            };
            // A panic must end this process here, too.
            let all = || begin().map_or(70, |()| work());
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all));
            sys::exit_now(i32::from(done.unwrap_or(70)))
        }
        Fork::Parent(pid) => {
            drop(writer);
            Ok(Detached { pid, stdout: File::from(reader) })
        }
    }
}

/// Called in a detached process: its caller may end, and it goes on.
pub fn outlive_caller() -> io::Result<()> {
    Ok(set_parent_process_death_signal(None)?)
}

impl Detached {
    /// Waits until the process ends. Returns how it ended.
    pub fn status(&self) -> Option<Ended> {
        match sys::wait_for(self.pid) {
            Waited::Child(_, raw) => Ended::of(raw),
            Waited::NoChild | Waited::Nothing => None,
        }
    }

    /// Tells the process to end: by TERM if it waits for the lock, by [`OVER`] if it holds it. The
    /// process must not have been reaped.
    pub fn tell_to_end(&self) {
        for signal in [libc::SIGTERM, OVER] {
            let _ = sys::kill(self.pid, signal);
        }
    }

    /// Tells the process to end, and waits until it has.
    pub fn end(&self) {
        self.tell_to_end();
        sys::wait_for(self.pid);
    }
}
