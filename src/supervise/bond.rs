//! Watches what `dlock hold` holds a lock for: a process, or the program at the other end of
//! dlock's stdin. The guard starts a process of dlock's own, the watcher, in place of CMD. The
//! watcher ends with status 0 when the process or stdin has ended, or dlock says so ([`OVER`]), and
//! until then prints on stdout what dlock sends it. The rest of a hold works as for CMD.
//!
//! Only the watcher keeps stdout open. If it is killed, the reader sees the end of the file,
//! whatever has happened to dlock. When what it watches has ended, it hands stdout back to dlock,
//! which then prints that the lock is released.
//!
//! Lines that nobody reads are dropped. Only if the first one cannot be written for another reason,
//! as on a full disk, the watcher ends ([`NOT_PRINTED`]).

use super::pin::{OVER, Pin, is_ready};
use super::signals::next_signal;
use crate::clock::{Moment, Timer};
use crate::sys::{self, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin, stdout};
use rustix::termios::{isatty, tcgetpgrp};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

pub(super) const WATCHER_NAME: &CStr = c"dlock-watch";
/// How long the watcher keeps stdout open after TERM, to print why the hold ends.
const REASON_WITHIN: Duration = Duration::from_millis(100);
/// Pause before the watcher checks again whether a terminal has come back to its process group.
const BACKGROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The watcher's status if the first line, which says that the lock is held, could not be printed:
/// that of [`Exit::Output`](crate::exit::Exit::Output).
pub const NOT_PRINTED: u8 = 74;
/// The longest message: a socket takes no more at once.
const LONGEST: usize = 1 << 18;
/// How much a pipe takes without blocking once it is ready for writing (PIPE_BUF).
const PIECE: usize = 4096;

/// The job of a `dlock hold`, in place of a command.
#[derive(Debug)]
pub struct Bond {
    /// The process that the lock is held for. `None`: the program at the other end of stdin.
    pub process: Option<Pin>,
    /// The watcher's end of the socket on which dlock sends its output for stdout.
    pub words: OwnedFd,
    /// What becomes stderr once the lock is held, if that of dlock's caller does not stay.
    pub stderr: Option<Arc<File>>,
}

/// dlock's end of the socket on which it sends output to the watcher, which has stdout.
#[derive(Debug)]
pub struct Words(OwnedFd);

impl Words {
    /// Returns dlock's end and the watcher's.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(near), far))
    }

    /// Sends the text whole or not at all, and never waits for a reader. Returns whether it was
    /// sent.
    pub fn say(&self, text: &[u8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::send(&self.0, text, flags).is_ok_and(|sent| sent == text.len())
    }

    /// Ends the output: the watcher closes stdout as soon as it has printed everything.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }

    /// The stdout that the watcher handed back before it ended, if it did.
    pub fn take_back(&self) -> Option<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut control, flags).ok()?;
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
    }
}

/// Whether an end of file on stdin can mean that its other end is gone: it is a pipe, a socket or a
/// terminal.
pub fn is_stdin_alive() -> bool {
    if sys::closed_at_start().any(|fd| fd == 0) {
        return false;
    }
    let kind = fstat(stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket)) || isatty(stdin())
}

/// Whether the other end of stdin is closed, as far as can be seen without reading.
pub fn is_stdin_hung_up() -> bool {
    is_ready(stdin(), PollFlags::RDHUP)
}

/// Replaces stdin and stdout by /dev/null. The watcher keeps them.
pub fn leave_standard_streams() -> io::Result<()> {
    let null = null()?;
    dup2_stdin(&null)?;
    Ok(dup2_stdout(&null)?)
}

/// /dev/null, for reading and writing.
pub(super) fn null() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

impl Bond {
    /// Runs the watcher in this process. Never returns. Every signal is blocked; a signalfd reads
    /// TERM and [`OVER`].
    pub(super) fn watch(&self) -> ! {
        let status = Watcher::new(self).and_then(|mut watcher| watcher.run());
        sys::exit_now(if status.is_ok() { 0 } else { 70 })
    }
}

struct Watcher<'a> {
    bond: &'a Bond,
    end_requests: OwnedFd,
    timer: Timer,
    /// Output that is not printed yet.
    buffer: Vec<u8>,
    is_input_open: bool,
    is_output_open: bool,
    /// Something was printed as a whole.
    has_printed: bool,
}

impl<'a> Watcher<'a> {
    fn new(bond: &'a Bond) -> io::Result<Self> {
        rustix::thread::set_name(WATCHER_NAME)?;
        if let Some(file) = &bond.stderr {
            dup2_stderr(file)?;
        }
        let end_requests = sys::signalfd(SignalSet::of(&[libc::SIGTERM, OVER]))?;
        let timer = Timer::new()?;
        let mut keep =
            vec![0, 1, 2, bond.words.as_raw_fd(), end_requests.as_raw_fd(), timer.as_fd().as_raw_fd()];
        keep.extend(bond.process.as_ref().map(Pin::raw_fd));
        // SAFETY: the watcher uses no other descriptor, and its process ends without dropping one.
        #[expect(unsafe_code, reason = "only the watcher knows which descriptors it uses")]
        unsafe {
            sys::close_all_but(&mut keep);
        }
        Ok(Self {
            bond,
            end_requests,
            timer,
            buffer: Vec::new(),
            is_input_open: true,
            is_output_open: true,
            has_printed: false,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let bond = self.bond;
        let over = match &bond.process {
            Some(process) => process.as_fd(),
            None => stdin(),
        };
        loop {
            let is_away = bond.process.is_none() && is_background(over);
            // A descriptor that must not be polled now is replaced by one that is polled anyway.
            let end_requests = self.end_requests.as_fd();
            let over_fd = if is_away { end_requests } else { over };
            let words = match (self.buffer.is_empty(), self.is_input_open, self.is_output_open) {
                (false, _, true) => PollFd::from_borrowed_fd(stdout(), PollFlags::OUT),
                (_, true, _) => PollFd::new(&bond.words, PollFlags::IN),
                _ => PollFd::new(&self.end_requests, PollFlags::IN),
            };
            let mut fds = [
                PollFd::from_borrowed_fd(over_fd, PollFlags::IN),
                PollFd::new(&self.end_requests, PollFlags::IN),
                PollFd::new(&self.timer, PollFlags::IN),
                words,
            ];
            match poll(&mut fds, is_away.then_some(&BACKGROUND)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let [over_ready, end_requests, timer, words] =
                [0, 1, 2, 3].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
            let signal = if end_requests {
                next_signal(&self.end_requests)?.map(|received| received.signal)
            } else {
                None
            };
            if signal == Some(OVER) || over_ready && !is_away && self.is_over(over)? {
                self.hand_back();
                return Ok(());
            }
            if signal.is_some() && self.bond.process.is_none() {
                self.timer.set(Some(Moment::now().after(REASON_WITHIN)))?;
            }
            if timer {
                self.timer.set(None)?;
                self.close()?;
            }
            if words {
                self.pass_on()?;
            }
        }
    }

    /// Whether the watched process or stdin has ended. Called when its descriptor is readable.
    fn is_over(&self, over: BorrowedFd<'_>) -> io::Result<bool> {
        if self.bond.process.is_some() {
            return Ok(true);
        }
        match rustix::io::read(over, &mut [0u8; 1 << 16]) {
            Ok(length) => Ok(length == 0),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            // A terminal that has just passed to another process group cannot be read either.
            Err(Errno::IO) if is_background(over) => Ok(false),
            Err(_) => Ok(true),
        }
    }

    /// Prints buffered output, or takes the next from dlock.
    fn pass_on(&mut self) -> io::Result<()> {
        if self.is_output_open && !self.buffer.is_empty() {
            let piece = self.buffer.get(..PIECE).unwrap_or(&self.buffer);
            match rustix::io::write(stdout(), piece) {
                Ok(written) => {
                    self.buffer.drain(..written);
                    self.has_printed |= self.buffer.is_empty();
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Nobody has learned that the lock is held.
                Err(errno) if errno != Errno::PIPE && !self.has_printed => sys::exit_now(NOT_PRINTED.into()),
                // stdout has no reader. That alone does not end a hold.
                Err(_) => self.buffer.clear(),
            }
        } else if self.is_input_open {
            let mut piece = vec![0u8; LONGEST];
            match rustix::io::read(&self.bond.words, &mut piece) {
                Ok(0) => self.is_input_open = false,
                Ok(length) if self.is_output_open => self.buffer.extend(&piece[..length]),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if !self.is_input_open && self.buffer.is_empty() {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        self.is_output_open = false;
        self.buffer.clear();
        Ok(dup2_stdout(null()?)?)
    }

    /// Prints what is buffered, as far as stdout takes it, and hands stdout to dlock.
    fn hand_back(&mut self) {
        while self.is_output_open && !self.buffer.is_empty() && is_ready(stdout(), PollFlags::OUT) {
            if self.pass_on().is_err() {
                return;
            }
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [stdout()];
        if self.is_output_open && control.push(SendAncillaryMessage::ScmRights(&fds)) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // dlock may be gone.
            let _ = sendmsg(&self.bond.words, &[IoSlice::new(b".")], &mut control, flags);
        }
    }
}

/// Whether `fd` is a terminal that now belongs to another process group.
fn is_background(fd: BorrowedFd<'_>) -> bool {
    isatty(fd) && tcgetpgrp(fd).is_ok_and(|group| group.as_raw_pid() != sys::own_group())
}
