//! How does `status --watch` go on? One thread asks the store, the other one has the terminal and the signals: so ^C
//! and q end it at once, whatever the store does. A store that goes away is ridden out and said on the page.

use super::{Looks, Seen, place};
use crate::clock::{Moment, Timer};
use crate::commands::context::Context;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::bell::Bell;
use crate::output::columns::broken;
use crate::output::locale::Charset;
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
    context: &Context,
    mut store: Box<dyn Store>,
    looks: Looks,
    every: Duration,
) -> anyhow::Result<Exit> {
    let mut screen = Screen::of_stdout().map_err(|why| {
        Error::Usage(format!("--watch redraws a terminal, and {why}; leave it out to see the status once"))
    })?;
    let patterns = looks.wanted.patterns().into_iter().map(str::to_owned).collect();
    let mut page = Page { context, patterns, answered: None, failed: None };
    sys::block(TAKEN);
    let signals = sys::signalfd(TAKEN).context("cannot read signals")?;
    let bell = Bell::new().context("cannot wake another thread")?;
    let timer = Timer::new().context("cannot make a timer")?;
    let (ask, asked) = mpsc::channel::<()>();
    let (answer, answers) = mpsc::channel::<Result<Seen, store::Error>>();
    let connect = bell.try_clone().context("cannot wake another thread")?;
    thread::Builder::new()
        .spawn(move || {
            while asked.recv().is_ok() && answer.send(looks.look(&mut *store)).is_ok() {
                connect.ring();
            }
        })
        .context("cannot start a thread")?;

    ask.send(()).ok();
    loop {
        let mut fds = vec![
            PollFd::new(&signals, PollFlags::IN),
            PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
        ];
        fds.extend(screen.keyboard().map(|keys| PollFd::from_borrowed_fd(keys, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        let due = fds[2].revents().contains(PollFlags::IN);
        let is_typed = fds.get(3).is_some_and(|keys| !keys.revents().is_empty());
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
        if is_typed && screen.pressed().contains(&b'q') {
            return Ok(Exit::Ok);
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
    context: &'a Context,
    /// What was asked for, apart from locks by name.
    patterns: Vec<String>,
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
            None => fitting(&format!("{clock}  {}", settings.store), width, ("", "")),
            Some(error) => {
                let ink = if colours == Coloured::Yes { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
                let since = span(Moment::now().since(*moment));
                fitting(&format!("no answer since {clock} ({since}): {error}"), width, ink)
            }
        };
        page.push('\n');
        page += &if seen.views.is_empty() {
            let patterns: Vec<&str> = self.patterns.iter().map(String::as_str).collect();
            fitting(place(settings).empty(&patterns).trim_end(), width, ("", ""))
        } else {
            table::watched(&seen.views, width, colours)
        };
        for damaged in &seen.damaged {
            page += &fitting(&damaged.line, width, ("", ""));
        }
        screen.draw(&page)
    }
}

/// The text in lines that fit, between what switches a colour on and off; the screen does not wrap.
fn fitting(text: &str, width: Width, (on, off): (&str, &str)) -> String {
    let columns = if let Width::Columns(columns) = width { columns } else { usize::MAX };
    let text = Charset::of_environment().fitted(&escaped(text), usize::MAX);
    broken(&text, columns).iter().map(|line| format!("{on}{line}{off}\n")).collect()
}
