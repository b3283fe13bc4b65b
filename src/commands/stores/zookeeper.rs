//! An ensemble of ZooKeeper.

use super::super::context::Context;
use super::{HoldRequirements, Made};
use crate::error::Error;
use crate::store::Store;
use crate::store::probe::Survey;
use crate::store::zookeeper::ZooKeeperStore;

impl Context {
    pub(super) fn zookeeper(&self, chroot: &str) -> Result<ZooKeeperStore, Error> {
        let mut target = self.target(chroot)?;
        let store = &self.settings.store;
        if store.credentials.is_none() {
            return Ok(ZooKeeperStore::open(target));
        }
        match (&target.user, target.password) {
            (Some(user), Some(_)) if user.contains(':') => {
                Err(Error::Config(format!("{store}: a user name there cannot contain a colon")))
            }
            // The server accepts any password, but a different one would make dlock another user,
            // without access to its locks. So one password is used throughout.
            (Some(_), Some(password)) => {
                target.password = Some(password.kept());
                Ok(ZooKeeperStore::open(target))
            }
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
