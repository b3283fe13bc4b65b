//! Finds the keys that the parent job of this run already holds. The run then uses that hold, and
//! does not give it back. If the store does not confirm what DLOCK_HELD says, the run is not
//! nested.

use crate::commands::context::{Context, riding_out};
use crate::commands::held::{Holds, OwnHold};
use crate::commands::stores::HoldRequirements;
use crate::config::run::Run;
use crate::error::Error;
use crate::lease::Until;
use crate::lock::{Key, Mode, Replicas, Wait};
use crate::output::busy::listed;
use crate::output::{Kind, What};
use crate::supervise;
use crate::sys;
use std::io;

/// Returns the keys that are still to be taken, in the order given, and the innermost hold that has
/// any of the other keys. Refuses a run that would wait for its own parent job. `unrun` is the end
/// of the refusal's text.
pub fn find_parent_hold(
    context: &Context,
    run: &Run,
    until: Until,
    holds: &Holds,
    unrun: &str,
) -> Result<(Vec<Key>, Option<OwnHold>), Error> {
    let names = context.names(&run.keys)?;
    if !names.iter().any(|name| holds.of_lock(name).next().is_some()) {
        return Ok((run.keys.clone(), None));
    }
    let (mut rest, mut usable) = (Vec::new(), Vec::new());
    for (key, own) in run.keys.iter().zip(verify_when_reachable(context, run, until, unrun)?) {
        let Some(innermost) = own.first() else {
            rest.push(key.clone());
            continue;
        };
        let refused = conflict(context, key, innermost.proof.mode, run.mode, unrun);
        usable.push(own.into_iter().find(|one| suffices(one.proof.mode, run.mode)).ok_or(refused)?);
    }
    let parent =
        holds.inside_out().find_map(|held| usable.iter().find(|one| one.held.token == held.token)).cloned();
    if parent.is_some() && !rest.is_empty() && run.wait == Wait::Forever {
        let (keys, store) = (listed(&rest), &context.settings.store);
        return Err(Error::Usage(format!(
            "this dlock runs inside a job that holds some of these keys, and would wait for {keys} in {store} without a limit; give --wait one (-w 10m); {unrun}"
        )));
    }
    Ok((rest, parent))
}

/// Asks the store for the holds of each key, in another process. While the store cannot be reached,
/// tries for as long as the run would wait for the lock.
fn verify_when_reachable(
    context: &Context,
    run: &Run,
    until: Until,
    unrun: &str,
) -> Result<Vec<Vec<OwnHold>>, Error> {
    let trouble = |error: &_| {
        let text = format!("{error}; still waiting, trying again");
        context.printer.say(Kind::Passing, What::Trouble, &text);
    };
    riding_out(until, trouble, || {
        // Asking sentinels or a quorum starts threads, which may hang and be left behind, and a
        // process with threads must not fork the guard: a mutex that one of them holds at that
        // moment would stay locked in the guard for ever.
        let said = supervise::in_separate_process(|| {
            let said = serde_json::to_vec(&verify(context, run)).unwrap_or_default();
            sys::kill_all_separate();
            said
        });
        let answer = said.and_then(|said| serde_json::from_slice(&said).map_err(io::Error::other));
        answer.unwrap_or_else(|error| {
            Err(Error::Internal(format!("cannot ask what the surrounding job holds: {error}; {unrun}")))
        })
    })
}

/// Asks the store once.
fn verify(context: &Context, run: &Run) -> Result<Vec<Vec<OwnHold>>, Error> {
    let mut store =
        context.open_for_hold(HoldRequirements { replicas: Replicas::None, max_lease: run.max_lease })?;
    let mut own_holds = |key: &Key| {
        let own = context.own_holds(&mut *store, &context.name(key)?);
        Ok(own.map_err(|error| context.with_origin(error.map(|text| format!("{key}: {text}"))))?)
    };
    run.keys.iter().map(&mut own_holds).collect()
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
