//! What does the guard do once dlock is gone? It gives back what the token has: the place in the queue, or the hold,
//! after the job is dead. This runs in the guard's process, whose only thread it is.

use super::ending::ran;
use super::messages::Messages;
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::config::run::Run;
use crate::lease::give_back;
use crate::lock::{Names, Token};
use crate::rules::{End, Ran};
use crate::store::Store;
use crate::supervise::Orphaned;
use crate::sys;
use std::time::Duration;

/// A guard does not outlive the lease by trying to end it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to hand to the guard.
pub fn orphaned<'a>(
    store: &'a mut dyn Store,
    names: &'a Names,
    token: &'a Token,
    context: &'a Context,
    run: &'a Run,
    messages: &'a Messages<'_>,
) -> impl FnMut(Orphaned) + 'a {
    move |what| match what {
        Orphaned::Refused(process) => messages.refused(&process),
        Orphaned::Over { started, status, reason } => {
            let ran = if started { ran(reason, None) } else { Ran::No };
            let by = context.deadline().max(Moment::now().after(PATIENCE.min(run.ttl.get())));
            let answer = give_back(
                store,
                names,
                token,
                &End { ran, job: status, once_per: run.once_per.is_some() },
                by,
            );
            sys::kill_all_apart();
            if started && reason.is_some() {
                messages.orphaned(answer);
            }
        }
    }
}
