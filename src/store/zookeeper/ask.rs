//! Sends requests to the ensemble, again after a broken connection if a repeat does no harm, and
//! says what each refusal means.

use super::Znodes;
use super::jute::{Answers, Ask, Code};
use super::stamp::Stamp;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::Failure;

impl Znodes {
    /// One round trip. The requests are sent again if the connection breaks, so they may be done
    /// more than once.
    pub(super) fn ask(&mut self, asks: &[Ask], deadline: Moment) -> Result<Answers, Failure> {
        let servers = self.session.target.servers.len();
        let mut broken = 0;
        loop {
            // A single server that breaks a new connection would break the next one, too.
            let is_worth_it = self.session.is_connected() || servers > 1;
            match self.ask_once(asks, deadline) {
                Err(Failure::Broken(_)) if is_worth_it && broken < servers && !deadline.passed() => {
                    broken += 1;
                }
                answers => return answers,
            }
        }
    }

    /// One round trip. If the connection breaks, nobody knows what was done.
    pub(super) fn ask_once(&mut self, asks: &[Ask], deadline: Moment) -> Result<Answers, Failure> {
        let sent = Moment::now();
        let answers = self.session.ask(asks, deadline)?;
        let heard = Moment::now();
        if let Some(at) = answers.iter().flatten().filter_map(|answer| answer.written).next_back() {
            self.stamp = Some(Stamp { at, sent, heard, connection: self.session.connections });
        }
        Ok(answers)
    }

    /// Whether to count on from the last stamp of the leader's clock at this moment. A new leader,
    /// whose clock may differ, breaks all connections.
    pub(super) fn has_good_stamp(&self, now: Moment) -> bool {
        self.session.is_connected()
            && self.stamp.is_some_and(|stamp| stamp.is_good(now, self.session.connections))
    }

    /// Translates a refusal.
    pub(super) fn refused(&self, code: Code) -> Error {
        let shown = self.shown();
        match code {
            Code::NO_AUTH => Error::Denied(format!(
                "{shown} denies this user a right that dlock needs: its nodes belong to another user, or this user may not make nodes in {}; see docs/stores.md",
                self.chroot_shown()
            )),
            Code::AUTH_FAILED => Error::Password(format!("{shown} refused the user name or the password")),
            Code::UNKNOWN => Error::Unfit(format!(
                "{shown} lacks a request that dlock needs: it is older than ZooKeeper 3.5"
            )),
            Code::READ_ONLY => {
                Error::Unavailable(format!("{shown} is read-only: it has lost the other servers"))
            }
            Code::QUOTA => Error::Unavailable(format!("{shown}: a quota of its nodes is exceeded")),
            Code::THROTTLED | Code::TIMEOUT => Error::Overloaded(format!("{shown} is overloaded")),
            Code(code) => Error::Garbled(format!("{shown} answered with the error {code}")),
        }
    }
}
