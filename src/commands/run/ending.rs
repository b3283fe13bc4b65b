//! Chooses the outcome that the log records for a hold, from how the job ended and whether the lock
//! was lost. The exit status is chosen elsewhere.

use crate::lease::{Asker, Loss};
use crate::rules::{Outcome, Ran};
use crate::supervise::StopReason;

/// What ended a job that was started. A lost lock may still be there to be given back: it was one
/// of several, or the store still has it. Then the loss is the outcome, also if `--on-lost warn`
/// let the job go on.
pub fn ran(reason: Option<StopReason>, lost: Option<Loss>) -> Ran {
    let of_loss = match lost {
        Some(Loss::Deadline) => Some(Outcome::Expired),
        Some(Loss::NotHeld) => Some(Outcome::Lost),
        Some(Loss::Asked(Asker::Newer)) => Some(Outcome::Superseded),
        Some(Loss::Revoked | Loss::Asked(Asker::Operator)) => Some(Outcome::Stopped),
        None => None,
    };
    let outcome = match reason {
        Some(StopReason::CallerGone | StopReason::GuardGone) => Some(Outcome::Crashed),
        Some(StopReason::MaxRun) => Some(Outcome::Timeout),
        Some(StopReason::Asked) => of_loss.or(Some(Outcome::Stopped)),
        Some(StopReason::LeaseRanOut) => of_loss.or(Some(Outcome::Expired)),
        Some(StopReason::Lost) => of_loss.or(Some(Outcome::Lost)),
        None => of_loss,
    };
    outcome.map_or(Ran::Yes, Ran::Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_names_the_cause() {
        let cut = Ran::Cut;
        for (reason, lost, expected) in [
            (None, None, Ran::Yes),
            (None, Some(Loss::NotHeld), cut(Outcome::Lost)),
            (None, Some(Loss::Deadline), cut(Outcome::Expired)),
            (Some(StopReason::CallerGone), None, cut(Outcome::Crashed)),
            (Some(StopReason::GuardGone), None, cut(Outcome::Crashed)),
            (Some(StopReason::MaxRun), None, cut(Outcome::Timeout)),
            (Some(StopReason::Asked), Some(Loss::Asked(Asker::Operator)), cut(Outcome::Stopped)),
            (Some(StopReason::Asked), Some(Loss::Asked(Asker::Newer)), cut(Outcome::Superseded)),
            (Some(StopReason::LeaseRanOut), Some(Loss::Deadline), cut(Outcome::Expired)),
            (Some(StopReason::LeaseRanOut), None, cut(Outcome::Expired)),
            (Some(StopReason::Lost), Some(Loss::NotHeld), cut(Outcome::Lost)),
            (Some(StopReason::Lost), Some(Loss::Revoked), cut(Outcome::Stopped)),
        ] {
            assert_eq!(ran(reason, lost), expected, "{reason:?} {lost:?}");
        }
    }
}
