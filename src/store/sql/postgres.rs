//! The SQL of PostgreSQL, and what each of its errors means. [`wire`] has the protocol.
//!
//! Statements are sent as simple queries and nothing is prepared, so that PgBouncer may stand in
//! between. The `statement_timestamp` of a simple query is the time of its arrival, before any row
//! is read.

use super::row::{FRONT, Waiters, hex};
use super::statement::{Change, Dialect, Question, RESERVED, RESERVED_MOST, join, mode, place};
use super::{Database, Failure, Link, Target, statement};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use crate::rules::Time;
use crate::store::Error;
use crate::store::engine::queue::Waiting;
use crate::store::net::Address;
use crate::store::net::failure::plain;
use guard::{NO_TABLE, READS};
use std::collections::BTreeSet;
use std::time::Duration;
use wire::{Connection, Said};

mod guard;
mod wire;

/// Created under the user's own search path, unlike all other statements.
const TABLES: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS dlock_locks (name pg_catalog.bytea PRIMARY KEY, version bigint NOT NULL, used bigint NOT NULL, \
     kept smallint NOT NULL, body pg_catalog.bytea NOT NULL) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS dlock_waiters (name pg_catalog.bytea, token pg_catalog.text COLLATE pg_catalog.\"C\", \
     ticket bigint NOT NULL, since bigint NOT NULL, silent bigint NOT NULL, forget bigint NOT NULL, mode integer NOT NULL, \
     place smallint NOT NULL, said bigint NOT NULL, note pg_catalog.bytea, PRIMARY KEY (name, token)) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS dlock_ends (name pg_catalog.bytea, number bigint, entry pg_catalog.bytea NOT NULL, \
     PRIMARY KEY (name, number))",
];

/// The server's time when the statement arrived, in microseconds since 1970. `pg_catalog` has no
/// operator with exactly these types.
const NOW: &str =
    "(extract(epoch FROM pg_catalog.statement_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8";

/// A PostgreSQL database.
pub struct Postgres {
    target: Target,
}

impl Postgres {
    pub fn new(target: Target) -> Self {
        Self { target }
    }
}

impl Database for Postgres {
    fn target(&self) -> &Target {
        &self.target
    }

    fn connect(&self, server: &Address, by: Moment) -> Result<Box<dyn Link>, Error> {
        Ok(Box::new(Connection::begin(&self.target, server, by)?))
    }

    fn dialect(&self) -> &dyn Dialect {
        &PostgresDialect
    }
}

struct PostgresDialect;

impl Dialect for PostgresDialect {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    /// Returns the notes of the first waiters, the last one, the caller and its predecessor.
    fn read(&self, question: &Question<'_>) -> String {
        let names = join(question.names.iter().map(|name| self.bytes(name.as_bytes())));
        let me = || question.me.map(|me| format!("'{}'", me.secret()));
        let (noted, rows) = match question.waiters {
            Waiters::Front => {
                let first = question.names.iter().map(|name| {
                    format!(
                        "(SELECT * FROM ONLY dlock_waiters WHERE name = {} AND place = 0 ORDER BY ticket, token LIMIT {})",
                        self.bytes(name.as_bytes()),
                        FRONT + 1
                    )
                });
                let first = first.collect::<Vec<_>>().join(" UNION ALL ");
                let beside =
                    format!("SELECT * FROM ONLY dlock_waiters WHERE name IN ({names}) AND place <> 0");
                ("pg_catalog.encode(note, 'hex')".into(), format!("({first} UNION ALL {beside}) AS w"))
            }
            Waiters::All => {
                let mine =
                    me().map(|me| format!(" OR token = {me} OR pg_catalog.lead(token) OVER forth = {me}"));
                let mine = mine.unwrap_or_default();
                let noted = format!(
                    "CASE WHEN pg_catalog.row_number() OVER forth <= 4 OR pg_catalog.lead(token) OVER forth IS NULL{mine} THEN pg_catalog.encode(note, 'hex') END"
                );
                let rows = format!(
                    "ONLY dlock_waiters WHERE name IN ({names}) WINDOW forth AS (PARTITION BY name, place ORDER BY ticket, token)"
                );
                (noted, rows)
            }
        };
        let heard = match question.waiters {
            Waiters::Front => {
                "(SELECT pg_catalog.max(said)::text FROM ONLY dlock_waiters AS o WHERE o.name = l.name AND o.place = 0)"
            }
            Waiters::All => "NULL::text",
        };
        let null = |count| ", NULL::text".repeat(count);
        let mut text = format!(
            "{READS}SELECT 't'::text, NULL::text, {NOW}::text, pg_catalog.pg_backend_pid()::text{} \
             UNION ALL SELECT 'r', pg_catalog.encode(name, 'hex'), version::text, used::text, pg_catalog.encode(body, 'hex'), {heard}{} \
             FROM ONLY dlock_locks AS l WHERE name IN ({names}) \
             UNION ALL SELECT 'w', pg_catalog.encode(name, 'hex'), token, ticket::text, since::text, silent::text, forget::text, \
             mode::text, place::text, said::text, {noted} FROM {rows}",
            null(7),
            null(5)
        );
        if question.with_ends {
            text += &format!(
                " UNION ALL SELECT 'e', pg_catalog.encode(name, 'hex'), number::text, pg_catalog.encode(entry, 'hex'){} \
                 FROM ONLY dlock_ends WHERE name IN ({names})",
                null(7)
            );
        }
        text
    }

    fn begin(&self, names: &[&String], now: Time) -> String {
        let rows = join(names.iter().map(|name| {
            format!("({}, {}, {}, 0, ''::bytea)", self.bytes(name.as_bytes()), now.0, now.millis())
        }));
        format!(
            "INSERT INTO dlock_locks (name, version, used, kept, body) VALUES {rows} ON CONFLICT DO NOTHING"
        )
    }

    /// Two texts, sent together: one text would be one transaction. A reservation need not survive
    /// a crash of the server.
    fn reserve_and_read(&self, question: &Question<'_>) -> Vec<String> {
        let names = self.list(&mut question.names.iter().map(String::as_str));
        let reserve = format!(
            "SET LOCAL synchronous_commit TO off; WITH v AS MATERIALIZED (SELECT name FROM ONLY dlock_locks \
             WHERE name IN ({names}) AND {open} ORDER BY name FOR UPDATE) UPDATE ONLY dlock_locks AS l \
             SET used = {NOW} / 1000 + {RESERVED}, kept = 2 + l.kept % 2::pg_catalog.int2 FROM v WHERE l.name = v.name",
            open = is_open()
        );
        vec![reserve, self.read(question)]
    }

    /// One statement. Locks the rows of all locks that were read. If each still has the version
    /// that was read, writes everything, otherwise nothing.
    fn write(&self, change: &Change) -> String {
        let bytes = |bytes: &[u8]| self.bytes(bytes);
        let name = |name: &str| bytes(name.as_bytes());
        let token = |token: &Token| format!("'{}'", token.secret());
        let open = if change.reserves { String::new() } else { format!(" AND {}", is_open()) };
        let read = change
            .read
            .iter()
            .map(|(of, version)| format!("name = {} AND version = {}{open}", name(of), version));
        let read = read.collect::<Vec<_>>().join(" OR ");
        let mut parts = vec![
            format!(
                "same AS MATERIALIZED (SELECT name FROM ONLY dlock_locks WHERE {read} ORDER BY name FOR UPDATE)"
            ),
            format!(
                "go AS MATERIALIZED (SELECT 1 FROM (SELECT pg_catalog.count(*) AS n FROM same) AS s WHERE n = {})",
                change.read.len()
            ),
        ];
        for (at, body) in change.bodies.iter().enumerate() {
            parts.push(format!(
                "b{at} AS (UPDATE ONLY dlock_locks SET version = {}, used = {}, kept = {}, body = {} FROM go WHERE name = {})",
                body.version + 1,
                body.used,
                u8::from(body.is_kept),
                bytes(&body.body),
                name(&body.name)
            ));
        }
        if !change.gone.is_empty() {
            let gone = join(change.gone.iter().map(|(of, who)| format!("({}, {})", name(of), token(who))));
            parts.push(format!(
                "g AS (DELETE FROM ONLY dlock_waiters USING go WHERE (name, token) IN ({gone}))"
            ));
        }
        if !change.come.is_empty() {
            let come = join(change.come.iter().filter_map(|(of, waiting, note)| {
                let (of, who) = (name(of), token(&waiting.token()?));
                let columns = columns(waiting);
                let note = note.as_ref().map_or("NULL::bytea".into(), |note| bytes(note));
                Some(format!("({of}, {who}, {columns}, {note})"))
            }));
            parts.push(format!(
                "c AS (INSERT INTO dlock_waiters AS w (name, token, ticket, since, silent, forget, mode, place, said, note) \
                 SELECT v.* FROM (VALUES {come}) AS v, go ON CONFLICT (name, token) DO UPDATE SET ticket = excluded.ticket, \
                 since = excluded.since, silent = excluded.silent, forget = excluded.forget, mode = excluded.mode, \
                 place = excluded.place, note = coalesce(excluded.note, w.note))"
            ));
        }
        if !change.ends.is_empty() {
            let ends = join(
                change
                    .ends
                    .iter()
                    .map(|(of, number, end)| format!("({}, {}, {})", name(of), number, bytes(end))),
            );
            parts.push(format!(
                "e AS (INSERT INTO dlock_ends (name, number, entry) SELECT v.* FROM (VALUES {ends}) AS v, go \
                 ON CONFLICT (name, number) DO UPDATE SET entry = excluded.entry)"
            ));
        }
        if !change.old_ends.is_empty() {
            let old = change
                .old_ends
                .iter()
                .map(|(of, number)| format!("name = {} AND number <= {}", name(of), number));
            let old = old.collect::<Vec<_>>().join(" OR ");
            parts.push(format!("o AS (DELETE FROM ONLY dlock_ends USING go WHERE {old})"));
        }
        let channels = if change.woken.is_empty() {
            "0".into()
        } else {
            let channels = join(change.woken.iter().map(|token| {
                let wake_channel = format!("'{}'", channel(token));
                format!("({})", wake_channel)
            }));
            format!(
                "(SELECT pg_catalog.count(pg_catalog.pg_notify(v.wake_channel, '')) FROM (VALUES {channels}) AS v (wake_channel), go)"
            )
        };
        format!("WITH {} SELECT (SELECT pg_catalog.count(*) FROM go), {channels}", parts.join(", "))
    }

    fn before_write(&self, change: &Change) -> &'static str {
        if is_seen_early(change) { "SET LOCAL synchronous_commit TO off; " } else { "" }
    }

    fn secure(&self, change: &Change) -> Option<String> {
        let ends = change.ends.iter().map(|(name, number, end)| {
            format!("({}, {number}, {})", self.bytes(name.as_bytes()), self.bytes(end))
        });
        is_seen_early(change).then(|| {
            format!(
                "UPDATE ONLY dlock_ends SET entry = entry WHERE (name, number, entry) IN ({})",
                join(ends)
            )
        })
    }

    /// A heartbeat need not survive a crash of the server.
    fn heard(&self, names: &Names, token: &Token, millis: u64) -> String {
        let names = self.list(&mut names.iter().map(|name| name.as_str()));
        format!(
            "SET LOCAL synchronous_commit TO off; UPDATE ONLY dlock_waiters SET said = {NOW} / 1000 + {millis} \
             WHERE name IN ({names}) AND token = '{}' AND place = 0",
            token.secret()
        )
    }

    fn time(&self) -> String {
        format!("{NO_TABLE}SELECT {NOW}")
    }

    fn survey(&self) -> String {
        let setting = |name| format!("pg_catalog.current_setting('{name}')");
        format!(
            "{NO_TABLE}SELECT pg_catalog.concat('PostgreSQL ', {}), CASE WHEN pg_catalog.pg_is_in_recovery() THEN '1' ELSE '0' END, \
             pg_catalog.concat_ws(' and ', CASE WHEN {fsync} = 'off' THEN 'fsync off' END, \
             CASE WHEN {commit} = 'off' THEN 'synchronous_commit off' END), \
             CASE WHEN {} = 'on' THEN 'a superuser' END",
            setting("server_version"),
            setting("is_superuser"),
            fsync = setting("fsync"),
            commit = setting("synchronous_commit"),
        )
    }

    fn acknowledgement(&self) -> String {
        let row = |name| format!("SELECT '{name}'::text, pg_catalog.current_setting('{name}')");
        format!("{NO_TABLE}{} UNION ALL {}", row("synchronous_standby_names"), row("synchronous_commit"))
    }

    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> Option<String>) -> bool {
        setting("synchronous_standby_names").is_some_and(|names| !names.is_empty())
            && setting("synchronous_commit")
                .is_some_and(|commit| !["off", "local"].contains(&commit.as_str()))
    }

    fn acknowledged_by(&self) -> &'static str {
        "synchronous_standby_names, and synchronous_commit on"
    }

    fn notes(&self, name: &str, tokens: &[Token]) -> String {
        format!(
            "{READS}SELECT token, {} FROM ONLY dlock_waiters WHERE name = {} AND token IN ({})",
            to_hex("note"),
            self.bytes(name.as_bytes()),
            join(tokens.iter().map(|token| format!("'{}'", token.secret())))
        )
    }

    fn waits(&self, names: &Names, token: &Token) -> String {
        let names = self.list(&mut names.iter().map(|name| name.as_str()));
        format!(
            "{READS}SELECT 1 FROM ONLY dlock_waiters WHERE name IN ({names}) AND token = '{}' AND place = 0",
            token.secret()
        )
    }

    fn versions(&self, names: &BTreeSet<String>) -> String {
        let names = self.list(&mut names.iter().map(String::as_str));
        format!("{READS}SELECT version FROM ONLY dlock_locks WHERE name IN ({names}) ORDER BY name")
    }

    fn names(&self) -> String {
        format!("{READS}SELECT {} FROM ONLY dlock_locks WHERE kept IN (1, 3)", to_hex("name"))
    }

    fn remove(&self, name: &str) -> Vec<String> {
        let table = |table| format!("DELETE FROM ONLY {table} WHERE name = {}", self.bytes(name.as_bytes()));
        ["dlock_ends", "dlock_waiters", "dlock_locks"].map(table).to_vec()
    }

    fn clean_up(&self) -> Vec<String> {
        let old = format!("{NOW} / 1000 - {}", 2 * crate::rules::HISTORY_KEPT.as_millis());
        vec![format!(
            "WITH old AS (DELETE FROM ONLY dlock_locks WHERE used < {old} RETURNING name), \
             w AS (DELETE FROM ONLY dlock_waiters USING old WHERE dlock_waiters.name = old.name) \
             DELETE FROM ONLY dlock_ends USING old WHERE dlock_ends.name = old.name"
        )]
    }

    fn has_channels(&self) -> bool {
        true
    }

    fn wake_channel(&self, token: &Token) -> Option<String> {
        Some(format!("{NO_TABLE}LISTEN {}", channel(token)))
    }

    fn take_advisory_lock(&self, token: &Token) -> Option<String> {
        Some(format!("SELECT pg_catalog.pg_try_advisory_lock({}); ", advisory_lock(token)))
    }

    fn drop_advisory_lock(&self) -> Option<String> {
        Some("SELECT pg_catalog.pg_advisory_unlock_all(); ".into())
    }

    /// Catches the timeout in the block, so that it is not in the server's log.
    fn sleep_at_advisory_lock(&self, token: &Token, span: Duration) -> Option<String> {
        let advisory_lock = advisory_lock(token);
        Some(format!(
            "{NO_TABLE}DO $$ BEGIN PERFORM pg_catalog.set_config('dlock.slept', '2', false); \
             IF NOT pg_catalog.pg_try_advisory_lock_shared({advisory_lock}) THEN \
             PERFORM pg_catalog.set_config('lock_timeout', '{}', true); PERFORM pg_catalog.pg_advisory_lock_shared({advisory_lock}); \
             PERFORM pg_catalog.set_config('dlock.slept', '1', false); END IF; PERFORM pg_catalog.pg_advisory_unlock_shared({advisory_lock}); \
             EXCEPTION WHEN lock_not_available THEN PERFORM pg_catalog.set_config('dlock.slept', '0', false); END $$; \
             SELECT pg_catalog.current_setting('dlock.slept')",
            span.as_millis().max(1)
        ))
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("pg_catalog.decode('{}', 'hex')", hex(bytes))
    }
}

/// Whether others see the write before it is on the disk. What they write next comes after it in
/// the server's log, so it is on the disk when theirs is, and nobody starts a job before that. The
/// end that it records shows whether it was lost.
fn is_seen_early(change: &Change) -> bool {
    !change.woken.is_empty() && !change.ends.is_empty()
}

/// A column of bytes as hexadecimal digits.
fn to_hex(column: &str) -> String {
    format!("pg_catalog.encode({column}, 'hex')")
}

/// The condition that no other process has reserved a lock.
fn is_open() -> String {
    format!("(kept < 2 OR used NOT BETWEEN {NOW} / 1000 + 1 AND {NOW} / 1000 + {RESERVED_MOST})")
}

/// A waiter's columns after name and token.
fn columns(waiting: &Waiting) -> String {
    let Waiting { ticket, since, silent, forget, .. } = waiting;
    let times = join([ticket, since, silent, forget].into_iter().map(ToString::to_string));
    let (mode, place) = (mode(waiting.mode), place(waiting.place));
    format!("{times}, {}, {}, 0", mode, place)
}

fn advisory_lock(token: &Token) -> i64 {
    i64::from_be_bytes(statement::advisory_lock(token))
}

fn channel(token: &Token) -> String {
    format!("dlock_{}", token.secret())
}

/// What a server error means for a lock.
fn meaning(store: &str, said: &Said) -> Failure {
    let text = plain(&said.text);
    let unavailable = |what: String| Failure::Refused(Error::Unavailable(what));
    let denied = |what: String| Failure::Refused(Error::Denied(what));
    let unfit = |what: String| Failure::Refused(Error::Unfit(what));
    match said.code.as_str() {
        // A serialization failure, a deadlock, or another client that creates the same table or
        // row.
        "40001" | "40P01" | "23505" | "42P07" | "42710" => Failure::Conflict,
        "42P01" => Failure::NoTables(Error::Unfit(format!("{store} has no tables for locks: {text}"))),
        "22P02" if guard::found(&text) == Some(guard::CHANGED) => Failure::Conflict,
        "22P02" if guard::found(&text).is_some() => {
            let found = guard::found(&text).unwrap_or_default();
            denied(format!(
                "{store}: dlock does not use {found}: code of another user could run with the rights of this user; have an administrator look at it, and make the tables as docs/stores.md says"
            ))
        }
        "42703" | "42804" | "42809" => {
            unfit(format!("{store} has tables with the names of dlock's, but of another program: {text}"))
        }
        "42501" | "3F000" => denied(format!(
            "{store} denies this user a right that dlock needs: {text}; docs/stores.md has the GRANT statement"
        )),
        "28P01" => denied(format!("{store} refused the user name or the password")),
        code if code.starts_with("28") => {
            denied(format!("{store} does not let this user in from here: {text}"))
        }
        "3D000" => unfit(format!("{store}: there is no such database: {text}")),
        "25006" => Failure::ReadOnly(Error::Unavailable(format!(
            "{store} is read-only, as a standby is; name the primary"
        ))),
        "53100" => unavailable(format!("{store} has no room on its disk: {text}")),
        "53300" => unavailable(format!("{store} has too many clients: {text}")),
        "57014" => unavailable(format!("{store} cancelled a statement: {text}")),
        "57P03" => unavailable(format!("{store} is starting or stopping: {text}")),
        // An administrator closed the connection, or the server process crashed. A new connection
        // may work at once.
        "57P01" | "57P02" | "57P05" | "08006" | "08003" | "08P01" => {
            Failure::Broken(Error::Unreachable(format!("cannot reach {store}: {text}")))
        }
        code if code.starts_with("08")
            || code.starts_with("53")
            || code.starts_with("55")
            || code.starts_with("58")
            || code.starts_with("XX") =>
        {
            unavailable(format!("{store} cannot serve: {text}"))
        }
        code if code.starts_with("25") => {
            unavailable(format!("{store} is in a state that forbids it: {text}"))
        }
        code => Failure::Refused(Error::Garbled(format!("{store} answered {code} {text}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::row::Waiters;
    use std::collections::BTreeSet;

    /// One text is one transaction: the rows would stay locked while the queue is sent to a client
    /// that may have stopped.
    #[test]
    fn a_reservation_is_committed_before_the_queue_is_read() {
        let names = BTreeSet::from(["k".into()]);
        let question = Question { names: &names, me: None, waiters: Waiters::All, with_ends: false };
        let texts = PostgresDialect.reserve_and_read(&question);
        assert!(texts[0].contains("UPDATE") && !texts[0].contains("dlock_waiters"), "{texts:?}");
        assert_eq!(texts[1..], [PostgresDialect.read(&question)]);
    }
}
