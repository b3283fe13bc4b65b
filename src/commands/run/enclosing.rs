//! Does the job around this run hold what it asks for? Then it runs under that hold: nothing is asked for twice, and
//! nothing that is held out there is given back in here. What DLOCK_HELD claims counts only if the store confirms it;
//! else the run goes as if it were alone.

use super::verify::in_another_process;
use crate::commands::context::{Context, riding_out};
use crate::commands::held::{Held, Holds};
use crate::commands::stores::HoldOn;
use crate::config::run::Run;
use crate::error::Error;
use crate::lease::Until;
use crate::lock::{Key, Mode, Replicas, Wait};
use crate::output::busy::listed;
use crate::output::{Kind, What};
use crate::rules::Proof;

/// A hold of the job around, confirmed by the store.
#[derive(Debug, Clone)]
pub struct Enclosing {
    /// What DLOCK_HELD says of it.
    pub held: Held,
    /// What the store says of it.
    pub proof: Proof,
}

/// Finds out which of the keys are held: those that are still to be taken, in the order given, and the innermost hold that
/// has any of the others. Refused: what would wait for the job that it is a part of.
pub fn find_enclosing(
    context: &Context,
    run: &Run,
    until: Until,
    holds: &Holds,
) -> Result<(Vec<Key>, Option<Enclosing>), Error> {
    let settings = &context.settings;
    let claimed = |held: &Held| run.keys.iter().any(|key| held.has(key));
    let claims: Vec<&Held> = holds.here(settings).filter(|held| claimed(held)).collect();
    if claims.is_empty() {
        return Ok((run.keys.clone(), None));
    }
    let proofs = verify_when_reachable(context, run, until, &claims)?;
    let held = claims.into_iter().cloned();
    let proven: Vec<Enclosing> =
        held.zip(proofs).filter_map(|(held, proof)| Some(Enclosing { held, proof: proof? })).collect();
    let mut innermost: Option<usize> = None;
    let mut rest = Vec::new();
    for key in &run.keys {
        let mut of_key = proven.iter().enumerate().filter(|(_, one)| one.held.has(key)).peekable();
        let Some((_, first)) = of_key.peek() else {
            rest.push(key.clone());
            continue;
        };
        let refused = conflict(context, key, first.proof.mode, run.mode);
        let (at, _) = of_key.find(|(_, one)| suffices(one.proof.mode, run.mode)).ok_or(refused)?;
        // The innermost comes first.
        innermost = Some(innermost.map_or(at, |other| other.min(at)));
    }
    let enclosing = innermost.and_then(|at| proven.get(at).cloned());
    if enclosing.is_some() && !rest.is_empty() && run.wait == Wait::Forever {
        return Err(Error::Usage(format!(
            "the job that runs this dlock holds a part of what it asks for, and would wait for {} in {} for ever; give \
             --wait a bound (-w 10m); the command did not run",
            listed(&rest),
            settings.store
        )));
    }
    Ok((rest, enclosing))
}

/// Asks the store about each claim, as long as one would wait for the lock.
fn verify_when_reachable(
    context: &Context,
    run: &Run,
    until: Until,
    claims: &[&Held],
) -> Result<Vec<Option<Proof>>, Error> {
    let trouble = |error: &_| {
        let text = format!("{error}; still waiting, trying again");
        context.printer.say(Kind::Passing, What::Trouble, &text);
    };
    riding_out(until, trouble, || {
        in_another_process(|| verify(context, run, claims)).unwrap_or_else(|error| {
            Err(Error::Internal(format!(
                "cannot ask what the job around holds: {error}; the command did not run"
            )))
        })
    })
}

/// Asks the store about each claim.
fn verify(context: &Context, run: &Run, claims: &[&Held]) -> Result<Vec<Option<Proof>>, Error> {
    let mut store = context.open_for_hold(HoldOn { replicas: Replicas::None, max_lease: run.max_lease })?;
    let mut ask = |held: &Held| {
        let keys: Vec<Key> = run.keys.iter().filter(|key| held.has(key)).cloned().collect();
        let proof = store.prove(&context.names(&keys)?, &held.token, context.deadline());
        Ok(proof
            .map_err(|error| context.with_origin(error.map(|text| format!("{}: {text}", listed(&keys)))))?)
    };
    claims.iter().map(|held| ask(held)).collect()
}

/// Whether a hold in one mode is as good as one in another.
fn suffices(held: Mode, wanted: Mode) -> bool {
    match (held, wanted) {
        (Mode::Exclusive, Mode::Exclusive | Mode::Shared) | (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots(held), Mode::Slots(wanted)) => held == wanted,
        _ => false,
    }
}

fn conflict(context: &Context, key: &Key, held: Mode, wanted: Mode) -> Error {
    Error::Usage(format!(
        "the job that runs this dlock holds {key} in {} ({held}), and would wait for itself to get it as it was asked for \
         ({wanted}); ask for the same outside and inside; the command did not run",
        context.settings.store,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_suffices() {
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Slots(2), Mode::Slots(3)];
        let pairs = modes.iter().flat_map(|held| modes.iter().map(move |wanted| (*held, *wanted)));
        let good: Vec<(Mode, Mode)> = pairs.filter(|(held, wanted)| suffices(*held, *wanted)).collect();
        assert_eq!(
            good,
            [
                (Mode::Exclusive, Mode::Exclusive),
                (Mode::Exclusive, Mode::Shared),
                (Mode::Shared, Mode::Shared),
                (Mode::Slots(2), Mode::Slots(2)),
                (Mode::Slots(3), Mode::Slots(3)),
            ]
        );
    }
}
