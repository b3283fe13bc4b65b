//! Turns the answers of the masters, and missing answers, into one error for the user.

use super::QuorumStore;
use super::masters::Answers;
use crate::store::Error;

impl QuorumStore {
    /// Why these masters are no quorum, whatever their records say.
    pub(super) fn misfit(&self, answers: &Answers) -> Option<Error> {
        let targets = &self.masters.targets;
        if let Some(at) = (0..targets.len()).find(|at| answers.says(*at, "replica")) {
            return Some(Error::Unfit(format!(
                "{} is a replica; {} needs independent masters",
                targets[at].shown, self.shown
            )));
        }
        let known: Vec<_> = (0..targets.len()).filter_map(|at| Some((at, answers.run_id(at)?))).collect();
        known.iter().enumerate().find_map(|(nth, (at, run_id))| {
            let (other, _) = known[..nth].iter().find(|(_, other)| other == run_id)?;
            Some(Error::Unfit(format!(
                "{} and {} are the same server; {} counts every master once",
                targets[*other].shown, targets[*at].shown, self.shown
            )))
        })
    }

    /// The error if too few masters count, or if they do not agree.
    pub(super) fn too_few(&self, answers: &Answers) -> Error {
        let (masters, majority) = (self.masters.len(), self.masters.majority());
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for at in 0..masters {
            let Some(answer) = &answers.0[at] else { continue };
            reasons.extend(self.masters.why_uncounted(at, answer));
            match answer {
                Err(error) => errors.push(error.clone()),
                Ok(answer) if answer.head.outcome == "ageless" => errors.push(Error::Denied(String::new())),
                Ok(_) => {}
            }
        }
        let counted = masters - reasons.len();
        let text = if counted >= majority {
            format!("the masters of {} do not agree", self.shown)
        } else {
            let (shown, why) = (&self.shown, reasons.join("; "));
            format!(
                "{counted} of the {masters} masters of {shown} can be counted and {majority} are needed: {why}"
            )
        };
        let is_overloaded = errors.iter().any(|error| matches!(error, Error::Overloaded(_)));
        let misnamed = errors.iter().filter(|error| matches!(error, Error::Misnamed(_))).count();
        errors.retain(|error| !error.is_transient());
        match errors.into_iter().next_back() {
            Some(error) if counted < majority && self.is_hopeless(answers) => error.map(|_| text),
            _ if misnamed > masters - majority => Error::Misnamed(text),
            _ if is_overloaded => Error::Overloaded(text),
            _ => Error::Unreachable(text),
        }
    }

    /// Whether so many masters fail permanently that the others are no majority.
    fn is_hopeless(&self, answers: &Answers) -> bool {
        let failed = answers.0.iter().flatten().filter(|answer| match answer {
            Err(error) => !error.is_transient(),
            Ok(answer) => answer.head.outcome == "ageless",
        });
        failed.count() > self.masters.len() - self.masters.majority()
    }
}
