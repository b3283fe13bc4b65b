//! The SQL of PostgreSQL, and what each of its errors means. [`wire`] has the protocol.
//!
//! Statements are sent as simple queries and nothing is prepared, so that PgBouncer may stand in
//! between. The `statement_timestamp` of a simple query is the time of its arrival, before any row
//! is read.

use super::dialect::{Dialect, NewLock, RESERVED, RESERVED_MOST, Write, join};
use super::row::hex;
use super::{Answer, Failure, Link};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{HISTORY_KEPT, LOG_KEPT};
use crate::store::Error;
use crate::store::engine::stored_lock::Parts;
use crate::store::net::Address;
use crate::store::net::failure::plain;
use crate::store::net::target::Target;
use guard::{NO_TABLE, READS};
use wire::{Connection, Said};

mod guard;
mod wire;

/// Created under the user's own search path, unlike all other statements.
const TABLES: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS dlock_locks (name pg_catalog.bytea PRIMARY KEY, version bigint NOT NULL, used bigint NOT NULL, \
     reserved bigint NOT NULL, kept boolean NOT NULL, body pg_catalog.bytea NOT NULL) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS dlock_waiters (name pg_catalog.bytea, token pg_catalog.text COLLATE pg_catalog.\"C\", \
     queued boolean NOT NULL, said bigint NOT NULL, body pg_catalog.bytea NOT NULL, PRIMARY KEY (name, token)) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS dlock_ends (name pg_catalog.bytea, number bigint, body pg_catalog.bytea NOT NULL, \
     PRIMARY KEY (name, number))",
];

/// The server's time when the statement arrived, in microseconds since 1970. `pg_catalog` has no
/// operator with exactly these types.
const NOW: &str =
    "(extract(epoch FROM pg_catalog.statement_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8";

/// The SQL of PostgreSQL.
pub struct Postgres;

impl Dialect for Postgres {
    fn connect(&self, target: &Target, server: &Address, deadline: Moment) -> Result<Box<dyn Link>, Error> {
        Ok(Box::new(Connection::begin(target, server, deadline)?))
    }

    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    fn read(&self, names: &str, with_ends: bool) -> String {
        let rows = |columns: &str, table: &str| {
            let (name, body) = (to_hex("name"), to_hex("body"));
            let (kind, columns) = columns.split_once(' ').unwrap_or_default();
            format!(
                " UNION ALL SELECT '{kind}', {name}, {columns}, {body} FROM ONLY {table} WHERE name IN ({names})"
            )
        };
        let mut text = format!(
            "{READS}SELECT 't'::text, NULL::text, {NOW}::text, pg_catalog.pg_backend_pid()::text, NULL::text"
        );
        text += &rows("r version::text, NULL", "dlock_locks");
        text += &rows("w token, said::text", "dlock_waiters");
        if with_ends {
            text += &rows("e number::text, NULL", "dlock_ends");
        }
        text
    }

    fn begin(&self, names: &[&str]) -> String {
        let row = |name: &&str| {
            let name = self.bytes(name.as_bytes());
            format!("({name}, {NOW}, {NOW} / 1000, 0, false, ''::bytea)")
        };
        format!(
            "INSERT INTO dlock_locks (name, version, used, reserved, kept, body) VALUES {} ON CONFLICT DO NOTHING",
            join(names.iter().map(row))
        )
    }

    /// A reservation need not survive a crash of the server.
    fn reserve(&self, names: &str) -> String {
        let open = is_open();
        format!(
            "SET LOCAL synchronous_commit TO off; WITH v AS MATERIALIZED (SELECT name FROM ONLY dlock_locks \
             WHERE name IN ({names}) AND {open} ORDER BY name FOR UPDATE) UPDATE ONLY dlock_locks AS l \
             SET reserved = {NOW} / 1000 + {RESERVED} FROM v WHERE l.name = v.name"
        )
    }

    /// One statement. Locks the rows of all locks that were read. If each still has the version
    /// that was read, writes everything, otherwise nothing.
    fn write(&self, write: &Write) -> String {
        let open = write.condition(&is_open(), NOW);
        let read = write.read.iter().map(|(name, version)| {
            format!("name = {} AND version = {version}{open}", self.bytes(name.as_bytes()))
        });
        let read = read.collect::<Vec<_>>().join(" OR ");
        if let Some(lock) = write.sole() {
            return format!("UPDATE ONLY dlock_locks SET {} WHERE {read}", self.values(lock));
        }
        let mut parts = vec![
            format!(
                "same AS MATERIALIZED (SELECT name FROM ONLY dlock_locks WHERE {read} ORDER BY name FOR UPDATE)"
            ),
            format!(
                "go AS MATERIALIZED (SELECT 1 FROM (SELECT pg_catalog.count(*) AS n FROM same) AS s WHERE n = {})",
                write.read.len()
            ),
        ];
        for (at, lock) in write.locks.iter().enumerate() {
            parts.extend(self.write_lock(at, lock));
        }
        let channels = join(write.woken.iter().map(|token| format!("('{}')", channel(token))));
        let told = match channels.as_str() {
            "" => "0".into(),
            _ => format!(
                "(SELECT pg_catalog.count(pg_catalog.pg_notify(v.wake_channel, '')) FROM (VALUES {channels}) AS v (wake_channel), go)"
            ),
        };
        format!("WITH {} SELECT (SELECT pg_catalog.count(*) FROM go), {told}", parts.join(", "))
    }

    fn is_written(&self, answer: &Answer) -> bool {
        match answer.rows.last() {
            Some(row) => row.bytes(0) == Some(b"1"),
            None => answer.changed == 1,
        }
    }

    /// A heartbeat need not survive a crash of the server.
    fn heartbeat(&self, names: &str, token: &Token, millis: u64) -> String {
        format!(
            "SET LOCAL synchronous_commit TO off; UPDATE ONLY dlock_waiters SET said = {NOW} / 1000 + {millis} \
             WHERE name IN ({names}) AND token = '{}' AND queued",
            token.secret()
        )
    }

    fn waits(&self, names: &str, token: &Token) -> String {
        format!(
            "{READS}SELECT 1 FROM ONLY dlock_waiters WHERE name IN ({names}) AND token = '{}' AND queued",
            token.secret()
        )
    }

    fn versions(&self, names: &str) -> String {
        format!("{READS}SELECT version FROM ONLY dlock_locks WHERE name IN ({names}) ORDER BY name")
    }

    fn names(&self) -> String {
        format!("{READS}SELECT {} FROM ONLY dlock_locks WHERE kept", to_hex("name"))
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

    /// Names an owner only if it can log in: it may have created the tables before dlock did.
    fn others(&self) -> Option<String> {
        Some(format!(
            "{READS}SELECT pg_catalog.string_agg(DISTINCT CASE WHEN g.grantee = 0::pg_catalog.oid THEN 'every user' \
             ELSE pg_catalog.pg_get_userbyid(g.grantee)::pg_catalog.text END, ', '::pg_catalog.text) \
             FROM pg_catalog.pg_class AS c CROSS JOIN LATERAL pg_catalog.aclexplode(COALESCE(c.relacl, pg_catalog.acldefault('r', c.relowner))) AS g \
             LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = g.grantee WHERE c.oid = ANY (ARRAY['dlock_locks'::pg_catalog.regclass::pg_catalog.oid, \
             'dlock_waiters'::pg_catalog.regclass::pg_catalog.oid, 'dlock_ends'::pg_catalog.regclass::pg_catalog.oid]) \
             AND g.privilege_type <> 'SELECT'::pg_catalog.text AND (g.grantee = 0::pg_catalog.oid OR (g.grantee = c.relowner \
             AND r.rolcanlogin AND NOT r.rolsuper AND NOT pg_catalog.pg_has_role(c.relowner, session_user, 'MEMBER')))"
        ))
    }

    fn acknowledgement(&self) -> String {
        let row = |name| format!("SELECT '{name}'::text, pg_catalog.current_setting('{name}')");
        format!("{NO_TABLE}{} UNION ALL {}", row("synchronous_standby_names"), row("synchronous_commit"))
    }

    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> String) -> bool {
        let commit = setting("synchronous_commit");
        !setting("synchronous_standby_names").is_empty() && !["", "off", "local"].contains(&commit.as_str())
    }

    fn acknowledged_by(&self) -> &'static str {
        "synchronous_standby_names, and synchronous_commit on"
    }

    fn remove(&self, names: &str) -> Vec<String> {
        ["dlock_ends", "dlock_waiters", "dlock_locks"]
            .map(|table| format!("DELETE FROM ONLY {table} WHERE name IN ({names})"))
            .to_vec()
    }

    fn clean_up(&self) -> Vec<String> {
        let old = format!("{NOW} / 1000 - {}", 2 * HISTORY_KEPT.as_millis());
        vec![format!(
            "WITH old AS (DELETE FROM ONLY dlock_locks WHERE used < {old} RETURNING name), \
             w AS (DELETE FROM ONLY dlock_waiters USING old WHERE dlock_waiters.name = old.name) \
             DELETE FROM ONLY dlock_ends USING old WHERE dlock_ends.name = old.name"
        )]
    }

    fn wake_channel(&self, token: &Token) -> Option<String> {
        Some(format!("{NO_TABLE}LISTEN {}", channel(token)))
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("pg_catalog.decode('{}', 'hex')", hex(bytes))
    }
}

impl Postgres {
    /// The parts of a write that write one lock.
    fn write_lock(&self, at: usize, lock: &NewLock) -> Vec<String> {
        let Parts { waiters, gone, ends, .. } = &lock.parts;
        let (name, values) = (self.bytes(lock.name.as_bytes()), self.values(lock));
        let mut parts =
            vec![format!("b{at} AS (UPDATE ONLY dlock_locks SET {values} FROM go WHERE name = {name})")];
        if !gone.is_empty() {
            let gone = join(gone.iter().map(|token| format!("'{}'", token.secret())));
            parts.push(format!(
                "g{at} AS (DELETE FROM ONLY dlock_waiters USING go WHERE name = {name} AND token IN ({gone}))"
            ));
        }
        if !waiters.is_empty() {
            let waiters = join(waiters.iter().map(|waiter| {
                let (token, body) = (waiter.token.secret(), self.bytes(&waiter.value));
                format!("({name}, '{token}', {}, 0, {body})", waiter.is_queued)
            }));
            parts.push(format!(
                "w{at} AS (INSERT INTO dlock_waiters (name, token, queued, said, body) SELECT v.* FROM (VALUES {waiters}) AS v, go \
                 ON CONFLICT (name, token) DO UPDATE SET queued = excluded.queued, body = excluded.body)"
            ));
        }
        if let Some(last) = ends.last() {
            let old = last.number.saturating_sub(LOG_KEPT as u64);
            let ends = join(ends.iter().map(|end| {
                let body = self.bytes(&end.value);
                format!("({name}, {}, {body})", end.number)
            }));
            parts.push(format!(
                "e{at} AS (INSERT INTO dlock_ends (name, number, body) SELECT v.* FROM (VALUES {ends}) AS v, go \
                 ON CONFLICT (name, number) DO UPDATE SET body = excluded.body)"
            ));
            parts.push(format!(
                "o{at} AS (DELETE FROM ONLY dlock_ends USING go WHERE name = {name} AND number <= {old})"
            ));
        }
        parts
    }

    /// The new values of a lock's own row.
    fn values(&self, lock: &NewLock) -> String {
        let NewLock { version, used, is_kept, parts, .. } = lock;
        let body = self.bytes(&parts.body);
        format!("version = {version}, used = {used}, reserved = 0, kept = {is_kept}, body = {body}")
    }
}

/// A column of bytes as hexadecimal digits.
fn to_hex(column: &str) -> String {
    format!("pg_catalog.encode({column}, 'hex')")
}

/// The condition that no other process has reserved a lock.
fn is_open() -> String {
    format!("reserved NOT BETWEEN {NOW} / 1000 + 1 AND {NOW} / 1000 + {RESERVED_MOST}")
}

fn channel(token: &Token) -> String {
    format!("dlock_{}", token.secret())
}

/// The beginnings of the codes of errors that may be over in a moment. 54000: any user of the server
/// can fill the queue of notifications.
const OUTAGES: [&str; 7] = ["08", "25", "53", "54000", "55", "58", "XX"];

/// What a server error means for a lock.
fn meaning(store: &str, said: &Said) -> Failure {
    let text = plain(&said.text);
    let unavailable = |what: String| Failure::Refused(Error::Unavailable(what));
    let overloaded = |what: String| Failure::Refused(Error::Overloaded(what));
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
        "42703" | "42804" | "42809" => unfit(format!(
            "{store} has tables with the names of dlock's, but other columns, of another program or an earlier build of dlock: {text}"
        )),
        "42501" | "3F000" => denied(format!(
            "{store} denies this user a right that dlock needs: {text}; docs/stores.md has the GRANT statement"
        )),
        "28P01" => {
            Failure::Refused(Error::Password(format!("{store} refused the user name or the password")))
        }
        code if code.starts_with("28") => {
            denied(format!("{store} does not let this user in from here: {text}"))
        }
        "3D000" => unfit(format!("{store}: there is no such database: {text}")),
        "25006" => Failure::ReadOnly(Error::Unavailable(format!(
            "{store} is read-only, as a standby is; name the primary"
        ))),
        "53100" => unavailable(format!("{store} has no room on its disk: {text}")),
        "53300" | "53400" => overloaded(format!("{store} has too many clients: {text}")),
        // PgBouncer's max_client_conn.
        "08P01" if text.contains("no more connections") => {
            overloaded(format!("{store} has too many clients: {text}"))
        }
        // 55P03: others have locked the row or the table for longer than the request may take.
        "55P03" | "57P03" => overloaded(format!("{store} cannot serve: {text}")),
        "57014" => unavailable(format!("{store} cancelled a statement: {text}")),
        // An administrator closed the connection, or the server process crashed. A new connection
        // may work at once.
        "57P01" | "57P02" | "57P05" | "08006" | "08003" | "08P01" => {
            Failure::Broken(Error::Overloaded(format!("cannot reach {store}: {text}")))
        }
        code if OUTAGES.iter().any(|class| code.starts_with(class)) => {
            unavailable(format!("{store} cannot serve: {text}"))
        }
        code => Failure::Refused(Error::Garbled(format!("{store} answered {code} {text}"))),
    }
}
