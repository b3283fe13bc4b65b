//! How can one machine keep locks without a server? The embedded store `file:/DIR`: records in a directory, changed by
//! the law under a file mutex, and FIFOs by which the kernel tells who has died. The records decide; a FIFO only
//! carries news.
//!
//! A *step* is one operation on one or several locks: take their mutexes, read their records, bury whoever is dead and
//! matters now, apply the law, replace the records, let go, and wake whom it concerns; see [`step`]. Nothing is kept in
//! memory between two steps but this process' own life and those it watches, so a forked copy of the store, the guard's,
//! is as good as the original.
//!
//! Who watches whom: a waiter watches the life of the one directly before it in each of its queues, and where it is the
//! head, those of the holders in its way. Who is granted the lock is woken by a byte, by the one whose step granted it;
//! if that one is killed before it can, its own death wakes the head, for that watched it, and others that were granted
//! the lock with it ask by themselves soon. So every release wakes one, and every death the one behind. What ends without
//! anybody's doing, a lease or a min-hold, is met by `next`, as everywhere.
//!
//! It does not help against a machine that several others mount the directory from; see [`directory`].

mod directory;
mod life;
mod mutex;
pub mod probe;
mod record;
mod step;
mod sweep;
#[cfg(test)]
mod tests;

use crate::clock::Moment;
use crate::law::{Acquired, Ask, Book, End, Left, Proof, Renewal, Requested, Revoke, Revoked};
use crate::law::{HEARTBEAT, LOG_KEPT, Phase, Record, Time};
use crate::lock::{Fence, Key, Name, Names, Owner, Token};
use crate::store::{Ear, Error, Listener, Store, View, Waiter};
use directory::{Directory, Kind};
use life::{Life, Pulse, Watch, pulse};
use record::{Boot, Kept, load};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use step::{Look, Step};

/// Watched at the same time are at most so many: each takes a descriptor, of which a process often has 1024.
const WATCHED_MOST: usize = 256;

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
    /// For tests: before which record that it replaces this process is killed, counted from the next step on.
    #[cfg(test)]
    killed_before: Option<usize>,
}

/// What `sleep` looks at besides this process' own life.
#[derive(Debug, Default)]
struct Watched {
    lives: BTreeMap<Token, Watch>,
    /// One of them ended before it could be watched.
    has_ended: bool,
}

impl Clone for FileStore {
    fn clone(&self) -> Self {
        Self {
            directory: Arc::clone(&self.directory),
            boot: self.boot.clone(),
            life: self.life.clone(),
            watched: Watched::default(),
            #[cfg(test)]
            killed_before: None,
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
        Ok(Self {
            directory: Arc::new(directory),
            boot,
            life: None,
            watched: Watched::default(),
            #[cfg(test)]
            killed_before: None,
        })
    }

    /// The life of `token`, if it is this process' own.
    fn life_of(&self, token: &Token) -> Option<&Arc<Life>> {
        self.life.as_ref().filter(|life| life.token() == token)
    }

    /// One operation of the law on behalf of `me`.
    fn step<R>(
        &self,
        names: &Names,
        me: Option<&Token>,
        look: Look,
        by: Moment,
        operation: impl FnOnce(&mut Step<'_>) -> R,
    ) -> Result<R, Error> {
        let mut step = Step::open(&self.directory, &self.boot, names, by)?;
        #[cfg(test)]
        {
            step.killed_before = self.killed_before;
        }
        step.bury(me, look);
        step.drop_spent(me);
        let answer = operation(&mut step);
        step.finish(me)?;
        Ok(answer)
    }

    /// What the next `sleep` looks at.
    fn watch(&mut self, whom: BTreeSet<Token>) {
        let mut before = std::mem::take(&mut self.watched).lives;
        for token in whom {
            let watch = match before.remove(&token) {
                Some(watch) => watch,
                None => match pulse(&self.directory, &token) {
                    Pulse::Beats(watch) => watch,
                    Pulse::Stopped => {
                        self.watched.has_ended = true;
                        continue;
                    }
                    Pulse::Unknown => continue,
                },
            };
            self.watched.lives.insert(token, watch);
        }
    }

    /// The records of these locks, read without their mutexes, with the dead among `whom` buried: a record is replaced
    /// whole. Who gives its token back replaces the record before its life ends, so if one that seems dead is still
    /// named by the same record afterwards, it is dead.
    fn read(
        &self,
        names: &Names,
        by: Moment,
        whom: impl Fn(&Kept) -> Vec<Token>,
    ) -> Result<(Vec<Kept>, Time), Error> {
        let paths: Vec<PathBuf> =
            names.iter().map(|name| self.directory.file(name.as_str(), Kind::Record)).collect();
        let load_all =
            || paths.iter().map(|path| load(&self.directory, path)).collect::<Result<Vec<_>, Error>>();
        let mut bytes = load_all()?;
        loop {
            let mut pages = Vec::with_capacity(paths.len());
            for ((name, path), bytes) in names.iter().zip(&paths).zip(&bytes) {
                let name = Some(name.as_str());
                pages.push(Kept::parse(&self.directory, path, bytes.as_deref(), name, &self.boot)?);
            }
            let offset = pages.iter().map(|kept| kept.offset).max().unwrap_or_default();
            pages.iter_mut().for_each(|kept| kept.lift(offset));
            let now = pages.first().map_or(Time(0), |kept| kept.now(&self.boot));
            let dead: BTreeSet<Token> = pages
                .iter()
                .flat_map(|kept| whom(kept).into_iter().filter(|token| self.is_dead(kept, token)))
                .collect();
            if !dead.is_empty() && !by.passed() {
                let again = load_all()?;
                if again != bytes {
                    bytes = again;
                    continue;
                }
            }
            for kept in &mut pages {
                dead.iter().for_each(|token| kept.record.bury(now, token));
            }
            return Ok((pages, now));
        }
    }

    fn is_dead(&self, kept: &Kept, token: &Token) -> bool {
        kept.lives.contains(token) && matches!(pulse(&self.directory, token), Pulse::Stopped)
    }

    fn end_life(&mut self, token: &Token) {
        if let Some(life) = self.life_of(token) {
            life.end();
            self.life = None;
        }
        self.watched = Watched::default();
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

    /// A token without a life ends only by its lease.
    fn hand_over(&mut self, names: &Names, token: &Token, by: Moment) -> Result<(), Error> {
        self.step(names, Some(token), Look::Heads, by, |step| step.doubt_in(token))?;
        self.end_life(token);
        Ok(())
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        let token = &ask.token;
        let life = self.life_of(token);
        let look = Look::Wants(ask.mode);
        let (mut answer, whom, is_named) = self.step(names, Some(token), look, by, |step| {
            // Another thread of this process may have given the token back while this one waited for the mutex.
            if life.is_some_and(|life| life.is_given_up()) {
                return (Acquired::Spent, BTreeSet::new(), false);
            }
            if life.is_some_and(|life| !life.has_ended()) {
                step.believe_in(token);
            }
            let answer = step.book.acquire(step.now, names, ask);
            let whom = match answer {
                Acquired::Waiting(_) => step.whom_to_watch(token, WATCHED_MOST),
                _ => BTreeSet::new(),
            };
            (answer, whom, step.is_named(token))
        })?;
        match &mut answer {
            Acquired::Waiting(waiting) => {
                if waiting.ahead > CROWD {
                    waiting.next = HEARTBEAT * 2;
                }
                self.watch(whom);
            }
            Acquired::Granted(_) => self.watched = Watched::default(),
            // Not that of a revoked holder, whose job may live.
            Acquired::Busy(_) | Acquired::Spent if !is_named => self.end_life(token),
            Acquired::Busy(_) | Acquired::Spent => {}
        }
        self.sweep_now_and_then();
        Ok(answer)
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        self.step(names, Some(token), Look::Heads, by, |step| step.book.renew(step.now, names, token, ttl))
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        if let Some(life) = self.life_of(token) {
            life.give_up();
        }
        let left = self
            .step(names, Some(token), Look::Heads, by, |step| step.book.leave(step.now, names, token, end))?;
        self.end_life(token);
        Ok(left)
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        let (pages, now) = self.read(names, by, |_| vec![token.clone()])?;
        let records = pages.into_iter().map(|kept| (kept.name, kept.record)).collect();
        Ok(Book { records }.prove(now, names, token))
    }

    fn request(&mut self, name: &Name, fence: Fence, who: &Owner, by: Moment) -> Result<Requested, Error> {
        let names = name.clone().into();
        self.step(&names, None, Look::Holders, by, |step| step.book.request(step.now, name, fence, who))
    }

    fn watch(&mut self, name: &Name, token: &Token, by: Moment) -> Result<(), Error> {
        let names = name.clone().into();
        self.step(&names, Some(token), Look::Heads, by, |step| {
            step.believe_in(token);
            step.book.watch(step.now, name, token);
        })
    }

    /// It needs the life that [`Store::prepare`] began; without one it only sleeps.
    fn ear(&mut self, _: &[Name], token: &Token, _: Listener) -> Result<Box<dyn Ear>, Error> {
        Ok(Box::new(Hearing { life: self.life_of(token).cloned(), directory: Arc::clone(&self.directory) }))
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        let names = name.clone().into();
        self.step(&names, None, Look::Holders, by, |step| step.book.revoke(step.now, name, revoke))
    }

    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let all = |kept: &Kept| {
            let Record { waiters, holds, .. } = &kept.record;
            let holders =
                holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling).map(|(token, _)| token);
            waiters.keys().chain(holders).cloned().collect()
        };
        let (pages, now) = self.read(&name.clone().into(), by, all)?;
        Ok(view(name, now, &pages[0]))
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
        if self.watched.has_ended {
            return Ok(());
        }
        let mine = self.life_of(token).map(AsRef::as_ref);
        life::sleep(mine, self.watched.lives.values(), until.left())
            .map_err(|errno| self.directory.error("wait for the lock", errno))
    }

    fn reset(&mut self) {
        self.watched = Watched::default();
    }
}

/// An ear: what wakes a life.
struct Hearing {
    life: Option<Arc<Life>>,
    directory: Arc<Directory>,
}

impl Ear for Hearing {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        life::sleep(self.life.as_deref(), std::iter::empty(), until.left())
            .map_err(|errno| self.directory.error("listen for news of the lock", errno))?;
        Ok(!until.passed())
    }
}

fn view(name: &Name, now: Time, kept: &Kept) -> View {
    let seen = kept.record.inspect(now);
    let mut log = seen.log;
    log.extend(kept.log());
    log.truncate(LOG_KEPT);
    View {
        name: name.clone(),
        now: now.millis(),
        state: seen.state,
        foreign: seen.foreign,
        mode: seen.mode,
        holders: seen.holders,
        left: seen.left,
        fence: seen.fence,
        waiters: seen
            .waiters
            .into_iter()
            .map(|(owner, mode, waiting)| Waiter { owner, mode, waiting })
            .collect(),
        log,
        stat: seen.stat,
    }
}
