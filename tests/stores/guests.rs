//! What another user can do who has rights of their own in the database of the locks, or a program
//! that listens on the port of a server that is down. None of their code runs with the rights of
//! dlock's user, and they learn nothing from which the password could be guessed.

#[cfg(feature = "mysql")]
mod shared_mysql;
#[cfg(feature = "postgres")]
mod shared_postgres;
#[cfg(feature = "postgres")]
mod taken_port;

use crate::support::dlock::{Dlock, Output};
use crate::support::world::World;

/// Runs every command that uses the store, as the user in the URL. Each is expected to end with
/// `status`.
#[track_caller]
fn every_command<'w>(world: &'w World, status: i32, with: impl Fn(Dlock<'w>) -> Dlock<'w>) -> Vec<Output> {
    let all: &[&[&str]] = &[
        &["run", "-k", "k", "--", "true"],
        &["run", "-k", "k", "-k", "l", "--shared", "--", "true"],
        &["run", "-k", "n", "--slots", "2", "--", "true"],
        &["run", "-k", "o", "--once-per", "1h", "--", "true"],
        &["forget", "o"],
        &["acquire", "-k", "a", "-t", "1m"],
        &["renew", "a", "--token-file", "token"],
        &["check", "a", "--token-file", "token"],
        &["release", "a", "--token-file", "token"],
        &["status"],
        &["status", "k", "--json"],
        &["history", "k"],
        &["metrics"],
        &["pause", "k", "--reason", "r"],
        &["resume", "k"],
        &["wait", "k"],
    ];
    let mut outputs = Vec::new();
    for words in all {
        // These commands need a token.
        if status != 0 && words.contains(&"token") {
            continue;
        }
        let output = with(world.dlock(*words)).status(status).any_stdout().any_stderr().run();
        if words[0] == "acquire" {
            world.write("token", &output.stdout);
        }
        outputs.push(output);
    }
    outputs
}
