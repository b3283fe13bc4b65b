//! How does a script get a lock that it manages itself? It is taken as `run` takes it, by the same queue; then nobody
//! keeps it but whoever has the token, until the lease ends. Renewing and giving back are commands of their own.

use super::attend::Attendant;
use super::context::{Context, riding_out};
use super::held::{By, Held, Holds};
use super::owner;
use crate::cli;
use crate::clock::Moment;
use crate::error::Error;
use crate::exit::Exit;
use crate::job::Endings;
use crate::law::schedule::Schedule;
use crate::law::{Ask, Blocker, End, Grant, Ran};
use crate::lease::{Report, Request, Wait, give_back, obtain};
use crate::lock::{Key, Mode, Names, Token, Ttl};
use crate::output::acquired::Acquired;
use crate::output::busy::{self, Asked, Tried, listed};
use crate::output::time::{local, span};
use crate::output::{self, Kind};
use crate::shell::word;
use crate::store::{self, Store};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// The lease where none is asked for.
pub const TTL: Duration = Duration::from_secs(30);
/// A dlock that is told to end while it waits takes this long at most to leave the queue (I9).
const LEAVING: Duration = Duration::from_millis(60);
/// How long one that fails takes at most to give back what it may have got. If it does not succeed, what is left behind
/// ends by itself: an unconfirmed grant and a place in the queue within seconds, a hold with its lease.
const CLEARING: Duration = Duration::from_millis(250);

/// `dlock acquire`.
pub fn acquire(mut context: Context, flags: &cli::acquire::Acquire) -> anyhow::Result<Exit> {
    context.say_default();
    let keys = flags.keys();
    let names = context.names(&keys)?;
    let mode = match (flags.shared, flags.slots) {
        (true, _) => Mode::Shared,
        (false, Some(slots)) => Mode::Slots(slots),
        (false, None) => Mode::Exclusive,
    };
    let ttl = match flags.ttl {
        Some(ttl) => ttl,
        None => Ttl::new(TTL).map_err(Error::Internal)?,
    };
    context.check_supported(&names, mode)?;
    context.check_lease_limit("--ttl", ttl.get())?;
    context.check_lease_limit("--min-hold", flags.min_hold.unwrap_or_default())?;
    let wait = match flags.wait {
        None | Some(Some(Duration::ZERO)) => Wait::No,
        Some(Some(bound)) => Wait::Until(Moment::now().after(bound)),
        Some(None) => Wait::Forever,
    };
    let since = Moment::now();
    let token = Token::random().map_err(|error| internal("the system has no random bytes", &error))?;
    // Before the first thread.
    let endings = Endings::take().map_err(|error| internal("cannot take signals", &error))?;
    let mut store = context.open()?;
    let at_end = leaving(context.open()?, &names, &token, flags.export);
    let attendant = Attendant::start(endings, &context.printer, at_end)
        .map_err(|error| internal("cannot start a thread", &error))?;
    if wait != Wait::No {
        let trouble = |error: &_| attendant.announce(&format!("{error}; still waiting, trying again"));
        let refuse = || refuse_to_wait_for_oneself(&context, &mut *store, &keys, mode);
        riding_out(wait, trouble, refuse)?;
    }
    store.prepare(&token).map_err(|error| context.with_origin(error))?;
    let ask = Ask {
        token,
        mode,
        ttl: ttl.get(),
        min_hold: flags.min_hold.unwrap_or_default(),
        owner: owner::parent(flags.label.clone(), flags.reason.clone().filter(|text| !text.is_empty())),
        patience: wait.patience(),
    };
    let settings = &context.settings;
    let request = Request {
        names,
        ask,
        wait,
        schedule: Schedule::new(ttl, Duration::ZERO, settings.op_timeout),
        connect_timeout: settings.connect_timeout,
        op_timeout: settings.op_timeout,
    };
    let asked = Asked { keys, store: settings.store.to_string(), mode };
    let acquiring = Acquiring { context: &context, flags, ttl, attendant, since, asked, request };
    acquiring.go(store)
}

struct Acquiring<'a> {
    context: &'a Context,
    flags: &'a cli::acquire::Acquire,
    ttl: Ttl,
    attendant: Attendant,
    since: Moment,
    asked: Asked,
    request: Request,
}

impl Acquiring<'_> {
    fn go(&self, mut store: Box<dyn Store>) -> anyhow::Result<Exit> {
        let mut last = None;
        obtain(&mut *store, &self.request, &mut |report| {
            last = self.hear(report);
        });
        let result = match last {
            Some(Report::Granted { grant, sent }) => return self.hand_over(&mut *store, grant, sent),
            Some(Report::Busy(blocker)) => {
                self.busy(&blocker);
                return Ok(Exit::Busy(self.flags.busy_exit_code.unwrap_or(Exit::BUSY)));
            }
            Some(Report::TakenAway) => Err(Error::NotHeld(format!(
                "an operator took {} away just when it was granted; it is not acquired",
                self.lock()
            ))),
            Some(Report::TooSlow) => {
                let text = format!(
                    "{} answers too slowly for a lease of {} (--ttl)",
                    self.asked.store,
                    span(self.ttl.get())
                );
                Err(self.failed(store::Error::Unavailable(text)))
            }
            Some(Report::Failed(error)) => Err(self.failed(error)),
            _ => Err(Error::Internal("asking for the lock ended without an answer".into())),
        };
        // A request may have arrived although no answer came.
        self.clear_up(&mut *store);
        self.attendant.conclude(|| ());
        Ok(result?)
    }

    /// What is said on the way is said; what ends the way is handed back.
    fn hear(&self, report: Report) -> Option<Report> {
        match report {
            Report::Waiting(waiting) => {
                let (asked, since, heard) = (self.asked.clone(), self.since, Moment::now());
                self.attendant.waits(move |room| {
                    let now = Moment::now();
                    let waiting = busy::aged(&waiting, now.since(heard));
                    busy::waiting(&asked, &waiting, now.since(since), room)
                });
                None
            }
            Report::Trouble { error, .. } => {
                let (origin, keys) = (self.context.settings.store.origin(), listed(&self.asked.keys));
                let text = format!("{error} ({origin}); still waiting for {keys}, trying again");
                self.attendant.announce(&text);
                None
            }
            Report::Recovered => {
                self.attendant.say(Kind::Note, &format!("{} answers again", self.asked.store));
                None
            }
            report => Some(report),
        }
    }

    /// The lock is ours: from here on it is the script's.
    fn hand_over(&self, store: &mut dyn Store, grant: Grant, sent: Moment) -> anyhow::Result<Exit> {
        let Request { names, ask, .. } = &self.request;
        let by = Moment::now().after(self.context.settings.op_timeout);
        let result = store.hand_over(names, &ask.token, by).map_err(|error| self.failed(error));
        let until = sent.after(ask.ttl);
        let result = result.and_then(|()| {
            let keys = self.asked.keys.clone();
            let held =
                Held::new(&self.context.settings, keys.clone(), ask.token.clone(), grant.fence, By::Acquire);
            let acquired = Acquired {
                keys,
                store: self.asked.store.clone(),
                mode: self.asked.mode,
                slot: grant.slot,
                fence: grant.fence,
                token: ask.token.clone(),
                lease: until.left(),
                waited: grant.waited,
                held: Holds::of_process().with(held.for_ttl(self.ttl)).to_string(),
                reach: self.context.settings.environment(),
            };
            let text = match (self.flags.export, self.flags.json) {
                (true, _) => acquired.shell(),
                (false, true) => acquired.json().map_err(|error| Error::Internal(error.to_string()))?,
                (false, false) => acquired.plain(),
            };
            self.attendant.conclude(|| output::deliver(&text))
        });
        if result.is_err() {
            // Nobody else knows the token.
            self.clear_up(store);
        }
        result?;
        self.acquired(until);
        Ok(Exit::Ok)
    }

    fn clear_up(&self, store: &mut dyn Store) {
        let by = Moment::now().after(CLEARING);
        let end = End { ran: Ran::No, job: None };
        let _ends_by_itself = give_back(store, &self.request.names, &self.request.ask.token, &end, by);
    }

    fn lock(&self) -> String {
        format!("{} in {}", listed(&self.asked.keys), self.asked.store)
    }

    fn failed(&self, error: store::Error) -> Error {
        let (keys, error) = (listed(&self.asked.keys), self.context.with_origin(error));
        Error::Store(error.map(|text| format!("{keys}: {text}; it is not acquired")))
    }

    fn busy(&self, blocker: &Blocker) {
        let fence = blocker.holder.as_ref().map(|holder| holder.fence);
        let holds = Holds::of_process();
        let tried = match self.flags.wait {
            Some(Some(bound)) if !bound.is_zero() => Tried::Waited(bound),
            _ if holds.here(&self.context.settings).any(|held| Some(held.fence) == fence) => Tried::Inside,
            _ => Tried::Once,
        };
        self.attendant.say(Kind::Note, &busy::not_acquired(&self.asked, blocker, tried));
    }

    fn acquired(&self, until: Moment) {
        let file = if self.flags.export { "" } else { " --token-file FILE" };
        let (key, each) = match &*self.asked.keys {
            [key] => (word(key.as_str()), ""),
            // One word gives the whole hold back only where DLOCK_HELD tells of it.
            [first, ..] if self.flags.export => (word(first.as_str()), ""),
            _ => ("KEY".into(), ", each of its keys for itself"),
        };
        let left = until.left();
        let now = output::time::now();
        let at = local(now.saturating_add(output::time::millis(left)), now);
        // Who said in a log that it waits says there that this is over.
        let (kind, after) = match self.attendant.has_announced() {
            true => (Kind::Note, format!(" after {},", span(Moment::now().since(self.since)))),
            false => (Kind::Done, String::new()),
        };
        self.context.printer.say(
            kind,
            &format!(
                "{} is acquired{after} until {at}, for {}: 'dlock renew {key}{file}' extends that, 'dlock release \
                 {key}{file}' gives it back{each}",
                self.lock(),
                span(left.saturating_add(Duration::from_millis(500))),
            ),
        );
    }
}

/// What is done when a signal ends the waiting: the queue is left, in a thread that is not waited for if the store does
/// not answer.
fn leaving(
    mut store: Box<dyn Store>,
    names: &Names,
    token: &Token,
    export: bool,
) -> impl FnOnce(i32) + Send + 'static {
    let (names, token) = (names.clone(), token.clone());
    move |signal| {
        let (done, left) = channel();
        let _without = thread::Builder::new().name("dlock-leave".into()).spawn(move || {
            let by = Moment::now().after(LEAVING);
            let _ends_by_itself = store.leave(&names, &token, &End { ran: Ran::No, job: None }, by);
            let _not_waited_for = done.send(());
        });
        let _late = left.recv_timeout(LEAVING);
        if export {
            let _nobody = output::print(&refusal(Exit::Signal(signal)));
        }
    }
}

/// What a shell that evaluates the output of `acquire --export` gets in place of variables: the status as its own, so that
/// `set -e` stops it.
pub fn refusal(exit: Exit) -> String {
    format!("(exit {})\n", exit.code())
}

/// Whether waiting would be for what a process around this one holds.
fn refuse_to_wait_for_oneself(
    context: &Context,
    store: &mut dyn Store,
    keys: &[Key],
    mode: Mode,
) -> Result<(), Error> {
    let (holds, settings) = (Holds::of_process(), &context.settings);
    for key in keys {
        for held in holds.of_key(settings, key) {
            let proof = context.verify(store, held).inspect_err(|_| store.reset())?;
            let Some(proof) = proof else { continue };
            let joins = match (proof.mode, mode) {
                (Mode::Shared, Mode::Shared) => true,
                (Mode::Slots(held), Mode::Slots(wanted)) => held == wanted && held > 1,
                _ => false,
            };
            if !joins {
                let instead = match held.by {
                    By::Run => "it ends with this job, which runs under it already".into(),
                    By::Acquire => format!("'dlock release {}' gives it back", word(key.as_str())),
                };
                return Err(Error::Usage(format!(
                    "this process itself holds {key} in {} ({}), and would wait for its own end; {instead}",
                    settings.store, proof.mode
                )));
            }
        }
    }
    Ok(())
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    Error::Internal(format!("{what}: {error}; the lock is not acquired")).into()
}
