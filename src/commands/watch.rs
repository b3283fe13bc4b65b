//! `dlock watch`: prints what happens to the locks from now on. One thread reads and prints (see
//! [`look`]); the main thread waits for what ends the command: a signal, a reader that is gone, or
//! a failure of the other thread. So ^C ends it at once, whatever the store does.

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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;

mod look;

/// The signals that end `watch` with status 0.
const ENDING: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

pub fn watch(context: &Context, flags: &cli::watch::Watch) -> anyhow::Result<Exit> {
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let form = if flags.json { Form::Json } else { Form::Text(output::coloured(context.settings.color)) };
    // If nothing can be written, fail before anything happens.
    output::print("")?;
    let (end, ended) = channel();
    let by_signal = end.clone();
    on_signal(move || drop(by_signal.send(Ok(()))))?;
    let mut look = Look::new(context.clone(), wanted, form)?;
    let by_reader = end.clone();
    start("dlock-reader", move || drop(by_reader.send(reader_gone())))?;
    start("dlock-worker", move || {
        let looked = catch_unwind(AssertUnwindSafe(|| look.run()));
        drop(end.send(looked.unwrap_or_else(|_| Err(cannot("look", &"the thread died")))));
    })?;
    ended.recv().map_err(|error| cannot("wait", &error))??;
    Ok(Exit::Ok)
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

/// Returns when standard output has no reader any more. poll() reports that as POLLERR, which needs
/// no request.
fn reader_gone() -> Result<(), Error> {
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(stdout(), PollFlags::empty())], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(cannot("wait", &errno)),
        }
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(|error| cannot("start a thread", &error))
}

fn cannot(what: &str, error: &impl fmt::Display) -> Error {
    Error::Internal(format!("cannot {what}: {error}"))
}
