//! Turns an error of a connection into one line that names the cause, and cuts a server's own text
//! for display. Each store translates its server's refusals itself.

use crate::store::Error;
use std::io::{self, ErrorKind};

/// Most characters of a server's own text that are shown.
const SHOWN_MAX: usize = 200;
/// Hexadecimal digits in a row that may be a token.
const TOKEN_LIKE: usize = 12;

/// What went wrong in an exchange.
#[derive(Debug)]
pub enum Failure {
    /// The connection ended. A new one may work at once.
    Broken(Error),
    /// There was no answer in time.
    Silent(Error),
    /// The server cannot serve now. Another one may.
    Unable(Error),
    /// A retry, here or at another server, would fail as well.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken(error)
            | Failure::Silent(error)
            | Failure::Unable(error)
            | Failure::Refused(error) => error,
        }
    }
}

/// Whether the server closed the connection.
pub fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
    )
}

/// Whether the server may serve a client that comes a moment later.
fn is_overload(error: &io::Error) -> bool {
    let kinds = [ErrorKind::TimedOut, ErrorKind::WouldBlock, ErrorKind::QuotaExceeded];
    kinds.contains(&error.kind()) || is_end(error)
}

/// The error for a server that does not answer.
pub fn silent(store: &str) -> Error {
    unreachable(store, &ErrorKind::TimedOut.into())
}

/// Translates an error of a connection.
pub fn unreachable(store: &str, error: &io::Error) -> Error {
    let what = match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer in time".into(),
        ErrorKind::QuotaExceeded => PUT_OFF.into(),
        _ if is_end(error) => "the server closed the connection".into(),
        ErrorKind::ConnectionRefused => "connection refused: nothing listens there".into(),
        _ => error.to_string(),
    };
    let text = |what: &str| format!("cannot reach {store}: {what}");
    match what.strip_prefix(NO_ADDRESS) {
        Some(said) if NO_SUCH_NAME.contains(&said) => {
            Error::Misnamed(text(&format!("the name is not known ({said})")))
        }
        Some(said) => Error::Unreachable(text(&format!("the name cannot be looked up now ({said})"))),
        None if is_overload(error) => Error::Overloaded(text(&what)),
        None => Error::Unreachable(text(&what)),
    }
}

/// The text if dlock itself did not connect.
const PUT_OFF: &str = "it has failed many times within ten seconds, and dlock waits before it connects again";

/// Whether dlock itself did not connect, so that an earlier error says more.
pub fn is_put_off(error: &Error) -> bool {
    matches!(error, Error::Overloaded(text) if text.ends_with(PUT_OFF))
}

/// Rust's text before the C library's, for a name without an address.
const NO_ADDRESS: &str = "failed to lookup address information: ";

/// Texts of glibc and musl for a name that does not exist. They are English, because no locale is
/// set. A name service that does not answer gives other texts.
const NO_SUCH_NAME: [&str; 3] =
    ["Name or service not known", "No address associated with hostname", "Name does not resolve"];

/// A server's own text, cut, without tokens and without the arguments of a command that the server
/// does not know and repeats. Control characters are escaped where the text is printed.
pub fn plain(text: &str) -> String {
    let said = text.split_once(", with args beginning with").map_or(text, |(said, _)| said);
    without_tokens(said).chars().take(SHOWN_MAX).collect()
}

/// Replaces tokens, also those whose end the server has cut off.
fn without_tokens(text: &str) -> String {
    let is_hex = |c: char| c.is_ascii_hexdigit();
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find(is_hex) {
        let (before, from) = rest.split_at(begin);
        let end = from.find(|c| !is_hex(c)).unwrap_or(from.len());
        shown.push_str(before);
        shown.push_str(if end < TOKEN_LIKE { &from[..end] } else { "…" });
        rest = &from[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::{Error, io, plain, unreachable};

    /// An unknown name gives another error than a name service that does not answer.
    #[test]
    fn a_name_without_an_address_is_one_of_two_things() {
        let said = |words: &str| unreachable("redis://h:6379", &io::Error::other(words));
        for (words, known) in [
            ("failed to lookup address information: Name or service not known", false),
            ("failed to lookup address information: Name does not resolve", false),
            ("failed to lookup address information: Temporary failure in name resolution", true),
        ] {
            let error = said(words);
            let line = error.to_string();
            assert_eq!(matches!(error, Error::Unreachable(_)), known, "{line}");
            let ours = if known { "the name cannot be looked up now (" } else { "the name is not known (" };
            assert!(line.starts_with(&format!("cannot reach redis://h:6379: {ours}")), "{line}");
        }
    }

    /// A server repeats the arguments of an unknown command, each in its own form.
    #[test]
    fn tokens_are_not_repeated() {
        for (said, shown) in [
            (
                "unknown command 'BLPOP', with args beginning with: 'dlock.wake:{k}:k:0123456789abcdef:0' '30' ",
                "unknown command 'BLPOP'",
            ),
            (
                "unknown command `BLPOP`, with args beginning with: `dlock.wake:{k}:k:01234",
                "unknown command `BLPOP`",
            ),
            ("no 'dlock.wake:{k}:k:0123456789abcdef:0' '30'", "no 'dlock.wake:{k}:k:…:0' '30'"),
            ("no 'deadbeef' '0123456789abc", "no 'deadbeef' '…"),
        ] {
            assert_eq!(plain(said), shown);
        }
    }
}
