//! Does the job around this run hold what it asks for? Then it runs under that hold: nothing is asked for twice, and
//! nothing that is held out there is given back in here. What DLOCK_HELD claims counts only if the store confirms it;
//! else the run goes as if it were alone.

use super::super::held::{Held, Holds};
use super::super::stores::{HoldOn, open_for_hold};
use super::super::{located, names, riding_out};
use super::account::Account;
use super::surroundings::environment_under;
use super::words::{Right, Words};
use super::{Runs, Session, internal, plan, prepare, prove, unstarted};
use crate::clock::Moment;
use crate::config::Settings;
use crate::config::run::{Run, Wait};
use crate::error::Error;
use crate::exit::Exit;
use crate::job::{self, Alone, Guard, Limits};
use crate::law::Proof;
use crate::lease;
use crate::lock::{Key, Mode, Replicas};
use crate::output::busy::listed;
use crate::output::{Kind, Printer};

/// What this run finds around it.
#[derive(Debug)]
pub struct Around {
    /// The keys that are still to be taken, in the order given.
    pub rest: Vec<Key>,
    /// The innermost hold that has any of the others; none if no key is held.
    pub under: Option<Under>,
}

/// A hold of the job around, confirmed by the store.
#[derive(Debug, Clone)]
pub struct Under {
    /// What DLOCK_HELD says of it.
    pub held: Held,
    /// What the store says of it.
    pub proof: Proof,
}

/// Finds out which of the keys are held. Refused: what would wait for the job that it is a part of.
pub fn look_around(
    settings: &Settings,
    run: &Run,
    wait: lease::Wait,
    holds: &Holds,
    printer: &Printer,
) -> Result<Around, Error> {
    let claimed = |held: &Held| run.keys.iter().any(|key| held.has(key));
    let claims: Vec<&Held> = holds.here(settings).filter(|held| claimed(held)).collect();
    if claims.is_empty() {
        return Ok(Around { rest: run.keys.clone(), under: None });
    }
    let asked = ask_around(settings, run, wait, &claims, printer).map_err(unstarted)?;
    let held = claims.into_iter().cloned();
    let proven: Vec<Under> =
        held.zip(asked).filter_map(|(held, proof)| Some(Under { held, proof: proof? })).collect();
    let mut under: Option<usize> = None;
    let mut rest = Vec::new();
    for key in &run.keys {
        let mut of_key = proven.iter().enumerate().filter(|(_, under)| under.held.has(key)).peekable();
        let Some((_, innermost)) = of_key.peek() else {
            rest.push(key.clone());
            continue;
        };
        let refused = conflict(settings, key, innermost.proof.mode, run.mode);
        let (at, _) = of_key.find(|(_, under)| suffices(under.proof.mode, run.mode)).ok_or(refused)?;
        // The innermost comes first.
        under = Some(under.map_or(at, |other| other.min(at)));
    }
    let under = under.and_then(|at| proven.get(at).cloned());
    if under.is_some() && !rest.is_empty() && run.wait == Wait::Forever {
        return Err(Error::Usage(format!(
            "the job that runs this dlock holds a part of what it asks for, and would wait for {} in {} for ever; give \
             --wait a bound (-w 10m); the command did not run",
            listed(&rest),
            settings.store
        )));
    }
    Ok(Around { rest, under })
}

/// Runs the command under a hold of the job around. Whoever has that hold renews it, gives it back, and stops us with all
/// the rest of its job should it be lost: so there is no lease here, no limit, and nothing to give back.
pub fn run_under(
    settings: &Settings,
    run: &Run,
    under: &Under,
    printer: Printer,
    account: &mut Account,
) -> anyhow::Result<Exit> {
    let inherited = prepare()?;
    let words = Words::new(settings, &run.keys, run.mode, Right::OfTheJobAround, printer);
    // Without a mark: what carries the token of that hold is the whole job around.
    let plan = plan(run, job::group(), String::new(), Vec::new());
    let group = plan.group;
    let alone = |what| match what {
        Alone::Refused(process) => words.refused(&process),
        Alone::Over { started: true, why: Some(_), .. } => words.alone_inside(),
        Alone::Over { .. } => {}
    };
    let guard =
        Guard::fork(plan, &inherited, alone).map_err(|error| internal("cannot make the guard", &error))?;
    words.inside(under);
    let limits = guard.limits();
    let runs = Runs::Command;
    let mut session = Session { settings, run, inherited, group, runs, guard, words, limits, account };
    session.account.asked = Some(Moment::now());
    session.account.granted = Some((Moment::now(), under.proof.fence));
    session.account.slot = under.proof.slot;
    let env = environment_under(settings, &run.keys, under);
    session.guard.start(&env, Limits::NEVER).map_err(|error| internal("cannot start the command", &error))?;
    session.account.started = true;
    let over = session.supervise(None)?;
    session.guard.done();
    Ok(over.exit)
}

/// Asks the store about each claim, as long as one would wait for the lock.
fn ask_around(
    settings: &Settings,
    run: &Run,
    wait: lease::Wait,
    claims: &[&Held],
    printer: &Printer,
) -> Result<Vec<Option<Proof>>, Error> {
    let trouble = |error: &_| printer.say(Kind::Warning, &format!("{error}; still waiting, trying again"));
    riding_out(wait, trouble, || {
        prove::apart(|| prove(settings, run, claims)).unwrap_or_else(|error| {
            let text = format!("cannot ask what the job around holds: {error}; the command did not run");
            Err(Error::Internal(text))
        })
    })
}

/// Asks the store about each claim.
fn prove(settings: &Settings, run: &Run, claims: &[&Held]) -> Result<Vec<Option<Proof>>, Error> {
    let hold = HoldOn { replicas: Replicas::None, max_lease: run.max_lease };
    let mut store = open_for_hold(settings, hold)?;
    let mut ask = |held: &Held| {
        let keys: Vec<Key> = run.keys.iter().filter(|key| held.has(key)).cloned().collect();
        let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
        store
            .prove(&names(settings, &keys)?, &held.token, by)
            .map_err(|error| located(settings, error.map(|text| format!("{}: {text}", listed(&keys)))))
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

fn conflict(settings: &Settings, key: &Key, held: Mode, wanted: Mode) -> Error {
    Error::Usage(format!(
        "the job that runs this dlock holds {key} in {} ({held}), and would wait for itself to get it as it was asked for \
         ({wanted}); ask for the same outside and inside; the command did not run",
        settings.store,
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
