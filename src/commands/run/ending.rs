//! How did the hold end, as its log is to say? From what became of the job, and of the lock while it ran. The exit status
//! is another matter.

use crate::job::{Status, Why};
use crate::law::{JobEnd, Outcome, Ran};
use crate::lease::Loss;

/// How a job ended, for the log.
pub fn job_end(status: Status) -> JobEnd {
    match status {
        Status::Exited(code) => JobEnd::Status(code),
        Status::Signaled(signal) => JobEnd::Signal(signal),
    }
}

/// What ended a job that was started. A lock that was lost, and not the only one, or not for the store, is still there to be
/// given back; then the loss is what there is to tell, also where `--on-lost warn` let the job go on.
pub fn ran(why: Option<Why>, lost: Option<Loss>) -> Ran {
    let of_loss = match lost {
        Some(Loss::Deadline) => Some(Outcome::Expired),
        Some(Loss::NotHeld) => Some(Outcome::Lost),
        Some(Loss::Revoked | Loss::Asked) => Some(Outcome::Stopped),
        None => None,
    };
    let outcome = match why {
        Some(Why::CallerGone | Why::GuardGone) => Some(Outcome::Crashed),
        Some(Why::MaxRun) => Some(Outcome::Timeout),
        Some(Why::Asked) => Some(Outcome::Stopped),
        Some(Why::LeaseRanOut) => of_loss.or(Some(Outcome::Expired)),
        Some(Why::Lost) => of_loss.or(Some(Outcome::Lost)),
        None => of_loss,
    };
    outcome.map_or(Ran::Yes, Ran::Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_the_job_is_told() {
        let cut = Ran::Cut;
        for (why, lost, expected) in [
            (None, None, Ran::Yes),
            (None, Some(Loss::NotHeld), cut(Outcome::Lost)),
            (None, Some(Loss::Deadline), cut(Outcome::Expired)),
            (Some(Why::CallerGone), None, cut(Outcome::Crashed)),
            (Some(Why::GuardGone), None, cut(Outcome::Crashed)),
            (Some(Why::MaxRun), None, cut(Outcome::Timeout)),
            (Some(Why::Asked), Some(Loss::Asked), cut(Outcome::Stopped)),
            (Some(Why::LeaseRanOut), Some(Loss::Deadline), cut(Outcome::Expired)),
            (Some(Why::LeaseRanOut), None, cut(Outcome::Expired)),
            (Some(Why::Lost), Some(Loss::NotHeld), cut(Outcome::Lost)),
            (Some(Why::Lost), Some(Loss::Revoked), cut(Outcome::Stopped)),
        ] {
            assert_eq!(ran(why, lost), expected, "{why:?} {lost:?}");
        }
    }
}
