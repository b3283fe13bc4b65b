//! dlock: flock(1) for a fleet. This is the map of the source: what is where, and which part may use
//! which. docs/protocol.md has the invariants (I1 to I14), the data in Redis and the processes.
//!
//! The library exists for the binary and its tests. It is not a Rust API: everything in it may change
//! at any time. Users rely on the command line only.
//!
//! | module | task |
//! |---|---|
//! | [`cli`] | the options of the command line, and their help |
//! | [`config`] | the settings in force, and their sources |
//! | [`exit`], [`error`] | exit statuses; errors and their statuses |
//! | [`lock`] | basic types: key, name, token, fence, ttl, owner |
//! | [`rules`] | the lock rules: when a store grants a lock (`queue`, `grant`, `once`, `replace`), how a hold ends (`record`), when a holder renews and its job gets TERM and KILL (`schedule`); pure. Redis runs a port of them, `store/redis/scripts` |
//! | [`clock`] | the clock of every lease |
//! | [`store`] | the interface of a store |
//! | `store::*` | `redis`, `quorum` (several masters), `sql`, `etcd`, `zookeeper`, `file` |
//! | [`store::net`] | connects to servers |
//! | `store/engine` | runs the rules for stores that cannot |
//! | [`lease`] | acquires, waits for, renews and releases the lock; the lease thread |
//! | [`supervise`] | runs CMD under a guard, and stops the whole job in time |
//! | `supervise::bond` | what runs in place of CMD in a `hold`; `supervise::pin` is the process of `--pid` |
//! | [`commands`] | one file for each subcommand; `commands::run` joins everything, for `hold`, too. What they share: `job_env` (the job's variables), `held` (DLOCK_HELD), `foreground` (waiting and signals) |
//! | [`output`] | every line that a person or a program reads |
//! | [`shell`] | quotes text for a shell |
//! | `sim` | for tests: a fleet under a virtual clock, with the real `rules` and `lease` |
//! | `sys` | the unsafe code, in wrappers that are safe to call, except one; `sys::named_file` opens the files that a user named |
//!
//! `cli`, `lock`, `rules`, `exit` and `shell` use nothing below them. `store` and `lease` use those,
//! and do not know that child processes exist. `supervise` does not know that locks exist. Only
//! `commands` joins them. `rules` reads no clock and does no I/O. tests/walls.rs checks this.
//!
//! The main thread takes the lock and supervises the job. The lease thread sees to the renewals,
//! and starts when the first one is near. On Redis, a database and etcd each attempt to renew has a
//! thread of its own, so that a second one can begin beside it. Calls that may hang without a
//! deadline (a name service, a sentinel) run on further threads, which may be left behind. So does
//! each master of a quorum, so that none delays the others.

pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod error;
pub mod exit;
pub mod lease;
pub mod lock;
pub mod output;
pub mod rules;
pub mod shell;
#[cfg(test)]
mod sim;
pub mod store;
pub mod supervise;
mod sys;
