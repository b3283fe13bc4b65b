//! Reads a token from a file or from standard input, so that it need not be on a command line.

use crate::error::Error;
use crate::lock::Token;
use std::io::Read;
use std::path::Path;

/// Longest token file. A valid one has 32 digits and perhaps a line end.
const MOST: u64 = 4096;

/// Reads the token in a file; `-` is standard input.
pub fn read(file: &Path) -> Result<Token, Error> {
    let (mut text, is_stdin) = (String::new(), file == Path::new("-"));
    let shown = if is_stdin { "standard input".into() } else { file.display().to_string() };
    let read = match is_stdin {
        true => std::io::stdin().take(MOST).read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|file| file.take(MOST).read_to_string(&mut text)),
    };
    read.map_err(|error| Error::Config(format!("cannot read the token from {shown}: {error}")))?;
    Token::parse(text.trim_end_matches(['\n', '\r']))
        .map_err(|why| Error::Config(format!("there is no token in {shown}: {why}")))
}
