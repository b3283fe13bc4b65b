//! How can an ensemble of ZooKeeper keep locks? The store `zookeeper://…`: a node for each lock, one below it for each of those
//! who wait, and one for each process that holds or waits, which goes with its session. What is done with them is the
//! engine's affair; here is what ZooKeeper does for it.
//!
//! *A step takes two round trips.* The first reads the nodes. The second writes all of them, or none if one of them has
//! changed since; then the engine begins again. Any server may answer the first, also one that lags behind: what it says is
//! believed only if the second, which all agree on, finds the same versions.
//!
//! *The lease is the session.* A session is as long as the ttl, and whoever asks for a lock has a node that lives as long as
//! it: its life. As long as a life is there, the lock is held, whatever a clock says. A life that is gone is a hold that is
//! over as soon as its end in the record has come as well: a server that fails takes with it what it has not told the leader
//! of, among that the last sign of life of a session, so a session may end sooner than its client believes. That is also why
//! a renewal writes the record. The own hold is judged by the record alone.
//!
//! *The clock* is that of the leader, which stamps what it writes. Between two of one's own writes one counts on, for a
//! short time: never ahead of that clock where others are judged, never behind it where one's own lease is written.
//!
//! *Who wakes whom.* A life is written to, and its owner watches it; who stands before one is watched for its end. Watches
//! are lost with a connection, and set again. A waiter says that it is there by writing to its place in the queue, which
//! nobody watches: one request, whoever else waits.

mod jute;
mod node;
mod probe;
mod session;
mod wire;

use crate::clock::Moment;
use crate::law::{Due, LOG_KEPT, Record, SILENCE, TICKET_KEPT, Time, millis};
use crate::lock::{Name, Names, Token};
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, granted_alone, queue};
use crate::store::{Error, Listener, Subscription};
use jute::{Answer, Ask, Code, Kind, Stat};
use node::LockNode;
use session::{Length, Session};
use sha1_smol::Sha1;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use wire::Failure;

pub use session::Target;

/// Of so many who hold or have left it is looked at once whether they live.
const HOLDERS: usize = 8;
/// How many broken connections one exchange may meet.
const BROKEN_MOST: u32 = 8;
/// A step is not larger than a server takes (`jute.maxbuffer`).
const STEP_MOST: usize = 1_000_000;
/// So long one counts on from a stamp of the leader's clock.
const STAMP_GOOD: Duration = Duration::from_secs(2);
/// Two clocks that do not run alike differ by one part in so many, at the most.
const DRIFT: u32 = 100;
/// A lease whose session lives lasts so long at the least.
const LASTS: Duration = Duration::from_millis(500);
/// So many of a queue are read at once where several of them may be granted the lock.
const FRONT: usize = 3;
/// Who waits reads so many of the last ends: enough to tell how long a run mostly takes.
const ENDS: usize = 16;
/// Whoever has more than so many before it looks at the records more rarely: it is woken by whoever is before it.
const NEAR: u64 = 4;
/// Where a connection failed while one waited.
const PAUSE: Duration = Duration::from_millis(25);
/// How long nothing is heard after a subscription failed.
const BACKOFF: Duration = Duration::from_secs(1);
/// Of so many steps one removes what is too old to keep, and looks at so many locks for that.
const TIDIES_EVERY: u32 = 512;
const TIDIES_MOST: usize = 64;

/// An ensemble with locks in it.
pub type ZooKeeperStore = Engine<Znodes>;

impl ZooKeeperStore {
    /// It connects when it is first used.
    pub fn open(target: Target) -> Self {
        Self::new(Znodes::over(Arc::new(target)))
    }
}

/// What an ensemble does for the engine.
pub struct Znodes {
    target: Arc<Target>,
    session: RefCell<Session>,
    mine: Option<Arc<Mine>>,
    /// How long the lease of this process is, once it has asked for one.
    ttl: Option<Duration>,
    life: Cell<Option<Life>>,
    /// When the operation under way is to end.
    by: Cell<Moment>,
    stamp: Cell<Option<Stamp>>,
    /// By how much the end of the own lease may be written too early, as the last step counted.
    uncertain: Cell<Duration>,
    /// Who asked for the last step.
    asker: RefCell<Option<Token>>,
    /// The lives that were looked at in this step, and whether they are there.
    lives: RefCell<BTreeMap<Token, bool>>,
    /// When those who wait were last heard of, in milliseconds since 1970, as far as this step has read it.
    heard: RefCell<BTreeMap<Token, u64>>,
    /// Until when holders are believed by the record, as the last step read it.
    believed: RefCell<BTreeMap<Token, Due>>,
    /// Where this process waits, by lock.
    places: RefCell<BTreeMap<String, Place>>,
    /// What this process will want to know when it gives back what it holds.
    ahead: RefCell<Ahead>,
    /// A server may lag behind what was done.
    must_sync: Cell<bool>,
}

/// The token of this process.
struct Mine {
    token: Token,
    is_given_up: AtomicBool,
}

/// The life of this process.
#[derive(Clone, Copy)]
struct Life {
    /// That of this session.
    turn: u64,
    /// The connection on which it is watched.
    dial: u64,
    /// Somebody else has ended it.
    was_ended: bool,
}

/// The node of this process in a queue, as it was read or written last.
struct Place {
    path: String,
    data: Vec<u8>,
    version: i32,
}

/// What is read together with a lock, and would take a round trip of its own when the lock has told that it is wanted.
#[derive(Default)]
struct Ahead {
    /// Those who wait, with their locks and their nodes.
    notes: Vec<(String, Token, String)>,
    lives: Vec<Token>,
}

/// What the clock of the leader showed.
#[derive(Clone, Copy)]
struct Stamp {
    /// In milliseconds since 1970.
    at: u64,
    /// It was read between these.
    sent: Moment,
    heard: Moment,
}

impl Stamp {
    /// No later than that clock shows at a moment, in microseconds since 1970.
    fn lower(self, now: Moment) -> u64 {
        let passed = now.since(self.heard);
        (self.at * 1000).saturating_add(micros(passed - passed / DRIFT))
    }

    /// No earlier.
    fn upper(self, now: Moment) -> u64 {
        let passed = now.since(self.sent);
        (self.at * 1000 + 1000).saturating_add(micros(passed + passed / DRIFT))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The life of another process.
pub struct Watch {
    path: String,
    /// The connection on which its end is told.
    dial: Cell<u64>,
}

impl Clone for Znodes {
    /// Sessions belong to the process that began them.
    fn clone(&self) -> Self {
        Self { mine: self.mine.clone(), ..Self::over(Arc::clone(&self.target)) }
    }
}

/// Whether something may be sent again on another connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl Znodes {
    fn over(target: Arc<Target>) -> Self {
        Self {
            session: RefCell::new(Session::new(Arc::clone(&target))),
            target,
            mine: None,
            ttl: None,
            life: Cell::new(None),
            by: Cell::new(Moment::now()),
            stamp: Cell::new(None),
            uncertain: Cell::new(Duration::ZERO),
            asker: RefCell::default(),
            lives: RefCell::default(),
            heard: RefCell::default(),
            believed: RefCell::default(),
            places: RefCell::default(),
            ahead: RefCell::default(),
            must_sync: Cell::new(false),
        }
    }

    fn shown(&self) -> &str {
        &self.target.shown
    }

    fn base(&self) -> String {
        format!("{}/dlock", self.target.chroot)
    }

    fn locks(&self) -> String {
        format!("{}/locks", self.base())
    }

    fn clock(&self) -> String {
        format!("{}/clock", self.base())
    }

    fn lock_path(&self, name: &str) -> String {
        format!("{}/{}", self.locks(), node::lock_name(name))
    }

    /// The life of a token. Its name is no secret: it is shown to whoever asks a server for its sessions.
    fn life_path(&self, token: &Token) -> String {
        format!("{}/lives/{}", self.base(), Sha1::from(token.secret()).digest())
    }

    /// What is asked between two operations has a time of its own.
    fn allow(&self) {
        if self.by.get().passed() {
            self.by.set(Moment::now().after(self.target.connect_timeout + self.target.op_timeout));
        }
    }

    /// One round trip. What can be done twice is sent again where the connection turns out to be broken.
    fn ask(&self, asks: &[Ask], again: Again) -> Result<Vec<Result<Answer, Code>>, Failure> {
        let mut broken = 0;
        loop {
            let sent = Moment::now();
            match self.session.borrow_mut().ask(asks, self.by.get()) {
                Err(Failure::Broken(_))
                    if again == Again::Yes && broken < BROKEN_MOST && !self.by.get().passed() =>
                {
                    broken += 1;
                }
                Err(failure) => return Err(failure),
                Ok(answers) => {
                    let heard = Moment::now();
                    for (ask, answer) in asks.iter().zip(&answers) {
                        if let Some(at) = stamped(ask, answer) {
                            self.stamp.set(Some(Stamp { at, sent, heard }));
                        }
                    }
                    return Ok(answers);
                }
            }
        }
    }

    /// What a refusal means.
    fn refused(&self, code: Code) -> Error {
        let shown = self.shown();
        match code {
            Code::NO_AUTH => Error::Denied(format!(
                "{shown} denies this user a right that dlock needs: its nodes belong to somebody else, or {} is not his to \
                 make nodes in; see docs/stores.md",
                self.target.chroot_shown()
            )),
            Code::AUTH_FAILED => Error::Denied(format!("{shown} refused the user name or the password")),
            Code::UNKNOWN => Error::Unfit(format!(
                "{shown} does not know a request that dlock needs: it is older than ZooKeeper 3.5"
            )),
            Code::READ_ONLY => {
                Error::Unavailable(format!("{shown} is read-only: it has lost the other servers"))
            }
            Code::QUOTA => Error::Unavailable(format!("{shown}: a quota of its nodes is used up")),
            Code::THROTTLED | Code::TIMEOUT => Error::Unavailable(format!("{shown} has too much to do")),
            Code(code) => Error::Garbled(format!("{shown} answered with the error {code}")),
        }
    }

    /// Makes the nodes that all locks lie below. Those that are there stay as they are.
    fn make_base(&self) -> Result<(), Error> {
        let (base, mut paths) = (self.base(), Vec::new());
        for (at, _) in base.match_indices('/').skip(1) {
            paths.push(base[..at].to_owned());
        }
        paths.extend([base.clone(), self.locks(), format!("{base}/lives"), self.clock()]);
        let asks: Vec<Ask> = paths.into_iter().map(|path| Ask::Create { path, data: Vec::new() }).collect();
        let answers = self.ask(&asks, Again::Yes)?;
        // What was refused above may be there all the same; what is missing at the end is what counts.
        let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
        let Some(code) = refused.copied().find(|code| *code != Code::NODE_EXISTS) else { return Ok(()) };
        if matches!(answers.last(), Some(Ok(_) | Err(Code::NODE_EXISTS))) {
            return Ok(());
        }
        Err(match code {
            Code::NO_AUTH => Error::Denied(format!(
                "{}: there is no {base} yet, and this user may not make it: have an administrator make {} and give this user \
                 all rights to it, as docs/stores.md says",
                self.shown(),
                self.target.chroot_shown()
            )),
            code => self.refused(code),
        })
    }

    /// Sees to it that there is a session, and that this process has a life if it wants a lease.
    fn ensure(&self) -> Result<(), Error> {
        let mut has_base = false;
        let mut broken = 0;
        loop {
            match self.session.borrow_mut().connect(self.by.get()) {
                Err(Failure::Broken(_)) if broken < BROKEN_MOST && !self.by.get().passed() => {
                    broken += 1;
                    continue;
                }
                connected => connected?,
            }
            let (turn, id) = {
                let session = self.session.borrow();
                (session.turn(), session.id())
            };
            let Some(mine) = self.mine.as_ref().filter(|_| self.ttl.is_some()) else { return Ok(()) };
            if self.life.get().is_some_and(|life| life.turn == turn) {
                return Ok(());
            }
            let path = self.life_path(&mine.token);
            let dial = self.session.borrow().dial();
            let mut answers = self
                .ask(
                    &[
                        Ask::CreateForSession { path: path.clone() },
                        Ask::Look { path: path.clone(), watch: true },
                    ],
                    Again::Yes,
                )?
                .into_iter();
            match (answers.next(), answers.next()) {
                (Some(Err(Code::NO_NODE)), _) if !has_base => {
                    self.make_base()?;
                    has_base = true;
                }
                // A reply that was lost, or the life of a session that has ended.
                (Some(Err(Code::NODE_EXISTS)), Some(Ok(Answer::Stat(stat)))) if stat.owner != id => {
                    drop(self.ask(&[Ask::Delete { path }], Again::Yes)?);
                }
                (Some(Ok(_) | Err(Code::NODE_EXISTS)), Some(Ok(Answer::Stat(stat)))) if stat.owner == id => {
                    self.life.set(Some(Life { turn, dial, was_ended: false }));
                    return Ok(());
                }
                (Some(Err(code)), _) if code != Code::NODE_EXISTS => return Err(self.refused(code)),
                _ if self.by.get().passed() => {
                    return Err(Error::Unavailable(format!(
                        "{}: others end this process' life",
                        self.shown()
                    )));
                }
                _ => {}
            }
        }
    }

    /// The locks as they are, and the time, which was read before.
    fn read(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<LockNode>, Time), Error> {
        self.asker.replace(me.cloned());
        let is_own = self.mine.as_ref().is_some_and(|mine| me == Some(&mine.token));
        let mut is_again = false;
        loop {
            if std::mem::replace(&mut is_again, true) && self.by.get().passed() {
                return Err(Error::Unavailable(format!(
                    "{}: others change the lock all the time",
                    self.shown()
                )));
            }
            self.forget_seen();
            if is_own {
                self.ensure()?;
            }
            let life = self.life.get().filter(|life| !life.was_ended);
            let mine = self.mine.as_ref().filter(|_| life.is_some());
            let dial = self.session.borrow().dial();
            let mut asks = Vec::with_capacity(2 * names.len() + 3);
            let began = Moment::now();
            let stamps = self.stamp.get().is_none_or(|stamp| began.since(stamp.heard) > STAMP_GOOD);
            if stamps {
                asks.push(Ask::Set { path: self.clock(), data: Vec::new() });
            }
            if self.must_sync.get() || whom == CatchUp::All {
                asks.push(Ask::Sync { path: self.base() });
            }
            if let Some(mine) = mine {
                asks.push(Ask::Look { path: self.life_path(&mine.token), watch: true });
            }
            let first = asks.len();
            for name in names {
                let path = self.lock_path(name);
                asks.extend([Ask::Get { path: path.clone() }, Ask::List { path }]);
            }
            let ahead = if is_own { self.ahead.take() } else { Ahead::default() };
            asks.extend(ahead.notes.iter().map(|(.., path)| Ask::Get { path: path.clone() }));
            asks.extend(ahead.lives.iter().map(|life| self.look(life)));
            let mut answers = self.ask(&asks, Again::Yes)?;
            let mut told = answers.split_off(first + 2 * names.len()).into_iter();
            if stamps && answers.first() == Some(&Err(Code::NO_NODE)) {
                self.make_base()?;
                continue;
            }
            if let Some(code) = answers
                .iter()
                .take(first)
                .filter_map(|answer| answer.as_ref().err())
                .copied()
                .find(|code| *code != Code::NO_NODE)
            {
                return Err(self.refused(code));
            }
            let Some(stamp) = self.stamp.get() else { return Err(self.silent_clock()) };
            // Nothing was written later than that clock shows. Who reads the times in a record is not to find them ahead of it.
            let written = answers[first..].iter().filter_map(|answer| match answer {
                Ok(Answer::Data(_, stat)) => Some(stat.mtime.saturating_mul(1000)),
                _ => None,
            });
            let written = written.max().unwrap_or_default();
            let (lower, upper) = if stamps {
                (stamp.at * 1000, stamp.upper(Moment::now()))
            } else {
                (stamp.lower(began), stamp.upper(began))
            };
            let now = Time(lower.max(written));
            self.uncertain.set(Duration::from_micros(upper.saturating_sub(now.0)));
            if let (Some(mine), Some(mut life)) = (mine, life) {
                if life.turn != self.session.borrow().turn() {
                    // That session has ended meanwhile, and its life with it.
                    self.life.set(None);
                    continue;
                }
                match &answers[first - 1] {
                    Ok(Answer::Stat(_)) => {
                        // Had it connected anew in between, it would be watched on a later one. Then it looks once more.
                        life.dial = dial;
                        self.lives.borrow_mut().insert(mine.token.clone(), true);
                    }
                    _ => life.was_ended = true,
                }
                self.life.set(Some(life));
            }
            let Some(mut entries) = self.parse(names, answers.split_off(first), now)? else {
                // It was changed between the two questions.
                continue;
            };
            let notes: Vec<_> = told.by_ref().take(ahead.notes.len()).collect();
            for (token, answer) in ahead.lives.into_iter().zip(told) {
                self.looked(token, &answer);
            }
            for ((name, token, path), answer) in ahead.notes.into_iter().zip(notes) {
                let entry = entries.iter_mut().find(|entry| entry.name == name);
                // Of whom it is not known whether he lives, both are asked for again.
                let is_known = self.lives.borrow().contains_key(&token);
                if let (Ok(Answer::Data(data, stat)), Some(entry)) = (answer, entry)
                    && is_known
                    && entry.path_of(&token).is_some_and(|at| at == path)
                {
                    self.saw(entry, token, data, stat);
                }
            }
            if !self.fetch(&mut entries, me, whom, now)? {
                // Somebody has left since.
                continue;
            }
            self.must_sync.set(false);
            if let Some(me) = me.filter(|_| is_own) {
                self.look_ahead(&entries, me);
            }
            self.judge(&mut entries, me, now);
            return Ok((entries, now));
        }
    }

    fn silent_clock(&self) -> Error {
        Error::Garbled(format!("{} does not tell the time", self.shown()))
    }

    /// None if what was read of a lock does not belong together.
    fn parse(
        &self,
        names: &BTreeSet<String>,
        answers: Vec<Result<Answer, Code>>,
        now: Time,
    ) -> Result<Option<Vec<LockNode>>, Error> {
        let (mut entries, mut answers) = (Vec::with_capacity(names.len()), answers.into_iter());
        for name in names {
            let path = self.lock_path(name);
            let entry = match (answers.next(), answers.next()) {
                (Some(Ok(Answer::Data(body, stat))), Some(Ok(Answer::Names(children, listed)))) => {
                    if stat.version != listed.version {
                        return Ok(None);
                    }
                    let parsed = LockNode::parse(name, path.clone(), &body, stat, children, now);
                    parsed.map_err(|why| node::garbled(self.shown(), name, &path, &why))?
                }
                (Some(Err(Code::NO_NODE)), Some(Err(Code::NO_NODE))) => LockNode::absent(name, path),
                (Some(Err(Code::NO_NODE)), _) | (_, Some(Err(Code::NO_NODE))) => return Ok(None),
                (Some(Err(code)), _) | (_, Some(Err(code))) => return Err(self.refused(code)),
                _ => return Err(self.refused(Code(0))),
            };
            entries.push(entry);
        }
        Ok(Some(entries))
    }

    /// Reads what will be wanted of those who wait and hold: a round trip for all of it. False if one of them has left since.
    fn fetch(
        &self,
        entries: &mut [LockNode],
        me: Option<&Token>,
        whom: CatchUp,
        now: Time,
    ) -> Result<bool, Error> {
        let is_all = whom == CatchUp::All && me.is_none();
        let is_single = entries.len() == 1;
        // Whoever was granted the lock starts its job when it has confirmed that. It knows what its own node says.
        let confirms =
            |entry: &LockNode| me.filter(|me| is_single && granted_alone(&entry.record, me).is_some());
        if let [entry] = &mut *entries
            && let Some(me) = confirms(entry)
            && let Some(place) = self.places.borrow().get(&entry.name).filter(|_| self.is_own(me))
        {
            entry.notes.insert(me.clone(), place.data.clone());
        }
        let (mut asks, mut notes, mut lives, mut ends) =
            (Vec::new(), Vec::new(), BTreeSet::new(), Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            let parked = entry.queue.waiting.iter().filter(|_| is_all);
            let confirms = confirms(entry).is_some();
            let front = match (is_all, entry.queue.is_for_one()) {
                (true, _) => usize::MAX,
                (false, _) if confirms => 0,
                (false, true) if is_single => 1,
                (false, _) => FRONT,
            };
            for waiting in entry.wanted(front, me).into_iter().chain(parked) {
                let is_known =
                    |token: &Token| notes.contains(&(at, token.clone())) || entry.notes.contains_key(token);
                let Some(token) = waiting.token().filter(|token| !is_known(token)) else { continue };
                asks.push(Ask::Get { path: entry.waiter_path(waiting) });
                notes.push((at, token.clone()));
                lives.insert(token);
            }
            let held: Vec<&Token> = node::believed(&entry.record).map(|(token, _)| token).collect();
            let is_few = is_all || held.len() <= HOLDERS;
            let asked = |token: &&&Token| {
                entry.tracked.contains_key(**token) && (is_few || node::is_over(&entry.record, token, now))
            };
            lives.extend(held.iter().filter(asked).map(|token| (*token).clone()));
            // Those who have left are forgotten when they are gone.
            lives.extend(entry.left().filter(|_| !confirms).take(HOLDERS).cloned());
            if whom == CatchUp::All {
                for path in entry.end_paths().into_iter().take(if is_all { LOG_KEPT } else { ENDS }) {
                    asks.push(Ask::Get { path });
                    ends.push(at);
                }
            }
        }
        lives.retain(|token| Some(token) != me && !self.lives.borrow().contains_key(token));
        let looked: Vec<Token> = lives.into_iter().collect();
        asks.extend(looked.iter().map(|token| self.look(token)));
        if asks.is_empty() {
            return Ok(true);
        }
        let mut answers = self.ask(&asks, Again::Yes)?.into_iter();
        for ((at, token), answer) in notes.into_iter().zip(&mut answers) {
            match answer {
                Ok(Answer::Data(data, stat)) => self.saw(&mut entries[at], token, data, stat),
                Err(Code::NO_NODE) => return Ok(false),
                Err(code) => return Err(self.refused(code)),
                Ok(_) => {}
            }
        }
        let mut logs: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for (at, answer) in ends.into_iter().zip(&mut answers) {
            if let Ok(Answer::Data(data, _)) = answer {
                logs.entry(at).or_default().push(data);
            }
        }
        for (at, log) in logs {
            entries[at].set_log(log.iter().map(Vec::as_slice));
        }
        for (token, answer) in looked.into_iter().zip(answers) {
            if let Err(code) = answer
                && code != Code::NO_NODE
            {
                return Err(self.refused(code));
            }
            self.looked(token, &answer);
        }
        Ok(true)
    }

    /// Asks whether somebody lives.
    fn look(&self, token: &Token) -> Ask {
        Ask::Look { path: self.life_path(token), watch: false }
    }

    fn looked(&self, token: Token, answer: &Result<Answer, Code>) {
        let is_there = match answer {
            Ok(Answer::Stat(_)) => true,
            Err(Code::NO_NODE) => false,
            _ => return,
        };
        self.lives.borrow_mut().insert(token, is_there);
    }

    /// Whoever holds these gives them back at some time, and then has to know who is next, and who has gone.
    fn look_ahead(&self, entries: &[LockNode], me: &Token) {
        let mut ahead = Ahead::default();
        for entry in entries.iter().filter(|entry| entry.record.holds.contains_key(me)) {
            let next = entry.queue.waiting.iter().find(|waiting| waiting.place == queue::Place::Queued);
            ahead.lives.extend(entry.left().take(HOLDERS).cloned());
            if let Some((token, path)) = next.and_then(|next| Some((next.token()?, entry.waiter_path(next))))
            {
                ahead.notes.push((entry.name.clone(), token.clone(), path));
                ahead.lives.push(token);
            }
        }
        self.ahead.replace(ahead);
    }

    /// What the node of one who waits tells, besides what it holds: when it was last heard of, and if it is this process',
    /// where that makes itself heard.
    fn saw(&self, entry: &mut LockNode, token: Token, data: Vec<u8>, stat: Stat) {
        let mut heard = self.heard.borrow_mut();
        let last = heard.entry(token.clone()).or_default();
        *last = stat.mtime.max(*last);
        if self.is_own(&token)
            && let Some(at) = entry.queue.find(&token).filter(|_| entry.queue.is_queued(&token))
        {
            let path = entry.waiter_path(&entry.queue.waiting[at]);
            let place = Place { path, data: data.clone(), version: stat.version };
            self.places.borrow_mut().insert(entry.name.clone(), place);
        }
        entry.notes.insert(token, data);
    }

    /// What was read before is of another step.
    fn forget_seen(&self) {
        self.lives.borrow_mut().clear();
        self.heard.borrow_mut().clear();
    }

    /// Says of each hold whether its lease is over. See the beginning of this file.
    fn judge(&self, entries: &mut [LockNode], me: Option<&Token>, now: Time) {
        let (lives, seen) = (self.lives.borrow(), self.heard.borrow());
        let mut believed = BTreeMap::new();
        for entry in entries.iter_mut() {
            believed.extend(node::believed(&entry.record).map(|(token, until)| (token.clone(), until)));
            let holders: Vec<Token> = node::believed(&entry.record).map(|(token, _)| token.clone()).collect();
            for token in holders {
                if Some(&token) == me {
                    continue;
                }
                let Some(tracked) = entry.tracked.get(&token).copied() else { continue };
                match lives.get(&token) {
                    Some(true) => entry.record.lasts(&token, Due::after(now, LASTS)),
                    // The clock of another leader may be behind: nobody waits for longer than a lease for that.
                    Some(false) => {
                        cap(&mut entry.record, &token, Due::after(now, Duration::from_millis(tracked.ttl)))
                    }
                    None => {}
                }
            }
            if entry.record.absence.heard.0 > 0 {
                let heard = entry.notes.keys().filter_map(|token| seen.get(token).copied()).max();
                let absence = &mut entry.record.absence;
                absence.heard = absence.heard.max(Due(heard.unwrap_or_default()));
            }
        }
        drop((lives, seen));
        self.believed.replace(believed);
        let is_over = |mine: &Arc<Mine>| {
            Some(&mine.token) == me
                && entries.iter().any(|entry| node::is_over(&entry.record, &mine.token, now))
        };
        if self.mine.as_ref().is_some_and(is_over) {
            // Others are to see that as well.
            self.session.borrow_mut().end();
        }
    }

    /// Whether this life of a token may still be believed in, by the record alone.
    fn is_believed(&self, token: &Token) -> bool {
        let now = self.stamp.get().map(|stamp| Time(stamp.lower(Moment::now())));
        let until = self.believed.borrow().get(token).copied();
        until.zip(now).is_some_and(|(until, now)| !until.passed(now))
    }

    /// Sets the watches that the last connection had. Whether something has happened meanwhile.
    fn arm<'a>(&self, others: impl Iterator<Item = &'a Watch>) -> Result<bool, Failure> {
        self.session.borrow_mut().connect(self.by.get())?;
        let dial = self.session.borrow().dial();
        let unarmed: Vec<&Watch> = others.filter(|watch| watch.dial.get() != dial).collect();
        if unarmed.is_empty() {
            return Ok(false);
        }
        let asks: Vec<Ask> = unarmed.iter().map(|watch| Ask::WatchEnd { path: watch.path.clone() }).collect();
        let answers = self.ask(&asks, Again::No)?;
        for watch in &unarmed {
            watch.dial.set(dial);
        }
        Ok(answers.iter().any(Result::is_err))
    }

    /// Whether the own life is still watched. If it is not, it may have been written to without anybody being told.
    fn is_watched(&self) -> bool {
        let session = self.session.borrow();
        let is_same = |life: Life| life.turn == session.turn() && life.dial == session.dial();
        session.is_connected() && self.life.get().is_some_and(is_same)
    }

    fn wait<'a>(
        &self,
        token: &Token,
        others: impl Iterator<Item = &'a Watch>,
        until: Moment,
    ) -> Result<bool, Failure> {
        let others: Vec<&Watch> = others.collect();
        if self.life.get().is_none() || self.arm(others.iter().copied())? || !self.is_watched() {
            return Ok(true);
        }
        let mine = self.life_path(token);
        loop {
            let heard = self.session.borrow_mut().listen(until)?;
            let events = self.session.borrow_mut().events();
            let concerns = |event: &jute::Event| {
                let is_other = || others.iter().any(|watch| watch.path == event.path);
                event.path == mine || (event.kind == Kind::Gone && is_other())
            };
            if events.iter().any(concerns) {
                return Ok(true);
            }
            if !heard || until.passed() {
                return Ok(false);
            }
        }
    }

    /// Writes to the own places. Whether all of them are still there, and nothing has happened.
    fn beat(&self, names: &Names) -> Result<bool, Failure> {
        let mut places = self.places.borrow_mut();
        let known = names.iter().map(|name| places.get(name.as_str()));
        let Some(known) = known.collect::<Option<Vec<_>>>() else { return Ok(false) };
        let said = known.into_iter().map(|Place { path, data, version }| Ask::SetIf {
            path: path.clone(),
            data: data.clone(),
            version: *version,
        });
        let answers = self.ask(&said.collect::<Vec<_>>(), Again::No)?;
        for (name, answer) in names.iter().zip(&answers) {
            let Ok(Answer::Stat(stat)) = answer else { return Ok(false) };
            if let Some(place) = places.get_mut(name.as_str()) {
                place.version = stat.version;
            }
        }
        Ok(self.is_watched() && self.session.borrow_mut().events().is_empty())
    }

    /// Removes locks that nobody has used for long.
    fn sweep(&self) -> Result<(), Failure> {
        let Some(stamp) = self.stamp.get() else { return Ok(()) };
        let now = Time(stamp.at.saturating_mul(1000));
        let old = (stamp.at).saturating_sub(2 * millis(crate::law::HISTORY_KEPT));
        let mut names = match self.ask(&[Ask::List { path: self.locks() }], Again::No)?.pop() {
            Some(Ok(Answer::Names(names, _))) => names,
            _ => return Ok(()),
        };
        let from = getrandom::u32().map_or(0, |chance| chance as usize % names.len().max(1));
        names.rotate_left(from);
        names.truncate(TIDIES_MOST);
        let paths: Vec<String> = names.iter().map(|name| format!("{}/{name}", self.locks())).collect();
        let both = |path: &String| [Ask::Get { path: path.clone() }, Ask::List { path: path.clone() }];
        let asks: Vec<Ask> = paths.iter().flat_map(both).collect();
        for (path, answers) in paths.iter().zip(self.ask(&asks, Again::No)?.chunks(2)) {
            let [Ok(Answer::Data(body, read)), Ok(Answer::Names(children, stat))] = answers else { continue };
            if stat.mtime >= old || read.version != stat.version || !node::is_vacant(body, now) {
                continue;
            }
            let mut all = vec![Ask::Check { path: path.clone(), version: Some(stat.version) }];
            all.extend(children.iter().map(|child| Ask::Delete { path: format!("{path}/{child}") }));
            all.push(Ask::Delete { path: path.clone() });
            drop(self.ask(&[Ask::All(all)], Again::No)?);
        }
        Ok(())
    }
}

/// When the leader did what was asked, if it tells.
fn stamped(ask: &Ask, answer: &Result<Answer, Code>) -> Option<u64> {
    match (ask, answer.as_ref().ok()?) {
        (
            Ask::Set { .. } | Ask::SetIf { .. } | Ask::Create { .. } | Ask::CreateForSession { .. },
            Answer::Stat(stat),
        ) => Some(stat.mtime),
        (Ask::All(asks), Answer::All(answers)) => {
            asks.iter().zip(answers).find_map(|(ask, answer)| stamped(ask, &Ok(answer.clone())))
        }
        _ => None,
    }
}

/// Until when one is to be believed, and remembered, who was heard of then, in milliseconds.
fn believed(heard: u64) -> (Due, Due) {
    (Due(heard.saturating_add(millis(SILENCE))), Due(heard.saturating_add(millis(TICKET_KEPT))))
}

/// The hold ends then at the latest.
fn cap(record: &mut Record, token: &Token, latest: Due) {
    if let Some(hold) = record.holds.get_mut(token).filter(|hold| hold.until > latest) {
        hold.until = latest;
        // The lock lasts as long as its last hold.
        record.lasts(token, Due(0));
    }
}

impl Adapter for Znodes {
    type Entry = LockNode;
    type Watch = Watch;

    fn refresh(&mut self, by: Moment) -> Result<(), Error> {
        self.by.set(by);
        Ok(())
    }

    fn reset(&mut self) {
        self.session.borrow_mut().hang_up();
        self.must_sync.set(true);
    }

    /// The session is the lease, so it is as long.
    fn attend(&mut self, token: &Token, ttl: Duration) {
        if self.is_own(token) {
            self.ttl = Some(ttl);
            self.session.borrow_mut().set_length(Length::Lease(ttl));
        }
    }

    fn lock(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        _: Moment,
    ) -> Result<(Vec<LockNode>, Time), Error> {
        self.read(names, me, CatchUp::Due)
    }

    fn look(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<LockNode>, Time), Error> {
        self.read(names, me, whom)
    }

    fn show(
        &self,
        entry: &mut LockNode,
        waiter: usize,
        record: &mut Record,
        _: Time,
    ) -> Result<Vec<String>, Error> {
        let Some(token) = entry.queue.token(waiter) else { return Ok(Vec::new()) };
        if !entry.notes.contains_key(&token) {
            let place = entry.waiter_path(&entry.queue.waiting[waiter]);
            let asks = [Ask::Get { path: place }, self.look(&token)];
            let mut answers = self.ask(&asks, Again::Yes)?.into_iter();
            match answers.next() {
                Some(Ok(Answer::Data(data, stat))) => self.saw(entry, token.clone(), data, stat),
                // It has left since, so nothing of this can be written.
                Some(Err(Code::NO_NODE)) => {
                    entry.drop_waiter(waiter);
                    return Ok(Vec::new());
                }
                Some(Err(code)) => return Err(self.refused(code)),
                _ => return Err(self.refused(Code(0))),
            }
            let is_there = matches!(answers.next(), Some(Ok(Answer::Stat(_))));
            self.lives.borrow_mut().insert(token.clone(), is_there);
        }
        // One whose life is gone is not heard any more, whenever it last was.
        let is_there = self.lives.borrow().get(&token).copied().unwrap_or(false);
        let heard = self.heard.borrow().get(&token).copied().filter(|_| is_there);
        let data = entry.notes.get(&token).cloned().unwrap_or_default();
        let shown = entry.show(waiter, &data, heard, record);
        shown.map_err(|why| node::garbled(self.shown(), &entry.name, &entry.path, why))
    }

    fn write(&self, entries: Vec<(LockNode, Changed)>, now: Time, woken: &[Token]) -> Result<Written, Error> {
        self.forget_seen();
        if entries.iter().all(|(_, changed)| *changed == Changed::No) {
            return Ok(Written::Yes);
        }
        let asker = self.asker.borrow().clone();
        let (mut all, mut has_new, mut places) = (Vec::new(), false, BTreeMap::new());
        let mut onlookers = BTreeSet::new();
        let life = self.life.get().filter(|life| !life.was_ended);
        if let Some(mine) =
            self.mine.as_ref().filter(|mine| life.is_some() && asker.as_ref() == Some(&mine.token))
        {
            // What is granted, renewed or waited for counts only as long as this session does.
            all.push(Ask::Check { path: self.life_path(&mine.token), version: None });
        }
        for (mut entry, changed) in entries {
            onlookers.extend(entry.record.watchers.keys().cloned());
            if entry.is_stale() {
                self.must_sync.set(true);
                return Ok(Written::Conflict);
            }
            if changed == Changed::No {
                all.extend(entry.check());
                continue;
            }
            if let Some(hold) = asker.as_ref().and_then(|asker| entry.record.holds.get(asker))
                && hold.confirmed
                && let Some(asker) = &asker
            {
                let until = Due(hold.until.0.saturating_add(millis(self.uncertain.get()) + 1));
                entry.record.lasts(asker, until);
            }
            let name = entry.name.clone();
            let place = asker.as_ref().and_then(|asker| entry.place_of(asker));
            places.insert(name, place);
            let change =
                entry.change(now).map_err(|error| error.map(|why| format!("{}: {why}", self.shown())))?;
            has_new |= change.is_new;
            all.extend(change.asks);
        }
        if all.iter().all(|ask| matches!(ask, Ask::Check { .. })) {
            // There was nothing, and there is nothing to keep.
            return Ok(Written::Yes);
        }
        let size: usize = all.iter().map(Ask::size).sum();
        if size > STEP_MOST {
            return Ok(Written::too_large(self.shown()));
        }
        let mut asks = vec![Ask::All(all)];
        let woken = woken.iter().filter(|token| !onlookers.contains(*token));
        asks.extend(woken.map(|token| Ask::Set { path: self.life_path(token), data: Vec::new() }));
        let answer = match self.ask(&asks, Again::No) {
            Ok(answers) => answers.into_iter().next(),
            // Whether it was done shows when it is tried again: if it was, the versions are others.
            Err(Failure::Broken(_)) => {
                self.must_sync.set(true);
                return Ok(Written::Conflict);
            }
            Err(failure) => return Err(failure.into()),
        };
        match answer {
            Some(Ok(Answer::All(answers))) => {
                if asker.is_some_and(|asker| self.is_own(&asker))
                    && let Some(Ask::All(all)) = asks.into_iter().next()
                {
                    self.keep_places(places, all, &answers);
                }
                Ok(Written::Yes)
            }
            Some(Err(code @ (Code::BAD_VERSION | Code::NODE_EXISTS | Code::NO_NODE | Code::NOT_EMPTY))) => {
                if code == Code::NO_NODE && has_new {
                    self.make_base()?;
                }
                self.must_sync.set(true);
                Ok(Written::Conflict)
            }
            Some(Err(code)) => Err(self.refused(code)),
            _ => Err(self.refused(Code(0))),
        }
    }

    fn release(&self, _: Vec<LockNode>) {
        self.forget_seen();
    }

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
        let asks = [Ask::Sync { path: self.base() }, Ask::List { path: self.locks() }];
        let names = match self.ask(&asks, Again::Yes)?.pop() {
            Some(Ok(Answer::Names(names, _))) => names,
            Some(Err(Code::NO_NODE)) => Vec::new(),
            Some(Err(code)) => return Err(self.refused(code)),
            _ => return Err(self.refused(Code(0))),
        };
        let bad = |node: &str| {
            node::garbled(self.shown(), node, &format!("{}/{node}", self.locks()), "its name is none")
        };
        Ok(names.iter().map(|node| node::name_of(node).ok_or_else(|| bad(node))).collect())
    }

    fn tidy(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % TIDIES_EVERY == 0) {
            self.sweep().ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn crowd(&self) -> u64 {
        NEAR
    }

    /// The session of one that was granted the lock and died may last for long: whoever is behind it sees within a
    /// [`SILENCE`](crate::law::SILENCE) that it did not confirm.
    fn rarely(&self) -> u32 {
        3
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(Arc::new(Mine { token: token.clone(), is_given_up: AtomicBool::new(false) }));
        Ok(Vec::new())
    }

    /// A guard ends the life of the one whom it guards, from its own session.
    fn end(&mut self, token: &Token) {
        if !self.is_own(token) {
            return;
        }
        if self.life.take().is_none() {
            self.ask(&[Ask::Delete { path: self.life_path(token) }], Again::Yes).ok();
        }
        self.ttl = None;
        self.places.borrow_mut().clear();
        let mut session = self.session.borrow_mut();
        session.end();
        session.set_length(Length::Brief);
    }

    fn is_mine(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.get().is_some_and(|life| !life.was_ended)
    }

    fn give_up(&self, token: &Token) {
        if let Some(mine) = self.mine.as_ref().filter(|mine| mine.token == *token) {
            mine.is_given_up.store(true, Ordering::SeqCst);
        }
    }

    fn is_given_up(&self, token: &Token) -> bool {
        self.is_own(token) && self.mine.as_ref().is_some_and(|mine| mine.is_given_up.load(Ordering::SeqCst))
    }

    fn was_ended(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.get().is_some_and(|life| life.was_ended)
    }

    /// It is in the record, too.
    fn say_lease(&self, _: &Token, _: Duration) -> bool {
        false
    }

    fn say_heard(&self, names: &Names, token: &Token, _: Duration) -> bool {
        self.allow();
        self.forget_seen();
        self.is_own(token) && self.beat(names).unwrap_or(false)
    }

    /// What was looked at in this step is known. Otherwise it is watched as well.
    fn liveness(&self, token: &Token) -> Liveness<Watch> {
        let path = self.life_path(token);
        let known = self.lives.borrow().get(token).copied();
        let (is_there, dial) = match known {
            Some(is_there) => (is_there, 0),
            None => {
                self.allow();
                let answer = self.ask(&[Ask::WatchEnd { path: path.clone() }], Again::Yes);
                match answer.ok().and_then(|mut answers| answers.pop()) {
                    Some(Ok(_)) => (true, self.session.borrow().dial()),
                    Some(Err(Code::NO_NODE)) => (false, 0),
                    _ => return Liveness::Unknown,
                }
            }
        };
        match is_there {
            true => Liveness::Alive(Watch { path, dial: Cell::new(dial) }),
            false if self.is_believed(token) => Liveness::Unknown,
            false => Liveness::Dead,
        }
    }

    fn forget(&self, _: &Token) {}

    fn sleep<'a>(
        &self,
        _: &Names,
        token: &Token,
        _: u64,
        others: impl Iterator<Item = &'a Watch>,
        limit: Duration,
        _: Option<BorrowedFd<'_>>,
    ) -> Result<bool, Error> {
        self.allow();
        match self.wait(token, others, Moment::now().after(limit)) {
            Ok(heard) => Ok(heard),
            // A place in the queue does not end with a connection. Whether the ensemble is there shows when it is asked.
            Err(_) => {
                self.session.borrow_mut().hang_up();
                thread::sleep(PAUSE);
                Ok(true)
            }
        }
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        let names: BTreeSet<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let watched = match listener {
            Listener::Holder => vec![self.life_path(token)],
            Listener::Watcher => names.iter().map(|name| self.lock_path(name)).collect(),
        };
        Box::new(Hearing {
            nodes: Self::over(Arc::clone(&self.target)),
            watched,
            seen: Vec::new(),
            backoff_until: Moment::now(),
        })
    }
}

impl Znodes {
    /// Where this process waits after a step that has written these.
    fn keep_places(&self, places: BTreeMap<String, Option<String>>, asks: Vec<Ask>, answers: &[Answer]) {
        let mut known = self.places.borrow_mut();
        let mut written: BTreeMap<String, (Vec<u8>, i32)> = BTreeMap::new();
        for (ask, answer) in asks.into_iter().zip(answers) {
            match (ask, answer) {
                // Of a node that it makes it tells no version: it is the first.
                (Ask::Create { path, data }, Answer::Done) => drop(written.insert(path, (data, 0))),
                (Ask::Set { path, data }, Answer::Stat(stat)) => {
                    drop(written.insert(path, (data, stat.version)));
                }
                _ => {}
            }
        }
        for (name, path) in places {
            let is_same = |place: &Place| Some(&place.path) == path.as_ref();
            match path.as_ref().and_then(|path| written.remove(path)) {
                Some((data, version)) => {
                    let path = path.unwrap_or_default();
                    known.insert(name, Place { path, data, version });
                }
                None if known.get(&name).is_some_and(is_same) => {}
                None => drop(known.remove(&name)),
            }
        }
    }

    fn is_own(&self, token: &Token) -> bool {
        self.mine.as_ref().is_some_and(|mine| mine.token == *token)
    }
}

/// A subscription, in a session of its own.
struct Hearing {
    nodes: Znodes,
    /// What is written to where there is news.
    watched: Vec<String>,
    /// How often each was written to when it was looked at last; none if it was not there.
    seen: Vec<Option<i32>>,
    backoff_until: Moment,
}

impl Hearing {
    fn hear(&mut self, until: Moment) -> Result<bool, Failure> {
        let target = &self.nodes.target;
        self.nodes.by.set(Moment::now().after(target.connect_timeout + target.op_timeout));
        let asks: Vec<Ask> =
            self.watched.iter().map(|path| Ask::Look { path: path.clone(), watch: true }).collect();
        drop(self.nodes.session.borrow_mut().events());
        let answers = self.nodes.ask(&asks, Again::Yes)?;
        let version = |answer: Result<Answer, Code>| match answer {
            Ok(Answer::Stat(stat)) => Some(stat.version),
            _ => None,
        };
        let seen: Vec<Option<i32>> = answers.into_iter().map(version).collect();
        let before = std::mem::replace(&mut self.seen, seen);
        // The first time nobody knows what was before.
        if before != self.seen {
            return Ok(true);
        }
        self.nodes.session.borrow_mut().listen(until)
    }
}

impl Subscription for Hearing {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        crate::clock::sleep_until(until.min(self.backoff_until));
        if until.passed() {
            return Ok(false);
        }
        self.hear(until).map_err(|failure| {
            self.nodes.session.borrow_mut().hang_up();
            self.backoff_until = Moment::now().after(BACKOFF);
            failure.into()
        })
    }
}
