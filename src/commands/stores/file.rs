//! A directory on this machine.

use super::super::context::Context;
use super::{HoldRequirements, Made};
use crate::error::Error;
use crate::store::Store;
use crate::store::file::{FileStore, probe};
use crate::store::probe::Survey;
use std::path::PathBuf;

/// The directory. Opening creates it, probing does not.
pub struct Directory(pub PathBuf);

impl Made for Directory {
    fn open(self: Box<Self>, context: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        let store = &context.settings.store;
        hold.without_replicas(store, None)?;
        let opened = FileStore::open(&self.0, &store.to_string());
        Ok(Box::new(opened.map_err(|error| context.with_origin(error))?))
    }

    fn probe(self: Box<Self>, context: &Context) -> Survey {
        Survey::Directory(probe::probe(&self.0, &context.settings.store.to_string()))
    }
}
