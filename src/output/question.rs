//! Asks the operator a question on the terminal, in one line that ends with `[y/N]`.

use super::{escaped, send};
use crate::error::Error;
use rustix::stdio::{stderr, stdin};
use rustix::termios::isatty;
use std::io;

/// Whether there is a terminal to ask on.
pub fn can_be_asked() -> bool {
    isatty(stdin()) && isatty(stderr())
}

/// Asks a question. Only y or yes counts as yes; anything else, and the end of the input, is no.
/// Without a terminal returns an error with the text `nobody`.
pub fn is_yes(question: &str, nobody: &str) -> Result<bool, Error> {
    if !can_be_asked() {
        return Err(Error::Usage(nobody.into()));
    }
    send(&format!("dlock: {} [y/N] ", escaped(question)));
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    if read.map_err(|error| Error::Internal(format!("cannot read the answer: {error}")))? == 0 {
        send("\n");
    }
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
