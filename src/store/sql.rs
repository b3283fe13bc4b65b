//! How can a database keep locks? The stores `postgres://…` and `mysql://…`: one row for each lock, one for each of those who
//! wait for it, and one for each of its last ends. What is done with them is the engine's affair; here is what a database does
//! for it, and `postgres` and `mysql` have the words and the bytes.
//!
//! *A step takes two round trips*, and no lock of the database is held between them. The first reads the rows and the clock
//! of the server in one statement. The second writes them, also as a whole, if no lock has got another version meanwhile;
//! if one has, nothing is written and the engine begins again. So a request that arrives late changes nothing, and one whose
//! answer was lost may be sent again.
//!
//! *The lease is in the record*, and the clock of the server decides. It is read before the records are and before anything
//! is written: a pause makes the own lease shorter, and those of others look longer. A connection that breaks says nothing
//! about anybody, so nobody's life is watched, and a holder renews in the record itself: what a judge read is what he
//! changes, or he changes nothing.
//!
//! *A waiter's heartbeat* changes its own row and nothing else. It also tells whether the waiter still waits, so a bell that
//! nobody heard costs no more than the time to the next heartbeat.

mod hearing;
mod link;
#[cfg(feature = "mysql")]
mod mysql;
mod pipe;
#[cfg(feature = "postgres")]
mod postgres;
mod probe;
mod row;
mod servers;
mod statement;
mod waiting;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{Lock, Record, SILENCE, TICKET_KEPT, Time, millis};
use crate::store::engine::kept::Kept;
use crate::store::engine::queue::Waiting;
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, listed_by};
use crate::store::net::failure::silent;
use crate::store::{Endurance, Error, Listener, Subscription};
use hearing::Hearing;
pub use link::Target;
use link::{Answer, Database, Failure, Link};
use row::{Found, LockRow, Waiters};
use servers::Round;
use statement::{Change, Question};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use waiting::POLL;

/// How many broken connections one exchange may meet: one that was idle, and a new one. A server that ends new ones too is
/// not asked again at once.
const BROKEN_MOST: u32 = 2;
/// How long one waits before what others kept from being done is sent again.
const CONFLICT: Duration = Duration::from_millis(2);
/// So long after others were told of a change who made it sees to it that it is on the disk.
const NEXT_FIRST: Duration = Duration::from_millis(5);
/// Whoever has more than so many before it looks at the records more rarely: it is woken by whoever is before it.
const NEAR: u64 = 4;
/// So many notes are asked for at once.
const NOTES_MOST: usize = 64;
/// Of so many steps one removes what is too old to keep.
const TIDIES_EVERY: u32 = 512;

/// A database with locks in it.
pub type SqlStore = Engine<Tables>;

impl SqlStore {
    /// MySQL or MariaDB. It connects when it is first used.
    #[cfg(feature = "mysql")]
    pub fn mysql(target: Target) -> Self {
        Self::new(Tables::over(Arc::new(mysql::Mysql::new(target))))
    }

    /// PostgreSQL. It connects when it is first used.
    #[cfg(feature = "postgres")]
    pub fn postgres(target: Target) -> Self {
        Self::new(Tables::over(Arc::new(postgres::Postgres::new(target))))
    }
}

/// What a database does for the engine.
pub struct Tables {
    database: Arc<dyn Database>,
    /// The server to try next: the one that worked last, or the one behind the one that did not.
    server: Arc<AtomicUsize>,
    line: RefCell<Option<Line>>,
    /// The server whose rows and clock a step was told.
    read_at: Cell<usize>,
    mine: Option<Arc<Mine>>,
    /// Whether the server lets one sleep at latches.
    has_latches: Cell<bool>,
    /// When the operation under way is to end.
    by: Cell<Moment>,
    /// Whether it insists.
    insists: Cell<bool>,
    /// Whether the asker is likely to find that it holds: it did when it wrote last.
    is_holder: Cell<bool>,
}

/// An open connection.
struct Line {
    /// Which server it leads to.
    server: usize,
    link: Box<dyn Link>,
    /// Whether it was asked for the bell of this process' token.
    listens: bool,
    /// Whether it holds the latch of this process' token.
    is_latched: bool,
    /// Whether nobody in between lends it to others, once somebody has answered on it.
    is_direct: Option<bool>,
}

/// The token of this process.
struct Mine {
    token: Token,
    is_given_up: AtomicBool,
}

impl Clone for Tables {
    /// Connections belong to the process that made them.
    fn clone(&self) -> Self {
        let (database, server) = (Arc::clone(&self.database), Arc::clone(&self.server));
        let (mine, has_latches, by) = (self.mine.clone(), self.has_latches.clone(), self.by.clone());
        let (line, read_at, insists, is_holder) = Default::default();
        Self { database, server, line, read_at, mine, has_latches, by, insists, is_holder }
    }
}

impl Tables {
    fn over(database: Arc<dyn Database>) -> Self {
        let (has_latches, by) = (Cell::new(true), Cell::new(Moment::now()));
        let (server, line, read_at, mine, insists, is_holder) = Default::default();
        Self { database, server, line, read_at, mine, has_latches, by, insists, is_holder }
    }

    fn shown(&self) -> &str {
        &self.database.target().shown
    }

    /// What is asked between two operations has a time of its own.
    fn allow(&self) {
        if self.by.get().passed() {
            let target = self.database.target();
            self.by.set(Moment::now().after(target.connect_timeout + target.op_timeout));
        }
    }

    /// What is asked from here on has that time, but not beyond `until`.
    fn allow_until(&self, until: Moment) {
        let target = self.database.target();
        self.by.set(Moment::now().after(target.connect_timeout + target.op_timeout).min(until));
    }

    /// One round trip. What can be done twice is sent again where the connection turns out to be broken, or the server to be
    /// a standby.
    fn ask(&self, statements: &[String], again: Again) -> Result<Vec<Answer>, Failure> {
        let (mut broken, mut round) = (0, Round::default());
        loop {
            let (is_new, (mut line, by)) = match self.line.take() {
                Some(line) => (false, (line, self.by.get())),
                None => (true, self.connect(&mut round).map_err(Failure::Refused)?),
            };
            let answer = line.link.ask(statements, by);
            match answer {
                Err(failure) if self.is_elsewhere(&failure, is_new) => {
                    if again == Again::No {
                        self.server.store(line.server + 1, Ordering::Relaxed);
                        return Err(failure);
                    }
                    self.pass(line.server, failure, &mut round);
                }
                Err(Failure::Broken(_))
                    if again == Again::Yes && broken < BROKEN_MOST && !self.by.get().passed() =>
                {
                    broken += 1;
                }
                // Somebody else was quicker, be it with making the tables.
                Err(Failure::Conflict) if again == Again::Yes && !self.by.get().passed() => {
                    self.line.replace(Some(line));
                    thread::sleep(CONFLICT);
                }
                Err(Failure::Broken(_) | Failure::Silent(_)) => return answer,
                answer => {
                    self.server.store(line.server, Ordering::Relaxed);
                    self.line.replace(Some(line));
                    return answer;
                }
            }
        }
    }

    /// The same, where there may be no tables yet: then it makes them.
    fn ask_tables(&self, statements: &[String]) -> Result<Vec<Answer>, Failure> {
        match self.ask(statements, Again::Yes) {
            Err(Failure::NoTables(_)) => {}
            answer => return answer,
        }
        let tables = self.database.grammar().tables();
        let text = tables.join("; ");
        let tables: Vec<_> = tables.iter().map(ToString::to_string).collect();
        match self.ask(&tables, Again::Yes) {
            Ok(_) => self.ask(statements, Again::Yes),
            Err(Failure::Refused(Error::Denied(why)) | Failure::NoTables(Error::Denied(why))) => {
                Err(Failure::Refused(Error::Denied(format!(
                    "{why}; the tables of dlock are missing or hidden from this user, who may not make them: have an administrator run {text} and give \
                 it the rights that docs/stores.md names"
                ))))
            }
            Err(failure) => Err(failure),
        }
    }

    /// The rows of these locks, and the time that was read before them.
    fn read(&self, question: &Question<'_>) -> Result<Found, Error> {
        self.find(&[self.database.grammar().read(question)])
    }

    /// The same, whatever else is said before it.
    fn find(&self, statements: &[String]) -> Result<Found, Error> {
        let found = Found::parse(&self.ask_tables(statements)?, self.shown())?;
        if let Some(line) = &mut *self.line.borrow_mut() {
            line.is_direct = Some(line.link.is_direct(found.process));
        }
        Ok(found)
    }

    fn entries(&self, question: &Question<'_>, found: Found) -> Result<(Vec<LockRow>, Time), Error> {
        let now = found.now;
        Ok((found.locks(question.names, question.waiters, self.shown())?, now))
    }

    /// The rows of locks that are about to be changed, which are made if there are none.
    fn lock_rows(&self, names: &BTreeSet<String>, me: Option<&Token>) -> Result<(Vec<LockRow>, Time), Error> {
        let read = |question: &Question<'_>| {
            if self.insists.get() {
                self.find(&self.database.grammar().reserve_and_read(question))
            } else {
                self.read(question)
            }
        };
        // A holder's step is to cost the same whoever waits.
        if let Some(me) = me.filter(|me| self.is_holder.get() && self.is_own(me)) {
            let question = Question { names, me: Some(me), waiters: Waiters::Front, with_ends: false };
            let (entries, now) = self.entries(&question, read(&question)?)?;
            if entries.iter().all(|row| row.is_enough_for(me)) {
                return Ok((entries, now));
            }
            self.is_holder.set(false);
        }
        let question = Question { names, me, waiters: Waiters::All, with_ends: false };
        let mut found = read(&question)?;
        let missing: Vec<&String> = names.iter().filter(|name| !found.has(name)).collect();
        if !missing.is_empty() {
            let grammar = self.database.grammar();
            let statements = [grammar.begin(&missing, found.now), grammar.read(&question)];
            found = Found::parse(&self.ask(&statements, Again::Yes)?[1..], self.shown())?;
        }
        self.entries(&question, found)
    }

    /// Reads all who wait for a lock of which only the first ones were read.
    fn read_rest(&self, entry: &mut LockRow) -> Result<(), Error> {
        let names = BTreeSet::from([entry.name.clone()]);
        let question = Question { names: &names, me: None, waiters: Waiters::All, with_ends: false };
        let (all, _) = self.entries(&question, self.read(&question)?)?;
        entry.queue.drop_unread();
        for mut row in all {
            let others = row.queue.waiting.drain(..);
            let is_new =
                |waiting: &Waiting| waiting.token().is_some_and(|token| entry.queue.find(&token).is_none());
            let new: Vec<_> = others.filter(is_new).collect();
            entry.queue.waiting.extend(new);
            entry.notes.append(&mut row.notes);
        }
        entry.queue.waiting.sort_by_key(Waiting::key);
        Ok(())
    }

    /// Has the server do what may be done some time after a change. Nobody waits for that now.
    fn tell(&self, behind: Option<String>) {
        let Some(statement) = behind else { return };
        let Some(mut line) = self.line.take() else { return };
        if line.link.tell(&statement, self.by.get()).is_ok() {
            self.line.replace(Some(line));
        }
    }

    fn is_own(&self, token: &Token) -> bool {
        self.mine.as_ref().is_some_and(|mine| mine.token == *token)
    }

    /// Waits until a change of which others were told already is on the disk. If the server crashed meanwhile and forgot it,
    /// it is to be made again.
    fn secure(&self, change: &Change) -> Result<Written, Error> {
        let Some(secure) = self.database.grammar().secure(change) else { return Ok(Written::Yes) };
        // The disk is for the next one first, and that one has this change written with its own.
        thread::sleep(NEXT_FIRST);
        match self.ask(&[secure], Again::Yes) {
            Ok(answers) if answers.iter().all(|answer| answer.changed == change.ends.len() as u64) => {
                Ok(Written::Yes)
            }
            Ok(_) | Err(Failure::Conflict) => Ok(Written::Conflict),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// Whether something may be sent again on another connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl Adapter for Tables {
    type Entry = LockRow;
    type Watch = Token;

    fn refresh(&mut self, by: Moment) -> Result<(), Error> {
        self.by.set(by);
        Ok(())
    }

    fn reset(&mut self) {
        self.line.take();
    }

    fn crowd(&self) -> u64 {
        NEAR
    }

    /// Whoever is before one lets go of its latch, or its bell rings, at its end as at a grant.
    fn rarely(&self) -> u32 {
        16
    }

    fn endurance(&self) -> Endurance {
        let late = silent(self.shown());
        Endurance::Beside { second: Box::new(Engine::new(self.clone())), late }
    }

    fn lock(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        _: Moment,
    ) -> Result<(Vec<LockRow>, Time), Error> {
        let found = self.lock_rows(names, me)?;
        self.read_at.set(self.line.borrow().as_ref().map_or(0, |line| line.server));
        Ok(found)
    }

    fn look(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<LockRow>, Time), Error> {
        let question = Question { names, me, waiters: Waiters::All, with_ends: whom == CatchUp::All };
        let found = self.read(&question)?;
        self.entries(&question, found)
    }

    fn show(
        &self,
        entry: &mut LockRow,
        waiter: usize,
        record: &mut Record,
        _: Time,
    ) -> Result<Vec<String>, Error> {
        let unshown = entry.queue.waiting.get(waiter).filter(|waiting| !waiting.is_shown());
        let Some(unshown) = unshown else { return Ok(Vec::new()) };
        let Some(token) = unshown.token() else {
            self.read_rest(entry)?;
            return Ok(Vec::new());
        };
        let Kept { name, queue, notes, tracked, .. } = &mut **entry;
        if !notes.contains_key(&token) {
            // Where many were shown, many more may be.
            let shown = queue.waiting.iter().filter(|waiting| waiting.is_shown()).count();
            let behind = queue.waiting[waiter..].iter().filter(|waiting| !waiting.is_shown());
            let tokens = behind.filter_map(Waiting::token).filter(|token| !notes.contains_key(token));
            let tokens: Vec<_> = tokens.take(shown.clamp(1, NOTES_MOST)).collect();
            let answers = self.ask(&[self.database.grammar().notes(name, &tokens)], Again::Yes)?;
            notes.extend(answers[0].rows.iter().filter_map(|row| row::note(row)));
        }
        let note = notes.remove(&token).and_then(|note| serde_json::from_slice(&note).ok());
        let shown = note.and_then(|note| queue.show(waiter, note, name, record, tracked, |_, _| {}).ok());
        // Else it has left since, as the engine will see when it writes; or its row is damaged, and it comes anew.
        Ok(shown.unwrap_or_else(|| {
            queue.waiting.remove(waiter);
            Vec::new()
        }))
    }

    fn write(&self, entries: Vec<(LockRow, Changed)>, now: Time, woken: &[Token]) -> Result<Written, Error> {
        if entries.iter().all(|(_, changed)| *changed == Changed::No) {
            return Ok(Written::Yes);
        }
        // Another server has another clock: what was worked out by that of the first one is not written there.
        let is_at = |line: &Line| line.server == self.read_at.get();
        if self.database.target().has_standbys() && !self.line.borrow().as_ref().is_some_and(is_at) {
            return Ok(Written::Conflict);
        }
        // Others may have been granted the lock together with one that shares it.
        let is_alone = !self.mine.as_ref().is_some_and(|mine| {
            entries.iter().any(|(row, _)| {
                row.record.holds.contains_key(&mine.token)
                    && !matches!(row.record.lock, Lock::Exclusive { .. })
            })
        });
        let holds =
            |mine: &Arc<Mine>| entries.iter().all(|(row, _)| row.record.holds.contains_key(&mine.token));
        let is_holder = self.mine.as_ref().is_some_and(holds);
        let change = Change::of(entries, now, woken, self.insists.get())
            .map_err(|why| Error::Garbled(format!("{}: {why}", self.shown())))?;
        let grammar = self.database.grammar();
        let statement = grammar.write(&change);
        match self.ask_latched(grammar.before_write(&change).to_owned() + &statement, is_alone, Again::No) {
            Ok(answers) => {
                let is_done = answers.last().and_then(|answer| answer.rows.last()?.first()?.clone());
                if is_done.as_deref() != Some(b"1") {
                    return Ok(Written::Conflict);
                }
                self.is_holder.set(is_holder);
                self.tell(grammar.behind(&change));
                self.secure(&change)
            }
            // Whether it was done shows when it is tried again: if it was, the versions are others.
            Err(Failure::Conflict | Failure::Broken(_) | Failure::ReadOnly(_)) => Ok(Written::Conflict),
            Err(Failure::NoTables(why)) => {
                // There were tables when they were read. If there are none now, that is said where they are read again.
                let names = change.read.iter().map(|(name, _)| name.clone()).collect();
                match (self.ask(&[grammar.versions(&names)], Again::Yes), why) {
                    (Err(Failure::NoTables(_)), _) => Ok(Written::Conflict),
                    (_, Error::Denied(why)) => {
                        Err(Error::Denied(format!("{why}; docs/stores.md has the GRANT statement")))
                    }
                    (_, why) => Err(why),
                }
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn insist(&self, insists: bool) {
        self.insists.set(insists);
    }

    fn release(&self, _: Vec<LockRow>) {}

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
        let target = self.database.target();
        self.by.set(listed_by(self.by.get(), target.connect_timeout + target.op_timeout));
        let answers = self.ask_tables(&[self.database.grammar().names()])?;
        let name = |row: &Vec<Option<Vec<u8>>>| {
            let bytes = row.first()?.as_deref().and_then(row::unhex)?;
            String::from_utf8(bytes).ok()
        };
        let read = |row| name(row).ok_or_else(|| row::garbled(self.shown(), "?", "its name is none"));
        Ok(answers[0].rows.iter().map(read).collect())
    }

    fn tidy(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % TIDIES_EVERY == 0) {
            self.ask(&self.database.grammar().tidy(), Again::No).ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(Arc::new(Mine { token: token.clone(), is_given_up: AtomicBool::new(false) }));
        Ok(Vec::new())
    }

    fn end(&mut self, _: &Token) {}

    /// Nobody else can tell.
    fn is_mine(&self, _: &Token) -> bool {
        false
    }

    fn give_up(&self, token: &Token) {
        if let Some(mine) = self.mine.as_ref().filter(|mine| mine.token == *token) {
            mine.is_given_up.store(true, Ordering::SeqCst);
        }
    }

    fn is_given_up(&self, token: &Token) -> bool {
        self.is_own(token) && self.mine.as_ref().is_some_and(|mine| mine.is_given_up.load(Ordering::SeqCst))
    }

    fn was_ended(&self, _: &Token) -> bool {
        false
    }

    /// The lease is in the record, and nowhere else.
    fn say_lease(&self, _: &Token, _: Duration) -> bool {
        false
    }

    fn say_heard(&self, names: &Names, token: &Token, until: Duration) -> bool {
        let span = until.saturating_sub(self.now());
        self.allow();
        let heard = self.database.grammar().heard(names, token, millis(span));
        let said = self.ask_latched(heard, true, Again::Yes);
        let waits = |answers: Vec<Answer>| {
            answers.last().is_some_and(|answer| answer.changed == names.as_slice().len() as u64)
        };
        said.is_ok_and(waits)
    }

    fn watches_anybody(&self) -> bool {
        true
    }

    /// It can be watched, and nothing more is known of it.
    fn liveness(&self, token: &Token) -> Liveness<Token> {
        Liveness::Alive(token.clone())
    }

    fn forget(&self, _: &Token) {}

    fn sleep<'a>(
        &self,
        names: &Names,
        token: &Token,
        ahead: u64,
        mut others: impl Iterator<Item = &'a Token>,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.allow();
        // Who waits for one of several has to look.
        let before = others.next().filter(|_| others.next().is_none());
        match self.wait(names, token, ahead, before, Moment::now().after(limit)) {
            Ok(heard) => Ok(heard),
            // A place in the queue does not end with a connection. Whether the server is there shows when it is asked.
            Err(_) => {
                self.line.take();
                thread::sleep(POLL);
                Ok(true)
            }
        }
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        Box::new(Hearing::new(self.clone(), names, token, listener))
    }
}

/// What a waiter has said itself since its row was written: how long it is to be believed, and remembered, in milliseconds.
fn heard(said: u64) -> (u64, u64) {
    (said, said.saturating_sub(millis(SILENCE)).saturating_add(millis(TICKET_KEPT)))
}
