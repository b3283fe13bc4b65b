//! Reads a token from a file or from standard input, so that it need not be on a command line.

use crate::error::Error;
use crate::lock::Token;
use crate::sys::named_file::{Fault, read_secret};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Reads the token in a file within this time; `-` is standard input, which may take longer.
pub fn read(file: &Path, within: Duration) -> Result<Token, Error> {
    let (mut bytes, is_stdin) = (Vec::new(), file == Path::new("-"));
    let shown = if is_stdin { "standard input".into() } else { file.display().to_string() };
    let read = match is_stdin {
        true => std::io::stdin().take(4096).read_to_end(&mut bytes).map(|_| bytes).map_err(Fault::from),
        false => read_secret(file, within),
    };
    let bytes =
        read.map_err(|fault| Error::Config(format!("cannot read the token from {shown}: {fault}")))?;
    Token::parse(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']))
        .map_err(|why| Error::Config(format!("there is no token in {shown}: {why}")))
}
