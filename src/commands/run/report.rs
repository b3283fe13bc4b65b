//! Collects the outcome of a run for `--report`, however it ended. Where the report goes is decided
//! in `report_file`. docs/report.md explains the fields; adding one is a minor change, anything else
//! a major one. There is no time of day: the store's clock decides about a lock, and a run that never
//! reached the store knows only this machine's clock.

use crate::cli::key::each_once;
use crate::clock::Moment;
use crate::commands::fate::Fate;
use crate::error;
use crate::exit::{Ended, Exit};
use crate::lease::{Asker, Loss};
use crate::lock::{Fence, Key};
use crate::output::What;
use crate::output::json::{self, Object};
use crate::output::report::{HowLost, Outcome};
use crate::output::time::millis;
use crate::rules;

/// What is known of a run so far.
#[derive(Debug, Default)]
pub struct RunReport {
    /// The store, without its secret.
    pub store: Option<String>,
    /// When the lock was first asked for.
    pub asked: Option<Moment>,
    pub granted: Option<(Moment, Fence)>,
    pub slot: Option<u32>,
    /// Whether it ran under a hold of the parent job.
    pub nested: bool,
    pub started: bool,
    /// Whether another run had done the work already.
    pub is_done: bool,
    /// Whether a newer run replaced it before the command ran.
    pub is_superseded: bool,
    pub job: Option<Ended>,
    pub lost: Option<Loss>,
    /// What the store said about the loss, or about a request to end.
    pub fate: Fate,
}

impl RunReport {
    /// The report of a run that ends now with this result.
    pub fn finished(&self, keys: &[Key], result: &anyhow::Result<Exit>) -> Object {
        let now = Moment::now();
        let exit = result.as_ref().copied().unwrap_or_else(error::exit_of);
        let died = if let Exit::Signal(signal) = exit { Some(Ended::Signal(signal)) } else { None };
        let is_forced = matches!(&self.fate, Fate::Ended(end) if end.outcome == rules::Outcome::Forced);
        let lost = self.lost.filter(|_| exit == Exit::Lost).map(|how| match how {
            Loss::NotHeld if is_forced => HowLost::Forced,
            how => how_lost(how),
        });
        let waited_until = self.granted.map_or(now, |(at, _)| at);
        let keys = each_once(keys);
        Object::default()
            .set("outcome", self.outcome(exit))
            .set("status", exit.code())
            .set("started", self.started)
            // If a signal ended dlock before the job started, that signal.
            .with(json::job_end(self.job.or(died)))
            .set("lost", lost)
            .set_object("forced_by", self.fate.by().filter(|_| lost.is_some()).map(json::actor))
            .set("key", keys.first())
            .set("keys", &keys)
            .set("store", &self.store)
            .set("waited_ms", self.asked.map(|asked| millis(waited_until.since(asked))))
            .set("held_ms", self.granted.map(|(at, _)| millis(now.since(at))))
            .set("fence", self.granted.map(|(_, fence)| fence))
            .set("slot", self.slot)
            .set("nested", self.nested)
            .set("error", result.as_ref().err().map(error::line))
    }

    fn outcome(&self, exit: Exit) -> Outcome {
        match exit {
            Exit::Ok if self.is_done => Outcome::Other(What::Done),
            // A run has the status of its command.
            Exit::Ok => Outcome::Other(What::Ended),
            Exit::Signal(_) if !self.started => Outcome::Interrupted,
            Exit::Job(_) | Exit::Signal(_) => Outcome::Ran,
            Exit::Busy(_) if self.is_superseded => Outcome::Other(What::Superseded),
            failure => Outcome::Other(What::of_failure(failure)),
        }
    }
}

/// How a report names a loss.
pub fn how_lost(how: Loss) -> HowLost {
    match how {
        Loss::Deadline => HowLost::Expired,
        Loss::NotHeld => HowLost::Vanished,
        Loss::Revoked => HowLost::Forced,
        Loss::Asked(Asker::Operator) => HowLost::Asked,
        Loss::Asked(Asker::Newer) => HowLost::Superseded,
    }
}
