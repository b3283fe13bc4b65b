//! How is a lock given back, or taken away? A script gives back its own by token; an operator revokes somebody's. Asking
//! a holder to stop is not here yet.

use super::{located, name, open, operator};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::Holder;
use crate::law::{End, Foreign, Left, Ran, Revoke, Revoked, When};
use crate::lock::{Name, Token};
use crate::output::busy::who;
use crate::output::time::span;
use crate::output::{Kind, Printer};
use crate::store::Store;
use std::io::Read;
use std::path::Path;

/// A token file holds 32 digits and perhaps a line end; more than this is no token file.
const TOKEN_FILE_MAX: u64 = 4096;

/// `dlock release`.
pub fn release(settings: &Settings, flags: &cli::Release, printer: &Printer) -> anyhow::Result<Exit> {
    let name = name(settings, &flags.key)?;
    let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
    let line = match (&flags.token_file, flags.force) {
        (Some(file), _) => {
            let token = read_token(file)?;
            let mut store = open(settings)?;
            give_back(&mut *store, settings, &name, &token, by)?
        }
        (None, true) => {
            let when = if flags.now { When::Now } else { When::Safe };
            let revoke = Revoke { when, by: operator("dlock release --force") };
            let mut store = open(settings)?;
            let was = store.revoke(&name, &revoke, by).map_err(|error| located(settings, error))?;
            revoked(settings, &name, when, was)?
        }
        // The command line was refused for it already; a lock is never taken away by an omission.
        (None, false) => return Err(Error::Usage("release needs --force or --token-file".into()).into()),
    };
    printer.say(Kind::Note, &line);
    Ok(Exit::Ok)
}

fn read_token(file: &Path) -> Result<Token, Error> {
    let shown = if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().take(TOKEN_FILE_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(TOKEN_FILE_MAX).read_to_string(&mut text))
    };
    read.map_err(|error| Error::Config(format!("cannot read the token from {shown}: {error}")))?;
    Token::parse(text.trim_end_matches(['\n', '\r']))
        .map_err(|why| Error::Config(format!("{shown} holds no token: {why}")))
}

fn give_back(
    store: &mut dyn Store,
    settings: &Settings,
    name: &Name,
    token: &Token,
    by: Moment,
) -> Result<String, Error> {
    let end = End { ran: Ran::Yes, job: None };
    let (key, place) = (name.key(), &settings.store);
    match store.leave(&name.clone().into(), token, &end, by).map_err(|error| located(settings, error))? {
        Left::Released { cooling } if cooling.is_zero() => Ok(format!("{key} in {place} is given back")),
        Left::Released { cooling } => {
            Ok(format!("{key} in {place} is given back; its --min-hold keeps it for {} more", span(cooling)))
        }
        Left::Dequeued => Ok(format!("the place in the queue for {key} in {place} is given up")),
        Left::Already => Ok(format!("{key} in {place} was given back before")),
        Left::NotHeld => Err(Error::NotHeld(format!(
            "the token holds nothing: {key} in {place} is not held by it (any more); 'dlock status' shows who has it"
        ))),
    }
}

/// All who held it.
fn all(holders: &[Holder]) -> String {
    holders.iter().map(|holder| who(&holder.owner)).collect::<Vec<_>>().join(", ")
}

fn revoked(settings: &Settings, name: &Name, when: When, was: Revoked) -> Result<String, Error> {
    let (key, place) = (name.key(), &settings.store);
    Ok(match was {
        Revoked::Free => format!("{key} in {place} is free; nothing to release"),
        Revoked::Cooling => {
            format!("{key} in {place} was kept by the --min-hold of a run that is over, and is free now")
        }
        Revoked::Holds { holders, left } => {
            let from = format!("{key} in {place} is taken away from {}", all(&holders));
            match when {
                _ if holders.iter().all(|holder| !holder.confirmed) => {
                    format!("{from}, whose job had not begun; it is free now")
                }
                When::Safe => format!(
                    "{from}; its dlock stops the job at the next heartbeat, and the next grant comes then, or in {} at \
                     the latest",
                    span(left)
                ),
                When::Now => format!(
                    "{from} and free at once; the old job may run until its dlock notices, beside the next one"
                ),
            }
        }
        Revoked::AlreadyRevoked { holders, left } => {
            let from = if holders.is_empty() { String::new() } else { format!(" from {}", all(&holders)) };
            match when {
                When::Safe => format!(
                    "{key} in {place} was taken away{from} before; the next grant comes in {} at the latest, or at once \
                     with --now",
                    span(left)
                ),
                When::Now => format!(
                    "{key} in {place} was taken away{from} before, and is free now; the old job may still run beside \
                     the next one"
                ),
            }
        }
        Revoked::Foreign(Foreign { kind, left }) => {
            let lasts = left.map(|left| format!("for {} more", span(left)));
            let lasts = lasts.unwrap_or_else(|| "without an end".into());
            let next = if kind == "string" { "; --force --now deletes it" } else { "" };
            return Err(Error::Usage(format!(
                "{key} in {place} is a {kind} that dlock did not write (it lasts {lasts}), and is left alone{next}"
            )));
        }
        Revoked::ForeignDeleted => format!(
            "{key} in {place} was a string that dlock did not write, and is deleted; whoever wrote it may still run"
        ),
    })
}
