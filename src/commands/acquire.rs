//! `dlock acquire`: takes a lock for a script, through the same queue as `run`, and ends. From then
//! on only the script, which has the token, renews the lock; without that the lock is free when its
//! lease ends. Renewing and giving back are separate commands.

use super::context::{Context, riding_out};
use super::foreground::Signals;
use super::held::{By, Held, Holds, OwnHold};
use super::job_env::environment;
use super::owner;
use super::run::messages::{Messages, Subject, Under};
use crate::cli::{self, key::each_once};
use crate::clock::Moment;
use crate::config::run::{Asking, script_status};
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::obtain::{Progress, Step};
use crate::lease::{Report, Request, Until, give_back};
use crate::lock::{Key, Mode, Names, Token, Wait};
use crate::output::acquired::shell;
use crate::output::busy::Tried;
use crate::output::json::Object;
use crate::output::time::{local, millis, span};
use crate::output::{self, Kind, What, json};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Blocker, End, Grant, Refusal, Terms};
use crate::shell::{cited, word};
use crate::store::net::interrupt;
use crate::store::{self, Store};
use crate::supervise;
use rustix::stdio::dup2_stderr;
use std::fs::File;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::time::Duration;

/// Longest time for leaving the queue when a waiting dlock must end (I9).
const LEAVING: Duration = Duration::from_millis(60);
/// Longest time for what the script need not wait for: recording a refusal, and giving back after a
/// failure what may have been granted.
const CLEAN_UP_WITHIN: Duration = Duration::from_millis(250);

/// What messages say about a lock for a script.
const SUBJECT: Subject = Subject {
    command: "acquire",
    job: "the script",
    stopped: "goes on",
    orphaned: "is not stopped",
    unrun: "it is not acquired",
};

pub fn acquire(mut context: Context, flags: &cli::acquire::Acquire) -> anyhow::Result<Exit> {
    context.say_default();
    let keys = each_once(&flags.how.key);
    let min_hold = flags.min_hold.unwrap_or_default();
    let asking = context.settings.asking(&flags.how, flags.how.wait, min_hold)?;
    script_status(asking.busy)?;
    let request = request(&context, flags, &asking, context.names(&keys)?)?;
    if flags.export {
        let holds = Holds::of_process();
        holds.check_room(&context.settings, &keys, &request.ask.token, SUBJECT.unrun)?;
    }
    let since = Moment::now();
    // Before the store is opened, which may start a thread.
    let signals = Signals::take()?;
    let mut store = context.open()?;
    let messages = Messages::new(&context, &keys, request.ask.mode, Under::Own, SUBJECT);
    let acquiring = Acquiring { context: &context, flags, asking, keys, since, request, messages };
    let outcome = signals.or(|| acquiring.obtain(&mut *store))?;
    acquiring.messages.live.borrow_mut().clear();
    match outcome {
        ControlFlow::Break(signal) => {
            // The connections are in the middle of a request, or of a wait.
            store.reset();
            if !give_back_quietly(&mut *store, &acquiring.request, LEAVING) {
                leave_apart(&context, &acquiring.request);
            }
            Ok(Exit::Signal(signal))
        }
        ControlFlow::Continue(outcome) => match outcome? {
            Obtained::Yes(grant, sent) => acquiring.deliver(&mut *store, grant, sent),
            Obtained::No(report) => acquiring.not_obtained(report),
        },
    }
}

fn request(
    context: &Context,
    flags: &cli::acquire::Acquire,
    asking: &Asking,
    names: Names,
) -> Result<Request, Error> {
    let (how, settings) = (&flags.how, &context.settings);
    let Asking { mode, ttl, wait, .. } = *asking;
    context.check_supported(&names, mode)?;
    let min_hold = flags.min_hold.unwrap_or_default();
    settings.check_lease("ttl", ttl.get(), how.ttl.is_some(), None)?;
    settings.check_lease("min-hold", min_hold, true, None)?;
    let until = Until::from_now(wait);
    let token =
        Token::random().map_err(|error| Error::Internal(format!("{error}; the lock is not acquired")))?;
    let reason = how.reason.clone().filter(|text| !text.is_empty());
    let ask = Ask {
        token,
        mode,
        ttl: ttl.get(),
        min_hold,
        owner: owner::parent(how.label.clone(), reason),
        patience: until.patience(),
        terms: Terms::default(),
        waited: Duration::ZERO,
        has_waited: false,
    };
    Ok(Request {
        names,
        ask,
        until,
        schedule: Schedule::new(ttl, Duration::ZERO, settings.op_timeout),
        connect_timeout: settings.connect_timeout,
        op_timeout: settings.op_timeout,
    })
}

/// Result of asking for the lock.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
enum Obtained {
    /// It is granted and no longer bound to this process.
    Yes(Grant, Moment),
    /// What the token may have had was given back, if the store answered.
    No(Report),
}

/// Gives back the hold or the place in the queue that the token may have. Returns whether the store
/// answered. Otherwise both end by themselves: an unconfirmed grant within seconds, a place in the
/// queue within a minute, a hold with its lease.
fn give_back_quietly(store: &mut dyn Store, request: &Request, within: Duration) -> bool {
    let deadline = Moment::now().after(within);
    give_back(store, &request.names, &request.ask.token, &End::NOT_RUN, deadline).is_ok()
}

/// Leaves the queue in another process, for this one must end. That process takes no signals, and a
/// service manager that stops a unit waits for it, so it goes on for no longer than the guard of a run.
/// A store that has started threads does not allow a fork, and the place ends by itself.
fn leave_apart(context: &Context, request: &Request) {
    let apart = supervise::detach(None, || {
        let null = File::options().write(true).open("/dev/null").map(|null| dup2_stderr(null).is_ok());
        // This tells the process that must end that this one goes on.
        let goes_on = supervise::outlive_caller().and_then(|()| supervise::leave_standard_streams());
        if let (Ok(true), Ok(()), Ok(mut store)) = (null, goes_on, context.open()) {
            give_back_quietly(&mut *store, request, context.give_back_time(request.ask.ttl));
        }
        0
    });
    if let Ok(mut apart) = apart {
        // The end of its output.
        let _ = apart.stdout.read(&mut [0]);
    }
}

struct Acquiring<'a> {
    context: &'a Context,
    flags: &'a cli::acquire::Acquire,
    asking: Asking,
    keys: Vec<Key>,
    since: Moment,
    request: Request,
    messages: Messages<'a>,
}

impl Acquiring<'_> {
    /// Asks for the lock, and unbinds it from this process. After a signal it returns an error, which
    /// is not shown.
    fn obtain(&self, store: &mut dyn Store) -> Result<Obtained, Error> {
        let Self { context, request, messages, .. } = self;
        if request.until != Until::No {
            let trouble = |error: &store::Error| messages.trouble_before_queue(&error.clone().into());
            riding_out(request.until, trouble, || self.refuse_to_wait_for_own_hold(store))?;
        }
        context.note_nothing_sent();
        store.prepare(&request.ask.token).map_err(|error| context.with_origin(error))?;
        let mut last = None;
        let (mut progress, began) = (Progress::begin(), Moment::now());
        loop {
            let tick = messages.live.borrow().next();
            let step = progress.step(store, request, tick, &mut |report| match report {
                Report::Waiting(waiting) => messages.waiting(waiting),
                Report::Trouble { error, .. } => messages.trouble_in_queue(&error),
                Report::Recovered => messages.recovered(),
                report => last = Some(report),
            });
            match step {
                Step::GoesOn if interrupt::is_raised() => {
                    return Err(Error::Internal("interrupted".into()));
                }
                Step::GoesOn => messages.live.borrow_mut().go_on(),
                Step::Held(..) | Step::Over => break,
            }
        }
        let last = match last {
            Some(Report::Granted { grant, sent }) => {
                let deadline = Moment::now().after(request.op_timeout);
                match store.hand_over(&request.names, &request.ask.token, deadline) {
                    Ok(()) => return Ok(Obtained::Yes(grant, sent)),
                    Err(error) => Report::Failed(error),
                }
            }
            Some(report) => report,
            None => return Err(Error::Internal("asking for the lock ended without an answer".into())),
        };
        if let Report::Busy(blocker) | Report::Contended(blocker) = &last
            && let Some(name) = request.names.as_slice().get(blocker.at)
        {
            let waited = Some(Moment::now().since(began)).filter(|_| request.until != Until::No);
            let refusal = Refusal::busy(&request.ask.owner, blocker, waited);
            let deadline = Moment::now().after(CLEAN_UP_WITHIN.min(request.op_timeout));
            // Nothing depends on this record.
            let _unnoted = store.refuse(name, &refusal, deadline);
        }
        if !matches!(last, Report::Busy(_)) {
            // A request may have arrived without an answer.
            give_back_quietly(store, request, CLEAN_UP_WITHIN);
        }
        Ok(Obtained::No(last))
    }

    /// Refuses to wait for a lock that a parent of this process holds.
    fn refuse_to_wait_for_own_hold(&self, store: &mut dyn Store) -> Result<(), Error> {
        for key in &self.keys {
            let own = self.context.own_holds(store, &self.context.name(key)?);
            let own = own.map_err(|error| self.context.with_origin(error))?;
            let joins = |held: Mode| match (held, self.request.ask.mode) {
                (Mode::Shared, Mode::Shared) => true,
                (Mode::Slots(held), Mode::Slots(wanted)) => held == wanted && held > 1,
                _ => false,
            };
            let Some(OwnHold { held, proof }) = own.iter().find(|one| !joins(one.proof.mode)) else {
                continue;
            };
            let instead = match held.by {
                By::Run => "this job runs under it already, and it ends with the job".into(),
                By::Acquire | By::Hold => {
                    format!("{} gives it back", cited(&format!("dlock release {}", word(key.as_str()))))
                }
            };
            return Err(Error::Usage(format!(
                "this process itself holds {key} in {} ({}), and would wait for itself; {instead}",
                self.context.settings.store, proof.mode
            )));
        }
        Ok(())
    }

    fn not_obtained(&self, report: Report) -> anyhow::Result<Exit> {
        Err(match report {
            Report::Busy(blocker) | Report::Contended(blocker) => {
                let status = self.asking.busy;
                self.messages.busy(&blocker, self.tried(&blocker), "", status);
                return Ok(Exit::Busy(status));
            }
            Report::TakenAway => {
                let (place, unrun) = (self.messages.place(), SUBJECT.unrun);
                Error::NotHeld(format!("an operator took {place} away just when it was granted; {unrun}"))
            }
            Report::TooSlow => self.messages.too_slow(self.request.ask.ttl),
            Report::Failed(error) => self.messages.failed(error),
            report => Error::Internal(format!("the lock is not acquired: {report:?}")),
        }
        .into())
    }

    fn tried(&self, blocker: &Blocker) -> Tried {
        let fence = blocker.holder.as_ref().map(|holder| holder.fence);
        match self.asking.wait {
            Wait::For(bound) => Tried::Waited(bound),
            _ if Holds::of_process().inside_out().any(|held| Some(held.fence) == fence) => Tried::Inside,
            _ => Tried::Once,
        }
    }

    /// Prints the hold. From then on it belongs to the script.
    fn deliver(self, store: &mut dyn Store, grant: Grant, sent: Moment) -> anyhow::Result<Exit> {
        let Ask { token, mode, ttl, .. } = &self.request.ask;
        let until = sent.after(*ttl);
        let settings = &self.context.settings;
        let held = Held::new(settings, self.keys.clone(), token.clone(), grant.fence, By::Acquire);
        let held = Held { ttl_ms: Some(millis(*ttl)), ..held };
        let text = if self.flags.export {
            Ok(shell(&environment(settings, &self.keys, &held, grant.slot, Some(Holds::of_process()))))
        } else if self.flags.json {
            let object = Object::default()
                .set("keys", &self.keys)
                .set("store", settings.store.to_string())
                .with(json::mode(Some(*mode)))
                .set("slot", grant.slot)
                .set("fence", grant.fence)
                .set("token", token)
                .set("lease_ms", millis(until.left()))
                .set("waited_ms", millis(grant.waited));
            json::line(&[object])
        } else {
            Ok(format!("{}\n", token.secret()))
        };
        if let Err(error) = text.and_then(|text| output::deliver(&text)) {
            // The script did not get the token, so nobody else can give the lock back.
            give_back_quietly(store, &self.request, self.context.request_time());
            return Err(error.into());
        }
        self.acquired(until);
        Ok(Exit::Ok)
    }

    fn acquired(&self, until: Moment) {
        let file = if self.flags.export { "" } else { " --token-file FILE" };
        let (key, each) = match &*self.keys {
            [key] => (word(key.as_str()), ""),
            // One command gives the whole hold back only if DLOCK_HELD lists it.
            [first, ..] if self.flags.export => (word(first.as_str()), ""),
            _ => ("KEY".into(), ", once for each key"),
        };
        let left = until.left();
        let now = output::time::now();
        let at = local(now.saturating_add(millis(left)), now);
        // If the log says that dlock waits, it must also say that the wait is over.
        let (kind, after) = match self.messages.live.borrow().has_announced() {
            true => (Kind::Note, format!(" after {},", span(Moment::now().since(self.since)))),
            false => (Kind::Done, String::new()),
        };
        let (place, lasts) = (self.messages.place(), span(left.saturating_add(Duration::from_millis(500))));
        let text = format!(
            "{place} is acquired{after} until {at}, for {lasts}: 'dlock renew {key}{file}' extends that, 'dlock release {key}{file}' gives it back{each}"
        );
        self.context.printer.say(kind, What::Granted, &text);
    }
}
