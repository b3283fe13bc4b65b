//! An ensemble of ZooKeeper.

use super::super::context::Context;
use super::{HoldRequirements, Made};
use crate::error::Error;
use crate::store::Store;
use crate::store::net::password::Password;
use crate::store::probe::Survey;
use crate::store::zookeeper::{Target, ZooKeeperStore};

impl Context {
    pub(super) fn zookeeper(&self, chroot: &str) -> Result<ZooKeeperStore, Error> {
        Ok(ZooKeeperStore::open(Target {
            servers: self.addresses(),
            login: self.zookeeper_login()?,
            chroot: chroot.into(),
            tls: self.tls()?,
            shown: self.settings.store.to_string(),
            connect_timeout: self.settings.connect_timeout,
            op_timeout: self.settings.op_timeout,
        }))
    }

    fn zookeeper_login(&self) -> Result<Option<(String, Password)>, Error> {
        let store = &self.settings.store;
        if store.credentials.is_none() {
            return Ok(None);
        }
        match (self.user(), self.password()) {
            (Some(user), Some(_)) if user.contains(':') => {
                Err(Error::Config(format!("{store}: a user name there cannot contain a colon")))
            }
            // The server accepts any password, but a different one would make dlock another user,
            // without access to its locks. So one password is used throughout.
            (Some(user), Some(password)) => Ok(Some((user, password.kept()))),
            _ => Err(Error::Config(format!(
                "{store}: a password needs a user there; write zookeeper://USER@… or set DLOCK_USERNAME"
            ))),
        }
    }
}

impl Made for ZooKeeperStore {
    fn open(self: Box<Self>, context: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        let why = "a majority of its servers acknowledges each write anyway; leave it out";
        hold.without_replicas(&context.settings.store, Some(why))?;
        Ok(self)
    }

    fn probe(self: Box<Self>, context: &Context) -> Survey {
        Survey::Ensemble((*self).probe(context.deadline()))
    }
}
