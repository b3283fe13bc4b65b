//! `dlock run` and `dlock hold`: how a job gets its lock, keeps it, and ends.
//!
//! - calm: an outage of half a lease disturbs no job, on any store, with many holders
//! - config: where settings come from, and their precedence
//! - contention: many runs want one lock: one runs, the others wait in order or report the holder
//! - control_group: a job is stopped through its cgroup
//! - cost: requests, bytes, threads, system calls of a run
//! - during_pause: `--during-pause`
//! - failing_server: a server that fails or is full is left in peace, and asked again
//! - first_contact: waiting for a store that cannot be reached yet
//! - foreign_processes: processes outside the job delay no KILL
//! - full_queue: more runs want a lock than its queue takes
//! - guard: dlock, its guard or a waiter is killed or stopped
//! - hold: a lock for a process that dlock did not start
//! - input: what is accepted from the caller, and what is refused
//! - inside: a dlock inside a job reaches the same store
//! - lease: a lock that is kept through outages, lost, or taken away; time limits
//! - messages: JSON messages in each situation
//! - min_hold: `--min-hold`
//! - named_files: files that a user names, and who may write where the name leads
//! - nesting: a run inside a job that holds the same lock
//! - missed: scheduled runs that end without a success, and say so
//! - expected: `--expect`, and what is overdue
//! - once_per: `--once-per`
//! - passwords: how secrets are given, and where they must never be seen
//! - pause_on_failure: `--pause-on-failure`
//! - quiet: what -q silences, and what it does not
//! - refused: the record of runs that did not get the lock
//! - replace: the newest run ends the one before it
//! - report: what `--report` writes, however the run ends
//! - several: several locks at once
//! - shared: shared locks
//! - signals: signals without a terminal
//! - slots: up to N holders
//! - status_codes: statuses and signals that CMD ends with; what cannot be executed
//! - surroundings: what CMD inherits
//! - terminal: signals and job control with a terminal
//! - tree: `--tree`: the lock is kept for processes that CMD leaves behind
//! - waiting_line: what a waiting run prints

pub mod calm;
pub mod config;
pub mod contention;
pub mod control_group;
pub mod cost;
pub mod during_pause;
pub mod expected;
pub mod failing_server;
pub mod first_contact;
pub mod foreign_processes;
pub mod full_queue;
pub mod guard;
pub mod hold;
pub mod input;
pub mod inside;
pub mod lease;
pub mod messages;
pub mod min_hold;
pub mod missed;
pub mod named_files;
pub mod nesting;
pub mod once_per;
pub mod passwords;
pub mod pause_on_failure;
pub mod quiet;
pub mod refused;
pub mod replace;
pub mod report;
pub mod several;
pub mod shared;
pub mod signals;
pub mod slots;
pub mod status_codes;
pub mod surroundings;
pub mod terminal;
pub mod tree;
pub mod waiting_line;
