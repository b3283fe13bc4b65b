//! dlock: flock(1) for a fleet. The map: what lives where, and who may know whom.

pub mod clock;
pub mod error;
pub mod exit;
pub mod job;
pub mod lock;
pub mod store;
mod sys;
