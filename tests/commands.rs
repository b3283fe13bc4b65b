//! The other commands, one file a command.
//!
//! - acquire: `acquire`, and the scripts that use it
//! - check: `check`
//! - completions: what TAB offers in real shells
//! - doctor: `doctor`
//! - history: `history`
//! - metrics: `metrics`
//! - pause: `pause` and `resume`
//! - release: `release`
//! - renew: `renew`
//! - status: `status`
//! - unknown_keys: what all of them say of a key that the store does not know
//! - wait: `wait`
//! - watch: `watch`

pub mod acquire;
pub mod check;
pub mod completions;
pub mod doctor;
pub mod history;
pub mod metrics;
pub mod pause;
pub mod release;
pub mod renew;
pub mod status;
pub mod unknown_keys;
pub mod wait;
pub mod watch;
