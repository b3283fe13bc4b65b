//! How a run ends: chooses the exit status, the outcome that the log records for the hold, and
//! whether `--pause-on-failure` applies, from how the job ended and whether the lock was lost. Pure.

use crate::config::run::Run;
use crate::exit::{Ended, Exit};
use crate::lease::{Asker, Loss};
use crate::rules::{End, FailurePause, Outcome, Ran};
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

/// The pause that `--pause-on-failure` leaves behind after a run on this host; `how` it failed.
pub fn pause_after(run: &Run, host: &str, how: Option<String>) -> Option<FailurePause> {
    let (lasts, how) = run.pause_on_failure.zip(how)?;
    Some(FailurePause { lasts, reason: format!("failed on {host}: {how}") })
}

/// How the run failed, for `--pause-on-failure`. None if it succeeded, or ended because somebody asked
/// for that. `exit` is the exit status if CMD did not start. The end of a hold, whose job has no
/// status, is a failure only if its lease ran out.
pub fn failure(end: &End, exit: Option<Exit>, is_hold: bool) -> Option<String> {
    let text = match (end.ran, end.job) {
        (Ran::Cut(Outcome::Expired), _) => "its lease ran out",
        _ if is_hold => return None,
        (Ran::Yes, Some(Ended::Code(0))) => return None,
        (Ran::Yes, Some(Ended::Code(code))) => return Some(format!("exit {code}")),
        (Ran::Yes, Some(Ended::Signal(signal))) => return Some(format!("signal {signal}")),
        (Ran::Yes, None) => "nobody knows how it ended",
        (Ran::No, _) => return exit.map(|exit| format!("exit {}, the command did not run", exit.code())),
        (Ran::Cut(Outcome::Timeout), _) => "--max-run stopped it",
        (Ran::Cut(Outcome::Lost), _) => "the lock was lost",
        (Ran::Cut(Outcome::Crashed), _) => "dlock or its guard was killed",
        (Ran::Cut(Outcome::Stopped | Outcome::Superseded | Outcome::Forced | Outcome::Released), _) => {
            return None;
        }
    };
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_that_nobody_asked_for_is_a_failure() {
        let of = |ran, job, exit, is_hold| {
            failure(&End { ran, job, once_per: false, fence: None, pause: None }, exit, is_hold)
        };
        let is_failure = |ran, job| of(ran, job, None, false).is_some();
        assert!(!is_failure(Ran::Yes, Some(Ended::Code(0))));
        assert_eq!(of(Ran::Yes, Some(Ended::Code(1)), None, false).as_deref(), Some("exit 1"));
        assert_eq!(of(Ran::Yes, Some(Ended::Signal(9)), None, false).as_deref(), Some("signal 9"));
        assert!(
            of(Ran::No, None, Some(Exit::NotFound), false).is_some_and(|text| text.starts_with("exit 127"))
        );
        assert!(!is_failure(Ran::No, None), "nothing is known of it");
        for outcome in Outcome::ALL {
            use Outcome::{Crashed, Expired, Lost, Timeout};
            let expected = [Crashed, Expired, Lost, Timeout].contains(&outcome);
            assert_eq!(is_failure(Ran::Cut(outcome), Some(Ended::Code(0))), expected, "{outcome:?}");
            let of_hold = of(Ran::Cut(outcome), None, None, true).is_some();
            assert_eq!(of_hold, outcome == Expired, "{outcome:?}");
        }
    }

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
