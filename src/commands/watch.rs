//! What happens to the locks, from now on? One thread looks and prints, see [`look`]; this one waits for what ends it: a
//! signal, a reader that is gone, or the other thread's failure. So ^C ends it at once, whatever the store does.

use super::context::Context;
use super::foreground::{Foreground, News, Signals};
use super::wanted::Wanted;
use crate::cli;
use crate::exit::Exit;
use crate::output;
use look::{Form, Look};
use rustix::event::{PollFd, PollFlags};
use rustix::stdio::stdout;

mod look;

pub fn watch(context: &Context, flags: &cli::watch::Watch) -> anyhow::Result<Exit> {
    let wanted = Wanted::of(context, &flags.keys)?;
    let form = if flags.json { Form::Json } else { Form::Text(output::coloured(context.settings.color)) };
    // That nothing can be written is better said before something happens.
    output::print("")?;
    // Its end, and no failure.
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let mut look = Look::new(context.clone(), wanted, form)?;
    let foreground = Foreground::start(signals, move |teller| teller.tell(look.run()))?;
    loop {
        // A reader that goes away shows as an error, unasked.
        let reader = PollFd::from_borrowed_fd(stdout(), PollFlags::empty());
        match foreground.next(None, Some(reader))? {
            News::Signal(_) | News::Ready => return Ok(Exit::Ok),
            News::Learned(ended) => return ended.map(|()| Exit::Ok).map_err(Into::into),
            News::Nothing => {}
        }
    }
}
