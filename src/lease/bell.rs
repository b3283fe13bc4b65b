//! How does one thread wake another that waits for descriptors? By an eventfd. Carries no message; what there is to hear
//! comes by a channel.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
}

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Self> {
        Ok(Self { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// The same bell, for another thread to ring.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { event: self.event.try_clone()? })
    }

    /// Readable while the bell rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Rings until hushed.
    pub fn ring(&self) {
        // It can only fail when the bell rings already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Silences the bell. Look for what there is to hear once more after this.
    pub fn hush(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}
