//! How a run ends: chooses the exit status, and the outcome that the log records for the hold, from
//! how the job ended and whether the lock was lost. Pure.

use crate::exit::{Ended, Exit};
use crate::lease::{Asker, Loss};
use crate::rules::{Outcome, Ran};
use crate::supervise::StopReason;

/// The exit status after CMD was started: a lost lock comes first, then `--max-run`, then a guard
/// that is gone, then CMD's own status.
pub fn exit(status: Option<Ended>, reason: Option<StopReason>, lost: Option<Loss>) -> Exit {
    match (reason, status) {
        (Some(StopReason::Lost | StopReason::LeaseRanOut | StopReason::Asked), _) => Exit::Lost,
        _ if lost.is_some() => Exit::Lost,
        (Some(StopReason::MaxRun), _) => Exit::TimedOut,
        (Some(StopReason::GuardGone | StopReason::WatcherGone | StopReason::CallerGone), _)
        | (None, None) => Exit::Internal,
        (None, Some(Ended::Code(code))) => Exit::Job(code),
        (None, Some(Ended::Signal(signal))) => Exit::Signal(signal),
    }
}

/// Whether the job ended by itself, or what cut it short. After a loss there may still be a hold to
/// give back: of one of several locks, or one that the store has not ended. Its end is then
/// recorded as a loss, even if `--on-lost warn` let the job go on.
pub fn ran(reason: Option<StopReason>, lost: Option<Loss>) -> Ran {
    let of_loss = match lost {
        Some(Loss::Deadline) => Some(Outcome::Expired),
        Some(Loss::NotHeld) => Some(Outcome::Lost),
        Some(Loss::Asked(Asker::Newer)) => Some(Outcome::Superseded),
        Some(Loss::Revoked | Loss::Asked(Asker::Operator)) => Some(Outcome::Stopped),
        None => None,
    };
    let outcome = match reason {
        Some(StopReason::CallerGone | StopReason::GuardGone | StopReason::WatcherGone) => {
            Some(Outcome::Crashed)
        }
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
    fn lost_lock_comes_before_max_run_and_the_own_status() {
        let code = Some(Ended::Code(3));
        assert_eq!(exit(code, None, None), Exit::Job(3));
        assert_eq!(exit(Some(Ended::Signal(9)), None, None), Exit::Signal(9));
        assert_eq!(exit(code, None, Some(Loss::NotHeld)), Exit::Lost);
        assert_eq!(exit(code, Some(StopReason::MaxRun), Some(Loss::Deadline)), Exit::Lost);
        assert_eq!(exit(code, Some(StopReason::MaxRun), None), Exit::TimedOut);
        assert_eq!(exit(code, Some(StopReason::GuardGone), None), Exit::Internal);
        assert_eq!(exit(None, None, None), Exit::Internal);
    }

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
