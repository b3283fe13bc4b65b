//! What the guard does once dlock is gone: when the job is over, it gives back the hold or leaves
//! the queue. This runs in the guard's process, on its only thread.

use super::ending::{failure, pause_after, ran};
use super::messages::Messages;
use super::notes::Notes;
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::config::run::Run;
use crate::lease::give_back;
use crate::lock::{Names, Owner, Token};
use crate::rules::{End, Left, Ran, Refusal, millis};
use crate::store::{self, Store};
use crate::supervise::Orphaned;
use crate::sys;
use std::time::Duration;

/// Records that this run ended while it waited, at the lock that somebody held. It has recorded by
/// itself if it gave up and left only the queue to the guard.
fn record_interruption(
    store: &mut dyn Store,
    names: &Names,
    owner: &Owner,
    waited: Duration,
    deadline: Moment,
) -> Result<(), store::Error> {
    let mut found = None;
    for name in names {
        let view = store.inspect(name, deadline)?;
        let began = view.now.saturating_sub(millis(waited));
        let is_own = |refusal: &Refusal| {
            refusal.at >= began && (&refusal.owner.host, refusal.owner.pid) == (&owner.host, owner.pid)
        };
        if store.refusals(name, deadline)?.iter().any(is_own) {
            return Ok(());
        }
        found = found.or_else(|| Some((name, view.holders.into_iter().next()?.owner)));
    }
    let (name, by) = found.map_or((names.first(), None), |(name, by)| (name, Some(by)));
    store.refuse(name, &Refusal::interrupted(owner, by.as_ref(), waited), deadline).map(drop)
}

/// What the guard gives back.
pub struct Kept<'a> {
    pub names: &'a Names,
    pub token: &'a Token,
    pub owner: &'a Owner,
    pub notes: Notes,
}

/// The callback for [`Guard::fork`](crate::supervise::Guard::fork).
pub fn orphaned<'a>(
    store: &'a mut dyn Store,
    kept: Kept<'a>,
    context: &'a Context,
    run: &'a Run,
    messages: &'a Messages<'_>,
) -> impl FnMut(Orphaned) + 'a {
    let Kept { names, token, owner, notes } = kept;
    let began = Moment::now();
    move |what| match what {
        Orphaned::Refused(process) => messages.refused(&process),
        Orphaned::Over { started, status, reason } => {
            let waited = Moment::now().since(began);
            let ran = if started { ran(reason, None) } else { Ran::No };
            let deadline = Moment::now().after(context.give_back_time(run.ttl.get()));
            let job = messages.of.recorded(status);
            let mut end =
                End { ran, job, once_per: run.once_per.is_some(), fence: notes.fence(), pause: None };
            if !notes.is_signalled() {
                end.pause = pause_after(run, &owner.host, failure(&end, None, messages.of.is_hold()));
            }
            let answer = give_back(store, names, token, &end, deadline);
            if matches!(answer, Ok(Left::Dequeued)) {
                // Nothing depends on this record.
                let _unrecorded = record_interruption(store, names, owner, waited, context.deadline());
            }
            // The guard ends without destructors, and a server counts a client that only closes its
            // connection as failed.
            store.reset();
            sys::kill_all_separate();
            if started && reason.is_some() {
                messages.orphaned(answer);
            }
        }
    }
}
