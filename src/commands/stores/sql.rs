//! PostgreSQL, MySQL and MariaDB.

use super::super::context::Context;
use super::{HoldRequirements, Made};
use crate::config::url::{DatabaseAt, Dialect};
use crate::error::Error;
use crate::store::Store;
use crate::store::net::Address;
use crate::store::net::target::Target;
use crate::store::probe::Survey;
use crate::store::sql::SqlStore;

impl Context {
    pub(super) fn database(&self, dialect: Dialect, at: &DatabaseAt, name: &str) -> Result<Target, Error> {
        let target = self.target(name)?;
        if target.user.is_none() {
            let (shown, scheme) = (&target.shown, dialect.scheme());
            let why = format!("{shown}: no user is set; write {scheme}://USER@… or set DLOCK_USERNAME");
            return Err(Error::Config(why));
        }
        Ok(match at {
            DatabaseAt::Tcp(_) => target,
            // As libpq names it: the directory has one socket for each port.
            DatabaseAt::Unix(path) if dialect == Dialect::Postgres && path.is_dir() => {
                let path = path.join(format!(".s.PGSQL.{}", dialect.port()));
                Target { servers: vec![Address::Unix(path)], ..target }
            }
            DatabaseAt::Unix(path) => Target { servers: vec![Address::Unix(path.clone())], ..target },
        })
    }
}

impl Made for SqlStore {
    fn open(self: Box<Self>, context: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        let why =
            "the settings of the database say which standbys acknowledge; leave it out (docs/stores.md)";
        hold.without_replicas(&context.settings.store, Some(why))?;
        Ok(self)
    }

    fn sql(&self) -> Option<String> {
        Some(self.tables().iter().map(|statement| in_lines(statement)).collect())
    }

    fn probe(self: Box<Self>, context: &Context) -> Survey {
        Survey::Database((*self).probe(context.deadline()))
    }
}

/// A statement with each of its columns on a line.
fn in_lines(statement: &str) -> String {
    let (mut text, mut depth) = (String::new(), 0);
    for word in statement.split_inclusive([' ', '(', ')']) {
        let is_list = depth == 1;
        depth += usize::from(word.ends_with('('));
        depth = depth.saturating_sub(usize::from(word.ends_with(')')));
        text.push_str(if is_list && word.ends_with(", ") { word.trim_end() } else { word });
        if is_list && word.ends_with(", ") || !is_list && depth == 1 && word.ends_with('(') {
            text.push_str("\n    ");
        }
    }
    text + ";\n"
}

#[cfg(test)]
mod tests {
    use super::in_lines;

    #[test]
    fn each_column_has_a_line() {
        let text = in_lines("CREATE TABLE t (a int, b text, PRIMARY KEY (a, b)) WITH (f = 5)");
        assert_eq!(
            text,
            "CREATE TABLE t (\n    a int,\n    b text,\n    PRIMARY KEY (a, b)) WITH (\n    f = 5);\n"
        );
    }
}
