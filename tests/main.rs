//! The black-box suite and what else is tested from outside the library.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod generated;
mod twin;
