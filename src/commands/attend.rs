//! How does a dlock without a job wait? The main thread waits for the store. This one attends meanwhile: to the signals
//! that end dlock, within 100 ms, whatever the store does; and to the line about waiting, which moves on a terminal. It
//! knows no lock: what is to be done at the end, it is told.

use crate::clock::Moment;
use crate::exit::Exit;
use crate::job::{self, Endings};
use crate::output::live::{Room, Waiter};
use crate::output::{Kind, Printer};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often it looks whether there is anything to say.
const TICK: Duration = Duration::from_secs(1);

/// The attendant, as the main thread sees it.
pub struct Attendant {
    state: Arc<Mutex<State>>,
}

struct State {
    printer: Printer,
    live: Waiter,
    line: Option<Box<dyn Fn(Room) -> String + Send>>,
}

impl Attendant {
    /// Starts the thread. On a signal it does `at_end` and dies of the signal; the main thread has no say any more.
    pub fn start(
        endings: Endings,
        printer: &Printer,
        at_end: impl FnOnce(i32) + Send + 'static,
    ) -> io::Result<Self> {
        let live = Waiter::new(printer, Moment::now());
        let state = Arc::new(Mutex::new(State { printer: printer.clone(), live, line: None }));
        let attended = state.clone();
        thread::Builder::new()
            .name("dlock-attend".into())
            .spawn(move || attend(&endings, &attended, at_end))?;
        Ok(Self { state })
    }

    /// What there is to say from now on, whenever it is time.
    pub fn waits(&self, line: impl Fn(Room) -> String + Send + 'static) {
        let mut state = self.state();
        state.line = Some(Box::new(line));
        state.tick();
    }

    /// Says a line, and takes the one about waiting away before.
    pub fn say(&self, kind: Kind, text: &str) {
        let mut state = self.state();
        state.live.clear();
        state.printer.say(kind, text);
    }

    /// Says that it waits, because of something else than the lock.
    pub fn announce(&self, text: &str) {
        self.say(Kind::Warning, text);
        self.state().live.announce();
    }

    /// Whether a log says that it waits.
    pub fn has_announced(&self) -> bool {
        self.state().live.has_announced()
    }

    /// Waiting is over: the line about it goes, and no other comes. Nothing happens any more if dlock is about to end.
    pub fn conclude<T>(&self, last: impl FnOnce() -> T) -> T {
        let mut state = self.state();
        state.line = None;
        state.live.clear();
        last()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) {
        if let Some(line) = &self.line {
            self.live.say(line);
        }
    }
}

fn attend(endings: &Endings, state: &Mutex<State>, at_end: impl FnOnce(i32)) {
    loop {
        match endings.wait(Moment::now().after(TICK)) {
            Ok(Some(signal)) => {
                // Kept to the end, so that the main thread neither says nor prints anything more.
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.live.clear();
                at_end(signal);
                job::die_of(signal);
                // PID 1 of a namespace does not die of a signal that it sends itself.
                std::process::exit(Exit::Signal(signal).code().into());
            }
            Ok(None) => state.lock().unwrap_or_else(PoisonError::into_inner).tick(),
            Err(_) => return,
        }
    }
}
