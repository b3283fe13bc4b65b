//! Errors that end a command, and their exit statuses. The text of an error is one line that reads
//! after `dlock: `, names key and store where they matter, and says what to do next.

use crate::exit::Exit;
use crate::store;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A failure that ends a command. anyhow may add context; the innermost of these decides the
/// status. It is serialized only between processes of one run; no file or store contains it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Error {
    /// The command line makes no sense: 64.
    Usage(String),
    /// A variable, configuration file or URL is invalid: 78.
    Config(String),
    /// The store failed: 69, 70, 77 or 78, as [`store::Error`] says.
    Store(store::Error),
    /// Standard output could not be written: 74.
    #[serde(skip)]
    Output(std::io::Error),
    /// The given token holds nothing: 79.
    NotHeld(String),
    /// An internal error: 70.
    Internal(String),
}

impl Error {
    /// The exit status of this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Config(_) => Exit::Config,
            Self::Store(error) => error.exit(),
            Self::Output(_) => Exit::Output,
            Self::NotHeld(_) => Exit::Lost,
            Self::Internal(_) => Exit::Internal,
        }
    }
}

/// The status of an error that reaches `main`: that of the innermost [`Error`] or [`store::Error`],
/// else 70.
pub fn exit_of(error: &anyhow::Error) -> Exit {
    let ours = |cause: &(dyn std::error::Error + 'static)| {
        let ours = cause.downcast_ref::<Error>().map(Error::exit);
        ours.or_else(|| cause.downcast_ref::<store::Error>().map(store::Error::exit))
    };
    error.chain().filter_map(ours).last().unwrap_or(Exit::Internal)
}

/// The whole error as one line: what was tried, then why it failed.
pub fn line(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Config(text) | Self::NotHeld(text) | Self::Internal(text) => {
                f.write_str(text)
            }
            Self::Store(error) => error.fmt(f),
            Self::Output(error) => write!(f, "cannot write to standard output: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_error_decides_the_status() {
        let inner = || Error::Store(store::Error::Denied("no".into()));
        for error in [
            anyhow::Error::new(inner()),
            anyhow::Error::new(inner()).context("reading"),
            anyhow::Error::new(inner()).context("reading").context("starting"),
            anyhow::Error::new(store::Error::Denied("no".into())).context("reading"),
            anyhow::Error::new(inner()).context(Error::Usage("outer".into())),
        ] {
            assert_eq!(exit_of(&error).code(), 77, "{error:?}");
        }
        assert_eq!(exit_of(&anyhow::anyhow!("x")).code(), 70);
        assert_eq!(line(&anyhow::Error::new(inner()).context("reading")), "reading: no");
    }
}
