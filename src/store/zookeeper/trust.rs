//! Tests that not everybody may change dlock's nodes. Where the root or the chroot is open to
//! everybody, a stranger may have created them first. Without a user, dlock's nodes are open to all,
//! and nothing is tested. A list may name another user: that passes, and `dlock doctor` warns.
//!
//! Nodes above `dlock` are not tested: nobody can delete or replace a node that has children.

use super::Znodes;
use super::jute::{Answer, Answers, Code, Grant};
use crate::store::Error;
use std::collections::BTreeSet;

/// The rights to write, create, delete, and set the access list: all but the right to read, 1.
const CHANGES: i32 = 2 | 4 | 8 | 16;

impl Znodes {
    /// The nodes whose access lists the next read has to test: none after the first one.
    pub(super) fn untested(&self, names: &BTreeSet<String>) -> Vec<String> {
        if self.is_tested || self.session.target.user.is_none() {
            return Vec::new();
        }
        self.above_locks().into_iter().chain(names.iter().map(|name| self.lock_path(name))).collect()
    }

    /// Tests the access lists of these nodes. Returns false if a node above all locks is missing: a
    /// stranger may create it before dlock does, so the lists have to be read again.
    pub(super) fn test(&mut self, paths: &[String], lists: &Answers) -> Result<bool, Error> {
        let mut is_complete = lists.len() == paths.len();
        for (at, (path, list)) in paths.iter().zip(lists).enumerate() {
            match list {
                Ok(Answer { acl, .. }) => {
                    if let Some(open) = acl.iter().find(|grant| grant.is_change() && grant.is_of_anybody()) {
                        return Err(self.open_to(open, path));
                    }
                }
                Err(Code::NO_NODE) => is_complete &= at >= self.above_locks().len(),
                Err(code) => return Err(self.refused(*code)),
            }
        }
        self.is_tested = is_complete;
        Ok(is_complete)
    }

    /// The other users that these access lists let change the nodes: those without rights in `own`,
    /// the list of a node that dlock has just created.
    pub(super) fn others(&self, lists: &Answers, own: &[Grant]) -> BTreeSet<String> {
        let is_own = |grant: &Grant| own.iter().any(|own| own.is_of(grant));
        let grants = lists.iter().flatten().flat_map(|answer| &answer.acl);
        let changing = grants.filter(|grant| grant.is_change() && self.session.target.user.is_some());
        changing.filter(|grant| !is_own(grant)).map(Grant::shown).collect()
    }

    fn open_to(&self, open: &Grant, path: &str) -> Error {
        let user = self.session.target.user.as_deref().unwrap_or_default();
        Error::Denied(format!(
            "{}: {} may change {path}, and so end or replace any lock; give the nodes to this user alone, by zkCli.sh: \
             addauth digest {user}:PASSWORD, then setAcl -R {} auth::cdrwa; see docs/stores.md",
            self.shown(),
            open.shown(),
            self.base()
        ))
    }
}

impl Grant {
    const fn is_change(&self) -> bool {
        self.rights & CHANGES != 0
    }

    /// Whether this is everybody, or an address: no user who logs in.
    fn is_of_anybody(&self) -> bool {
        ["world", "ip"].contains(&self.scheme.as_str())
    }

    /// Whether both are of the same identity. To a user that may not change the list, a server shows
    /// `x` for the hash of a password.
    fn is_of(&self, other: &Self) -> bool {
        let is_hidden = other.id.ends_with(":x") && self.shown() == other.shown();
        self.scheme == other.scheme && (self.id == other.id || is_hidden)
    }

    /// The identity as messages show it, without the hash of its password.
    pub(super) fn shown(&self) -> String {
        let id = match (self.scheme.as_str(), self.id.rsplit_once(':')) {
            ("digest", Some((user, _))) => user,
            _ => &self.id,
        };
        format!("{}:{id}", self.scheme)
    }
}
