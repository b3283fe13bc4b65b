//! Finds the keys that the parent job of this run already holds. The run then uses that hold, and
//! does not give it back. If the store does not confirm what DLOCK_HELD says, the run is not
//! nested.

use crate::commands::context::{Context, riding_out};
use crate::commands::held::{Held, Holds};
use crate::commands::stores::HoldRequirements;
use crate::config::run::Run;
use crate::error::Error;
use crate::lease::Until;
use crate::lock::{Key, Mode, Replicas, Wait};
use crate::output::busy::listed;
use crate::output::{Kind, What};
use crate::rules::Proof;
use crate::supervise;
use crate::sys;
use std::io;

/// A hold of the parent job, confirmed by the store.
#[derive(Debug, Clone)]
pub struct ParentHold {
    /// What DLOCK_HELD says of it.
    pub held: Held,
    /// What the store says of it.
    pub proof: Proof,
}

/// Returns the keys that are still to be taken, in the order given, and the innermost hold that has
/// any of the other keys. Refuses a run that would wait for its own parent job. `unrun` is the end
/// of the refusal's text.
pub fn find_parent_hold(
    context: &Context,
    run: &Run,
    until: Until,
    holds: &Holds,
    unrun: &str,
) -> Result<(Vec<Key>, Option<ParentHold>), Error> {
    let names = context.names(&run.keys)?;
    let is_claim = |held: &&Held| names.iter().any(|name| held.has_lock(name));
    let claims: Vec<&Held> = holds.inside_out().filter(is_claim).collect();
    if claims.is_empty() {
        return Ok((run.keys.clone(), None));
    }
    let proofs = verify_when_reachable(context, run, until, &claims, unrun)?;
    let held = claims.into_iter().cloned();
    let proven: Vec<ParentHold> =
        held.zip(proofs).filter_map(|(held, proof)| Some(ParentHold { held, proof: proof? })).collect();
    let mut innermost: Option<usize> = None;
    let mut rest = Vec::new();
    for key in &run.keys {
        let name = context.name(key)?;
        let mut of_key = proven.iter().enumerate().filter(|(_, one)| one.held.has_lock(&name)).peekable();
        let Some((_, first)) = of_key.peek() else {
            rest.push(key.clone());
            continue;
        };
        let refused = conflict(context, key, first.proof.mode, run.mode, unrun);
        let (at, _) = of_key.find(|(_, one)| suffices(one.proof.mode, run.mode)).ok_or(refused)?;
        // `proven` has the innermost hold first.
        innermost = Some(innermost.map_or(at, |other| other.min(at)));
    }
    let parent = innermost.and_then(|at| proven.get(at).cloned());
    if parent.is_some() && !rest.is_empty() && run.wait == Wait::Forever {
        return Err(Error::Usage(format!(
            "this dlock runs inside a job that holds some of these keys, and would wait for {} in {} without a limit; give --wait one (-w 10m); {unrun}",
            listed(&rest),
            context.settings.store
        )));
    }
    Ok((rest, parent))
}

/// Asks the store about each claim, in another process. While the store cannot be reached, tries
/// for as long as the run would wait for the lock.
fn verify_when_reachable(
    context: &Context,
    run: &Run,
    until: Until,
    claims: &[&Held],
    unrun: &str,
) -> Result<Vec<Option<Proof>>, Error> {
    let trouble = |error: &_| {
        let text = format!("{error}; still waiting, trying again");
        context.printer.say(Kind::Passing, What::Trouble, &text);
    };
    riding_out(until, trouble, || {
        // Asking sentinels or a quorum starts threads, which may hang and be left behind, and a
        // process with threads must not fork the guard: a mutex that one of them holds at that
        // moment would stay locked in the guard for ever.
        let said = supervise::in_separate_process(|| {
            let said = serde_json::to_vec(&verify(context, run, claims)).unwrap_or_default();
            sys::kill_all_separate();
            said
        });
        let answer = said.and_then(|said| serde_json::from_slice(&said).map_err(io::Error::other));
        answer.unwrap_or_else(|error| {
            Err(Error::Internal(format!("cannot ask what the surrounding job holds: {error}; {unrun}")))
        })
    })
}

/// Asks the store once about each claim.
fn verify(context: &Context, run: &Run, claims: &[&Held]) -> Result<Vec<Option<Proof>>, Error> {
    let mut store =
        context.open_for_hold(HoldRequirements { replicas: Replicas::None, max_lease: run.max_lease })?;
    let mut ask = |held: &Held| {
        let of_it = |key: &&Key| context.name(key).is_ok_and(|name| held.has_lock(&name));
        let keys: Vec<Key> = run.keys.iter().filter(of_it).cloned().collect();
        let proof = context.verify_in(&mut *store, held, &context.names(&keys)?);
        Ok(proof
            .map_err(|error| context.with_origin(error.map(|text| format!("{}: {text}", listed(&keys)))))?)
    };
    claims.iter().map(|held| ask(held)).collect()
}

/// Whether a hold in mode `held` serves a run that wants mode `wanted`.
fn suffices(held: Mode, wanted: Mode) -> bool {
    match (held, wanted) {
        (Mode::Exclusive, Mode::Exclusive | Mode::Shared) | (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots(held), Mode::Slots(wanted)) => held == wanted,
        _ => false,
    }
}

fn conflict(context: &Context, key: &Key, held: Mode, wanted: Mode, unrun: &str) -> Error {
    Error::Usage(format!(
        "this dlock runs inside a job that holds {key} in {} ({held}), and to take it as {wanted} it would have to wait for that job; use the same mode outside and inside; {unrun}",
        context.settings.store,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_parent_modes_suffice() {
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
