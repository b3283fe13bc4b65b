//! `dlock run` and `dlock hold`: how a job gets its lock, keeps it, and ends.
//!
//! - calm: an outage of half a lease disturbs no job, on any store, with many holders
//! - config: where settings come from, and which one is in force
//! - contention: many runs want one lock: one runs, the others wait in order or are told who holds it
//! - control_group: a job is stopped through its cgroup
//! - cost: what a run costs, in what can be counted
//! - first_contact: waiting for a store that cannot be reached yet
//! - guard: dlock, its guard or a waiter is killed or stopped
//! - hold: a lock for a process that dlock did not start
//! - input: what is accepted from the caller, and what is refused
//! - inside: what runs inside a job reaches the same store
//! - lease: a lock that is kept through outages, lost, or taken away; time limits
//! - messages: what a program reads in each situation
//! - min_hold: once a tick
//! - nesting: a run inside a job that holds the same lock
//! - once_per: once a day, also after a late start
//! - passwords: secrets: how they are given, and where they must never be seen
//! - quiet: what -q silences, and what it does not
//! - refused: what did not run, and why
//! - replace: the newest run ends the one before it
//! - report: what `--report` writes, however the run ends
//! - several: several locks at once
//! - shared: shared locks
//! - signals: signals without a terminal
//! - slots: up to N holders
//! - status_codes: statuses and signals that CMD ends with; what cannot be executed
//! - strangers: processes of other users delay no KILL
//! - surroundings: what CMD inherits
//! - terminal: signals and job control with a terminal
//! - tree: a lock that is kept for what CMD leaves behind
//! - waiting_line: what a waiting run prints

pub mod calm;
pub mod config;
pub mod contention;
pub mod control_group;
pub mod cost;
pub mod first_contact;
pub mod guard;
pub mod hold;
pub mod input;
pub mod inside;
pub mod lease;
pub mod messages;
pub mod min_hold;
pub mod nesting;
pub mod once_per;
pub mod passwords;
pub mod quiet;
pub mod refused;
pub mod replace;
pub mod report;
pub mod several;
pub mod shared;
pub mod signals;
pub mod slots;
pub mod status_codes;
pub mod strangers;
pub mod surroundings;
pub mod terminal;
pub mod tree;
pub mod waiting_line;
