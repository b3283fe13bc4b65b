//! What does it mean that a server refuses, or cannot be reached? What the kernel and the server say becomes one line that
//! says what the matter is, and what to do. Nothing is asked here.

use crate::store::Error;
use redis::ServerError;
use std::io::{self, ErrorKind};

/// How much of a server's own words is repeated, in characters.
const SAID_MAX: usize = 200;
/// From how many hexadecimal digits in a row on they may be a token's.
const TOKEN_LIKE: usize = 12;
/// Whether the server hung up.
pub fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
    )
}

/// The error for a server that is silent.
pub fn silent(store: &str) -> Error {
    unreachable(store, &ErrorKind::TimedOut.into())
}

/// What an error of a connection means.
pub fn unreachable(store: &str, error: &io::Error) -> Error {
    let what = match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer in time".into(),
        _ if is_end(error) => "the server closed the connection".into(),
        ErrorKind::ConnectionRefused => "connection refused: nothing listens there".into(),
        _ => error.to_string(),
    };
    let text = format!("cannot reach {store}: {what}");
    if NO_SUCH_NAME.iter().any(|end| what.ends_with(end)) {
        Error::Misnamed(text)
    } else {
        Error::Unreachable(text)
    }
}

/// What glibc and musl say of a name that does not exist; they say it in English, for no locale is set. Of a name
/// service that does not answer they say something else.
const NO_SUCH_NAME: [&str; 3] =
    ["Name or service not known", "No address associated with hostname", "Name does not resolve"];

/// A server's own words, cut, without tokens, and without the arguments of a command that it does not know, which it
/// repeats. What acts on a terminal is escaped where they are printed.
pub fn plain(text: &str) -> String {
    let said = text.split_once(", with args beginning with").map_or(text, |(said, _)| said);
    without_tokens(said).chars().take(SAID_MAX).collect()
}

/// Also a token of which the server has cut the end is none of anybody's business.
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

/// What an error reply means. Inside a script the code may stand in the middle of the text (before Redis 7).
pub fn refusal(store: &str, error: &ServerError) -> Error {
    let text = error.details().unwrap_or_default();
    let code = match error.code() {
        "ERR" => ["OOM", "READONLY", "MISCONF", "LOADING", "NOPERM", "NOREPLICAS"]
            .into_iter()
            .find(|code| text.contains(&format!("-{code} ")))
            .unwrap_or("ERR"),
        code => code,
    };
    let said = plain(text);
    match code {
        // "unauthenticated" answers a long command: before AUTH a server reads none of more than ten words.
        _ if code == "NOAUTH" || text.contains("unauthenticated") => Error::Denied(format!(
            "{store} wants a password; give one by DLOCK_PASSWORD_FILE, --password-file or the config file"
        )),
        "WRONGPASS" => Error::Denied(format!("{store} refused the user name or the password")),
        "NOPERM" if text.contains("access") => Error::Denied(format!(
            "{store} denies this user its keys (~dlock*, and ~PREFIX* where the prefix is another one): {said}"
        )),
        "NOPERM" => Error::Denied(format!("{store} denies this user a right that dlock needs: {said}")),
        "DENIED" => Error::Denied(format!("{store} is in protected mode and refuses this host")),
        "LOADING" => {
            Error::Unavailable(format!("{store} is still loading its data; try again when it is done"))
        }
        "READONLY" => Error::Unavailable(format!("{store} is a read-only replica; name the master")),
        "OOM" => {
            Error::Unavailable(format!("{store} is out of memory (maxmemory reached) and takes no new lock"))
        }
        "MISCONF" => Error::Unavailable(format!(
            "{store} cannot save to disk and takes no writes (MISCONF); see its log"
        )),
        "NOREPLICAS" => Error::Unavailable(format!("{store} has too few good replicas and takes no writes")),
        "MASTERDOWN" => Error::Unavailable(format!("{store} is a replica that has lost its master")),
        "BUSY" => Error::Unavailable(format!("{store} is busy running somebody's script")),
        "CLUSTERDOWN" | "TRYAGAIN" => {
            Error::Unavailable(format!("{store}: the cluster is not able to serve: {said}"))
        }
        "UNBLOCKED" => Error::Unavailable(format!("{store} is no master any more: {said}")),
        "MOVED" | "ASK" | "CROSSSLOT" => Error::Unfit(format!(
            "{store} is a node of a Redis Cluster, not a single server; write redis+cluster://"
        )),
        // A key that the script names by itself has left with its slot.
        _ if text.contains("non local key") => {
            Error::Unavailable(format!("{store}: the slot of this lock is being moved to another node"))
        }
        _ if text.contains("max number of clients") => {
            Error::Unavailable(format!("{store} has reached its maximum number of clients"))
        }
        _ if text.contains("AUTH") || text.contains("invalid password") => {
            Error::Denied(format!("{store} refused the password: {said}"))
        }
        _ if text.contains("DB index") || text.contains("SELECT") => {
            Error::Unfit(format!("{store}: there is no such database: {said}"))
        }
        code => Error::Garbled(format!("{store} answered {code} {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    /// A server that does not know a command repeats its arguments. So do others in their own words.
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
