//! How does a waiter sleep until it is its turn? At the latch of the one before it, which the server lets it have when that
//! one gives the lock back; else until its bell rings; and where there is neither it looks now and then.

use super::{Again, Answer, Failure, Tables};
use crate::clock::Moment;
use crate::lock::{Names, Token};
use crate::store::Error;
use crate::store::net::alarm;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Where no bell is heard, who is next looks this often whether it was granted the lock.
pub(super) const POLL: Duration = Duration::from_millis(25);
/// Who was woken by the latch of the one before it looks after so many milliseconds, and so many more, for a latch is let go
/// just before the lock.
const LOOKS: [u64; 8] = [0, 1, 1, 1, 2, 4, 8, 16];
/// So long one sleeps at a latch at a time: less than a server takes to look whether those who wait wait for each other.
const AT_LATCH: Duration = Duration::from_millis(900);
/// And nobody more rarely than this.
const POLL_LONGEST: Duration = Duration::from_secs(1);

impl Tables {
    /// Whether `token` stands in the queues of all these locks.
    pub(super) fn still_waits(&self, names: &Names, token: &Token) -> Result<bool, Failure> {
        let answers = self.ask(&[self.database.grammar().waits(names, token)], Again::Yes)?;
        Ok(answers[0].rows.len() == names.as_slice().len())
    }

    /// Has the bell of `token` rung on this connection. Whether it was not before.
    pub(super) fn listen(&self, token: &Token) -> Result<bool, Failure> {
        if self.line.borrow().as_ref().is_some_and(|line| line.listens || line.is_direct == Some(false)) {
            return Ok(false);
        }
        let Some(bell) = self.database.grammar().bell(token) else { return Ok(false) };
        self.ask(&[bell], Again::Yes)?;
        if let Some(line) = &mut *self.line.borrow_mut() {
            line.listens = true;
        }
        Ok(true)
    }

    /// What goes before a statement for the sake of those who stand behind this process' token: whether its latch is held.
    fn latch(&self, is_wanted: bool) -> Option<String> {
        let mine = self.mine.as_ref().filter(|_| self.has_latches.get())?;
        let grammar = self.database.grammar();
        let line = self.line.borrow();
        let line = line.as_ref().filter(|line| line.is_direct == Some(true))?;
        match (line.is_latched, is_wanted && !mine.is_given_up.load(Ordering::SeqCst)) {
            (false, true) => grammar.hold_latch(&mine.token),
            (true, false) => grammar.drop_latch(),
            _ => None,
        }
    }

    /// The same as [`Tables::ask`], with that before the statement. A server that refuses it is asked without.
    pub(super) fn ask_latched(
        &self,
        statement: String,
        is_wanted: bool,
        again: Again,
    ) -> Result<Vec<Answer>, Failure> {
        let Some(latch) = self.latch(is_wanted) else { return self.ask(&[statement], again) };
        match self.ask(&[latch + &statement], again) {
            // What others are the cause of would only take its time once more.
            Err(Failure::Refused(Error::Garbled(_) | Error::Denied(_))) => {
                let answers = self.ask(&[statement], again);
                // Else it is the statement itself that is refused.
                self.has_latches.set(matches!(answers, Err(Failure::Refused(_))));
                answers
            }
            answers => {
                if let (Ok(_) | Err(Failure::Conflict), Some(line)) = (&answers, &mut *self.line.borrow_mut())
                {
                    line.is_latched = is_wanted;
                }
                answers
            }
        }
    }

    /// Sleeps until the latch of the one before is let go, or until then (false). Nothing if it has none.
    fn sleep_at_latch(&self, before: &Token, until: Moment) -> Result<Option<bool>, Failure> {
        let target = self.database.target();
        loop {
            let is_direct = self.line.borrow().as_ref().is_some_and(|line| line.is_direct == Some(true));
            let (began, span) = (Moment::now(), until.left().min(AT_LATCH));
            let statement = self.database.grammar().sleep_at_latch(before, span);
            let Some(statement) = statement.filter(|_| is_direct && self.has_latches.get()) else {
                return Ok(None);
            };
            self.by.set(began.after(span + target.op_timeout));
            let slept = match self.ask(&[statement], Again::No) {
                Ok(answers) => answers.last().and_then(|answer| answer.rows.last()?.first()?.clone()),
                Err(Failure::Refused(_)) => {
                    self.has_latches.set(false);
                    return Ok(None);
                }
                Err(failure) => return Err(failure),
            };
            match slept.as_deref() {
                Some(b"1") => return Ok(Some(true)),
                Some(b"0") if until.passed() => return Ok(Some(false)),
                Some(b"0") if Moment::now().since(began) > span / 2 => {}
                _ => return Ok(None),
            }
        }
    }

    pub(super) fn wait(
        &self,
        names: &Names,
        token: &Token,
        ahead: u64,
        before: Option<&Token>,
        until: Moment,
    ) -> Result<bool, Failure> {
        let mut looks = 0;
        loop {
            match before.map_or(Ok(None), |before| self.sleep_at_latch(before, until))? {
                Some(false) => return Ok(false),
                Some(true) => {
                    self.allow();
                    for pause in LOOKS {
                        thread::sleep(Duration::from_millis(pause));
                        if !self.still_waits(names, token)? {
                            break;
                        }
                    }
                    return Ok(true);
                }
                None => {}
            }
            if self.listen(token)? {
                // What happened meanwhile was not heard.
                return Ok(true);
            }
            let Some(mut line) = self.line.take() else { return Ok(true) };
            let has_bell = line.is_direct != Some(false) && self.database.grammar().has_bells();
            // Who is before it may have its latch in a moment.
            let ahead = if before.is_some() { ahead.min((1 << looks.min(16)) - 1) } else { ahead };
            looks += 1;
            let next = if has_bell { until } else { Moment::now().after(pace(ahead)).min(until) };
            let heard = line.link.listen(next)?;
            self.line.replace(Some(line));
            if heard || until.passed() || alarm::is_raised() {
                return Ok(heard);
            }
            self.allow();
            if !has_bell && !self.still_waits(names, token)? {
                return Ok(true);
            }
        }
    }
}

/// How often one looks that has so many before it.
fn pace(ahead: u64) -> Duration {
    POLL.saturating_mul(u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX)).min(POLL_LONGEST)
}
