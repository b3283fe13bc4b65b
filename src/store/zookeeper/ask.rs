//! Sends requests to the ensemble, again after a broken connection if a repeat does no harm, and
//! says what each refusal means.

use super::Znodes;
use super::jute::{Answer, Ask, Code};
use super::stamp::Stamp;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::Failure;

/// Most broken connections that one exchange retries.
pub(super) const BROKEN_MOST: u32 = 8;

/// Whether a request may be sent again on another connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Yes,
    No,
}

impl Znodes {
    /// One round trip. With [`Again::Yes`], the requests are sent again if the connection breaks.
    pub(super) fn ask(
        &mut self,
        asks: &[Ask],
        again: Again,
        deadline: Moment,
    ) -> Result<Vec<Result<Answer, Code>>, Failure> {
        let mut broken = 0;
        loop {
            let sent = Moment::now();
            match self.session.ask(asks, deadline) {
                Err(Failure::Broken(_))
                    if again == Again::Yes && broken < BROKEN_MOST && !deadline.passed() =>
                {
                    broken += 1;
                }
                Err(failure) => return Err(failure),
                Ok(answers) => {
                    let heard = Moment::now();
                    let written = answers.iter().flatten().filter_map(|answer| answer.written);
                    if let Some(at) = written.last() {
                        self.stamp = Some(Stamp { at, sent, heard, dial: self.session.dial() });
                    }
                    return Ok(answers);
                }
            }
        }
    }

    /// Translates a refusal.
    pub(super) fn refused(&self, code: Code) -> Error {
        let shown = self.shown();
        match code {
            Code::NO_AUTH => Error::Denied(format!(
                "{shown} denies this user a right that dlock needs: its nodes belong to another user, or this user may not make nodes in {}; see docs/stores.md",
                self.chroot_shown()
            )),
            Code::AUTH_FAILED => Error::Denied(format!("{shown} refused the user name or the password")),
            Code::UNKNOWN => Error::Unfit(format!(
                "{shown} lacks a request that dlock needs: it is older than ZooKeeper 3.5"
            )),
            Code::READ_ONLY => {
                Error::Unavailable(format!("{shown} is read-only: it has lost the other servers"))
            }
            Code::QUOTA => Error::Unavailable(format!("{shown}: a quota of its nodes is exceeded")),
            Code::THROTTLED | Code::TIMEOUT => Error::Unavailable(format!("{shown} is overloaded")),
            Code(code) => Error::Garbled(format!("{shown} answered with the error {code}")),
        }
    }
}
