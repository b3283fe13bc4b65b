//! A cluster of etcd.

use super::super::context::Context;
use super::{HoldRequirements, Made};
use crate::error::Error;
use crate::store::Store;
use crate::store::etcd::EtcdStore;
use crate::store::probe::Survey;

impl Context {
    pub(super) fn etcd(&self, prefix: &str) -> Result<EtcdStore, Error> {
        Ok(EtcdStore::etcd(self.target(prefix)?))
    }
}

impl Made for EtcdStore {
    fn open(self: Box<Self>, context: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        let why = "a majority of its members acknowledges each write anyway; leave it out";
        hold.without_replicas(&context.settings.store, Some(why))?;
        Ok(self)
    }

    fn probe(self: Box<Self>, context: &Context) -> Survey {
        Survey::Database((*self).probe(context.deadline()))
    }
}
