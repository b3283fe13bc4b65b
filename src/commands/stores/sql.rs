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

    fn probe(self: Box<Self>, context: &Context) -> Survey {
        Survey::Database((*self).probe(context.deadline()))
    }
}
