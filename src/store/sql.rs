//! Keeps locks in a database, for `postgres://…` and `mysql://…`: one row for each lock, one for
//! each waiter, and one for each of the last ends of a lock. The engine decides what the rows say.
//! This module is its adapter; `postgres` and `mysql` have the SQL and the wire protocols.
//!
//! *A transaction of the engine takes two round trips*, and the database holds no lock between
//! them. The first reads the rows and the server's clock in one statement. The second writes all
//! rows in one statement, if no lock has another version meanwhile; otherwise nothing is written
//! and the engine starts again. So a request that arrives late changes nothing, and a request whose
//! reply was lost may be sent again.
//!
//! *The lease is in the record*, and the server's clock decides. The clock is read before the rows
//! are read or written. So a pause of this process makes its own lease shorter and the leases of
//! others look longer. A broken connection proves nothing about its client, so no connection is
//! watched, and a holder renews in the record itself: the renewal succeeds only on the version that
//! was read.
//!
//! *A waiter's heartbeat* changes only its own row. It also returns whether the waiter still waits,
//! so a lost notification costs only the time to the next heartbeat.

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
mod subscription;
mod waiting;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{Lock, Record, SILENCE, TICKET_KEPT, Time, millis};
use crate::store::engine::kept::Kept;
use crate::store::engine::queue::Waiting;
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, listed_by};
use crate::store::net::failure::silent;
use crate::store::net::interrupt;
use crate::store::{Endurance, Error, Listener, Subscription};
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
use subscription::RequestSubscription;
use waiting::POLL;

/// Most broken connections in one exchange: one that was idle, and a new one. If the server closes
/// new connections too, the exchange fails.
const BROKEN_MOST: u32 = 2;
/// Pause before a statement is sent again that conflicted with another client.
const CONFLICT: Duration = Duration::from_millis(2);
/// Time between a write that others see early and the statement that waits for the disk.
const SECURE_AFTER: Duration = Duration::from_millis(5);
/// See [`Adapter::crowd`]. Small, because the predecessor wakes a waiter.
const NEAR: u64 = 4;
/// Most notes that one statement asks for.
const NOTES_MOST: usize = 64;
/// One of this many first acquires deletes rows that are too old.
const CLEANS_UP_EVERY: u32 = 512;

/// A store in a database.
pub type SqlStore = Engine<Tables>;

impl SqlStore {
    /// A store in MySQL or MariaDB. Connects at the first use.
    #[cfg(feature = "mysql")]
    pub fn mysql(target: Target) -> Self {
        Self::new(Tables::over(Arc::new(mysql::Mysql::new(target))))
    }

    /// A store in PostgreSQL. Connects at the first use.
    #[cfg(feature = "postgres")]
    pub fn postgres(target: Target) -> Self {
        Self::new(Tables::over(Arc::new(postgres::Postgres::new(target))))
    }
}

/// The engine's adapter for a database.
pub struct Tables {
    database: Arc<dyn Database>,
    /// Index of the server to try next: the one that worked last, or the one after a server that
    /// failed.
    server: Arc<AtomicUsize>,
    line: RefCell<Option<Line>>,
    /// Index of the server that the current transaction has read its rows and clock from.
    read_at: Cell<usize>,
    mine: Option<Arc<OwnState>>,
    /// Whether the server allows advisory locks.
    has_latches: Cell<bool>,
    /// Deadline of the current operation.
    by: Cell<Moment>,
    /// Whether this process reserves the locks that it reads.
    reserves: Cell<bool>,
    /// Whether the token held all locks at its last write, so that a read of the first waiters is
    /// likely enough.
    is_holder: Cell<bool>,
}

/// An open connection.
struct Line {
    /// Index of the server.
    server: usize,
    link: Box<dyn Link>,
    /// Whether the connection listens to the notification channel of this process's token.
    listens: bool,
    /// Whether the connection holds the advisory lock of this process's token.
    has_advisory_lock: bool,
    /// Whether the connection leads to one server process, without a pooler. Known after the first
    /// answer.
    is_direct: Option<bool>,
}

/// The token of this process.
struct OwnState {
    token: Token,
    is_given_up: AtomicBool,
}

impl Clone for Tables {
    /// The clone has no connection: a connection belongs to the process that made it.
    fn clone(&self) -> Self {
        let (database, server) = (Arc::clone(&self.database), Arc::clone(&self.server));
        let (mine, has_latches, by) = (self.mine.clone(), self.has_latches.clone(), self.by.clone());
        let (line, read_at, reserves, is_holder) = Default::default();
        Self { database, server, line, read_at, mine, has_latches, by, reserves, is_holder }
    }
}

impl Tables {
    fn over(database: Arc<dyn Database>) -> Self {
        let (has_latches, by) = (Cell::new(true), Cell::new(Moment::now()));
        let (server, line, read_at, mine, reserves, is_holder) = Default::default();
        Self { database, server, line, read_at, mine, has_latches, by, reserves, is_holder }
    }

    fn shown(&self) -> &str {
        &self.database.target().shown
    }

    /// Sets a deadline for requests between two operations.
    fn allow(&self) {
        if self.by.get().passed() {
            let target = self.database.target();
            self.by.set(Moment::now().after(target.connect_timeout + target.op_timeout));
        }
    }

    /// Sets the same deadline for the next requests, but `until` at the latest.
    fn allow_until(&self, until: Moment) {
        let target = self.database.target();
        self.by.set(Moment::now().after(target.connect_timeout + target.op_timeout).min(until));
    }

    /// Sends the statements in one round trip. With [`Again::Yes`] they are sent again if the
    /// connection turns out to be broken, or the server to be a standby.
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
                    // An interrupted request says nothing of its server, only that the server is
                    // a standby.
                    if interrupt::is_raised() && !matches!(failure, Failure::ReadOnly(_)) {
                        return Err(failure);
                    }
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
                // Another client changed the rows or created the tables at the same time.
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

    /// The same, and creates the tables if they are missing.
    fn ask_tables(&self, statements: &[String]) -> Result<Vec<Answer>, Failure> {
        match self.ask(statements, Again::Yes) {
            Err(Failure::NoTables(_)) => {}
            answer => return answer,
        }
        let tables = self.database.dialect().tables();
        let text = tables.join("; ");
        let tables: Vec<_> = tables.iter().map(ToString::to_string).collect();
        match self.ask(&tables, Again::Yes) {
            Ok(_) => self.ask(statements, Again::Yes),
            Err(Failure::Refused(Error::Denied(why)) | Failure::NoTables(Error::Denied(why))) => {
                Err(Failure::Refused(Error::Denied(format!(
                    "{why}; the tables of dlock are missing or hidden from this user, who may not make them: have an administrator run {text} and grant this user the rights that docs/stores.md names"
                ))))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Reads the rows of these locks, and the time before that.
    fn read(&self, question: &Question<'_>) -> Result<Found, Error> {
        self.find(&[self.database.dialect().read(question)])
    }

    /// The same, with other statements before it.
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

    /// Reads the rows of locks that are about to be changed. Creates missing ones.
    fn lock_rows(&self, names: &BTreeSet<String>, me: Option<&Token>) -> Result<(Vec<LockRow>, Time), Error> {
        let read = |question: &Question<'_>| {
            if self.reserves.get() {
                self.find(&self.database.dialect().reserve_and_read(question))
            } else {
                self.read(question)
            }
        };
        // The cost of a holder's transaction must not depend on the length of the queue.
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
            let dialect = self.database.dialect();
            let statements = [dialect.begin(&missing, found.now), dialect.read(&question)];
            found = Found::parse(&self.ask(&statements, Again::Yes)?[1..], self.shown())?;
        }
        self.entries(&question, found)
    }

    /// Reads all waiters of a lock, after only the first ones were read.
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

    /// Sends a statement that may run some time after a change, without waiting for its answer.
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

    /// Waits until a change that others have already seen is on the disk. Returns a conflict if the
    /// server has crashed and lost it: then the change must be made again.
    fn secure(&self, change: &Change) -> Result<Written, Error> {
        let Some(secure) = self.database.dialect().secure(change) else { return Ok(Written::Yes) };
        // The next holder's write goes to the disk first, and takes this change with it.
        thread::sleep(SECURE_AFTER);
        match self.ask(&[secure], Again::Yes) {
            Ok(answers) if answers.iter().all(|answer| answer.changed == change.ends.len() as u64) => {
                Ok(Written::Yes)
            }
            Ok(_) | Err(Failure::Conflict) => Ok(Written::Conflict),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// Whether the statements may be sent again, on another connection.
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

    /// Reads are rare because the predecessor releases its advisory lock when it ends or is granted
    /// the lock, or notifies the waiter.
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
            // If the rules have seen many waiters, they may look at many more.
            let shown = queue.waiting.iter().filter(|waiting| waiting.is_shown()).count();
            let behind = queue.waiting[waiter..].iter().filter(|waiting| !waiting.is_shown());
            let tokens = behind.filter_map(Waiting::token).filter(|token| !notes.contains_key(token));
            let tokens: Vec<_> = tokens.take(shown.clamp(1, NOTES_MOST)).collect();
            let answers = self.ask(&[self.database.dialect().notes(name, &tokens)], Again::Yes)?;
            notes.extend(answers[0].rows.iter().filter_map(|row| row::note(row)));
        }
        let note = notes.remove(&token).and_then(|note| serde_json::from_slice(&note).ok());
        let shown = note.and_then(|note| queue.show(waiter, note, name, record, tracked, |_, _| {}).ok());
        // Without a note, the waiter has left since, and the engine's write will conflict; or the
        // row is damaged, and the waiter joins again.
        Ok(shown.unwrap_or_else(|| {
            queue.waiting.remove(waiter);
            Vec::new()
        }))
    }

    fn write(&self, entries: Vec<(LockRow, Changed)>, now: Time, woken: &[Token]) -> Result<Written, Error> {
        if entries.iter().all(|(_, changed)| *changed == Changed::No) {
            return Ok(Written::Yes);
        }
        // The decision was made by the clock of the server that was read. Another server has
        // another clock.
        let is_at = |line: &Line| line.server == self.read_at.get();
        if self.database.target().has_standbys() && !self.line.borrow().as_ref().is_some_and(is_at) {
            return Ok(Written::Conflict);
        }
        // With a shared lock or slots there may be other holders, so the end of this one tells the
        // waiters nothing. Then this process takes no advisory lock.
        let is_alone = !self.mine.as_ref().is_some_and(|mine| {
            entries.iter().any(|(row, _)| {
                row.record.holds.contains_key(&mine.token)
                    && !matches!(row.record.lock, Lock::Exclusive { .. })
            })
        });
        let holds =
            |mine: &Arc<OwnState>| entries.iter().all(|(row, _)| row.record.holds.contains_key(&mine.token));
        let is_holder = self.mine.as_ref().is_some_and(holds);
        let change = Change::of(entries, now, woken, self.reserves.get())
            .map_err(|why| Error::Garbled(format!("{}: {why}", self.shown())))?;
        let dialect = self.database.dialect();
        let statement = dialect.write(&change);
        match self.ask_with_advisory_lock(
            dialect.before_write(&change).to_owned() + &statement,
            is_alone,
            Again::No,
        ) {
            Ok(answers) => {
                let is_done = answers.last().and_then(|answer| answer.rows.last()?.first()?.clone());
                if is_done.as_deref() != Some(b"1") {
                    return Ok(Written::Conflict);
                }
                self.is_holder.set(is_holder);
                self.tell(dialect.behind(&change));
                self.secure(&change)
            }
            // If the write was done, the retry finds other versions.
            Err(Failure::Conflict | Failure::Broken(_) | Failure::ReadOnly(_)) => Ok(Written::Conflict),
            Err(Failure::NoTables(why)) => {
                // The tables existed when they were read. If they are missing now, the next read
                // reports it.
                let names = change.read.iter().map(|(name, _)| name.clone()).collect();
                match (self.ask(&[dialect.versions(&names)], Again::Yes), why) {
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

    fn reserve(&self, reserves: bool) {
        self.reserves.set(reserves);
    }

    fn release(&self, _: Vec<LockRow>) {}

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
        let target = self.database.target();
        self.by.set(listed_by(self.by.get(), target.connect_timeout + target.op_timeout));
        let answers = self.ask_tables(&[self.database.dialect().names()])?;
        let name = |row: &Vec<Option<Vec<u8>>>| {
            let bytes = row.first()?.as_deref().and_then(row::unhex)?;
            String::from_utf8(bytes).ok()
        };
        let read = |row| name(row).ok_or_else(|| row::garbled(self.shown(), "?", "its name is invalid"));
        Ok(answers[0].rows.iter().map(read).collect())
    }

    fn clean_up(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % CLEANS_UP_EVERY == 0) {
            self.ask(&self.database.dialect().clean_up(), Again::No).ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(Arc::new(OwnState { token: token.clone(), is_given_up: AtomicBool::new(false) }));
        Ok(Vec::new())
    }

    fn end(&mut self, _: &Token) {}

    /// Other processes cannot see whether this one lives.
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

    /// The lease is only in the record.
    fn publish_lease(&self, _: &Token, _: Duration) -> bool {
        false
    }

    fn publish_heartbeat(&self, names: &Names, token: &Token, until: Duration) -> bool {
        let span = until.saturating_sub(self.now());
        self.allow();
        let heard = self.database.dialect().heard(names, token, millis(span));
        let said = self.ask_with_advisory_lock(heard, true, Again::Yes);
        let waits = |answers: Vec<Answer>| {
            answers.last().is_some_and(|answer| answer.changed == names.as_slice().len() as u64)
        };
        said.is_ok_and(waits)
    }

    fn has_watch_target(&self) -> bool {
        true
    }

    /// Every token can be watched, and counts as alive.
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
        // A waiter behind several holders cannot sleep at one advisory lock.
        let before = others.next().filter(|_| others.next().is_none());
        match self.wait(names, token, ahead, before, Moment::now().after(limit)) {
            Ok(heard) => Ok(heard),
            // The place in the queue does not depend on the connection. The next request shows
            // whether the server can be reached.
            Err(_) => {
                self.line.take();
                thread::sleep(POLL);
                Ok(true)
            }
        }
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        Box::new(RequestSubscription::new(self.clone(), names, token, listener))
    }
}

/// From the deadline that a waiter has published in its row: when it becomes stale and when its
/// ticket lapses, in milliseconds.
fn heard(said: u64) -> (u64, u64) {
    (said, said.saturating_sub(millis(SILENCE)).saturating_add(millis(TICKET_KEPT)))
}
