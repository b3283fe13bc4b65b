//! dlock: flock(1) for a fleet. The map: what lives where, and who may know whom.

pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod error;
pub mod exit;
pub mod law;
pub mod lock;
pub mod output;
pub mod store;
