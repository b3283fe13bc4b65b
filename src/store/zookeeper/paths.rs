//! Where is what kept? All of it below one node, and who makes that.

use super::jute::{Ask, Code};
use super::{Again, Znodes, node};
use crate::lock::Token;
use crate::store::Error;
use sha1_smol::Sha1;

impl Znodes {
    pub(super) fn shown(&self) -> &str {
        &self.target.shown
    }

    pub(super) fn base(&self) -> String {
        format!("{}/dlock", self.target.chroot)
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

    /// The life of a token. Its name is no secret: it is shown to whoever asks a server for its sessions.
    pub(super) fn life_path(&self, token: &Token) -> String {
        format!("{}/lives/{}", self.base(), Sha1::from(token.secret()).digest())
    }

    /// Makes the nodes that all locks lie below. Those that are there stay as they are.
    pub(super) fn make_base(&self) -> Result<(), Error> {
        let (base, mut paths) = (self.base(), Vec::new());
        for (at, _) in base.match_indices('/').skip(1) {
            paths.push(base[..at].to_owned());
        }
        paths.extend([base.clone(), self.locks(), format!("{base}/lives"), self.clock()]);
        let asks: Vec<Ask> = paths.into_iter().map(|path| Ask::Create { path, data: Vec::new() }).collect();
        let answers = self.ask(&asks, Again::Yes)?;
        // What was refused above may be there all the same; what is missing at the end is what counts.
        let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
        let Some(code) = refused.copied().find(|code| *code != Code::NODE_EXISTS) else { return Ok(()) };
        if matches!(answers.last(), Some(Ok(_) | Err(Code::NODE_EXISTS))) {
            return Ok(());
        }
        Err(match code {
            Code::NO_AUTH => Error::Denied(format!(
                "{}: there is no {base} yet, and this user may not make it: have an administrator make {} and give this user \
                 all rights to it, as docs/stores.md says",
                self.shown(),
                self.target.chroot_shown()
            )),
            code => self.refused(code),
        })
    }
}
