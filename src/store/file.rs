//! How can one machine keep locks without a server? The embedded store `file:/DIR`: records in a directory, changed by
//! the law under a file mutex, and FIFOs by which the kernel tells who has died. The records decide; a FIFO only
//! carries news.
//!
//! A *step* is one operation: take the mutex, read the record, bury whoever is dead and matters now, apply the law,
//! replace the record, let go, and wake whom it concerns. Nothing is kept in memory between two steps but this process'
//! own life and the one it watches, so a forked copy of the store, the guard's, is as good as the original.
//!
//! Who watches whom: a waiter watches the life of the one directly before it, the head that of the holder. Who is
//! granted the lock is woken by a byte, by the one whose step granted it; if that one is killed before it can, its own
//! death wakes the head, for that watched it. So every release wakes one, and every death the one behind. What ends
//! without anybody's doing, a lease or a min-hold, is met by `next`, as everywhere.
//!
//! It does not help against a machine that several others mount the directory from; see [`directory`].

mod directory;
mod life;
mod mutex;
mod record;
#[cfg(test)]
mod tests;

use crate::clock::Moment;
use crate::law::{Acquired, Ask, End, Left, Proof, Renewal, Revoke, Revoked};
use crate::law::{HEARTBEAT, HISTORY_KEPT, Lock, Record, Time};
use crate::lock::{Key, Mode, Name, Names, Token};
use crate::store::{Error, Store, View, Waiter};
use directory::{Directory, Kind, remove};
use life::{Life, Pulse, Watch, pulse};
use mutex::Mutex;
use record::{Boot, Kept, load};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often abandoned files are looked for on behalf of a lock that is used.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

/// Whoever has more than this many before it makes itself heard half as often: still within the silence that the law
/// allows, and woken in any case. Each heartbeat rewrites the whole record, and a thousand waiters would do little else.
const CROWD: u64 = 50;

/// A directory with locks in it. A clone shares the life that [`FileStore::prepare`] began.
#[derive(Debug)]
pub struct FileStore {
    directory: Arc<Directory>,
    boot: Boot,
    life: Option<Arc<Life>>,
    watched: Watched,
}

/// What `sleep` looks at besides this process' own life.
#[derive(Debug)]
enum Watched {
    Nothing,
    Other(Watch),
    /// It ended before it could be watched.
    Ended,
}

impl Clone for FileStore {
    fn clone(&self) -> Self {
        Self {
            directory: Arc::clone(&self.directory),
            boot: self.boot.clone(),
            life: self.life.clone(),
            watched: Watched::Nothing,
        }
    }
}

impl FileStore {
    /// Opens the store in `directory`, an absolute path; creates the directory if there is none. `shown` is the
    /// store's URL, for messages.
    pub fn open(directory: &Path, shown: &str) -> Result<Self, Error> {
        let directory = Directory::open(directory, shown)?;
        let boot = Boot::current().map_err(|error| {
            Error::Unfit(format!("{shown}: cannot read which boot this is ({error}); is /proc mounted?"))
        })?;
        Ok(Self { directory: Arc::new(directory), boot, life: None, watched: Watched::Nothing })
    }

    /// The life of `token`, if it is this process' own.
    fn life_of(&self, token: &Token) -> Option<&Arc<Life>> {
        self.life.as_ref().filter(|life| life.token() == token)
    }

    /// One operation of the law on behalf of `me`.
    fn step<R>(
        &self,
        name: &Name,
        me: Option<&Token>,
        by: Moment,
        operation: impl FnOnce(&mut Kept, Time) -> R,
    ) -> Result<R, Error> {
        let mutex = Mutex::lock(&self.directory, name.as_str(), by)?;
        let path = self.directory.file(name.as_str(), Kind::Record);
        let bytes = load(&self.directory, &path)?;
        let is_new = bytes.is_none();
        let mut kept =
            Kept::parse(&self.directory, &path, bytes.as_deref(), Some(name.as_str()), &self.boot)?;
        let now = kept.now(&self.boot);
        let before = Glance::at(&kept.record);

        let dead = self.bury(&mut kept, now, me);
        self.drop_spent(&mut kept, me);
        let answer = operation(&mut kept, now);
        // If the lock went to a dead one, behind those looked at, whoever is behind that watches it and asks at once.
        let woken =
            before.whom_to_wake(&kept.record, me).and_then(|token| match pulse(&self.directory, &token) {
                Pulse::Beats(watch) => Some(watch),
                Pulse::Stopped | Pulse::Unknown => None,
            });

        let saved = if kept.is_empty() { Ok(()) } else { kept.save(&self.directory, now) };
        if is_new && (kept.is_empty() || saved.is_err()) {
            // Nothing is kept of this lock, so its mutex goes too; if it cannot, a sweep finds it.
            mutex.remove().ok();
        } else {
            drop(mutex);
        }
        saved?;
        // After the mutex was let go: whoever is woken takes it at once.
        if let Some(watch) = woken {
            watch.wake();
        }
        for path in dead {
            remove(&path).ok();
        }
        Ok(answer)
    }

    /// Buries whoever is dead and stands where it would hold up others, or be granted the lock: the holder, the head,
    /// and the one directly before `me`. Answers their files.
    fn bury(&self, kept: &mut Kept, now: Time, me: Option<&Token>) -> Vec<PathBuf> {
        let mut dead = Vec::new();
        loop {
            let holder = kept.record.hold.as_ref().map(|hold| &hold.token);
            let head = kept.record.queue.first().map(|(_, token)| token);
            let before_me = me.and_then(|me| predecessor(&kept.record, me));
            // The head, because with the holder buried it is the next to be granted the lock.
            let found = [head, before_me, holder]
                .into_iter()
                .flatten()
                .find(|token| Some(*token) != me && self.is_dead(kept, token))
                .cloned();
            let Some(token) = found else { return dead };
            kept.record.bury(now, &token);
            kept.lives.remove(&token);
            dead.push(self.directory.file(token.secret(), Kind::Life));
        }
    }

    fn is_dead(&self, kept: &Kept, token: &Token) -> bool {
        kept.lives.contains(token) && matches!(pulse(&self.directory, token), Pulse::Stopped)
    }

    /// A token that was given back is remembered for the sake of requests that arrive late. None can come from a
    /// process that is no more; without this, a lock that is taken all the time would keep a long list.
    fn drop_spent(&self, kept: &mut Kept, me: Option<&Token>) {
        let done: Vec<Token> = kept
            .record
            .spent
            .keys()
            .filter(|token| Some(*token) != me && self.is_dead(kept, token))
            .cloned()
            .collect();
        for token in done {
            kept.record.spent.remove(&token);
        }
    }

    /// What the next `sleep` looks at.
    fn watch(&mut self, whom: Option<&Token>) {
        let same = matches!(&self.watched, Watched::Other(watch) if Some(watch.token()) == whom);
        if !same {
            self.watched = match whom.map(|token| pulse(&self.directory, token)) {
                Some(Pulse::Beats(watch)) => Watched::Other(watch),
                Some(Pulse::Stopped) => Watched::Ended,
                Some(Pulse::Unknown) | None => Watched::Nothing,
            };
        }
    }

    fn end_life(&mut self, token: &Token) {
        if let Some(life) = self.life_of(token) {
            life.end();
            self.life = None;
        }
        self.watched = Watched::Nothing;
    }

    /// Sweeps if nobody did for a while.
    fn sweep_now_and_then(&self) {
        let path = self.directory.swept();
        let swept = std::fs::metadata(&path).and_then(|meta| meta.modified());
        if swept.is_ok_and(|time| age(time) < SWEEP_EVERY) {
            return;
        }
        // First, so that of many that find it old few sweep. Made anew, for it may be another user's.
        if remove(&path).is_ok() && std::fs::write(&path, b"").is_ok() {
            self.sweep();
        }
    }

    /// Removes what the dead have left, and records too old to keep. What cannot be removed now is met again.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(self.directory.path()) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let is = |kind: Kind| entry.file_name().as_encoded_bytes().ends_with(kind.suffix().as_bytes());
            let is_older_than = |span: Duration| {
                let modified = entry.metadata().and_then(|meta| meta.modified());
                modified.is_ok_and(|time| age(time) > span)
            };
            // One that was never opened may be about to be.
            let is_life = is(Kind::Life) || is(Kind::Unborn) && is_older_than(SWEEP_EVERY);
            if is_life && life::is_abandoned(&path) {
                remove(&path).ok();
            } else if is(Kind::Record) && is_older_than(HISTORY_KEPT) {
                self.remove_history(&path);
            } else if is(Kind::Mutex) && !with(&path, Kind::Record).exists() {
                self.remove_history(&with(&path, Kind::Record));
            }
        }
    }

    /// Removes the record at `path` with all that belongs to it, if it says nothing.
    fn remove_history(&self, path: &Path) {
        let Some(mutex) = Mutex::take_idle(&with(path, Kind::Mutex)) else { return };
        let is_empty = match load(&self.directory, path) {
            Ok(None) => true,
            Ok(Some(bytes)) => Kept::parse(&self.directory, path, Some(&bytes), None, &self.boot)
                .is_ok_and(|kept| kept.is_empty()),
            Err(_) => false,
        };
        if is_empty && remove(path).is_ok() && remove(&with(path, Kind::Draft)).is_ok() {
            mutex.remove().ok();
        }
    }

    /// Every record in the directory.
    fn records(&self) -> Result<Vec<Kept>, Error> {
        let failed = |error: std::io::Error| self.directory.io("list the records", &error);
        let mut records = Vec::new();
        for entry in std::fs::read_dir(self.directory.path()).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !path.as_os_str().as_encoded_bytes().ends_with(Kind::Record.suffix().as_bytes()) {
                continue;
            }
            if let Some(bytes) = load(&self.directory, &path)? {
                records.push(Kept::parse(&self.directory, &path, Some(&bytes), None, &self.boot)?);
            }
        }
        Ok(records)
    }
}

impl Store for FileStore {
    /// Begins a life for `token`: as long as the descriptor that this answers is open in any process, the holder or
    /// waiter of that token counts as alive. Call it before the guard is forked, and let the guard keep the descriptor;
    /// it is closed on exec. A token without a life ends only by its lease, or by silence.
    ///
    /// The life ends with [`Store::leave`], and when `acquire` answers [`Acquired::Busy`] or [`Acquired::Spent`]; a
    /// token that asks again after that has none.
    fn prepare(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let life = Life::begin(&self.directory, token)?;
        let fd = life.fd();
        self.life = Some(Arc::new(life));
        Ok(vec![fd])
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        let name = names.first();
        let life = self.life_of(&ask.token);
        let (mut answer, whom, is_named) = self.step(name, Some(&ask.token), by, |kept, now| {
            // Another thread of this process may have given the token back while this one waited for the mutex.
            if life.is_some_and(|life| life.is_given_up()) {
                return (Acquired::Spent, None, false);
            }
            if life.is_some_and(|life| !life.has_ended()) {
                kept.lives.insert(ask.token.clone());
            }
            let answer = kept.record.acquire(now, ask);
            let is_named = kept.record.hold.as_ref().is_some_and(|hold| hold.token == ask.token);
            (answer, whom_to_watch(kept, &ask.token), is_named)
        })?;
        match &mut answer {
            Acquired::Waiting(waiting) => {
                if waiting.ahead > CROWD {
                    waiting.next = HEARTBEAT * 2;
                }
                self.watch(whom.as_ref());
            }
            Acquired::Granted(_) => self.watched = Watched::Nothing,
            // Not that of a revoked holder, whose job may live.
            Acquired::Busy(_) | Acquired::Spent if !is_named => self.end_life(&ask.token),
            Acquired::Busy(_) | Acquired::Spent => {}
        }
        self.sweep_now_and_then();
        Ok(answer)
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        self.step(names.first(), Some(token), by, |kept, now| kept.record.renew(now, token, ttl))
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        let name = names.first();
        if let Some(life) = self.life_of(token) {
            life.give_up();
        }
        let left = self.step(name, Some(token), by, |kept, now| kept.record.leave(now, token, end))?;
        self.end_life(token);
        Ok(left)
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        self.step(names.first(), None, by, |kept, now| kept.record.prove(now, token))
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        self.step(name, None, by, |kept, now| kept.record.revoke(now, revoke))
    }

    /// Reads without the mutex: a record is replaced whole. Who gives its token back replaces the record before its
    /// life ends, so if one that seems dead is still named by the record afterwards, it is dead.
    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let path = self.directory.file(name.as_str(), Kind::Record);
        let mut bytes = load(&self.directory, &path)?;
        loop {
            let mut kept =
                Kept::parse(&self.directory, &path, bytes.as_deref(), Some(name.as_str()), &self.boot)?;
            let now = kept.now(&self.boot);
            let record = &kept.record;
            let tokens = record.waiters.keys().chain(record.hold.iter().map(|hold| &hold.token));
            let dead: Vec<Token> = tokens.filter(|token| self.is_dead(&kept, token)).cloned().collect();
            if !dead.is_empty() && !by.passed() {
                let again = load(&self.directory, &path)?;
                if again != bytes {
                    bytes = again;
                    continue;
                }
            }
            for token in &dead {
                kept.record.bury(now, token);
            }
            return Ok(view(name, now, &kept));
        }
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<Name>, Error> {
        self.sweep();
        let mut names = BTreeMap::new();
        for kept in self.records()? {
            if kept.is_empty() {
                continue;
            }
            let name = kept.name.strip_prefix(prefix).and_then(|key| Key::new(key).ok());
            if let Some(name) = name.and_then(|key| Name::new(prefix, &key).ok()) {
                names.insert(kept.name, name);
            }
        }
        Ok(names.into_values().collect())
    }

    fn sleep(&mut self, _: &Names, token: &Token, until: Moment) -> Result<(), Error> {
        let other = match &self.watched {
            Watched::Ended => return Ok(()),
            Watched::Other(watch) => Some(watch),
            Watched::Nothing => None,
        };
        let mine = self.life_of(token).map(AsRef::as_ref);
        life::sleep(mine, other, until.left())
            .map_err(|errno| self.directory.error("wait for the lock", errno))
    }

    fn reset(&mut self) {
        self.watched = Watched::Nothing;
    }
}

/// What decides whom a step has to wake.
struct Glance {
    holder: Option<Token>,
    head: Option<Token>,
    lock: std::mem::Discriminant<Lock>,
}

impl Glance {
    fn at(record: &Record) -> Self {
        Self {
            holder: record.hold.as_ref().map(|hold| hold.token.clone()),
            head: record.queue.first().map(|(_, token)| token.clone()),
            lock: std::mem::discriminant(&record.lock),
        }
    }

    /// Whoever was granted the lock and does not know it yet; else the head, if it is another or what it waits for is.
    fn whom_to_wake(&self, record: &Record, me: Option<&Token>) -> Option<Token> {
        let now = Self::at(record);
        let granted = record.hold.as_ref().filter(|hold| !hold.confirmed).map(|hold| hold.token.clone());
        if granted.is_some() && granted != self.holder {
            return granted;
        }
        let is_news = now.head != self.head || now.lock != self.lock;
        now.head.filter(|head| is_news && Some(head) != me)
    }
}

/// The token that a waiter has to watch, if it has a life.
fn whom_to_watch(kept: &Kept, me: &Token) -> Option<Token> {
    let holder = || kept.record.hold.as_ref().map(|hold| &hold.token);
    let token = predecessor(&kept.record, me).or_else(holder);
    token.filter(|token| kept.lives.contains(*token)).cloned()
}

/// The waiter directly before `me` in the queue.
fn predecessor<'a>(record: &'a Record, me: &Token) -> Option<&'a Token> {
    let ticket = record.waiters.get(me)?.ticket;
    record.queue.range(..(ticket, me.clone())).next_back().map(|(_, token)| token)
}

fn view(name: &Name, now: Time, kept: &Kept) -> View {
    let seen = kept.record.inspect(now);
    let mut log = seen.log;
    log.extend(kept.log());
    log.truncate(crate::law::LOG_KEPT);
    View {
        name: name.clone(),
        now: now.millis(),
        state: seen.blocker.state,
        foreign: seen.foreign,
        mode: seen.blocker.mode,
        holders: seen.blocker.holder.into_iter().collect(),
        left: seen.blocker.left,
        fence: seen.fence,
        waiters: seen
            .waiters
            .into_iter()
            .map(|(owner, waiting)| Waiter { owner, mode: Mode::Exclusive, waiting })
            .collect(),
        log,
    }
}

/// The file that belongs to the same lock.
fn with(path: &Path, kind: Kind) -> PathBuf {
    path.with_extension(&kind.suffix()[1..])
}

/// How long ago that was; nothing for the future, where a clock that stepped may have put it.
fn age(time: SystemTime) -> Duration {
    time.elapsed().unwrap_or_default()
}
