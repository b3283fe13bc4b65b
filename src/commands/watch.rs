//! `dlock watch`: prints what happens to the locks from now on. The main thread reads and prints
//! ([`look`]), until it fails. Other threads end the process on a signal, or when the reader is
//! gone: at once, whatever the store does.

use super::context::Context;
use super::key_operands::KeyOperands;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;
use crate::sys::{self, Disposition, SignalSet};
use look::{Form, Look};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdout;
use std::fmt;
use std::{process, thread};

mod look;

/// The signals that end `watch` with status 0.
const ENDING: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

pub fn watch(context: &Context, flags: &cli::watch::Watch) -> anyhow::Result<Exit> {
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let form = if flags.json { Form::Json } else { Form::Text(output::coloured(context.settings.color)) };
    // If nothing can be written, fail before anything happens.
    output::print("")?;
    on_signal(end)?;
    let started = thread::Builder::new().name("dlock-reader".into()).spawn(end_with_reader);
    started.map_err(|error| cannot("start a thread", &error))?;
    Look::new(context.clone(), wanted, form)?.run()?;
    Ok(Exit::Ok)
}

/// Ends the process, and what it has started.
fn end() {
    sys::kill_all_separate();
    process::exit(Exit::Ok.code().into())
}

/// Calls `end` on another thread when one of the signals in [`ENDING`] comes. A signal that was
/// ignored when dlock started stays ignored.
///
/// ctrlc installs its handler for INT, TERM and HUP. This function then restores the disposition of
/// HUP and of ignored signals. The three signals are blocked meanwhile, so none of them meets the
/// wrong handler.
fn on_signal(end: impl FnMut() + Send + 'static) -> Result<(), Error> {
    let taken = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    let kept = taken.map(|signal| (signal, sys::ignored(signal)));
    let mask = sys::block(SignalSet::of(&taken));
    let set = ctrlc::set_handler(end);
    for (signal, ignored) in kept {
        if ignored {
            sys::dispose(signal, Disposition::Ignore);
        } else if !ENDING.contains(&signal) {
            sys::dispose(signal, Disposition::Default);
        }
    }
    // INT and TERM end `watch` even if the caller blocked them.
    sys::set_mask(mask.without(SignalSet::of(&ENDING)));
    set.map_err(|error| cannot("take signals", &error))
}

/// Ends the process when standard output has no reader any more. poll() reports that as POLLERR,
/// which needs no request.
fn end_with_reader() {
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(stdout(), PollFlags::empty())], None) {
            Ok(_) => return end(),
            Err(Errno::INTR) => {}
            // The next line that is printed then fails.
            Err(_) => return,
        }
    }
}

fn cannot(what: &str, error: &impl fmt::Display) -> Error {
    Error::Internal(format!("cannot {what}: {error}"))
}
