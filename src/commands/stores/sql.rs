//! PostgreSQL, MySQL and MariaDB.

use super::super::context::Context;
use super::{HoldRequirements, Made};
use crate::config::url::{DatabaseAt, Dialect};
use crate::error::Error;
use crate::store::Store;
use crate::store::net::Address;
use crate::store::probe::Survey;
use crate::store::sql::{SqlStore, Target};

impl Context {
    pub(super) fn database(&self, dialect: Dialect, at: &DatabaseAt, name: &str) -> Result<Target, Error> {
        let settings = &self.settings;
        let shown = settings.store.to_string();
        let user = self.user().ok_or_else(|| {
            let scheme = dialect.scheme();
            Error::Config(format!("{shown}: no user is set; write {scheme}://USER@… or set DLOCK_USERNAME"))
        })?;
        Ok(Target {
            servers: match at {
                DatabaseAt::Tcp(_) => self.addresses(),
                // As libpq names it: the directory has one socket for each port.
                DatabaseAt::Unix(path) if dialect == Dialect::Postgres && path.is_dir() => {
                    vec![Address::Unix(path.join(format!(".s.PGSQL.{}", dialect.port())))]
                }
                DatabaseAt::Unix(path) => vec![Address::Unix(path.clone())],
            },
            user,
            password: self.password(),
            database: name.into(),
            tls: self.tls()?,
            shown,
            connect_timeout: settings.connect_timeout,
            op_timeout: settings.op_timeout,
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
