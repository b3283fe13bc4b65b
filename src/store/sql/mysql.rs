//! The SQL of MySQL and MariaDB, and what each of their errors means. [`wire`] has the protocol.
//!
//! *All rows are in one table*, because a statement can write into one only. Each write is one
//! statement, and so a transaction of its own: the server has all of it before it begins, and ends
//! it whatever happens to the client. A transaction of several statements would stay open if one
//! failed or its client were stopped, with its rows locked. One such statement cannot delete rows
//! as well. So a waiter that leaves gets a row that says so, and a later statement deletes that
//! row. Nobody waits for that statement, and it may be lost. Before the row of a waiter is made, the
//! statement checks that the user may delete it. An end replaces the one [`LOG_KEPT`] before it.
//!
//! *Nothing wakes a waiter*, so it polls: its own row, and how many wait before it. Advisory locks
//! (`GET_LOCK`) could wake it, but not on Galera nor behind every proxy, and a server reports a chain
//! of 32 sleepers as a deadlock.
//!
//! Needs only what MySQL 8.0 and MariaDB 10.6 have.

use super::dialect::{Dialect, NEAR, NewLock, RESERVED, RESERVED_MOST, Write, join};
use super::row::hex;
use super::{Answer, Failure, Link};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{HISTORY_KEPT, LOG_KEPT};
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::failure::plain;
use crate::store::net::target::Target;
use wire::{Connection, Said};

mod wire;

/// `kind` is 0 for a lock, 1 for a waiter (`id` is its token), 2 for an end (`id` is its place
/// among the last ones, `version` its number). `version` of a waiter is its ticket, and `queued` is
/// NULL once it has left. `used`: when the lock was used last; `reserved`: until when one process alone
/// may write it ([`Dialect::reserve`]); `said`: until when a waiter's heartbeat counts; `kept`: whether
/// the record says something.
const TABLES: [&str; 1] = [
    "CREATE TABLE IF NOT EXISTS dlock_locks (kind TINYINT NOT NULL, name VARBINARY(700) NOT NULL, id VARBINARY(32) NOT NULL, \
     version BIGINT, used BIGINT, reserved BIGINT, kept TINYINT, queued TINYINT, said BIGINT NOT NULL DEFAULT 0, body MEDIUMBLOB, \
     PRIMARY KEY (kind, name, id)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
];

/// The server's time at the start of the statement, in microseconds since 1970.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How a statement names the table that it reads or changes. If another user has put a view in its
/// place, the view's functions would run with the rights of dlock's user. A view has no indexes, so
/// the server refuses this name before it runs anything.
const TABLE: &str = "dlock_locks FORCE INDEX (PRIMARY)";
/// The same, in a statement that deletes.
const DELETE: &str = "DELETE l FROM dlock_locks AS l FORCE INDEX (PRIMARY) WHERE";

/// 1 if the server takes no writes. Newer versions of MariaDB have words in place of a number. In a
/// cluster that shares one disk, InnoDB makes the readers read-only.
const IS_READ_ONLY: &str = "CONCAT(@@read_only) NOT IN ('0', 'OFF') OR @@innodb_read_only";

/// The columns that a write fills.
const COLUMNS: &str = "kind, name, id, version, used, reserved, kept, queued, body";

/// The body of a lock is filled with spaces to a multiple of this many bytes. A server whose disk is
/// full may lose a row that a write makes longer, and with it a held lock (seen on MariaDB 10.11.14).
/// A row that keeps its length is changed in place. The record of an exclusive lock fits into the
/// first step.
const BODY_STEP: usize = 4096;

/// Most rows that one clean-up deletes.
const CLEANED_UP: usize = 100;

/// The SQL of MySQL and MariaDB.
pub struct Mysql;

/// Sets what a server may have configured otherwise and what changes the meaning of statements. The
/// lock wait timeouts count whole seconds, at least one. With an op timeout of two seconds or more
/// they are shorter than that, so that the server reports why it failed. A session's clock can be
/// stopped; on MariaDB, any user may let it run again. The last statement fails if the table has
/// another engine: a server that dies in the middle of a statement would leave half of it there.
fn settings(target: &Target) -> String {
    let patience = target.op_timeout.as_secs().saturating_sub(1).max(1);
    format!(
        "SET NAMES utf8mb4; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
         SET /*M! timestamp = DEFAULT, */ autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
         sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = {}, innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}; \
         SET {}@dlock = (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'dlock_locks' \
         AND engine <> 'InnoDB' UNION ALL SELECT 1); ",
        u64::MAX,
        if target.has_several() { REFUSE_GALERA } else { "" }
    )
}

/// Fails (1690, out of range) on a node of a Galera cluster, for a URL that names several. Two nodes may
/// both accept a write to the same row for a moment, and Jepsen has found updates lost without any fault
/// (MariaDB Galera 12). A MariaDB that is built without Galera has no such variable.
const REFUSE_GALERA: &str = "/*M! @dlock_galera = (SELECT ~0 + LENGTH(session_value) FROM information_schema.system_variables \
     WHERE variable_name = 'WSREP_ON' AND session_value = 'ON'), */ ";
/// What its failure means.
const IS_GALERA: &str = "is one of several nodes of a Galera cluster (wsrep_on), which can lose an update, and with it a lock; name one node alone in the URL, the same on every machine";

impl Dialect for Mysql {
    fn connect(&self, target: &Target, server: &Address, deadline: Moment) -> Result<Box<dyn Link>, Error> {
        Ok(Box::new(Connection::begin(target, server, &settings(target), deadline)?))
    }

    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    fn read(&self, names: &str, with_ends: bool) -> String {
        let rows = |columns: &str, condition: &str| {
            let (kind, columns) = columns.split_once(' ').unwrap_or_default();
            format!(
                " UNION ALL SELECT '{kind}', HEX(name), {columns}, HEX(TRIM(TRAILING ' ' FROM body)) FROM {TABLE} WHERE {condition} AND name IN ({names})"
            )
        };
        let mut text = format!("SELECT 't', NULL, {NOW}, CONNECTION_ID(), NULL");
        text += &rows("r version, NULL", "kind = 0");
        text += &rows("w id, said", "kind = 1 AND queued IS NOT NULL");
        if with_ends {
            text += &rows("e version, NULL", "kind = 2");
        }
        text
    }

    /// The condition is always true. It makes the statement name the table as the others do.
    fn begin(&self, names: &[&str]) -> String {
        let row = |name: &&str| {
            let name = self.bytes(name.as_bytes());
            format!("SELECT 0, {name}, x'', {NOW}, {NOW} DIV 1000, 0, 0, NULL, {}", self.body(b""))
        };
        format!(
            "INSERT INTO dlock_locks ({COLUMNS}) WITH v ({COLUMNS}) AS ({}) SELECT v.* FROM v \
             WHERE NOT EXISTS (SELECT 1 FROM {TABLE} WHERE FALSE) ON DUPLICATE KEY UPDATE kind = dlock_locks.kind",
            names.iter().map(row).collect::<Vec<_>>().join(" UNION ALL ")
        )
    }

    fn reserve(&self, names: &str) -> String {
        let open = is_open();
        format!(
            "UPDATE {TABLE} SET reserved = {NOW} DIV 1000 + {RESERVED} WHERE kind = 0 AND name IN ({names}) AND id = x'' AND {open}"
        )
    }

    /// Locks the rows of all locks that were read. If each still has the version that was read,
    /// writes all rows, otherwise none.
    fn write(&self, write: &Write) -> String {
        let open = write.condition(&is_open(), NOW);
        let read = write.read.iter().map(|(name, version)| {
            let name = self.bytes(name.as_bytes());
            format!("kind = 0 AND name = {name} AND id = x'' AND version = {version}{open}")
        });
        let read = read.collect::<Vec<_>>().join(" OR ");
        if let Some(NewLock { version, used, is_kept, parts, .. }) = write.sole() {
            let body = self.body(&parts.body);
            return format!(
                "UPDATE {TABLE} SET version = {version}, used = {used}, reserved = 0, kept = {is_kept}, body = {body} WHERE {read}"
            );
        }
        let change_to = ["version", "used", "reserved", "kept", "queued", "body"];
        // Fails before the row of a waiter is made if this user may not delete it.
        let has_waiters = write.locks.iter().any(|lock| !lock.parts.waiters.is_empty());
        let right = if has_waiters { format!("{DELETE} FALSE; ") } else { String::new() };
        format!(
            "{right}INSERT INTO dlock_locks ({COLUMNS}) WITH v ({COLUMNS}) AS ({}) SELECT v.* FROM v JOIN \
             (SELECT COUNT(*) AS n FROM {TABLE} WHERE {} FOR UPDATE) AS c \
             WHERE c.n = {} ON DUPLICATE KEY UPDATE {}",
            self.rows(write).join(" UNION ALL "),
            read,
            write.read.len(),
            join(change_to.iter().map(|column| format!("{column} = v.{column}")))
        )
    }

    fn is_written(&self, answer: &Answer) -> bool {
        answer.changed > 0
    }

    /// In a statement after the write: within it, the caller would wait for the disk once more.
    fn behind(&self, write: &Write) -> Option<String> {
        let gone =
            write.locks.iter().flat_map(|lock| lock.parts.gone.iter().map(move |token| (&lock.name, token)));
        let rows: Vec<_> = gone
            .map(|(name, token)| {
                let (name, id) = (self.bytes(name.as_bytes()), self.bytes(token.secret().as_bytes()));
                format!("kind = 1 AND name = {name} AND id = {id} AND queued IS NULL")
            })
            .collect();
        (!rows.is_empty()).then(|| format!("{DELETE} {}", rows.join(" OR ")))
    }

    fn heartbeat(&self, names: &str, token: &Token, millis: u64) -> String {
        let id = self.bytes(token.secret().as_bytes());
        format!(
            "UPDATE {TABLE} SET said = {NOW} DIV 1000 + {millis} WHERE kind = 1 AND queued = 1 AND name IN ({names}) AND id = {id}"
        )
    }

    fn waits(&self, names: &str, token: &Token) -> String {
        let id = self.bytes(token.secret().as_bytes());
        let mine =
            |of: &str| format!("{of}kind = 1 AND {of}queued = 1 AND {of}name IN ({names}) AND {of}id = {id}");
        format!(
            "SELECT 1 FROM {TABLE} WHERE {} UNION ALL (SELECT 0 FROM dlock_locks AS w FORCE INDEX (PRIMARY) \
             JOIN dlock_locks AS o FORCE INDEX (PRIMARY) ON o.kind = 1 AND o.queued = 1 AND o.name = w.name \
             AND o.version < w.version WHERE {} LIMIT {NEAR})",
            mine(""),
            mine("w.")
        )
    }

    fn versions(&self, names: &str) -> String {
        format!("SELECT version FROM {TABLE} WHERE kind = 0 AND name IN ({names}) ORDER BY name")
    }

    fn names(&self) -> String {
        format!("SELECT HEX(name) FROM {TABLE} WHERE kind = 0 AND kept = 1")
    }

    fn time(&self) -> String {
        format!("SELECT {NOW}")
    }

    fn survey(&self) -> String {
        format!(
            "SELECT CONCAT(IF(VERSION() LIKE '%MariaDB%', 'MariaDB ', 'MySQL '), VERSION()), {IS_READ_ONLY}, CONCAT_WS(' and ', \
         IF(@@innodb_flush_log_at_trx_commit <> 1, CONCAT('innodb_flush_log_at_trx_commit ', @@innodb_flush_log_at_trx_commit), \
         NULL), IF(@@log_bin AND @@sync_binlog <> 1, CONCAT('sync_binlog ', @@sync_binlog), NULL)), \
         (SELECT CONCAT('a user with the right ', MIN(privilege_type)) FROM information_schema.user_privileges \
         WHERE privilege_type IN ('SUPER', 'CREATE USER', 'FILE', 'SYSTEM_USER') \
         AND grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), ''''))"
        )
    }

    /// `master` is `source` in newer versions of MySQL. After the timeout, in milliseconds, a
    /// commit no longer waits.
    fn acknowledgement(&self) -> String {
        "SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_%'".into()
    }

    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> String) -> bool {
        ["master", "source"].iter().any(|side| {
            let of_side = |name| setting(&format!("rpl_semi_sync_{side}_{name}"));
            let is_long = of_side("timeout").parse().is_ok_and(|millis: u64| millis >= 3_600_000);
            of_side("enabled") == "ON" && of_side("wait_point") == "AFTER_SYNC" && is_long
        })
    }

    fn acknowledged_by(&self) -> &'static str {
        "semi-synchronous replication with the wait point AFTER_SYNC and a timeout of an hour or more"
    }

    fn remove(&self, names: &str) -> Vec<String> {
        vec![format!("{DELETE} kind IN (0, 1, 2) AND name IN ({names})")]
    }

    /// READ COMMITTED, so that the search for old rows does not block other clients.
    fn clean_up(&self) -> Vec<String> {
        let old = format!("used < {NOW} DIV 1000 - {}", 2 * HISTORY_KEPT.as_millis());
        // Rows that a client did not delete because it ended first.
        let left = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; DELETE l FROM \
             (SELECT name, id FROM {TABLE} WHERE kind = 1 AND queued IS NULL LIMIT {CLEANED_UP}) AS v \
             JOIN dlock_locks AS l FORCE INDEX (PRIMARY) ON l.kind = 1 AND l.name = v.name AND l.id = v.id AND l.queued IS NULL"
        );
        let idle = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; DELETE l, o FROM \
             (SELECT name FROM {TABLE} WHERE kind = 0 AND {old} LIMIT {CLEANED_UP}) AS v \
             JOIN dlock_locks AS l FORCE INDEX (PRIMARY) ON l.kind = 0 AND l.name = v.name AND l.{old} \
             LEFT JOIN dlock_locks AS o FORCE INDEX (PRIMARY) ON o.kind IN (1, 2) AND o.name = l.name"
        );
        vec![left, idle]
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }
}

impl Mysql {
    /// The body of a lock, as long as [`BODY_STEP`] says.
    fn body(&self, body: &[u8]) -> String {
        let length = body.len().max(1).next_multiple_of(BODY_STEP);
        format!("RPAD({}, {length}, ' ')", self.bytes(body))
    }

    /// The new rows of a write.
    fn rows(&self, write: &Write) -> Vec<String> {
        let mut rows = Vec::new();
        for lock in &write.locks {
            let (used, kept, name) = (lock.used, u8::from(lock.is_kept), self.bytes(lock.name.as_bytes()));
            let body = self.body(&lock.parts.body);
            rows.push(format!("SELECT 0, {name}, x'', {}, {used}, 0, {kept}, NULL, {body}", lock.version));
            let mut add = |kind: u8, id: &str, numbers: String, body: &[u8]| {
                let (id, body) = (self.bytes(id.as_bytes()), self.bytes(body));
                rows.push(format!("SELECT {kind}, {name}, {id}, {numbers}, {body}"));
            };
            for waiter in &lock.parts.waiters {
                let queued = u8::from(waiter.is_queued);
                let numbers = format!("{}, NULL, NULL, NULL, {queued}", waiter.ticket);
                add(1, waiter.token.secret(), numbers, &waiter.value);
            }
            for token in &lock.parts.gone {
                add(1, token.secret(), "NULL, NULL, NULL, NULL, NULL".into(), b"");
            }
            for end in &lock.parts.ends {
                let place = (end.number % LOG_KEPT as u64).to_string();
                add(2, &place, format!("{}, NULL, NULL, NULL, NULL", end.number), &end.value);
            }
        }
        rows
    }
}

/// The condition that no other process has reserved a lock.
fn is_open() -> String {
    format!("reserved NOT BETWEEN {NOW} DIV 1000 + 1 AND {NOW} DIV 1000 + {RESERVED_MOST}")
}

fn refused_login(store: &str) -> Failure {
    Failure::Refused(Error::Password(format!("{store} refused the user name or the password")))
}

/// What a server error means for a lock.
fn meaning(store: &str, said: &Said) -> Failure {
    let text = plain(&said.text);
    let unavailable = |what: String| Failure::Refused(Error::Unavailable(what));
    let overloaded = |what: String| Failure::Refused(Error::Overloaded(what));
    let denied = |what: String| Failure::Refused(Error::Denied(what));
    let unfit = |what: String| Failure::Refused(Error::Unfit(what));
    match said.code {
        // Another client changes or creates the same row or table, or a deadlock.
        1020 | 1050 | 1062 | 1213 | 1412 => Failure::Conflict,
        1146 => Failure::NoTables(Error::Unfit(format!("{store} has no table for locks: {text}"))),
        // A user without rights to a table gets this error even if there is no table.
        1142 => Failure::NoTables(Error::Denied(format!(
            "{store} has no table for locks, or denies this user a right that dlock needs: {text}"
        ))),
        1054 | 1136 | 1364 | 1406 => unfit(format!(
            "{store} has a table with the name of dlock's, but other columns, of another program or an earlier build of dlock: {text}"
        )),
        1690 if text.to_lowercase().contains("session_value") => unfit(format!("{store} {IS_GALERA}")),
        1064 => unfit(format!("{store} is too old for dlock, which needs MySQL 8.0 or MariaDB 10.6: {text}")),
        1176 | 1347 => denied(format!(
            "{store} has a view in the place of the table dlock_locks, or a table without its primary key: {text}; the code of a view runs with the rights of this user; have an administrator find out who made it, and make the table as docs/stores.md says"
        )),
        1242 => unfit(format!(
            "{store} has dlock_locks in an engine without transactions: have an administrator run \
             ALTER TABLE dlock_locks ENGINE=InnoDB when nothing runs under its locks"
        )),
        1193 | 1286 => unfit(format!("{store} has no InnoDB, which the table of dlock needs: {text}")),
        1049 => unfit(format!("{store}: there is no such database: {text}")),
        1045 | 1698 if !said.is_password_given => denied(format!(
            "{store} wants a password; give one by DLOCK_PASSWORD_FILE, DLOCK_PASSWORD_COMMAND, DLOCK_PASSWORD or the config file"
        )),
        1045 | 1698 => refused_login(store),
        1129 | 1130 | 1820 | 1862 | 3118 | 4151 => {
            denied(format!("{store} does not let this user in from here: {text}"))
        }
        1044 => denied(format!(
            "{store} does not let this user into the database: {text}; have an administrator run what 'dlock doctor --sql' prints there, and grant this user the rights that docs/stores.md names"
        )),
        1143 | 1227 | 1370 => denied(format!("{store} denies this user a right that dlock needs: {text}")),
        1290 if !text.contains("read") => unfit(format!("{store} does not allow what dlock needs: {text}")),
        1290 | 1792 | 1836 | 1874 => {
            let why = format!("{store} is read-only, as a replica is; name the primary");
            Failure::ReadOnly(Error::Unavailable(why))
        }
        1 | 3 | 20 | 1021 | 1026 | 1114 => unavailable(format!("{store} has no room on its disk: {text}")),
        1040 | 1203 | 1226 => overloaded(format!("{store} has too many clients: {text}")),
        1205 => overloaded(format!("{store}: another transaction has locked the rows: {text}")),
        1317 | 1969 | 3024 => unavailable(format!("{store} cancelled a statement: {text}")),
        // An administrator closed the connection, or the server stops. A new connection may work at
        // once.
        1053 | 1077 | 1079 | 1080 | 1152 | 1158..=1161 | 1184 | 1927 | 4031 => {
            Failure::Broken(Error::Overloaded(format!("cannot reach {store}: {text}")))
        }
        // InnoDB, memory, a cluster that is not ready, or a packet that is too large.
        1015 | 1016 | 1030 | 1037 | 1038 | 1041 | 1135 | 1047 | 1153 | 1180 | 1181 | 1206 | 1296 | 1297 => {
            unavailable(format!("{store} cannot serve: {text}"))
        }
        code => Failure::Refused(Error::Garbled(format!("{store} answered {code} {text}"))),
    }
}
