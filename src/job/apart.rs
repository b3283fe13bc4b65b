//! How is something done in a process of its own, of which nothing stays but what it says? For what may leave threads
//! behind, before the guard is forked.

use crate::sys::{self, Fork};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{self, Read as _, Write as _};

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
