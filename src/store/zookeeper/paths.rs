//! The paths of dlock's nodes, all below one node, and their creation.

use super::jute::{Ask, Code};
use super::{Znodes, node};
use crate::clock::Moment;
use crate::lock::Token;
use crate::store::Error;

impl Znodes {
    pub(super) fn shown(&self) -> &str {
        &self.session.target.shown
    }

    /// How messages name the chroot.
    pub(super) fn chroot_shown(&self) -> &str {
        if self.session.target.space.is_empty() { "/" } else { &self.session.target.space }
    }

    pub(super) fn base(&self) -> String {
        format!("{}/dlock", self.session.target.space)
    }

    pub(super) fn locks(&self) -> String {
        format!("{}/locks", self.base())
    }

    pub(super) fn clock(&self) -> String {
        format!("{}/clock", self.base())
    }

    pub(super) fn lock_path(&self, name: &str) -> String {
        format!("{}/{}", self.locks(), node::lock_name(name))
    }

    /// A token's session node.
    pub(super) fn life_path(&self, token: &Token) -> String {
        format!("{}/lives/{}", self.base(), node::hash(token))
    }

    /// The nodes above all locks.
    pub(super) fn above_locks(&self) -> [String; 4] {
        [self.base(), self.locks(), format!("{}/lives", self.base()), self.clock()]
    }

    /// Creates the nodes above all locks. Existing ones stay as they are.
    pub(super) fn make_base(&mut self, deadline: Moment) -> Result<(), Error> {
        let base = self.base();
        let above = base.match_indices('/').skip(1).map(|(at, _)| base[..at].to_owned());
        let paths = above.chain(self.above_locks());
        let asks: Vec<Ask> = paths.map(|path| Ask::Create { path, data: Vec::new() }).collect();
        let answers = self.ask(&asks, deadline)?;
        // A node above may exist although this user may not create it. Only the last one must be
        // there.
        let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
        let Some(code) = refused.copied().find(|code| *code != Code::NODE_EXISTS) else { return Ok(()) };
        if matches!(answers.last(), Some(Ok(_) | Err(Code::NODE_EXISTS))) {
            return Ok(());
        }
        Err(match code {
            Code::NO_AUTH => Error::Denied(format!(
                "{}: there is no {base} yet, and this user may not make it: have an administrator make {} and grant this user all rights on it, as docs/stores.md says",
                self.shown(),
                self.chroot_shown()
            )),
            code => self.refused(code),
        })
    }
}
