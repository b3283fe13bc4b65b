//! How does one thread wake another that waits for descriptors? By an eventfd. Carries no message; what there is to learn
//! comes by a channel.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that is not readable.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable until it is drained.
    pub fn notify(&self) {
        // It can only fail when it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable. Look for what there is to learn once more after this.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
