//! `status --watch`: one thread asks the store, the other handles the terminal and signals, so ^C
//! and q end it at once, whatever the store does. An outage is waited out and shown on the page.

use super::{IN_A_LINE, look, place};
use crate::clock::{self, Moment};
use crate::commands::context::Context;
use crate::commands::foreground::{Foreground, News, Signals};
use crate::commands::key_operands::{KeyOperands, Overview};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::columns::{Width, broken};
use crate::output::screen::Screen;
use crate::output::table;
use crate::output::time::{self, span};
use crate::output::{Coloured, coloured, escaped};
use crate::store::Which;
use crate::store::{self, Store};
use crate::supervise;
use rustix::event::{PollFd, PollFlags};
use std::time::Duration;

/// Shows the locks until a signal comes. An error of the first read ends the command.
pub fn watch(
    context: &Context,
    mut store: Box<dyn Store>,
    wanted: KeyOperands,
    every: Duration,
) -> anyhow::Result<Exit> {
    let mut screen = Screen::of_stdout().map_err(|why| {
        Error::Usage(format!(
            "--watch needs a terminal that it can redraw, and {why}; leave it out to see the status once"
        ))
    })?;
    let patterns = wanted.patterns().into_iter().map(str::to_owned).collect();
    let mut page = Page { context, patterns, answered: None, failed: None };
    let signals =
        Signals::take(&[&supervise::ENDING[..], &[libc::SIGWINCH, libc::SIGCONT, libc::SIGTSTP]].concat())?;
    let foreground = Foreground::start(signals, move |teller| {
        loop {
            teller.tell(look(&wanted, &mut *store, Which::Live, IN_A_LINE));
            clock::sleep_until(Moment::now().after(every));
        }
    })?;
    loop {
        let keyboard = screen.keyboard().map(|keys| PollFd::from_borrowed_fd(keys, PollFlags::IN));
        match foreground.next(None, keyboard)? {
            News::Signal(signal) if supervise::ENDING.contains(&signal) => return Ok(Exit::Signal(signal)),
            News::Signal(libc::SIGTSTP) => {
                screen.leave();
                supervise::stop_by(libc::SIGTSTP);
                page.show(&mut screen)?;
            }
            News::Signal(_) => page.show(&mut screen)?,
            News::Learned(answer) => {
                page.take(answer)?;
                page.show(&mut screen)?;
            }
            News::Ready if screen.pressed().contains(&b'q') => return Ok(Exit::Ok),
            News::Ready | News::Nothing => {}
        }
    }
}

struct Page<'a> {
    context: &'a Context,
    /// The patterns that were asked for.
    patterns: Vec<String>,
    /// The last answer and when it came: wall clock to show, moment to measure from.
    answered: Option<(Overview, u64, Moment)>,
    /// Why there has been no answer since.
    failed: Option<store::Error>,
}

impl Page<'_> {
    /// Takes in an answer. Returns an error if asking again cannot help, or if the store has never
    /// answered.
    fn take(&mut self, answer: Result<Overview, store::Error>) -> Result<(), Error> {
        match answer {
            Ok(seen) => {
                self.answered = Some((seen, time::now(), Moment::now()));
                self.failed = None;
            }
            Err(error) if error.is_transient() && self.answered.is_some() => self.failed = Some(error),
            Err(error) => return Err(self.context.with_origin(error).into()),
        }
        Ok(())
    }

    fn show(&self, screen: &mut Screen) -> Result<(), Error> {
        let Some((seen, at, moment)) = &self.answered else { return Ok(()) };
        let settings = &self.context.settings;
        let (colours, width) = (coloured(settings.color), Width::of_stdout());
        let clock = time::local(*at, time::now());
        let mut page = match &self.failed {
            None => fitting(&format!("{clock}  {}", settings.store), width, Coloured::No),
            Some(error) => {
                let since = span(Moment::now().since(*moment));
                fitting(&format!("no answer since {clock} ({since}): {error}"), width, colours)
            }
        };
        page.push('\n');
        page += &if seen.views.is_empty() {
            let patterns: Vec<&str> = self.patterns.iter().map(String::as_str).collect();
            fitting(place(settings).empty(&patterns).trim_end(), width, Coloured::No)
        } else {
            table::watched(&seen.views, width, colours)
        };
        for damaged in &seen.damaged {
            page += &fitting(&damaged.line, width, Coloured::No);
        }
        screen.draw(&page)
    }
}

/// Breaks the text into lines that fit, because the screen does not wrap, and colours them.
fn fitting(text: &str, width: Width, red: Coloured) -> String {
    let columns = if let Width::Columns(columns) = width { columns } else { usize::MAX };
    broken(&escaped(text), columns).iter().map(|line| red.paint(line, Some("\x1b[31m")) + "\n").collect()
}
