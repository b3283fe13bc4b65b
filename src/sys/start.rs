//! Starts a process, and turns one into another program. waitpid(2) and signals are in sys.rs.

use super::{closed_at_start, exit_now};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;

/// The two sides of a [`fork`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The caller; with the id of the new process.
    Parent(c_int),
    /// The new process.
    Child,
}

/// Forks. Fails if this process has several threads: a mutex that another thread holds would stay
/// locked in the child for ever.
pub fn fork() -> io::Result<Fork> {
    check_single_threaded()?;
    // SAFETY: with one thread the child is a full copy, in which any code may run.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

fn check_single_threaded() -> io::Result<()> {
    // Leaving one's thread group changes nothing and is refused (EINVAL) if it has other threads.
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_THREAD) } == 0 {
        return Ok(());
    }
    // A sandbox may forbid that call. This directory has two links, and one more for each thread.
    let is_invalid = io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    // If neither can be asked, go on: wherever one can, this code is known to have one thread.
    match fs::metadata("/proc/self/task").map_or(!is_invalid, |tasks| tasks.nlink() == 3) {
        true => Ok(()),
        false => Err(io::Error::other("this process has several threads")),
    }
}

/// The stack of a child that shares the memory. An overflow ends the child and touches nothing else.
struct Stack {
    lowest: *mut c_void,
    size: usize,
}

impl Stack {
    /// A multiple of every page size.
    const GUARD: usize = 64 * 1024;

    /// At least as large as `size`.
    fn new(size: usize) -> io::Result<Self> {
        let size = size.next_multiple_of(Self::GUARD) + Self::GUARD;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let lowest = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
        if lowest == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { lowest, size };
        // SAFETY: these pages are of the new mapping, and nothing uses them.
        match unsafe { libc::mprotect(lowest, Self::GUARD, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its end, where it begins to grow down, as on every architecture that Rust's std supports.
    fn top(&self) -> *mut c_void {
        // SAFETY: one past the end of the mapping.
        unsafe { self.lowest.byte_add(self.size) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and the child that used it has executed or ended.
        unsafe { libc::munmap(self.lowest, self.size) };
    }
}

/// Starts a child that runs `become_it` to [`exec`] a program with as many arguments as `argv`.
/// `become_it` returns only on failure. This process sleeps until the child has executed or ended.
/// The child shares its memory, so nothing is copied; descriptors, mask and dispositions are the
/// child's own. Returns the child's id, and what `become_it` returned if it failed: then the child
/// is about to end. Fails if this process has several threads.
pub fn spawn<F: FnOnce() -> E, E>(argv: &[CString], become_it: F) -> io::Result<(c_int, Option<E>)> {
    struct Task<F, E> {
        run: Option<F>,
        failed: Option<E>,
    }
    extern "C" fn enter<F: FnOnce() -> E, E>(task: *mut c_void) -> c_int {
        // SAFETY: it points to the task below, whose owner sleeps until the child is gone.
        let task = unsafe { &mut *task.cast::<Task<F, E>>() };
        task.failed = task.run.take().map(|run| run());
        exit_now(127)
    }
    check_single_threaded()?;
    let mut task = Task { run: Some(become_it), failed: None };
    // With room for a second argv: the C library builds that on the stack for a script that exec
    // hands to /bin/sh.
    let stack = Stack::new(256 * 1024 + (argv.len() + 8) * size_of::<usize>())?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has its own stack, aligned to a page. Task and stack outlive the child's
    // use of them, for clone returns when it has executed or ended. There is no other thread, so
    // nothing else runs in this memory meanwhile.
    let pid = unsafe { libc::clone(enter::<F, E>, stack.top(), flags, (&raw mut task).cast()) };
    if pid == -1 { Err(io::Error::last_os_error()) } else { Ok((pid, task.failed)) }
}

/// Executes another program: `argv[0]` is looked up in PATH, and a script without `#!` runs by
/// /bin/sh. The environment is this process's, byte for byte, without the variables named in
/// `without`, and with the `NAME=value` entries of `with`. Standard descriptors that were closed
/// when dlock started are closed again. Returns only on failure.
pub fn exec(argv: &[CString], without: &[Vec<u8>], with: &[CString]) -> io::Error {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let mut env = Vec::new();
    // SAFETY: environ is null or an array of C strings ending in null. Nothing changes it: dlock
    // never sets a variable of its own.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            let name = entry.split(|&byte| byte == b'=').next().unwrap_or(entry);
            if !without.iter().any(|gone| gone == name) {
                env.push(*at);
            }
            at = at.add(1);
        }
    }
    env.extend(with.iter().map(|entry| entry.as_ptr()));
    env.push(ptr::null());
    let file = argv.first().map_or(c"", CString::as_c_str);
    let mut args: Vec<_> = argv.iter().map(|arg| arg.as_ptr()).collect();
    args.push(ptr::null());
    for fd in closed_at_start() {
        // SAFETY: nothing owns a standard descriptor, and std's handles work when it is closed.
        unsafe { libc::close(fd) };
    }
    // SAFETY: both arrays end in null and hold C strings that outlive the call.
    unsafe { libc::execvpe(file.as_ptr(), args.as_ptr(), env.as_ptr()) };
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::ENOEXEC) {
        return error;
    }
    // glibc has tried that already; musl has not.
    let (Some(script), [_, rest @ ..]) = (find_in_path(file), &*args) else { return error };
    let args = [&[c"/bin/sh".as_ptr(), script.as_ptr()], rest].concat();
    // SAFETY: as above.
    unsafe { libc::execve(c"/bin/sh".as_ptr(), args.as_ptr(), env.as_ptr()) };
    error
}

/// The first executable file of that name in PATH; the name itself if it has a slash.
fn find_in_path(file: &CStr) -> Option<CString> {
    let name = OsStr::from_bytes(file.to_bytes());
    if file.to_bytes().contains(&b'/') {
        return Some(file.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    let mut places =
        std::env::split_paths(&path).map(|place| place.join(name)).filter(|place| place.is_file());
    let place = places.find(|place| rustix::fs::access(place, rustix::fs::Access::EXEC_OK).is_ok())?;
    CString::new(place.into_os_string().into_vec()).ok()
}

/// Closes every descriptor except these, also those that Rust does not know of.
///
/// # Safety
///
/// What owns or borrows another one must not be used or dropped any more: its number may be given
/// to another file.
pub unsafe fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut from = 0;
    for &fd in &*keep {
        // SAFETY: the caller promises it.
        unsafe { close_range(from, fd - 1) };
        from = fd + 1;
    }
    // SAFETY: as above.
    unsafe { close_range(from, RawFd::MAX) };
}

/// Closes these descriptors. See [`close_all_but`].
unsafe fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: the caller promises that nothing uses them any more.
    if first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Linux before 5.9.
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_process_with_several_threads_is_not_forked() {
        thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            scope.spawn(move || ended.recv());
            assert!(fork().is_err());
            assert!(spawn(&[], || ()).is_err());
            drop(end);
        });
    }
}
