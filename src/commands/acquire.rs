//! `dlock acquire`: takes a lock for a script, through the same queue as `run`, and ends. From then
//! on only the script, which has the token, renews the lock; without that the lock is free when its
//! lease ends. Renewing and giving back are separate commands.

use super::context::{Context, riding_out};
use super::foreground::{Foreground, Signals};
use super::held::{By, Held, Holds};
use super::job_env::environment;
use super::owner;
use super::run::messages::{Messages, Subject, Under};
use crate::cli::{self, key::each_once};
use crate::clock::Moment;
use crate::config::run::TTL;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::{Report, Request, Until, give_back, obtain};
use crate::lock::{Key, Mode, Token, Ttl, Wait};
use crate::output::acquired::{Acquired, shell};
use crate::output::busy::Tried;
use crate::output::time::{local, millis, span};
use crate::output::{self, Kind, What, json};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Blocker, End, Grant, Ran, Refusal, Terms};
use crate::shell::word;
use crate::store::{self, Store};
use crate::supervise;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::thread;
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
    let names = context.names(&keys)?;
    let mode = match (flags.how.shared, flags.how.slots) {
        (true, _) => Mode::Shared,
        (false, Some(slots)) => Mode::Slots(slots),
        (false, None) => Mode::Exclusive,
    };
    let ttl = match flags.how.ttl {
        Some(ttl) => ttl,
        None => Ttl::new(TTL).map_err(Error::Internal)?,
    };
    context.check_supported(&names, mode)?;
    let min_hold = flags.min_hold.unwrap_or_default();
    context.settings.check_lease("ttl", ttl.get(), true, None)?;
    context.settings.check_lease("min-hold", min_hold, true, None)?;
    let until = Until::from_now(wanted(flags));
    let since = Moment::now();
    let token = Token::random().map_err(|error| {
        Error::Internal(format!("the system gave no random bytes: {error}; the lock is not acquired"))
    })?;
    // Before the store is opened, which may start a thread.
    let signals = Signals::take(&supervise::ENDING)?;
    let settings = &context.settings;
    let ask = Ask {
        token,
        mode,
        ttl: ttl.get(),
        min_hold,
        owner: owner::parent(
            flags.how.label.clone(),
            flags.how.reason.clone().filter(|text| !text.is_empty()),
        ),
        patience: until.patience(),
        terms: Terms::default(),
        waited: Duration::ZERO,
        has_waited: false,
    };
    let request = Request {
        names,
        ask,
        until,
        schedule: Schedule::new(ttl, Duration::ZERO, settings.op_timeout),
        connect_timeout: settings.connect_timeout,
        op_timeout: settings.op_timeout,
    };
    let asking = Asking { context: context.clone(), keys: keys.clone(), request: request.clone() };
    let store = context.open()?;
    let foreground = Foreground::start(signals, move |teller| {
        let last = asking.ask(store, &mut |learned| teller.tell(learned));
        teller.tell(last.unwrap_or_else(Learned::Refused));
    })?;
    let messages = Messages::new(&context, &keys, mode, Under::Own, SUBJECT);
    Acquiring { context: &context, flags, keys, since, request, messages }.go(&foreground)
}

/// What the worker thread, which talks to the store, reports.
enum Learned {
    /// News of the wait.
    Report(Report),
    /// The store cannot be reached yet.
    Trouble(Error),
    /// The lock is granted and no longer bound to this process.
    HandedOver(Grant, Moment),
    /// The lock was not obtained. What the token may have had was given back, if the store
    /// answered.
    Missed(Report),
    /// An error that is not an answer to the request for the lock.
    Refused(Error),
}

struct Asking {
    context: Context,
    keys: Vec<Key>,
    request: Request,
}

impl Asking {
    fn ask(&self, mut store: Box<dyn Store>, tell: &mut dyn FnMut(Learned)) -> Result<Learned, Error> {
        let Self { context, request, .. } = self;
        let (store, began) = (&mut *store, Moment::now());
        if request.until != Until::No {
            let trouble = |error: &store::Error| tell(Learned::Trouble(error.clone().into()));
            riding_out(request.until, trouble, || self.refuse_to_wait_for_own_hold(store))?;
        }
        store.prepare(&request.ask.token).map_err(|error| context.with_origin(error))?;
        let mut last = None;
        obtain(store, request, &mut |report| match report {
            Report::Waiting(_) | Report::Trouble { .. } | Report::Recovered => tell(Learned::Report(report)),
            report => last = Some(report),
        });
        let last = match last {
            Some(Report::Granted { grant, sent }) => {
                let deadline = Moment::now().after(request.op_timeout);
                match store.hand_over(&request.names, &request.ask.token, deadline) {
                    Ok(()) => return Ok(Learned::HandedOver(grant, sent)),
                    Err(error) => Report::Failed(error),
                }
            }
            Some(report) => report,
            None => return Err(Error::Internal("asking for the lock ended without an answer".into())),
        };
        if let Report::Busy(blocker) | Report::Contended(blocker) = &last {
            let waited = Some(Moment::now().since(began)).filter(|_| request.until != Until::No);
            if let Some(name) = request.names.as_slice().get(blocker.at) {
                let refusal = Refusal::busy(&request.ask.owner, blocker, waited);
                let deadline = Moment::now().after(CLEAN_UP_WITHIN.min(request.op_timeout));
                // Nothing depends on this record.
                let _unnoted = store.refuse(name, &refusal, deadline);
            }
        }
        if !matches!(last, Report::Busy(_)) {
            // A request may have arrived without an answer.
            give_back_quietly(store, request, CLEAN_UP_WITHIN);
        }
        Ok(Learned::Missed(last))
    }

    /// Refuses to wait for a lock that a parent of this process holds.
    fn refuse_to_wait_for_own_hold(&self, store: &mut dyn Store) -> Result<(), Error> {
        let (holds, settings) = (Holds::of_process(), &self.context.settings);
        for key in &self.keys {
            let name = self.context.name(key)?;
            for held in holds.of_lock(&name) {
                let proof = self.context.verify_in(store, held, &name.clone().into());
                let proof = proof.inspect_err(|_| store.reset());
                let Some(proof) = proof.map_err(|error| self.context.with_origin(error))? else { continue };
                let joins = match (proof.mode, self.request.ask.mode) {
                    (Mode::Shared, Mode::Shared) => true,
                    (Mode::Slots(held), Mode::Slots(wanted)) => held == wanted && held > 1,
                    _ => false,
                };
                if !joins {
                    let instead = match held.by {
                        By::Run => "this job runs under it already, and it ends with the job".into(),
                        By::Acquire | By::Hold => {
                            format!("'dlock release {}' gives it back", word(key.as_str()))
                        }
                    };
                    return Err(Error::Usage(format!(
                        "this process itself holds {key} in {} ({}), and would wait for itself; {instead}",
                        settings.store, proof.mode
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Gives back the hold or the place in the queue that the token may have. On failure both end by
/// themselves: an unconfirmed grant and a place in the queue within seconds, a hold with its lease.
fn give_back_quietly(store: &mut dyn Store, request: &Request, within: Duration) {
    let (deadline, end) = (Moment::now().after(within), End { ran: Ran::No, job: None, once_per: false });
    let _ends_by_itself = give_back(store, &request.names, &request.ask.token, &end, deadline);
}

struct Acquiring<'a> {
    context: &'a Context,
    flags: &'a cli::acquire::Acquire,
    keys: Vec<Key>,
    since: Moment,
    request: Request,
    messages: Messages<'a>,
}

impl Acquiring<'_> {
    fn go(self, foreground: &Foreground<Learned>) -> anyhow::Result<Exit> {
        loop {
            let learned = foreground.learn(&mut self.messages.live.borrow_mut())?;
            match learned {
                ControlFlow::Break(signal) => {
                    self.messages.live.borrow_mut().clear();
                    self.leave(LEAVING);
                    return Ok(Exit::Signal(signal));
                }
                ControlFlow::Continue(Learned::Report(report)) => match report {
                    Report::Waiting(waiting) => self.messages.waiting(waiting),
                    Report::Trouble { error, .. } => self.messages.trouble_in_queue(&error),
                    Report::Recovered => self.messages.recovered(),
                    _ => {}
                },
                ControlFlow::Continue(Learned::Trouble(error)) => self.messages.trouble_before_queue(&error),
                ControlFlow::Continue(Learned::HandedOver(grant, sent)) => return self.deliver(grant, sent),
                ControlFlow::Continue(Learned::Missed(report)) => return self.not_obtained(report),
                ControlFlow::Continue(Learned::Refused(error)) => return Err(error.into()),
            }
        }
    }

    /// Gives back on a new connection, and on a thread that may be left behind: the store may not
    /// answer.
    fn leave(&self, within: Duration) {
        let (context, request) = (self.context.clone(), self.request.clone());
        let (done, left) = channel();
        let _without = thread::Builder::new().name("dlock-leave".into()).spawn(move || {
            if let Ok(mut store) = context.open() {
                give_back_quietly(&mut *store, &request, within);
            }
            let _not_waited_for = done.send(());
        });
        let _late = left.recv_timeout(within);
    }

    fn not_obtained(&self, report: Report) -> anyhow::Result<Exit> {
        Err(match report {
            Report::Busy(blocker) | Report::Contended(blocker) => {
                let status = self.flags.how.busy_exit_code.unwrap_or(Exit::BUSY);
                self.messages.busy(&blocker, self.tried(&blocker), "", status);
                return Ok(Exit::Busy(status));
            }
            Report::TakenAway => Error::NotHeld(format!(
                "an operator took {} away just when it was granted; {}",
                self.messages.place(),
                SUBJECT.unrun
            )),
            Report::TooSlow => self.messages.too_slow(self.request.ask.ttl),
            Report::Failed(error) => self.messages.failed(error),
            report => Error::Internal(format!("the lock is not acquired: {report:?}")),
        }
        .into())
    }

    fn tried(&self, blocker: &Blocker) -> Tried {
        let fence = blocker.holder.as_ref().map(|holder| holder.fence);
        match wanted(self.flags) {
            Wait::For(bound) => Tried::Waited(bound),
            _ if Holds::of_process().inside_out().any(|held| Some(held.fence) == fence) => Tried::Inside,
            _ => Tried::Once,
        }
    }

    /// Prints the hold. From then on it belongs to the script.
    fn deliver(self, grant: Grant, sent: Moment) -> anyhow::Result<Exit> {
        let Ask { token, mode, ttl, .. } = &self.request.ask;
        let until = sent.after(*ttl);
        let settings = &self.context.settings;
        let held = Held::new(settings, self.keys.clone(), token.clone(), grant.fence, By::Acquire);
        let held = Held { ttl_ms: Some(millis(*ttl)), ..held };
        let (mode, slots) = json::mode(*mode);
        let text = if self.flags.export {
            Ok(shell(&environment(settings, &self.keys, &held, grant.slot, Some(Holds::of_process()))))
        } else if self.flags.json {
            json::line(&[Acquired {
                keys: &self.keys,
                store: settings.store.to_string(),
                mode,
                slots,
                slot: grant.slot,
                fence: grant.fence,
                token,
                lease_ms: millis(until.left()),
                waited_ms: millis(grant.waited),
            }])
        } else {
            Ok(format!("{}\n", token.secret()))
        };
        self.messages.live.borrow_mut().clear();
        if let Err(error) = text.and_then(|text| output::deliver(&text)) {
            // The script did not get the token, so nobody else can give the lock back.
            self.leave(self.request.connect_timeout + self.request.op_timeout);
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
        self.context.printer.say(
            kind,
            What::Granted,
            &format!(
                "{} is acquired{after} until {at}, for {}: 'dlock renew {key}{file}' extends that, 'dlock release \
                 {key}{file}' gives it back{each}",
                self.messages.place(),
                span(left.saturating_add(Duration::from_millis(500))),
            ),
        );
    }
}

fn wanted(flags: &cli::acquire::Acquire) -> Wait {
    flags.how.wait.map_or(Wait::No, Wait::given)
}
