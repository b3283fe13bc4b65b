//! What happens to the locks, from now on? One thread looks and prints, see [`look`]; this one waits for what ends it: a
//! signal, a reader that is gone, or the other thread's failure. So ^C ends it at once, whatever the store does.

use super::context::Context;
use super::wanted::Wanted;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;
use crate::sys::{self, SignalSet};
use anyhow::Context as _;
use look::{Form, Look};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdout;
use std::thread;

mod look;

/// The signals that are its end, and no failure. One that was ignored when dlock started never shows up.
const ENDING: SignalSet = SignalSet::of(&[libc::SIGINT, libc::SIGTERM]);

/// `dlock watch`.
pub fn watch(context: &Context, flags: &cli::watch::Watch) -> anyhow::Result<Exit> {
    let wanted = Wanted::of(context, &flags.keys)?;
    let form = if flags.json { Form::Json } else { Form::Text(output::coloured(context.settings.color)) };
    // That nothing can be written is better said before something happens.
    output::print("")?;
    sys::block(ENDING);
    let signals = sys::signalfd(ENDING).context("cannot read signals")?;
    let mut look = Look::new(context.clone(), wanted, form)?;
    let (end, held_open) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .context("cannot make a pipe to another thread")?;
    let looking = thread::Builder::new()
        .spawn(move || {
            let _closed_at_the_end = held_open;
            look.run()
        })
        .context("cannot start a thread")?;
    loop {
        // A reader that goes away shows as an error, unasked.
        let mut fds = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&end, PollFlags::IN),
            PollFd::from_borrowed_fd(stdout(), PollFlags::empty()),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        if !fds[0].revents().is_empty() || !fds[2].revents().is_empty() {
            return Ok(Exit::Ok);
        }
        if !fds[1].revents().is_empty() {
            break;
        }
    }
    let ended = looking.join();
    ended.map_err(|_| Error::Internal("the thread that looks at the locks died".into()))??;
    Ok(Exit::Ok)
}
