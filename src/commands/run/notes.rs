//! What dlock notes for its guard, which gives the lock back if dlock dies. The notes lie in memory
//! that both share.

use crate::lock::Fence;
use crate::sys;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const FENCE: usize = 0;
const SIGNALLED: usize = 1;

#[derive(Debug, Clone, Copy)]
pub struct Notes {
    cells: &'static [AtomicU64; 2],
}

impl Notes {
    /// Must be called before the guard is forked.
    pub fn new() -> io::Result<Self> {
        Ok(Self { cells: sys::shared_cells()? })
    }

    /// Notes the fence of the grant.
    pub fn set_fence(self, fence: Fence) {
        self.cells[FENCE].store(fence.0, Ordering::Release);
    }

    /// The fence of the grant, if there was one.
    pub fn fence(self) -> Option<Fence> {
        Some(self.cells[FENCE].load(Ordering::Acquire)).filter(|fence| *fence > 0).map(Fence)
    }

    /// Notes that dlock got a signal to end: the end of its job is then no failure.
    pub fn set_signalled(self) {
        self.cells[SIGNALLED].store(1, Ordering::Release);
    }

    pub fn is_signalled(self) -> bool {
        self.cells[SIGNALLED].load(Ordering::Acquire) != 0
    }
}
