//! Makes it safe to use tables in a database where other users can create objects. It puts SQL
//! before each text, in the same transaction and round trip, that does this:
//!
//! 1. *Pins the search path* to `pg_catalog`, the schema of the tables, and `pg_temp`. Otherwise an
//!    operator or a function that another user made in `public` could be chosen in place of the
//!    server's, and run with the rights of dlock's user (CVE-2018-1058). A better match wins in any
//!    schema of the path. So the statements also name functions with their schema, and use operators
//!    with exactly the types that `pg_catalog` has them for.
//! 2. *Locks the tables*, only as strongly as the text itself would. From then on nobody drops or
//!    renames them, and under a writer's lock nobody adds a trigger.
//! 3. *Checks the tables*: a view, a trigger, a policy, a default and the like are code that runs
//!    with the rights of the user who touches the table.
//!
//! The first text of a connection finds the schema and checks everything. Later texts only check
//! that the tables that they use are the same ones and have no trigger: the first check has found that the owner
//! can do as much as this user anyway. If the owner cannot, each text finds and checks everything.

use crate::store::sql::row::Row;

/// Marks a text that touches no table.
pub const NO_TABLE: &str = "/* no table */ ";
/// Marks a text that only reads.
pub const READS: &str = "/* reads */ ";
const MAKES: &str = "CREATE TABLE";
const TABLES: [&str; 3] = ["dlock_locks", "dlock_waiters", "dlock_ends"];

/// Finds the tables by the user's own search path.
const FIND: &str = "SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', 'pg_catalog', \
     (pg_catalog.pg_identify_object('pg_catalog.pg_class'::pg_catalog.regclass, pg_catalog.to_regclass('dlock_locks'), 0)).schema, \
     'pg_temp'), true); ";

/// Reports what is wrong as the error of a cast, because nothing else in SQL raises an error with a
/// text.
const LOOK: &str = "SELECT c.relname, c.oid, v.is_trusted, (CASE \
     WHEN c.relkind <> 'r' OR c.relispartition THEN pg_catalog.concat(v.named, ' is not a plain table;') \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = c.oid) THEN pg_catalog.concat(v.named, ' has a trigger or a foreign key;') \
     WHEN v.is_trusted THEN '0' \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = ANY (ARRAY[session_user, current_user]) \
     AND (r.rolsuper OR r.rolcreaterole OR r.rolbypassrls)) \
     OR pg_catalog.pg_has_role(session_user, 'pg_execute_server_program'::pg_catalog.name, 'MEMBER') \
     THEN pg_catalog.concat(v.named, ', whose owner may do less than the user of dlock;') \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class = c.oid) OR c.relrowsecurity OR c.relchecks > 0::pg_catalog.int2 \
     OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0::pg_catalog.int2 AND NOT a.attisdropped AND (a.atthasdef OR \
     pg_catalog.concat(a.attname, ' ', a.atttypid::pg_catalog.regtype) <> ALL (ARRAY['name bytea', 'version bigint', 'used bigint', \
     'reserved bigint', 'kept boolean', 'body bytea', 'token text', 'queued boolean', 'said bigint', 'number bigint']))) \
     OR EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)) \
     OR EXISTS (SELECT FROM pg_catalog.pg_statistic_ext AS s WHERE s.stxrelid = c.oid) \
     THEN pg_catalog.concat(v.named, ' has a rule, a policy, a check, a default, an expression or a column that is not dlock''s;') \
     ELSE '0' END)::pg_catalog.int4 FROM pg_catalog.pg_class AS c, LATERAL (SELECT \
     pg_catalog.pg_has_role(c.relowner, session_user, 'MEMBER') AND pg_catalog.pg_has_role(c.relowner, current_user, 'MEMBER') AS is_trusted, \
     pg_catalog.concat('dlock: ', c.relname, ' of ', pg_catalog.pg_get_userbyid(c.relowner)) AS named) AS v \
     WHERE c.oid = ANY (ARRAY['dlock_locks'::pg_catalog.regclass::pg_catalog.oid, \
     'dlock_waiters'::pg_catalog.regclass::pg_catalog.oid, 'dlock_ends'::pg_catalog.regclass::pg_catalog.oid]); ";

/// What a connection knows of the tables, if their owners can do as much as this user anyway.
#[derive(Default)]
pub struct Guard {
    known: Option<Known>,
}

struct Known {
    /// The search path, as the server has written it.
    path: String,
    /// Name and oid of each table.
    tables: Vec<(String, u32)>,
}

/// The SQL before a text.
pub struct Preamble {
    pub text: String,
    /// Number of statements before those of the text, with the timeout.
    pub statements: usize,
}

impl Guard {
    /// The SQL to put before this text.
    pub fn preamble(&self, text: &str) -> Preamble {
        let (timeout, pinned) = (1, 2);
        if text.starts_with(MAKES) {
            return Preamble { text: String::new(), statements: timeout };
        }
        if text.starts_with(NO_TABLE) {
            let text = "SET LOCAL search_path TO pg_catalog, pg_temp; ".into();
            return Preamble { text, statements: pinned };
        }
        let is_reading = text.starts_with(READS);
        let mode = if is_reading { "ACCESS SHARE" } else { "ROW EXCLUSIVE" };
        let lock = |tables: &[&str]| format!("LOCK TABLE ONLY {} IN {mode} MODE; ", tables.join(", ONLY "));
        let text = match &self.known {
            None => format!("{FIND}{}{LOOK}", lock(&TABLES)),
            Some(known) => {
                // What comes from a user is in hexadecimal digits, and cannot name a table.
                let used = TABLES.into_iter().filter(|table| text.contains(table)).collect::<Vec<_>>();
                let pin = format!("SET LOCAL search_path TO {}; ", known.path);
                pin + &lock(&used) + &known.look_again(&used, is_reading)
            }
        };
        Preamble { text, statements: pinned + 2 }
    }

    /// Remembers what the rows of a preamble say about the tables, if it has looked for them.
    pub fn learn(&mut self, rows: &[Row]) {
        let [path, tables @ ..] = rows else { return };
        if tables.len() != TABLES.len() {
            return;
        }
        let trusted = |row: &Row| {
            let oid = row.text(1).parse().ok().filter(|_| row.bytes(2) == Some(b"t"))?;
            Some((row.text(0).into_owned(), oid))
        };
        let tables: Option<Vec<_>> = tables.iter().map(trusted).collect();
        self.known = tables.map(|tables| Known { path: path.text(0).into_owned(), tables });
    }

    /// Makes the next text find the tables again.
    pub fn forget(&mut self) {
        self.known = None;
    }
}

impl Known {
    /// Checks the tables that a text uses. A text that only reads runs no trigger.
    fn look_again(&self, names: &[&str], is_reading: bool) -> String {
        let oid =
            |name: &&str| self.tables.iter().find(|(known, _)| known == name).map_or(0, |(_, oid)| *oid);
        let oids: Vec<_> = names.iter().map(|name| format!("{}::pg_catalog.oid", oid(name))).collect();
        let same = names.iter().zip(&oids);
        let mut same: Vec<_> = same
            .map(|(name, oid)| format!("'{name}'::pg_catalog.regclass::pg_catalog.oid = {oid}"))
            .collect();
        if !is_reading {
            same.push(format!(
                "NOT EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = ANY (ARRAY[{}]))",
                oids.join(", ")
            ));
        }
        format!(
            "SELECT (CASE WHEN {} THEN '0' ELSE 'dlock: {CHANGED};' END)::pg_catalog.int4; ",
            same.join(" AND ")
        )
    }
}

/// Reported if the tables have been replaced or have a trigger. The connection then checks
/// everything again.
pub const CHANGED: &str = "changed";

/// What the check found, from the text of its error in any language of the server.
pub fn found(text: &str) -> Option<&str> {
    text.split_once("dlock: ")?.1.rsplit_once(';').map(|(found, _)| found)
}
