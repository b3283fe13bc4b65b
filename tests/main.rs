//! The black-box suite: real processes, real servers, real terminals. One binary, so that it links once and its
//! scenarios run side by side.
//!
//! - run: `dlock run` and `dlock hold`
//! - commands: the other commands
//! - stores: what every store does alike, and what can happen to each
//! - docs: what the documents say
//! - fuzz: garbage of every kind
//! - night: everything goes wrong at once, and what is promised holds
//! - soak: thousands of runs, only when asked for
//! - walls: which module of src may use which
//! - support: servers, networks, machines and processes for all of these
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic that says what it missed"
)]

mod commands;
mod docs;
mod fuzz;
mod night;
mod run;
mod soak;
mod stores;
mod support;
mod walls;
