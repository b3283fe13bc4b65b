//! The black-box suite: real processes, real servers, real terminals. One binary, so that it links once and its
//! scenarios run side by side.
//!
//! - contention: many want one lock; one runs, the others wait in order or are told who has it
//! - lease: kept through outages, lost for good, taken away; time limits
//! - guard: dlock, its guard or a waiter is killed or stopped; control_group: what that has to do with cgroups
//! - hold: the same for what dlock did not start; hold_recipes: the programs of docs/hold.md
//! - status_codes: statuses and signals that CMD ends with; what cannot be executed
//! - surroundings: what CMD inherits
//! - refused: what did not run, and why
//! - messages: what a program reads of each situation
//! - quiet: what -q keeps quiet, and what it does not
//! - strangers: processes of other users, whatever they look like, delay no KILL
//! - signals, terminal: what is sent to dlock, without and with a terminal
//! - waiting_line: what one who waits sees there
//! - shared, slots, several: the modes, and several locks at once
//! - nesting: a run inside of a job that holds what it asks for
//! - inside: what runs inside a job reaches the same place
//! - min_hold: once a tick
//! - tree: the lock is kept for what CMD leaves behind
//! - report: what `--report` writes, however the run ends
//! - oversell: why there are locks; fence_example: what helps where a lock cannot
//! - lost_replies: a network that loses and delays; waiters that leave at the moment of their grant
//! - server_states: a server that answers and cannot serve; what it is left with
//! - first_contact: waiting for a store that is not there yet
//! - floods: a server, or somebody who writes there, says more than anybody can hear
//! - input, config, passwords: what is accepted from whom, and what is never shown
//! - acquire, renew, check: a lock whose lifetime a script manages; wait: looking on
//! - quorum: several masters hold one lock, and some of them are lost
//! - forged: records that somebody else has made something of
//! - fuzz: garbage of every kind
//! - status, status_watch, history, release, watch, metrics, doctor: the other commands
//! - completions: what TAB offers in real shells
//! - schema: JSON against docs/dlock.schema.json
//! - sentinel, cluster, replicas: servers that belong together; failovers that keep a lock, and that lose it
//! - tls: who is trusted, who is not, and what is said about it
//! - trust: whom dlock listens to, and to whom it speaks
//! - acl: the least rights that the documents give, and what is said when one is missing
//! - file_store: other users, limits and stopped processes where the store is a directory
//! - interop: the well-known pattern of other lock libraries
//! - conformance: what every store does alike
//! - twin: the law against the scripts, on random histories
//! - generated: man/ and completions/ are what src/cli.rs says
//! - cost: what a run costs, in what can be counted
//! - walls: who may know whom in src
//! - readme: the documents' examples
//! - packages: the Debian package, only when asked for
//! - pictures: what the README shows is what a terminal shows
//! - upgrade: what released versions wrote
//! - recipes: docs/recipes.md, as it is written
//! - failover: databases with a standby that takes the place of the primary
//! - sql: what an administrator may do to a database that keeps locks
//! - night: everything goes wrong at once, and what is promised holds
//! - soak: thousands of runs, only when asked for
//! - support: what all of these are told with
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic that says what it missed"
)]

mod acl;
mod acquire;
mod calm;
mod check;
mod cluster;
mod completions;
mod config;
mod conformance;
mod contention;
mod control_group;
mod cost;
#[cfg(feature = "sql")]
mod databases;
mod doctor;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "sql")]
mod failover;
mod fence_example;
mod file_store;
mod first_contact;
mod floods;
mod forged;
mod fuzz;
mod generated;
mod guard;
#[cfg(feature = "sql")]
mod guests;
mod history;
mod hold;
mod hold_recipes;
mod input;
mod inside;
mod interop;
mod lease;
mod lost_replies;
mod messages;
mod metrics;
mod min_hold;
#[cfg(feature = "mysql")]
mod mysql;
mod nesting;
mod night;
mod observability;
mod once_per;
mod oversell;
mod packages;
mod passwords;
mod pause;
mod pictures;
mod quiet;
mod quorum;
mod readme;
mod recipes;
mod refused;
mod release;
mod renew;
mod replace;
mod replicas;
mod report;
mod rotation;
mod schema;
mod sentinel;
mod server_states;
mod several;
mod shared;
mod signals;
mod slots;
mod soak;
#[cfg(feature = "postgres")]
mod sql;
mod status;
mod status_codes;
mod status_watch;
mod strangers;
mod support;
mod surroundings;
mod terminal;
mod tls;
mod tree;
mod trust;
mod twin;
mod upgrade;
mod wait;
mod waiting_line;
mod walls;
mod watch;
#[cfg(feature = "zookeeper")]
mod zookeeper;
