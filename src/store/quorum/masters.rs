//! Asks all masters at once, although any of them may not answer. Each master has one thread with
//! one connection and one request at a time, so requests to one master arrive in the order in which
//! they were made. The caller waits only as long as it needs the answers; later ones are dropped.
//!
//! A release does not queue behind a request without an answer, because dlock may be about to end.
//! dlock waits until the release is sent to distant masters as well. Earlier requests that are
//! still unsent are cancelled. This module counts the answers, and does not know what they
//! mean.
//!
//! The threads start with the first request: before it, the process may still fork.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::budget::{self, Purpose};
use crate::store::net::failure::silent;
use crate::store::net::interrupt;
use crate::store::redis::call::lacking;
use crate::store::redis::connection::Connection;
use crate::store::redis::failure::refusal;
use crate::store::redis::reply::{Head, Reply};
use crate::store::redis::script::Code;
use crate::store::redis::{Target, script};
use redis::Value;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// When a majority has answered, the others get this many times the time that it took. If the
/// majority was slow, the others are probably slow too, because all masters are distant.
const STRAGGLERS_SHARE: u32 = 3;
/// How long dlock, about to end, waits until a release is on its way to a master that must first be
/// connected.
const SENT_WITHIN: Duration = Duration::from_millis(500);

pub struct Answer {
    pub head: Head,
    pub reply: Reply,
}

#[derive(Clone)]
pub struct Call {
    pub code: &'static Code,
    pub keys: Arc<[String]>,
    pub argument: Arc<str>,
    /// How long a master may take for it, once it is connected.
    pub within: Duration,
}

/// The masters, in the order of the URL.
pub struct Masters {
    pub targets: Vec<Target>,
    workers: Vec<Option<Worker>>,
    sent: Vec<Sent>,
}

/// What was asked of a master.
#[derive(Default)]
struct Sent {
    /// Number of requests that it was asked in their order.
    count: u64,
    progress: Arc<Progress>,
}

/// What a master's threads have in common with the caller.
#[derive(Default)]
struct Progress {
    /// Whether any request was sent, or is about to be.
    has_sent: AtomicBool,
    /// Requests up to this number are cancelled if they were not sent.
    cancelled: AtomicU64,
}

impl Progress {
    /// Whether this request may be sent.
    fn may_go(&self, number: u64) -> bool {
        // This comes first: then a caller that cancels the request either stops it here, or learns
        // that it was sent.
        self.has_sent.store(true, SeqCst);
        number > self.cancelled.load(SeqCst)
    }
}

/// The queue of a master's thread.
struct Worker {
    tasks: Sender<Task>,
    /// Number of unanswered requests.
    open: Arc<AtomicUsize>,
}

/// The order of a request among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// After earlier requests.
    Behind,
    /// On a connection of its own if a request is unanswered; it may overtake that one. Requests
    /// that were not sent yet are cancelled. Sent with the script's text, because nobody may be left
    /// to react to a NOSCRIPT.
    TakingBack,
    /// Like `TakingBack`, and dlock may end once it is sent.
    Leaving,
}

/// Answers that are still to come.
pub struct Pending {
    began: Moment,
    news: Receiver<(usize, News)>,
    sent: Vec<usize>,
    /// Masters to which the request must be sent before dlock may end.
    unsent: BTreeSet<usize>,
}

enum News {
    Sent,
    Answered(Result<Answer, Error>),
}

struct Task {
    call: Call,
    order: Order,
    deadline: Moment,
    at: usize,
    /// Its number, if it can be cancelled; else greater than any.
    number: u64,
    progress: Arc<Progress>,
    purpose: Purpose,
    news: Sender<(usize, News)>,
}

impl Masters {
    /// The masters of these targets. Threads start with the first request.
    pub fn new(targets: Vec<Target>) -> Self {
        let workers = targets.iter().map(|_| None).collect();
        let sent = targets.iter().map(|_| Sent::default()).collect();
        Self { targets, workers, sent }
    }

    pub const fn len(&self) -> usize {
        self.targets.len()
    }

    pub const fn majority(&self) -> usize {
        self.targets.len() / 2 + 1
    }

    pub fn everybody(&self) -> Vec<usize> {
        (0..self.len()).collect()
    }

    /// Sends a request to these masters. Each master's thread gives up at `deadline`.
    pub fn send(&mut self, to: &[usize], call: &Call, order: Order, deadline: Moment) -> Pending {
        let (sender, news) = channel();
        let mut unsent = BTreeSet::new();
        for &at in to {
            let Sent { count, progress } = &mut self.sent[at];
            let (mut number, mut is_idle) = (u64::MAX, false);
            match order {
                Order::Behind => {
                    *count += 1;
                    number = *count;
                }
                Order::TakingBack | Order::Leaving => {
                    progress.cancelled.store(*count, SeqCst);
                    // If nothing was sent there, nothing need be taken back.
                    is_idle = *count > 0 && !progress.has_sent.load(SeqCst);
                }
            }
            if order == Order::TakingBack && is_idle {
                let _ = sender.send((at, News::Answered(Err(silent(&self.targets[at].shown)))));
                continue;
            }
            if order == Order::Leaving && !is_idle {
                unsent.insert(at);
            }
            let (call, progress, news) = (call.clone(), Arc::clone(progress), sender.clone());
            let task = Task { call, order, deadline, at, number, progress, purpose: budget::purpose(), news };
            if let Err(error) = self.enqueue(at, task) {
                let _ = sender.send((at, News::Answered(Err(error))));
            }
        }
        Pending { began: Moment::now(), news, sent: to.to_vec(), unsent }
    }

    fn enqueue(&mut self, at: usize, task: Task) -> Result<(), Error> {
        let target = &self.targets[at];
        let is_in_line = |worker: &Worker| task.order == Order::Behind || worker.open.load(Relaxed) == 0;
        let worker = match self.workers[at].take().filter(is_in_line) {
            Some(worker) => worker,
            // The old thread ends when it has done its work.
            None => {
                let (tasks, work) = channel();
                let open = Arc::new(AtomicUsize::new(0));
                let (mut master, count) = (Master::new(target.clone()), open.clone());
                thread::Builder::new()
                    .name("dlock-master".into())
                    .spawn(move || master.work(&work, &count))
                    .map_err(|e| {
                        Error::Unreachable(format!("{}: cannot start a thread: {e}", target.shown))
                    })?;
                Worker { tasks, open }
            }
        };
        worker.open.fetch_add(1, Relaxed);
        // The thread cannot have ended while its sender exists.
        let _ = worker.tasks.send(task);
        self.workers[at] = Some(worker);
        Ok(())
    }

    /// Why this master does not count; None if it does.
    pub fn why_uncounted(&self, at: usize, answer: &Result<Answer, Error>) -> Option<String> {
        match answer {
            Err(error) => Some(error.to_string()),
            Ok(Answer { head, .. }) => self.why_unfit(at, &head.outcome, head.counts_in),
        }
    }

    /// Why this master does not count, by the outcome that a script reports.
    pub fn why_unfit(&self, at: usize, what: &str, counts_in: Option<Duration>) -> Option<String> {
        let shown = &self.targets[at].shown;
        match what {
            "replica" => Some(format!("{shown} is a replica")),
            "young" => {
                let left = Duration::from_secs(counts_in.unwrap_or_default().as_secs() + 1);
                let left = humantime::format_duration(left);
                Some(format!(
                    "{shown} has restarted and may have forgotten locks; it is counted again in {left}"
                ))
            }
            "ageless" => Some(format!(
                "this user may not see the uptime of {shown} (INFO), so it may have forgotten locks and is not counted; give it +info"
            )),
            _ => None,
        }
    }

    /// Waits for answers until `until`, or until the rest are not worth waiting for: once a
    /// majority of counting masters has answered and `is_enough`, the others get `stragglers`, or
    /// longer if the majority was slow. A release is then followed, for up to [`SENT_WITHIN`],
    /// until it is sent to all. A master without an answer has failed.
    pub fn collect(
        &self,
        pending: Pending,
        until: Moment,
        stragglers: Duration,
        is_enough: impl Fn(&Answers) -> bool,
    ) -> Answers {
        let Pending { began, news, sent, mut unsent } = pending;
        let mut answers = Answers(self.targets.iter().map(|_| None).collect());
        let (mut end, mut awaited, mut good, mut in_time) = (until, sent.len(), 0, true);
        let most = self.majority().min(awaited);
        while awaited > 0 {
            let wait = if in_time { end } else { until.min(began.after(SENT_WITHIN)) };
            let Some((at, news)) = interrupt::receive(&news, wait) else {
                if !in_time || unsent.is_empty() {
                    break;
                }
                in_time = false;
                continue;
            };
            unsent.remove(&at);
            if let News::Answered(answer) = news {
                awaited -= 1;
                good += usize::from(self.why_uncounted(at, &answer).is_none());
                answers.0[at] = Some(answer);
                if in_time && end == until && good >= most && is_enough(&answers) {
                    let now = Moment::now();
                    let patience = stragglers.max(now.since(began) * STRAGGLERS_SHARE);
                    end = end.min(now.after(patience.min(end.left() / 2)));
                }
            }
            if !in_time && unsent.is_empty() {
                break;
            }
        }
        for at in sent {
            answers.0[at].get_or_insert_with(|| Err(silent(&self.targets[at].shown)));
        }
        answers
    }
}

/// The answers of the masters, in their order. `None` if a master was not asked.
pub struct Answers(pub Vec<Option<Result<Answer, Error>>>);

impl Answers {
    fn get(&self, at: usize) -> Option<&Answer> {
        self.0.get(at)?.as_ref()?.as_ref().ok()
    }

    pub fn says(&self, at: usize, what: &str) -> bool {
        self.of(at, what).is_some()
    }

    /// How many masters gave this answer. Two masters that are one server count once. A master
    /// without a run id counts by itself; that is safe only where nothing depends on it.
    pub fn count(&self, what: &str) -> usize {
        let agreeing = (0..self.0.len()).filter(|at| self.says(*at, what));
        agreeing.map(|at| self.run_id(at).ok_or(at)).collect::<BTreeSet<_>>().len()
    }

    /// The common clock for all answers: the middle one of the masters' clocks. Zero if none
    /// answered.
    pub fn now(&self) -> u64 {
        let mut clocks: Vec<_> = self.0.iter().flatten().flatten().map(|answer| answer.head.now).collect();
        clocks.sort_unstable();
        clocks.get(clocks.len() / 2).copied().unwrap_or_default()
    }

    /// The run id of this master's server, if it reported one.
    pub fn run_id(&self, at: usize) -> Option<&str> {
        self.get(at)?.head.run_id.as_deref()
    }

    /// The answer of this master, if it has this outcome.
    pub fn of(&self, at: usize, outcome: &str) -> Option<&Answer> {
        self.get(at).filter(|answer| answer.head.outcome == outcome)
    }

    /// The fields of all answers with this outcome.
    pub fn read<T: DeserializeOwned>(&self, outcome: &str) -> Result<Vec<T>, Error> {
        (0..self.0.len()).filter_map(|at| self.of(at, outcome)).map(|answer| answer.reply.read()).collect()
    }
}

/// One master and the connection to it.
pub struct Master {
    target: Target,
    connection: Option<Connection>,
    /// Whether the next request is sent with the script's text. The last request got no answer, so
    /// the next one may be answered only after dlock has ended, and nobody could then react to a
    /// NOSCRIPT.
    send_source_next: bool,
}

impl Master {
    pub const fn new(target: Target) -> Self {
        Self { target, connection: None, send_source_next: false }
    }

    fn work(&mut self, tasks: &Receiver<Task>, open: &AtomicUsize) {
        for Task { call, order, deadline, at, number, progress, purpose, news } in tasks {
            // The receiver may be gone.
            let is_sent = || drop(news.send((at, News::Sent)));
            let may_go = || progress.may_go(number);
            let answer = budget::with(purpose, || self.exchange(&call, deadline, order, may_go, is_sent));
            open.fetch_sub(1, Relaxed);
            let _ = news.send((at, News::Answered(answer)));
        }
    }

    /// Sends one request, and returns its reply by `deadline`.
    pub fn call(&mut self, call: &Call, deadline: Moment) -> Result<Answer, Error> {
        self.exchange(call, deadline, Order::Behind, || true, || ())
    }

    fn exchange(
        &mut self,
        call: &Call,
        deadline: Moment,
        order: Order,
        may_go: impl Fn() -> bool,
        is_sent: impl Fn(),
    ) -> Result<Answer, Error> {
        let target = &self.target;
        if deadline.passed() {
            return Err(silent(&target.shown));
        }
        let mut connection = match self.connection.take().and_then(Connection::if_good) {
            Some(connection) => connection,
            None => Connection::dial(target, deadline)?,
        };
        if !may_go() {
            self.connection = Some(connection);
            return Err(silent(&target.shown));
        }
        let deadline = deadline.min(Moment::now().after(call.within));
        let text = || call.code.by_text(&call.keys, &call.argument);
        let in_doubt = std::mem::replace(&mut self.send_source_next, true);
        let by_text = in_doubt || order != Order::Behind;
        let first = if by_text { text() } else { call.code.by_hash(&call.keys, &call.argument) };
        let mut ask = |command| {
            connection.send(vec![command], deadline)?;
            is_sent();
            connection.answer(deadline)
        };
        let mut value = ask(first)?;
        if script::is_unknown(&value) {
            value = ask(text())?;
        }
        if let Value::ServerError(error) = &value {
            return Err(match script::lacks_right(error) {
                true => lacking(&target.shown, call.code, error),
                false => refusal(&target.shown, error),
            });
        }
        (self.send_source_next, self.connection) = (false, Some(connection));
        let reply = Reply::new(value, &target.shown);
        Ok(Answer { head: reply.read()?, reply })
    }
}
