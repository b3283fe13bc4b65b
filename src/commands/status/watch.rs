//! How does `status --watch` go on? One thread asks the store, the other one has the terminal and the signals: so ^C
//! ends it at once, whatever the store does. A store that goes away is ridden out and said on the page.

use super::{Seen, Wanted};
use crate::clock::{Moment, Timer};
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::bell::Bell;
use crate::output::screen::Screen;
use crate::output::table::{self, Width};
use crate::output::time::{self, span};
use crate::output::{Coloured, coloured, escaped};
use crate::store::{self, Store};
use crate::sys::{self, SignalSet};
use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The signals that end it.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// All that it takes. A signal that was ignored when dlock started never shows up.
const TAKEN: SignalSet = SignalSet::of(&[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
]);

/// Shows the locks until a signal comes. The first look may fail as any other command would.
pub fn watch(
    settings: &Settings,
    mut store: Box<dyn Store>,
    wanted: Wanted,
    every: Duration,
) -> anyhow::Result<Exit> {
    let mut screen = Screen::of_stdout().map_err(|why| {
        Error::Usage(format!("--watch redraws a terminal, and {why}; leave it out to see the status once"))
    })?;
    sys::block(TAKEN);
    let signals = sys::signalfd(TAKEN).context("cannot read signals")?;
    let bell = Bell::new().context("cannot wake another thread")?;
    let timer = Timer::new().context("cannot make a timer")?;
    let (ask, asked) = mpsc::channel::<()>();
    let (answer, answers) = mpsc::channel::<Result<Seen, store::Error>>();
    let connect = bell.try_clone().context("cannot wake another thread")?;
    thread::Builder::new()
        .spawn(move || {
            while asked.recv().is_ok() && answer.send(wanted.look(&mut *store)).is_ok() {
                connect.ring();
            }
        })
        .context("cannot start a thread")?;

    let mut page = Page { settings, answered: None, failed: None };
    ask.send(()).ok();
    loop {
        let mut fds = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        let due = fds[2].revents().contains(PollFlags::IN);
        while let Some(signal) = next_signal(&signals) {
            if ENDING.contains(&signal) {
                return Ok(Exit::Signal(signal));
            }
            if signal == libc::SIGTSTP {
                screen.leave();
                sys::stop_by(signal);
            }
            page.show(&mut screen)?;
        }
        bell.hush();
        while let Ok(answer) = answers.try_recv() {
            page.take(answer)?;
            page.show(&mut screen)?;
            timer.set(Some(Moment::now().after(every))).context("cannot set a timer")?;
        }
        if due {
            timer.set(None).context("cannot set a timer")?;
            ask.send(()).ok();
        }
    }
}

/// The next signal that came, if one did.
fn next_signal(signals: &OwnedFd) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(signals, &mut info).ok()?;
    Some(i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
}

/// What is shown.
struct Page<'a> {
    settings: &'a Settings,
    /// The last answer, and when it came: for the eye, and to measure from.
    answered: Option<(Seen, u64, Moment)>,
    /// Why there is none since.
    failed: Option<store::Error>,
}

impl Page<'_> {
    /// Takes in an answer. Fails where looking again cannot help, and where the store never answered.
    fn take(&mut self, answer: Result<Seen, store::Error>) -> Result<(), Error> {
        match answer {
            Ok(seen) => {
                self.answered = Some((seen, time::now(), Moment::now()));
                self.failed = None;
            }
            Err(error) if error.is_transient() && self.answered.is_some() => self.failed = Some(error),
            Err(error) => return Err(crate::commands::located(self.settings, error)),
        }
        Ok(())
    }

    fn show(&self, screen: &mut Screen) -> Result<(), Error> {
        let Some((seen, at, moment)) = &self.answered else { return Ok(()) };
        let colours = coloured(self.settings.color);
        let clock = time::local(*at, time::now());
        let head = match &self.failed {
            None => format!("{}  {clock}", self.settings.store),
            Some(error) => {
                let (on, off) = if colours == Coloured::Yes { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
                let since = span(Moment::now().since(*moment));
                format!("{on}no answer since {clock} ({since}): {}{off}", escaped(&error.to_string()))
            }
        };
        let table = table::watched(&seen.views, Width::of_stdout(), colours);
        let damaged: String = seen.damaged.iter().map(|line| format!("{}\n", escaped(line))).collect();
        screen.draw(&format!("{head}\n\n{table}{damaged}"))
    }
}
