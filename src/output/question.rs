//! How is a person asked? On the terminal, by one line that ends with `[y/N]`; only a yes is a yes.

use super::{escaped, send};
use crate::error::Error;
use rustix::stdio::{stderr, stdin};
use rustix::termios::isatty;
use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Yes,
    /// Anything else, or the end of the input.
    No,
    /// There is no terminal, and nobody was asked.
    Nobody,
}

/// Whether there is a terminal to ask on.
pub fn can_be_asked() -> bool {
    isatty(stdin()) && isatty(stderr())
}

/// Asks a question that yes or no answers.
pub fn ask(question: &str) -> Result<Answer, Error> {
    if !can_be_asked() {
        return Ok(Answer::Nobody);
    }
    send(&format!("dlock: {} [y/N] ", escaped(question)));
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    if read.map_err(|error| Error::Internal(format!("cannot read the answer: {error}")))? == 0 {
        send("\n");
    }
    let yes = matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    Ok(if yes { Answer::Yes } else { Answer::No })
}
