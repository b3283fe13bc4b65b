//! `dlock watch`: prints what happens to the locks from now on. The main thread reads and prints
//! ([`look`]), until it fails. Another thread ends the process on a signal, or when the reader is
//! gone: at once, whatever the store does.

use super::context::Context;
use super::foreground::Signals;
use super::key_operands::KeyOperands;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;
use crate::sys;
use look::{Form, Look};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdout;
use std::{process, thread};

mod look;

/// The signals that end `watch` with status 0.
const ENDING: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

pub fn watch(context: &Context, flags: &cli::watch::Watch) -> anyhow::Result<Exit> {
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let form = if flags.json { Form::Json } else { Form::Text(output::coloured(context.settings.color)) };
    // If nothing can be written, fail before anything happens.
    output::print("")?;
    let signals = Signals::of(&ENDING)?;
    let ending = thread::Builder::new().name("dlock-end".into()).spawn(move || end_in_time(&signals));
    ending.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
    Look::new(context.clone(), wanted, form)?.run()?;
    Ok(Exit::Ok)
}

/// Ends the process, and what it has started, when one of the signals comes, or when standard output
/// has no reader any more. poll() reports that as POLLERR, which needs no request.
fn end_in_time(signals: &Signals) {
    let reader = PollFd::from_borrowed_fd(stdout(), PollFlags::empty());
    let mut ends = [reader, PollFd::new(signals, PollFlags::IN)];
    while poll(&mut ends, None) == Err(Errno::INTR) {}
    sys::kill_all_separate();
    process::exit(Exit::Ok.code().into())
}
