//! How is a step written, and where does this process wait after it?

use super::Znodes;
use super::jute::{Answer, Ask};
use std::collections::BTreeMap;

/// The node of this process in a queue, as it was read or written last.
pub(super) struct Place {
    pub(super) path: String,
    pub(super) data: Vec<u8>,
    pub(super) version: i32,
}

impl Znodes {
    /// Where this process waits after a step that has written these.
    pub(super) fn keep_places(
        &self,
        places: BTreeMap<String, Option<String>>,
        asks: Vec<Ask>,
        answers: &[Answer],
    ) {
        let mut known = self.places.borrow_mut();
        let mut written: BTreeMap<String, (Vec<u8>, i32)> = BTreeMap::new();
        for (ask, answer) in asks.into_iter().zip(answers) {
            match (ask, answer) {
                // Of a node that it makes it tells no version: it is the first.
                (Ask::Create { path, data }, Answer::Done) => drop(written.insert(path, (data, 0))),
                (Ask::Set { path, data }, Answer::Stat(stat)) => {
                    drop(written.insert(path, (data, stat.version)));
                }
                _ => {}
            }
        }
        for (name, path) in places {
            let is_same = |place: &Place| Some(&place.path) == path.as_ref();
            match path.as_ref().and_then(|path| written.remove(path)) {
                Some((data, version)) => {
                    let path = path.unwrap_or_default();
                    known.insert(name, Place { path, data, version });
                }
                None if known.get(&name).is_some_and(is_same) => {}
                None => drop(known.remove(&name)),
            }
        }
    }
}
