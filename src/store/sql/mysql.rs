//! The SQL of MySQL and MariaDB, and what each of their errors means. [`wire`] has the protocol.
//!
//! *All rows are in one table*, because a statement can write into one only. Each write is one
//! statement, and so a transaction of its own: the server has all of it before it begins, and ends
//! it whatever happens to the client. A transaction of several statements would stay open if one
//! failed or its client were stopped, with its rows locked. One such statement cannot delete rows
//! as well. So a waiter that leaves gets a row that says so, and a later statement deletes that
//! row. Nobody waits for it, and it may be lost. Before the row of a waiter is made, the statement
//! checks that the user may delete it. An end replaces the one [`LOG_KEPT`] before it.
//!
//! *An advisory lock* (`GET_LOCK`) wakes waiters. A session holds it while its token waits or holds
//! alone, and releases it at the beginning of the text that releases the token. The waiter behind
//! that token waits for the advisory lock. It decides nothing: a waiter that wakes reads its rows,
//! and without advisory locks it polls.
//!
//! Needs only what MySQL 8.0 and MariaDB 10.6 have.

use super::row::{FRONT, Waiters, hex};
use super::statement::{Change, Dialect, Question, RESERVED, RESERVED_MOST, join, mode, place};
use super::{Database, Failure, Link, Target, statement};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use crate::rules::{LOG_KEPT, Time};
use crate::store::Error;
use crate::store::engine::queue::Waiting;
use crate::store::net::Address;
use crate::store::net::failure::plain;
use std::collections::BTreeSet;
use std::time::Duration;
use wire::{Connection, Said};

mod wire;

/// `kind` is 0 for a lock, 1 for a waiter (`id` is its token), 2 for an end (`id` is its place
/// among the last ones, `version` its number).
const TABLES: [&str; 1] = [
    "CREATE TABLE IF NOT EXISTS dlock_locks (kind TINYINT NOT NULL, name VARBINARY(700) NOT NULL, id VARBINARY(32) NOT NULL, \
     version BIGINT, used BIGINT, kept TINYINT, ticket BIGINT, since BIGINT, silent BIGINT, forget BIGINT, mode INT, \
     place TINYINT, said BIGINT NOT NULL DEFAULT 0, body MEDIUMBLOB, PRIMARY KEY (kind, name, id)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
];

/// The server's time at the start of the statement, in microseconds since 1970.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How a statement names the table that it reads or changes. If another user has put a view in its
/// place, the view's functions would run with the rights of dlock's user. A view has no indexes, so
/// the server refuses this name before it runs anything.
const TABLE: &str = "dlock_locks FORCE INDEX (PRIMARY)";

/// 1 if the server takes no writes. Newer versions of MariaDB have words in place of a number. In a
/// cluster that shares one disk, InnoDB makes the readers read-only.
const IS_READ_ONLY: &str = "CONCAT(@@read_only) NOT IN ('0', 'OFF') OR @@innodb_read_only";

/// The rows of queued waiters.
const QUEUED: &str = "kind = 1 AND place = 0";
/// The `place` of a waiter that has left.
const GONE: u8 = 2;
/// Most rows that one clean-up deletes.
const CLEANED_UP: usize = 100;

/// A MySQL or MariaDB database.
pub struct Mysql {
    target: Target,
}

impl Mysql {
    pub fn new(target: Target) -> Self {
        Self { target }
    }
}

impl Database for Mysql {
    fn target(&self) -> &Target {
        &self.target
    }

    fn connect(&self, server: &Address, by: Moment) -> Result<Box<dyn Link>, Error> {
        Ok(Box::new(Connection::begin(&self.target, server, &settings(&self.target), by)?))
    }

    fn dialect(&self) -> &dyn Dialect {
        &MysqlDialect
    }
}

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
         SET @dlock = (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'dlock_locks' \
         AND engine <> 'InnoDB' UNION ALL SELECT 1); ",
        u64::MAX
    )
}

struct MysqlDialect;

/// A row for [`MysqlDialect::write`].
struct Row<'r> {
    kind: u8,
    name: &'r str,
    id: &'r [u8],
    /// Version, used and kept; ticket, since, silent, forget, mode and place.
    numbers: [Option<i64>; 9],
    body: Option<&'r [u8]>,
}

impl Row<'_> {
    fn text(&self) -> String {
        let numbers =
            join(self.numbers.iter().map(|one| one.map_or_else(|| "NULL".into(), |one| one.to_string())));
        let body = self.body.map_or_else(|| "NULL".into(), |body| MysqlDialect.bytes(body));
        let (name, id) = (MysqlDialect.bytes(self.name.as_bytes()), MysqlDialect.bytes(self.id));
        format!("SELECT {} AS kind, {name} AS name, {id} AS id, {numbers}, {body} AS body", self.kind)
    }
}

fn number(number: u64) -> Option<i64> {
    i64::try_from(number).ok()
}

impl Dialect for MysqlDialect {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    /// Returns the notes of the first waiters, the last one, the caller and its predecessor. Notes
    /// are joined only after the rows are sorted, because a server writes to the disk if it must
    /// sort with them.
    fn read(&self, question: &Question<'_>) -> String {
        let names = self.list(&mut question.names.iter().map(String::as_str));
        let me = question.me.map(|me| self.bytes(me.secret().as_bytes())).unwrap_or_default();
        let (note, rows) = match question.waiters {
            Waiters::Front => {
                let columns = "name, id, ticket, since, silent, forget, mode, place, said";
                let first = question.names.iter().map(|name| {
                    format!(
                        "(SELECT {columns} FROM {TABLE} WHERE {QUEUED} AND name = {} ORDER BY ticket, id LIMIT {})",
                        self.bytes(name.as_bytes()),
                        FRONT + 1
                    )
                });
                let first = first.collect::<Vec<_>>().join(" UNION ALL ");
                let rows = format!(
                    "({first} UNION ALL (SELECT {columns} FROM {TABLE} WHERE kind = 1 AND place = 1 AND name IN ({names}))) AS w \
                     LEFT JOIN dlock_locks AS n FORCE INDEX (PRIMARY) ON n.kind = 1 AND n.name = w.name AND n.id = w.id"
                );
                ("n.body", rows)
            }
            Waiters::All => {
                let mine = format!(" OR id = {me} OR LEAD(id) OVER forth = {me}");
                let mine = question.me.map_or(String::new(), |_| mine);
                let rows = format!(
                    "(SELECT name, id, ticket, since, silent, forget, mode, place, said, \
                     CASE WHEN ROW_NUMBER() OVER forth <= 4 OR LEAD(id) OVER forth IS NULL{mine} THEN id END AS noted \
                     FROM {TABLE} WHERE kind = 1 AND place < {GONE} AND name IN ({names}) \
                     WINDOW forth AS (PARTITION BY name, place ORDER BY ticket, id)) AS w \
                     LEFT JOIN dlock_locks AS n FORCE INDEX (PRIMARY) ON n.kind = 1 AND n.name = w.name AND n.id = w.noted"
                );
                ("n.body", rows)
            }
        };
        let heard = match question.waiters {
            Waiters::Front => {
                format!(
                    "(SELECT MAX(said) FROM dlock_locks AS o FORCE INDEX (PRIMARY) WHERE o.{QUEUED} AND o.name = l.name)"
                )
            }
            Waiters::All => "NULL".into(),
        };
        let null = |count| ", NULL".repeat(count);
        let mut text = format!(
            "SELECT 't', NULL, {NOW}, CONNECTION_ID(){} \
             UNION ALL SELECT 'r', HEX(l.name), l.version, l.used, HEX(l.body), {heard}{} FROM dlock_locks AS l FORCE INDEX (PRIMARY) \
             WHERE l.kind = 0 AND l.name IN ({names}) \
             UNION ALL SELECT 'w', HEX(w.name), w.id, w.ticket, w.since, w.silent, w.forget, w.mode, w.place, w.said, \
             HEX({note}) FROM {rows}",
            null(7),
            null(5)
        );
        if question.with_ends {
            text += &format!(
                " UNION ALL SELECT 'e', HEX(name), version, HEX(body){} FROM {TABLE} WHERE kind = 2 AND name IN ({names})",
                null(7)
            );
        }
        text
    }

    /// The condition is always true. It makes the statement name the table as the others do.
    fn begin(&self, names: &[&String], now: Time) -> String {
        let rows = names.iter().map(|name| {
            let (name, now, millis) = (self.bytes(name.as_bytes()), now.0, now.millis());
            format!("SELECT 0 AS kind, {name} AS name, x'' AS id, {now} AS version, {millis} AS used, 0 AS kept, x'' AS body")
        });
        let rows = rows.collect::<Vec<_>>().join(" UNION ALL ");
        format!(
            "INSERT INTO dlock_locks (kind, name, id, version, used, kept, body) SELECT v.* FROM ({rows}) AS v \
             WHERE NOT EXISTS (SELECT 1 FROM {TABLE} WHERE FALSE) ON DUPLICATE KEY UPDATE kind = dlock_locks.kind"
        )
    }

    /// Each statement is committed before the next one begins.
    fn reserve_and_read(&self, question: &Question<'_>) -> Vec<String> {
        let rows = question.names.iter().map(|name| {
            format!("kind = 0 AND name = {} AND id = x'' AND {}", self.bytes(name.as_bytes()), is_open())
        });
        vec![format!(
            "UPDATE {TABLE} SET used = {NOW} DIV 1000 + {RESERVED}, kept = 2 + kept % 2 WHERE {}; {}",
            rows.collect::<Vec<_>>().join(" OR "),
            self.read(question)
        )]
    }

    /// Locks the rows of all locks that were read. If each still has the version that was read,
    /// writes all rows, otherwise none.
    fn write(&self, change: &Change) -> String {
        let open = if change.reserves { String::new() } else { format!(" AND {}", is_open()) };
        let read = change.read.iter().map(|(name, version)| {
            format!(
                "kind = 0 AND name = {} AND id = x'' AND version = {version}{open}",
                self.bytes(name.as_bytes())
            )
        });
        let read = read.collect::<Vec<_>>().join(" OR ");
        let bodies = change.bodies.iter().map(|body| {
            let [version, used] = [body.version + 1, body.used].map(number);
            let kept = Some(i64::from(body.is_kept));
            let numbers = [version, used, kept, None, None, None, None, None, None];
            Row { kind: 0, name: &body.name, id: b"", numbers, body: Some(&body.body) }.text()
        });
        let come = change.come.iter().filter_map(|(name, waiting, note)| {
            let Waiting { ticket, since, silent, forget, .. } = *waiting;
            let [ticket, since, silent, forget] = [ticket, since, silent, forget].map(number);
            let (mode, place) = (Some(mode(waiting.mode)), Some(i64::from(place(waiting.place))));
            let numbers = [None, None, None, ticket, since, silent, forget, mode, place];
            let id = waiting.token()?;
            let id = id.secret().as_bytes();
            Some(Row { kind: 1, name, id, numbers, body: note.as_deref() }.text())
        });
        let gone = change.gone.iter().map(|(name, token)| {
            let numbers = [None, None, None, None, None, None, None, None, Some(i64::from(GONE))];
            Row { kind: 1, name, id: token.secret().as_bytes(), numbers, body: Some(b"") }.text()
        });
        let ends = change.ends.iter().map(|(name, at, end)| {
            let numbers = [number(*at), None, None, None, None, None, None, None, None];
            let id = (at % LOG_KEPT as u64).to_string();
            Row { kind: 2, name, id: id.as_bytes(), numbers, body: Some(end) }.text()
        });
        let rows = bodies.chain(come).chain(gone).chain(ends).collect::<Vec<_>>().join(" UNION ALL ");
        let columns = "kind, name, id, version, used, kept, ticket, since, silent, forget, mode, place, body";
        let change_to = join(
            ["version", "used", "kept", "ticket", "since", "silent", "forget", "mode", "place"]
                .iter()
                .map(|column| format!("{column} = v.{column}")),
        );
        // Fails before the row is made if this user may not delete it.
        let right = if change.come.iter().any(|(_, _, note)| note.is_some()) {
            "DELETE l FROM dlock_locks AS l FORCE INDEX (PRIMARY) WHERE FALSE; "
        } else {
            ""
        };
        format!(
            "{right}INSERT INTO dlock_locks ({columns}) WITH v ({columns}) AS ({rows}) SELECT v.* FROM v JOIN \
             (SELECT COUNT(*) AS n FROM {TABLE} WHERE {read} FOR UPDATE) AS c \
             WHERE c.n = {} ON DUPLICATE KEY UPDATE {change_to}, body = COALESCE(v.body, dlock_locks.body); \
             SELECT ROW_COUNT() > 0",
            change.read.len()
        )
    }

    /// Apart from the write, because the write would have to wait for the disk once more.
    fn behind(&self, change: &Change) -> Option<String> {
        let gone = change.gone.iter().map(|(name, token)| {
            let (name, id) = (self.bytes(name.as_bytes()), self.bytes(token.secret().as_bytes()));
            format!("kind = 1 AND name = {name} AND id = {id} AND place = {GONE}")
        });
        let gone = gone.collect::<Vec<_>>().join(" OR ");
        (!gone.is_empty())
            .then(|| format!("DELETE l FROM dlock_locks AS l FORCE INDEX (PRIMARY) WHERE {gone}"))
    }

    fn notes(&self, name: &str, tokens: &[Token]) -> String {
        format!(
            "SELECT id, HEX(body) FROM {TABLE} WHERE kind = 1 AND place < {GONE} AND name = {} AND id IN ({})",
            self.bytes(name.as_bytes()),
            join(tokens.iter().map(|token| self.bytes(token.secret().as_bytes())))
        )
    }

    fn heard(&self, names: &Names, token: &Token, millis: u64) -> String {
        format!(
            "UPDATE {TABLE} SET said = {NOW} DIV 1000 + {millis} WHERE {QUEUED} AND name IN ({}) AND id = {}",
            self.list(&mut names.iter().map(|name| name.as_str())),
            self.bytes(token.secret().as_bytes())
        )
    }

    fn waits(&self, names: &Names, token: &Token) -> String {
        format!(
            "SELECT 1 FROM {TABLE} WHERE {QUEUED} AND name IN ({}) AND id = {}",
            self.list(&mut names.iter().map(|name| name.as_str())),
            self.bytes(token.secret().as_bytes())
        )
    }

    fn versions(&self, names: &BTreeSet<String>) -> String {
        let names = self.list(&mut names.iter().map(String::as_str));
        format!("SELECT version FROM {TABLE} WHERE kind = 0 AND name IN ({names}) ORDER BY name")
    }

    fn names(&self) -> String {
        format!("SELECT HEX(name) FROM {TABLE} WHERE kind = 0 AND kept IN (1, 3)")
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

    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> Option<String>) -> bool {
        ["master", "source"].iter().any(|side| {
            let is = |name, value: &str| {
                setting(&format!("rpl_semi_sync_{side}_{name}")).is_some_and(|found| found == value)
            };
            let timeout =
                setting(&format!("rpl_semi_sync_{side}_timeout")).and_then(|text| text.parse().ok());
            let is_long = timeout.is_some_and(|millis: u64| millis >= 3_600_000);
            is("enabled", "ON") && is("wait_point", "AFTER_SYNC") && is_long
        })
    }

    fn acknowledged_by(&self) -> &'static str {
        "semi-synchronous replication with the wait point AFTER_SYNC and a timeout of an hour or more"
    }

    fn remove(&self, name: &str) -> Vec<String> {
        vec![format!(
            "DELETE l FROM dlock_locks AS l FORCE INDEX (PRIMARY) WHERE kind IN (0, 1, 2) AND name = {}",
            self.bytes(name.as_bytes())
        )]
    }

    /// READ COMMITTED, so that the search for old rows does not block other clients.
    fn clean_up(&self) -> Vec<String> {
        let old = format!("used < {NOW} DIV 1000 - {}", 2 * crate::rules::HISTORY_KEPT.as_millis());
        // Rows that a client did not delete because it ended first.
        let left = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; DELETE l FROM \
             (SELECT name, id FROM {TABLE} WHERE kind = 1 AND place = {GONE} LIMIT {CLEANED_UP}) AS v \
             JOIN dlock_locks AS l FORCE INDEX (PRIMARY) ON l.kind = 1 AND l.name = v.name AND l.id = v.id AND l.place = {GONE}"
        );
        let idle = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; DELETE l, o FROM \
             (SELECT name FROM {TABLE} WHERE kind = 0 AND {old} LIMIT {CLEANED_UP}) AS v \
             JOIN dlock_locks AS l FORCE INDEX (PRIMARY) ON l.kind = 0 AND l.name = v.name AND l.{old} \
             LEFT JOIN dlock_locks AS o FORCE INDEX (PRIMARY) ON o.kind IN (1, 2) AND o.name = l.name"
        );
        vec![left, idle]
    }

    fn has_channels(&self) -> bool {
        false
    }

    fn wake_channel(&self, _: &Token) -> Option<String> {
        None
    }

    fn take_advisory_lock(&self, token: &Token) -> Option<String> {
        Some(format!("DO GET_LOCK('{}', 0); ", advisory_lock(token)))
    }

    fn drop_advisory_lock(&self) -> Option<String> {
        Some("DO RELEASE_ALL_LOCKS(); ".into())
    }

    /// MySQL rounds the timeout to whole seconds; MariaDB does not.
    fn sleep_at_advisory_lock(&self, token: &Token, span: Duration) -> Option<String> {
        let advisory_lock = advisory_lock(token);
        Some(format!(
            "SELECT IF(IS_FREE_LOCK('{advisory_lock}'), 2, GET_LOCK('{advisory_lock}', {:.3})); DO RELEASE_LOCK('{advisory_lock}')",
            span.as_secs_f64()
        ))
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }
}

/// The condition that no other process has reserved a lock.
fn is_open() -> String {
    format!("(kept < 2 OR used NOT BETWEEN {NOW} DIV 1000 + 1 AND {NOW} DIV 1000 + {RESERVED_MOST})")
}

fn advisory_lock(token: &Token) -> String {
    format!("dlock:{}", hex(&statement::advisory_lock(token)))
}

/// What a server error means for a lock.
fn meaning(store: &str, said: &Said) -> Failure {
    let text = plain(&said.text);
    let unavailable = |what: String| Failure::Refused(Error::Unavailable(what));
    let denied = |what: String| Failure::Refused(Error::Denied(what));
    let unfit = |what: String| Failure::Refused(Error::Unfit(what));
    match said.code {
        // Another client changes or creates the same row or table, or a deadlock.
        1020 | 1050 | 1062 | 1213 | 1412 => Failure::Conflict,
        // A user without rights to a table gets this error even if there is no table.
        1146 | 1142 => Failure::NoTables(Error::Denied(format!(
            "{store} has no table for locks, or denies this user a right that dlock needs: {text}"
        ))),
        1054 | 1136 | 1364 | 1406 => {
            unfit(format!("{store} has a table with the name of dlock's, but of another program: {text}"))
        }
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
            "{store} wants a password; give one by --password-file, --password-command or the config file"
        )),
        1045 | 1698 => denied(format!("{store} refused the user name or the password")),
        1129 | 1130 | 1820 | 1862 | 3118 | 4151 => {
            denied(format!("{store} does not let this user in from here: {text}"))
        }
        1044 => denied(format!(
            "{store} does not let this user into the database: {text}; have an administrator run {} there and grant this user the rights that docs/stores.md names",
            TABLES[0]
        )),
        1143 | 1227 | 1370 => denied(format!("{store} denies this user a right that dlock needs: {text}")),
        1290 if !text.contains("read") => unfit(format!("{store} does not allow what dlock needs: {text}")),
        1290 | 1792 | 1836 | 1874 => {
            let why = format!("{store} is read-only, as a replica is; name the primary");
            Failure::ReadOnly(Error::Unavailable(why))
        }
        1 | 3 | 20 | 1021 | 1026 | 1114 => unavailable(format!("{store} has no room on its disk: {text}")),
        1040 | 1203 | 1226 => unavailable(format!("{store} has too many clients: {text}")),
        1205 => unavailable(format!("{store}: another transaction has locked the rows: {text}")),
        1317 | 1969 | 3024 => unavailable(format!("{store} cancelled a statement: {text}")),
        // An administrator closed the connection, or the server stops. A new connection may work at
        // once.
        1053 | 1077 | 1079 | 1080 | 1152 | 1158..=1161 | 1184 | 1927 | 4031 => {
            Failure::Broken(Error::Unreachable(format!("cannot reach {store}: {text}")))
        }
        // InnoDB, memory, a cluster that is not ready, or a packet that is too large.
        1015 | 1016 | 1030 | 1037 | 1038 | 1041 | 1135 | 1047 | 1153 | 1180 | 1181 | 1206 | 1296 | 1297 => {
            unavailable(format!("{store} cannot serve: {text}"))
        }
        code => Failure::Refused(Error::Garbled(format!("{store} answered {code} {text}"))),
    }
}
