//! Calls of the kernel and the C library that rustix does not offer, or offers with types too
//! narrow for dlock (a real-time signal has no name, and must still be relayed). All unsafe code of
//! dlock is here and in the modules below, in small wrappers that decide nothing. All are safe to
//! call, except [`close_all_but`].

#![expect(unsafe_code, reason = "fork, exec and signals have no safe interface; the walls are kept here")]

pub mod named_file;
mod start;

pub use start::{Fork, close_all_but, exec, fork, spawn};

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Signals that dlock ignores, so that a write fails instead of killing dlock: the reader is gone,
/// or the file size limit is reached.
pub const OF_WRITES: [c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
/// Which of them were ignored when the process started.
static IGNORED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
/// Which of the descriptors 0, 1 and 2 were closed when the process started.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Records these before Rust's runtime changes them: before `main`, it ignores SIGPIPE and opens
/// /dev/null on closed standard descriptors. The C library runs `.init_array` earlier. Ignores
/// SIGXFSZ as well.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn record() {
        for (signal, was) in OF_WRITES.into_iter().zip(&IGNORED) {
            was.store(ignored(signal), Ordering::Relaxed);
        }
        dispose(libc::SIGXFSZ, Disposition::Ignore);
        for (fd, closed) in (0..).zip(&CLOSED) {
            // SAFETY: F_GETFD only reads, and fails on a descriptor that is not open.
            closed.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1, Ordering::Relaxed);
        }
    }
    record
};

/// Whether one of [`OF_WRITES`] was ignored when dlock started.
pub fn was_ignored(signal: c_int) -> bool {
    let known = OF_WRITES.into_iter().zip(&IGNORED).find(|(known, _)| *known == signal);
    known.is_some_and(|(_, was)| was.load(Ordering::Relaxed))
}

/// Which of the descriptors 0, 1 and 2 were closed when dlock started.
pub fn closed_at_start() -> impl Iterator<Item = RawFd> {
    (0..).zip(&CLOSED).filter(|(_, closed)| closed.load(Ordering::Relaxed)).map(|(fd, _)| fd)
}

/// A set of signals as the kernel has it: bit n−1 is signal n. The C library's `sigset_t` cannot
/// carry 32 and 33, which it reserves, and they must be preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// Every signal.
    pub const ALL: Self = Self(u64::MAX);

    /// These signals.
    pub const fn of(signals: &[c_int]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < signals.len() {
            bits |= 1 << (signals[at] - 1);
            at += 1;
        }
        Self(bits)
    }

    /// These signals without `others`.
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Blocks more signals in this thread. Returns the mask before.
pub fn block(signals: SignalSet) -> SignalSet {
    change_mask(libc::SIG_BLOCK, signals)
}

/// Blocks exactly these signals in this thread. Returns the mask before.
pub fn set_mask(signals: SignalSet) -> SignalSet {
    change_mask(libc::SIG_SETMASK, signals)
}

fn change_mask(how: c_int, signals: SignalSet) -> SignalSet {
    let mut before = 0u64;
    // SAFETY: both masks have the eight bytes of the given size; with a valid `how` it cannot fail.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals.0, &raw mut before, size_of::<u64>())
    };
    SignalSet(before)
}

/// Whether the signal is ignored.
pub fn ignored(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is valid, and with a null new action the call only reads.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// What a signal does when it has no handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The kernel's default.
    Default,
    /// Nothing.
    Ignore,
}

/// Sets the disposition of a signal, also of 32 and 33. Without effect on a signal that has none.
pub fn dispose(signal: c_int, disposition: Disposition) {
    // In the kernel's struct the handler comes first on every architecture that Rust's std supports
    // except MIPS. The rest (flags, restorer, mask) is zero for these two.
    let handler = match disposition {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
    };
    let action = [handler as u64, 0, 0, 0];
    // SAFETY: the kernel reads at most these 32 bytes; neither disposition runs code of this
    // process.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            std::ptr::null::<c_void>(),
            size_of::<u64>(),
        )
    };
}

/// A descriptor that delivers these signals, each as a `signalfd_siginfo`; non-blocking,
/// close-on-exec. The signals must be blocked.
pub fn signalfd(signals: SignalSet) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the mask has the eight bytes of the given size.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const signals.0, size_of::<u64>(), flags) };
    match RawFd::try_from(fd) {
        // SAFETY: the descriptor is new, so nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the process at once: no destructors, and no flushing of what the other side of a fork
/// buffered.
pub fn exit_now(status: c_int) -> ! {
    // SAFETY: _exit does not return and runs nothing.
    unsafe { libc::_exit(status) }
}

/// Result of [`wait_any`] and [`wait_for`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// No child is left.
    NoChild,
    /// No child has changed.
    Nothing,
    /// A child has changed: its id and raw wait status.
    Child(c_int, c_int),
}

/// Returns the next change of any child (ended, stopped or continued), without waiting.
pub fn wait_any() -> Waited {
    wait(-1, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED)
}

/// Waits until this child has ended.
pub fn wait_for(pid: c_int) -> Waited {
    wait(pid, 0)
}

/// Reaps this child if it has ended and is not one of [`spawn_separate`]. Returns whether it is gone.
pub fn reap(pid: c_int) -> bool {
    !separate_groups().contains(&pid) && take(pid) != Waited::Nothing
}

/// Reaps this child if it has ended.
pub fn take(pid: c_int) -> Waited {
    wait(pid, libc::WNOHANG)
}

fn wait(pid: c_int, flags: c_int) -> Waited {
    loop {
        let mut status = 0;
        // SAFETY: the status is a local variable.
        match unsafe { libc::waitpid(pid, &raw mut status, flags | libc::__WALL) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Waited::NoChild,
            0 => return Waited::Nothing,
            pid => return Waited::Child(pid, status),
        }
    }
}

/// Whether this process has children, ended ones included.
pub fn has_children() -> bool {
    let flags = libc::WNOHANG | libc::WNOWAIT | libc::WEXITED | libc::__WALL;
    // SAFETY: a null siginfo is allowed.
    unsafe { libc::waitid(libc::P_ALL, 0, std::ptr::null_mut(), flags) == 0 }
}

/// The process group of this process; 0 if its leader is outside this PID namespace, which rustix's
/// type cannot express.
pub fn own_group() -> c_int {
    // SAFETY: no memory is involved, and it cannot fail.
    unsafe { libc::getpgrp() }
}

/// kill(2): any signal, to a process (`target` > 0) or a process group (`target` < -1).
pub fn kill(target: c_int, signal: c_int) -> io::Result<()> {
    if matches!(target, 0 | -1) {
        // kill(2) takes these for this process's own group and for every process.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(target, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// While this exists, the thread runs before every other that has no real-time priority. Without
/// effect if the kernel does not allow that (it needs CAP_SYS_NICE or RLIMIT_RTPRIO), and on a
/// thread that has such a priority already.
#[derive(Debug)]
pub struct Hurry {
    policy_before: Option<libc::c_long>,
}

impl Hurry {
    /// Raises the priority.
    pub fn begin() -> Self {
        // SAFETY: no memory is involved.
        let before = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        let ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(libc::c_long::from);
        let begun = ordinary.contains(&before) && set_policy(libc::SCHED_RR.into(), 1);
        Self { policy_before: begun.then_some(before) }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Some(policy) = self.policy_before {
            set_policy(policy, 0);
        }
    }
}

/// A direct system call: musl's functions for this always fail.
fn set_policy(policy: libc::c_long, priority: c_int) -> bool {
    // SAFETY: the kernel reads one int, the only field of its sched_param.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) == 0 }
}

fn signal_self(signal: c_int) {
    // To this thread, so that the signal acts before the call returns, or as soon as this thread
    // unblocks it.
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

/// Ends this process by a signal, without a core dump. Returns only if the kernel ignores the
/// signal, as for PID 1 of a namespace.
pub fn die_of(signal: c_int) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // The limit does not stop a core dump that is piped to a program, so the process is made
    // undumpable too.
    // SAFETY: the limit is a valid struct and is only read.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    dispose(signal, Disposition::Default);
    let others = !SignalSet::of(&[signal]).0;
    set_mask(SignalSet(others));
    signal_self(signal);
}

/// Stops this process by a stop signal. Returns when it has been continued, or at once if the
/// kernel does not stop it (an orphaned process group, for a signal of the terminal).
pub fn stop_by(signal: c_int) {
    let was_ignored = ignored(signal);
    if was_ignored {
        dispose(signal, Disposition::Default);
    }
    // Sent before it is unblocked: if the terminal's own signal is still pending, both together
    // stop the process once, for CONT discards pending stop signals. In the other order the first
    // would stop it now, and the second once more.
    signal_self(signal);
    let mask = set_mask(SignalSet(!SignalSet::of(&[signal]).0));
    set_mask(mask);
    if was_ignored {
        dispose(signal, Disposition::Ignore);
    }
}

/// Living children of [`spawn_separate`]. Their own code waits for them, so [`reap`] does not.
static SEPARATE: Mutex<BTreeSet<c_int>> = Mutex::new(BTreeSet::new());

fn separate_groups() -> MutexGuard<'static, BTreeSet<c_int>> {
    SEPARATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command in its own session, without a terminal, with descriptors 0, 1 and 2 only. After
/// `limit` it gets SIGALRM, in case this process is gone by then.
pub fn spawn_separate(command: &mut Command, limit: Duration) -> io::Result<Child> {
    let seconds = c_uint::try_from(limit.as_secs()).unwrap_or(c_uint::MAX).saturating_add(1);
    let apart = move || {
        // SAFETY: these system calls touch no memory but the set, which is on this stack and filled
        // before it is read.
        unsafe {
            libc::setsid();
            // Unblock what dlock has blocked: a shell needs SIGCHLD to wait for its children, and
            // SIGALRM ends a hung command.
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            for signal in [libc::SIGALRM, libc::SIGCHLD, libc::SIGPIPE, libc::SIGXFSZ] {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::alarm(seconds);
            // Marked, not closed: std reports a failed exec by one of them.
            let mark = libc::CLOSE_RANGE_CLOEXEC;
            if libc::syscall(libc::SYS_close_range, 3, c_uint::MAX, mark) != 0 {
                // Linux before 5.11.
                for fd in 3..4096 {
                    libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
        }
        Ok(())
    };
    // SAFETY: what runs between fork and exec allocates nothing and locks nothing.
    let command = unsafe { command.pre_exec(apart) };
    // If SIGCHLD is ignored, the kernel keeps no exit status.
    if ignored(libc::SIGCHLD) {
        dispose(libc::SIGCHLD, Disposition::Default);
    }
    let mut apart = separate_groups();
    let child = command.spawn()?;
    apart.insert(group_of(&child));
    Ok(child)
}

/// Whether a child of [`spawn_separate`] has ended. The inner `None` means that its status is unknown:
/// a wait for any child may have reaped it.
pub fn ended_separate(child: &mut Child) -> Option<Option<ExitStatus>> {
    let mut apart = separate_groups();
    let status = child.try_wait().map_or(Some(None), |status| status.map(Some))?;
    apart.remove(&group_of(child));
    Some(status)
}

/// Kills a child of [`spawn_separate`] and the rest of its process group.
pub fn kill_separate(child: &mut Child) {
    let mut apart = separate_groups();
    if apart.remove(&group_of(child)) {
        let _ = kill(-group_of(child), libc::SIGKILL);
        // A child that sleeps in the kernel may take long to end. Then the code that reaps foreign
        // children reaps it.
        let _ = child.try_wait();
    }
}

/// Kills all children of [`spawn_separate`], because this process is about to end.
pub fn kill_all_separate() {
    for group in separate_groups().iter() {
        let _ = kill(-group, libc::SIGKILL);
    }
}

/// The child leads its session, and so its process group.
fn group_of(child: &Child) -> c_int {
    // The kernel has no larger ids.
    c_int::try_from(child.id()).unwrap_or(c_int::MAX)
}

/// Numbers that this process shares with those it forks from now on; all zero at first. Never
/// unmapped.
pub fn shared_cells<const N: usize>() -> io::Result<&'static [AtomicU64; N]> {
    let (read_write, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), size_of::<[AtomicU64; N]>(), read_write, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is zeroed, aligned to a page, large enough and never unmapped; atomics
    // may be shared.
    Ok(unsafe { &*at.cast::<[AtomicU64; N]>() })
}
