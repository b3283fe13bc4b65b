//! dlock: flock(1) for a fleet. The map: what lives where, and who may know whom. What must always be true (I1 to I14), what
//! lies in Redis and which processes there are is told in docs/protocol.md.
//!
//! This library is there for the binary and its tests. It is no Rust API: everything in it may change at any time. What
//! users rely on is the command line.
//!
//! | where | what it answers |
//! |---|---|
//! | [`cli`] | what can be said on the command line; help is written there and nowhere else |
//! | [`config`] | which settings are in force, and who said so |
//! | [`exit`], [`error`] | which status means what; which error has which |
//! | [`lock`] | the nouns: key, name, token, fence, ttl, owner |
//! | [`law`] | what a lock is allowed to do, and what a holder does when: pure |
//! | [`clock`] | which clock, and why |
//! | [`store`] | what a store is; `store::redis`, `store::quorum` (several masters), `store::sql` (databases), `store::etcd`, `store::zookeeper` and `store::file` are the six; [`store::net`] is how a server is reached; `store/engine` runs the law for those that cannot |
//! | [`lease`] | how the lock is taken, waited for, renewed and given back: the heartbeat thread |
//! | [`job`] | how CMD runs under a guard, and how all of it is stopped in time; `supervise::bond` is what stands in for CMD in a `hold` |
//! | [`commands`] | one file a subcommand; `commands::run` is the page that joins everything |
//! | [`output`] | every line that a person or a program reads |
//! | [`shell`] | how a text stands in a line for a shell |
//! | `sim` | for tests: a fleet under a virtual clock, with the real `law` and `lease` |
//! | `sys` | the only unsafe code |
//!
//! `cli`, `lock`, `law`, `exit` and `shell` know nothing below them. `store` and `lease` know those; neither knows that children
//! exist. `job` does not know that locks exist. Only `commands` joins them. `law` reads no clock and does no I/O.
//! A test (`tests/walls.rs`) holds these walls. There are two threads at most: the main one takes the lock and supervises the
//! job, the other one renews, as soon as there is to. What may hang without a deadline (a name service, a sentinel that does
//! not answer) is asked on further threads, which may be left behind; so is each master of a quorum, lest one of them keep the
//! others waiting.

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
