//! How can one machine keep locks without a server? The embedded store `file:/DIR`: records in a directory, changed by
//! the law under a file mutex, and FIFOs by which the kernel tells who has died. The records decide; a FIFO only
//! carries news.
//!
//! A *step* is one operation on one or several locks: take their mutexes, read their records, bury whoever is dead and
//! matters now, apply the law, write the records, let go, and wake whom it concerns; see [`step`]. A renewal and a
//! waiter's heartbeat are no steps, as long as nothing is new: the holder or waiter says in its own file until when it is
//! to be believed ([`life`]), and looks at the records. Nothing is kept in memory between two steps but this process' own
//! life, what it last said there, and those it watches, so a forked copy of the store, the guard's, is as good as the
//! original.
//!
//! Who watches whom: a waiter watches the life of the one directly before it in each of its queues, and where it is the
//! head, those of the holders in its way. Who is granted the lock is woken by a byte, by the one whose step granted it;
//! if that one is killed before it can, its own death wakes the head, for that watched it, and others that were granted
//! the lock with it ask by themselves soon. So every release wakes one, and every death the one behind. What ends without
//! anybody's doing, a lease or a min-hold, is met by `next`, as everywhere.
//!
//! It does not help against a machine that several others mount the directory from; see [`directory`].

mod boot;
mod directory;
mod life;
mod mutex;
pub mod probe;
mod queue;
mod record;
mod slot;
mod step;
mod sweep;
#[cfg(test)]
mod tests;

use crate::clock::Moment;
use crate::law::{Acquired, Ask, End, Left, Patience, Proof, Renewal, Requested, Revoke, Revoked};
use crate::law::{Book, HEARTBEAT, LOG_KEPT, SILENCE, Time};
use crate::lock::{Fence, Key, Name, Names, Owner, Token};
use crate::store::{Error, Found, Listener, Store, Subscription, View, Which};
use boot::Boot;
use directory::{Directory, FileName, Kind};
use life::{Life, Pulse, Watch, pulse};
use record::{CatchUp, Kept};
use slot::{Access, FILE_MOST, load};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use step::{Look, Step};

/// Watched at the same time are at most so many: each takes a descriptor, of which a process often has 1024.
const WATCHED_MOST: usize = 256;

/// So many of a queue the law is shown at first: whom a release grants the lock, and who is behind that.
const FRONT: usize = 2;

/// Whoever has more than this many before it looks at the records the more rarely the more there are, for it reads all of
/// them. It is woken by whoever is before it in any case, and makes itself heard as often as the others.
const CROWD: u64 = 50;
/// So many times as rarely at most.
const RARELY: u32 = 8;

/// A directory with locks in it. A clone shares the life that [`FileStore::prepare`] began.
#[derive(Debug)]
pub struct FileStore {
    directory: Arc<Directory>,
    boot: Boot,
    life: Option<Arc<Life>>,
    /// When the lease ends, since boot, as far as this process has seen to it.
    lease: Option<Duration>,
    /// It waits, and last made itself heard then.
    heard: Option<Moment>,
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
    /// Those that had no file when they were to be watched. Most have left meanwhile, so it is worth asking again; once.
    missing: BTreeSet<Token>,
}

impl Clone for FileStore {
    fn clone(&self) -> Self {
        Self {
            directory: Arc::clone(&self.directory),
            boot: self.boot.clone(),
            life: self.life.clone(),
            lease: None,
            heard: None,
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
            lease: None,
            heard: None,
            watched: Watched::default(),
            #[cfg(test)]
            killed_before: None,
        })
    }

    /// Follows the path to another directory, if it leads to one: there is where the others are.
    fn follow(&mut self) -> Result<(), Error> {
        if let Some(directory) = self.directory.successor()? {
            self.directory = Arc::new(directory);
        }
        Ok(())
    }

    /// The life of `token`, if it is this process' own.
    fn life_of(&self, token: &Token) -> Option<&Arc<Life>> {
        self.life.as_ref().filter(|life| life.token() == token)
    }

    /// One operation of the law on behalf of `me`. It is applied again where it turned out to need more records.
    fn step<R>(
        &self,
        names: &Names,
        me: Option<&Token>,
        look: Look,
        by: Moment,
        operation: impl Fn(&mut Step<'_>) -> R,
    ) -> Result<R, Error> {
        let (mut needed, mut front) = (BTreeSet::new(), FRONT);
        loop {
            let mut step = Step::open(&self.directory, &self.boot, names, &needed, by)?;
            step.reveal(front, me, look)?;
            #[cfg(test)]
            {
                step.killed_before = self.killed_before;
            }
            step.bury(me, look)?;
            step.drop_spent(me);
            let answer = operation(&mut step);
            let missing = step.missing();
            let is_short = step.has_come_too_far();
            if missing.is_empty() && !is_short {
                step.finish(me)?;
                return Ok(answer);
            }
            step.forget();
            if is_short {
                front *= 8;
            }
            needed.extend(missing);
        }
    }

    /// What the operation would answer, if it would change nothing but how long this waiter is believed.
    fn idle_step<R>(
        &self,
        names: &Names,
        me: &Token,
        look: Look,
        operation: impl Fn(&mut Step<'_>) -> R,
    ) -> Result<Option<R>, Error> {
        let mut step = Step::look(&self.directory, &self.boot, names)?;
        // What is being changed meanwhile may look damaged.
        let is_fit = step.reveal(1, Some(me), look).and_then(|()| step.bury(Some(me), look)).is_ok();
        let answer = operation(&mut step);
        Ok((is_fit && !step.has_come_too_far() && step.is_idle(me)).then_some(answer))
    }

    /// What the next `sleep` looks at.
    fn watch(&mut self, whom: BTreeSet<Token>) {
        let Watched { lives: mut before, missing, .. } = std::mem::take(&mut self.watched);
        for token in whom {
            let watch = match before.remove(&token) {
                Some(watch) => watch,
                None => match pulse(&self.directory, &token) {
                    Pulse::Beats(watch) => watch,
                    Pulse::Stopped => {
                        self.watched.has_ended = true;
                        continue;
                    }
                    Pulse::Missing => {
                        self.watched.has_ended |= !missing.contains(&token);
                        self.watched.missing.insert(token);
                        continue;
                    }
                    Pulse::Unknown => continue,
                },
            };
            self.watched.lives.insert(token, watch);
        }
    }

    /// Makes a waiter heard, in its own file. Whether anybody can hear it there.
    fn beat(&mut self, token: &Token) -> bool {
        let now = Moment::now();
        let is_heard = self.life_of(token).is_some_and(|life| life.say(self.boot.now() + SILENCE));
        self.heard = is_heard.then_some(now);
        is_heard
    }

    /// Renews the lease in the holder's own file, if that is enough: see [`life`].
    fn renew_alone(&mut self, names: &Names, token: &Token, ttl: Duration) -> Result<Option<Renewal>, Error> {
        let Some((life, end)) = self.life_of(token).zip(self.lease) else { return Ok(None) };
        let until = self.boot.now() + ttl;
        if until < end || !life.say(until) || self.boot.now() >= end {
            return Ok(None);
        }
        let mut step = Step::look(&self.directory, &self.boot, names)?;
        let is_known = names.iter().all(|name| {
            let record = step.book.records.get(name.as_str());
            record.and_then(|record| record.holds.get(token)).is_some_and(|hold| hold.confirmed)
        });
        let renewal = step.book.renew(step.now, names, token, ttl);
        if !is_known || !matches!(renewal, Renewal::Renewed | Renewal::Asked) {
            return Ok(None);
        }
        self.lease = Some(until);
        Ok(Some(renewal))
    }

    /// The records of these locks, read without their mutexes, with the dead buried: of `whom`, or all of them, and then
    /// with all who wait. Who gives its token back changes the record before its life ends, so if one that seems dead is
    /// still named by the same record afterwards, it is dead.
    fn read(&self, names: &Names, whom: Option<&Token>, by: Moment) -> Result<(Vec<Kept>, Time), Error> {
        let directory = &*self.directory;
        let files: Vec<FileName> =
            names.iter().map(|name| FileName::of(name.as_str(), Kind::Record)).collect();
        let load_all = || {
            files.iter().map(|file| load(directory, file, Access::Look)).collect::<Result<Vec<_>, Error>>()
        };
        let mut contents = load_all()?;
        loop {
            let mut pages = Vec::with_capacity(files.len());
            for ((name, file), content) in names.iter().zip(&files).zip(&contents) {
                let name = Some(name.as_str());
                pages.push(Kept::parse(directory, file, content.as_ref(), name, &self.boot)?);
            }
            let offset = pages.iter().map(|kept| kept.offset).max().unwrap_or_default();
            pages.iter_mut().for_each(|kept| kept.lift(offset));
            let now = pages.first().map_or(Time(0), |kept| kept.now(&self.boot));
            let mut shown = Ok(());
            for kept in &mut pages {
                kept.catch_up(directory, &self.boot, now, CatchUp::All);
                if whom.is_none() {
                    shown = shown.and(kept.show_all(directory, &self.boot, now));
                }
            }
            let named = |kept: &Kept| match whom {
                Some(token) => vec![token.clone()],
                None => kept.tokens(),
            };
            let dead: BTreeSet<Token> = pages
                .iter()
                .flat_map(|kept| named(kept).into_iter().filter(|token| self.is_dead(kept, token)))
                .collect();
            if (!dead.is_empty() || shown.is_err()) && !by.passed() {
                let again = load_all()?;
                if again != contents {
                    contents = again;
                    continue;
                }
            }
            shown?;
            for kept in &mut pages {
                dead.iter().for_each(|token| kept.record.bury(now, token));
            }
            return Ok((pages, now));
        }
    }

    fn is_dead(&self, kept: &Kept, token: &Token) -> bool {
        kept.lives.contains_key(token) && matches!(pulse(&self.directory, token), Pulse::Stopped)
    }

    fn end_life(&mut self, token: &Token) {
        if let Some(life) = self.life_of(token) {
            life.end(&self.directory);
            self.life = None;
        }
        (self.lease, self.heard) = (None, None);
        self.watched = Watched::default();
    }

    /// Every record in the directory. What is called like one and is no file of dlock's concerns only that lock.
    fn records(&self) -> Result<Vec<Result<Kept, Error>>, Error> {
        let failed = |errno| self.directory.error("list the records", errno);
        let mut records = Vec::new();
        for (file, kind) in self.directory.names().map_err(failed)? {
            if kind != Kind::Record || !self.directory.has_file(&file, FILE_MOST) {
                continue;
            }
            if let Some(content) = load(&self.directory, &file, Access::Look)? {
                records.push(Kept::parse(&self.directory, &file, Some(&content), None, &self.boot));
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
        let fds = vec![life.fd(), self.directory.raw_fd()];
        self.life = Some(Arc::new(life));
        Ok(fds)
    }

    /// A token without a life ends only by its lease.
    fn hand_over(&mut self, names: &Names, token: &Token, by: Moment) -> Result<(), Error> {
        self.follow()?;
        self.step(names, Some(token), Look::Heads, by, |step| step.doubt_in(token))?;
        self.end_life(token);
        Ok(())
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        self.follow()?;
        let token = &ask.token;
        let began = self.boot.now();
        let waits = self.heard.is_some() && ask.patience == Patience::Queue && self.beat(token);
        let life = self.life_of(token);
        let look = Look::Wants(ask.mode);
        let operation = |step: &mut Step<'_>| {
            // Another thread of this process may have given the token back while this one waited for the mutex.
            if life.is_some_and(|life| life.is_given_up()) {
                return (Acquired::Spent, BTreeSet::new(), false);
            }
            if life.is_some_and(|life| !life.has_ended()) {
                step.believe_in(token, ask.ttl);
            }
            let mut answer = step.book.acquire(step.now, names, ask);
            if let Acquired::Waiting(waiting) = &mut answer {
                waiting.ahead = step.ahead(token);
            }
            let whom = match answer {
                Acquired::Waiting(_) => step.whom_to_watch(token, WATCHED_MOST),
                _ => BTreeSet::new(),
            };
            (answer, whom, step.is_named(token))
        };
        let idle = if waits { self.idle_step(names, token, look, operation)? } else { None };
        let (mut answer, whom, is_named) = match idle {
            Some(answer @ (Acquired::Waiting(_), ..)) => answer,
            _ => self.step(names, Some(token), look, by, operation)?,
        };
        match &mut answer {
            Acquired::Waiting(waiting) => {
                if waiting.ahead > CROWD {
                    let rarely = u32::try_from(waiting.ahead / CROWD).unwrap_or(RARELY);
                    waiting.next = HEARTBEAT * (1 + rarely).min(RARELY);
                }
                self.heard = Some(Moment::now());
                self.watch(whom);
            }
            Acquired::Granted(_) => {
                self.lease = Some(began + ask.ttl);
                self.heard = None;
                self.watched = Watched::default();
            }
            // Not that of a revoked holder, whose job may live.
            Acquired::Busy(_) | Acquired::Spent if !is_named => self.end_life(token),
            Acquired::Busy(_) | Acquired::Spent => {}
        }
        self.sweep_now_and_then();
        Ok(answer)
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        self.follow()?;
        if let Some(renewal) = self.renew_alone(names, token, ttl)? {
            return Ok(renewal);
        }
        let began = self.boot.now();
        let renewal = self
            .step(names, Some(token), Look::Heads, by, |step| step.book.renew(step.now, names, token, ttl))?;
        let is_held = matches!(renewal, Renewal::Renewed | Renewal::Asked);
        self.lease = self.life_of(token).filter(|_| is_held).map(|_| began + ttl);
        Ok(renewal)
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        self.follow()?;
        if let Some(life) = self.life_of(token) {
            life.give_up();
        }
        let left = self
            .step(names, Some(token), Look::Heads, by, |step| step.book.leave(step.now, names, token, end))?;
        self.end_life(token);
        Ok(left)
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        self.follow()?;
        let (pages, now) = self.read(names, Some(token), by)?;
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
            step.believe_in(token, Duration::ZERO);
            step.book.watch(step.now, name, token);
        })
    }

    /// It needs the life that [`Store::prepare`] began; without one it only sleeps.
    fn subscribe(&mut self, _: &[Name], token: &Token, _: Listener) -> Result<Box<dyn Subscription>, Error> {
        Ok(Box::new(Hearing { life: self.life_of(token).cloned(), directory: Arc::clone(&self.directory) }))
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        let names = name.clone().into();
        self.step(&names, None, Look::Holders, by, |step| step.book.revoke(step.now, name, revoke))
    }

    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        self.follow()?;
        let (pages, now) = self.read(&name.clone().into(), None, by)?;
        Ok(view(name, now, &pages[0]))
    }

    fn find(&mut self, prefix: &str, _: Which) -> Result<Found, Error> {
        self.follow()?;
        self.sweep();
        let (mut names, mut missing) = (BTreeMap::new(), Vec::new());
        for kept in self.records()? {
            match kept {
                Ok(kept) if kept.is_empty() => {}
                Ok(kept) => {
                    let name = kept.name.strip_prefix(prefix).and_then(|key| Key::new(key).ok());
                    if let Some(name) = name.and_then(|key| Name::new(prefix, &key).ok()) {
                        names.insert(kept.name, name);
                    }
                }
                Err(error) => missing.push(error),
            }
        }
        Ok(Found { names: names.into_values().collect(), missing })
    }

    fn sleep(&mut self, _: &Names, token: &Token, until: Moment) -> Result<(), Error> {
        if self.watched.has_ended {
            return Ok(());
        }
        loop {
            let next = self.heard.map_or(until, |heard| heard.after(HEARTBEAT).min(until));
            let mine = self.life_of(token).map(AsRef::as_ref);
            let is_woken = life::sleep(mine, self.watched.lives.values(), next.left())
                .map_err(|errno| self.directory.error("wait for the lock", errno))?;
            if is_woken || until.passed() || next == until || !self.beat(token) {
                return Ok(());
            }
        }
    }

    fn reset(&mut self) {
        self.watched = Watched::default();
    }
}

/// A subscription: what wakes a life.
struct Hearing {
    life: Option<Arc<Life>>,
    directory: Arc<Directory>,
}

impl Subscription for Hearing {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        life::sleep(self.life.as_deref(), std::iter::empty(), until.left())
            .map_err(|errno| self.directory.error("listen for news of the lock", errno))?;
        Ok(!until.passed())
    }
}

fn view(name: &Name, now: Time, kept: &Kept) -> View {
    let mut view = kept.record.inspect(name, now);
    view.log.extend(kept.log());
    view.log.truncate(LOG_KEPT);
    view
}
