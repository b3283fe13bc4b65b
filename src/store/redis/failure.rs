//! What an error reply of a Redis server means: one line with the cause and what to do. Sends
//! nothing.

use crate::store::Error;
use crate::store::net::failure::plain;
use redis::ServerError;

/// The keys that dlock's user needs, as an ACL names them.
pub const KEYS: &str =
    "~PREFIX* ~dlock.*:{*}:PREFIX*, where PREFIX is 'dlock:' unless --prefix names another";

/// Whether the server has all the clients that it takes. It has read nothing from this one.
fn is_full(error: &ServerError) -> bool {
    error.details().is_some_and(|text| text.contains("max number of clients"))
}

/// The error for an error reply. Before Redis 7, the code of an error inside a script may stand in
/// the middle of the text.
pub fn refusal(store: &str, error: &ServerError) -> Error {
    let text = error.details().unwrap_or_default();
    let code = match error.code() {
        "ERR" => ["OOM", "READONLY", "MISCONF", "LOADING", "NOPERM", "NOREPLICAS"]
            .into_iter()
            .find(|code| text.contains(&format!("-{code} ")))
            // The wording of Redis 8.
            .or(text.starts_with("ACL failure in script").then_some("NOPERM"))
            .unwrap_or("ERR"),
        code => code,
    };
    let said = plain(text);
    let denied = |why: &str| Error::Denied(format!("{store} {why}"));
    let refused = |why: &str| Error::Password(format!("{store} {why}"));
    let unavailable = |why: &str| Error::Unavailable(format!("{store} {why}"));
    let overloaded = |why: &str| Error::Overloaded(format!("{store} {why}"));
    match code {
        // "unauthenticated" is the answer to a long command: before AUTH a server reads at most ten
        // words.
        _ if code == "NOAUTH" || text.contains("unauthenticated") => denied(
            "wants a password; give one by DLOCK_PASSWORD_FILE, DLOCK_PASSWORD_COMMAND, DLOCK_PASSWORD or the config file",
        ),
        "WRONGPASS" => refused("refused the user name or the password"),
        "NOPERM" if text.contains("access") => denied(&format!("denies this user its keys ({KEYS}): {said}")),
        "NOPERM" => denied(&format!(
            "denies this user a right that dlock needs: {said}; docs/stores.md has the whole ACL line"
        )),
        "DENIED" => denied("is in protected mode and refuses this host"),
        "LOADING" => overloaded("is still loading its data; try again when it is done"),
        "READONLY" => unavailable("is a read-only replica; name the master"),
        "OOM" => unavailable("is out of memory (maxmemory reached) and takes no new lock"),
        "MISCONF" => unavailable("cannot save to disk and takes no writes (MISCONF); see its log"),
        "NOREPLICAS" => unavailable("has too few good replicas and takes no writes"),
        "MASTERDOWN" => overloaded("is a replica that has lost its master"),
        "BUSY" => overloaded("is busy running another client's script"),
        "CLUSTERDOWN" | "TRYAGAIN" => {
            Error::Unavailable(format!("{store}: the cluster cannot serve: {said}"))
        }
        "UNBLOCKED" => unavailable(&format!("is no master any more: {said}")),
        "MOVED" | "ASK" | "CROSSSLOT" => Error::Unfit(format!(
            "{store} is a node of a Redis Cluster, not a single server; write redis+cluster://"
        )),
        // The slot of a key that the script computes has moved.
        _ if text.contains("non local key") => {
            Error::Unavailable(format!("{store}: the slot of this lock is being moved to another node"))
        }
        _ if is_full(error) => overloaded("has reached its maximum number of clients"),
        _ if text.contains("without any password configured") => {
            refused("has no password, but one is given; take it out of the settings, or set it on the server")
        }
        _ if text.contains("AUTH") || text.contains("invalid password") => {
            refused(&format!("refused the password: {said}"))
        }
        _ if text.contains("DB index") || text.contains("SELECT") => {
            Error::Unfit(format!("{store}: there is no such database: {said}"))
        }
        code => Error::Garbled(format!("{store} answered {code} {said}")),
    }
}
