//! How are all masters asked at once, when any of them may be silent? One thread a master, each with one connection and
//! one request at a time, so that what is sent to a master arrives in the order in which it was said. Whoever asks
//! waits no longer than is worth it; an answer that comes later is dropped. Only what gives back does not stand in line
//! behind a request that is not answered: dlock may be about to end. What the answers mean is not known here.
//!
//! The threads start with the first request: before it the process may still fork.

use super::scripts::Script;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::redis::call::lacking;
use crate::store::redis::connect::{Link, refusal};
use crate::store::redis::reply::Reply;
use crate::store::redis::{Target, script};
use redis::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// When most have answered, the others get this many times what those took: far masters are all far.
const STRAGGLERS_SHARE: u32 = 3;

/// What one master said.
pub struct Answer {
    /// The first field of the reply.
    pub what: String,
    /// The run id of the server.
    pub run_id: String,
    /// When it will have been up for long enough to be counted; zero if it has.
    counts_in: Duration,
    /// The fields after it.
    pub rest: Reply,
}

/// What to send.
#[derive(Clone)]
pub struct Call {
    /// The script.
    pub code: &'static Script,
    /// Its keys.
    pub keys: Arc<[String]>,
    /// Its arguments.
    pub args: Arc<[String]>,
}

/// The masters, in the order of the URL.
pub struct Crew {
    targets: Vec<Target>,
    desks: Vec<Option<Desk>>,
}

/// Where a master's thread gets its work.
struct Desk {
    tasks: Sender<Task>,
    /// How many it has not answered.
    open: Arc<AtomicUsize>,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Behind what was asked before.
    Behind,
    /// On a connection of its own where something is not answered. It may overtake that.
    Past,
}

/// Answers that are still to come.
pub struct Pending {
    began: Moment,
    answers: Receiver<(usize, Result<Answer, Error>)>,
    asked: Vec<usize>,
}

struct Task {
    call: Call,
    by: Moment,
    at: usize,
    answer: Sender<(usize, Result<Answer, Error>)>,
}

impl Crew {
    /// A crew that starts when it is first asked.
    pub fn new(targets: Vec<Target>) -> Self {
        let desks = targets.iter().map(|_| None).collect();
        Self { targets, desks }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.targets.len()
    }

    /// More than half of them.
    pub const fn majority(&self) -> usize {
        self.targets.len() / 2 + 1
    }

    /// All of them.
    pub fn everybody(&self) -> Vec<usize> {
        (0..self.len()).collect()
    }

    /// Who they are.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Sends to these masters; each gives up at `by`.
    pub fn send(&mut self, to: &[usize], call: &Call, order: Order, by: Moment) -> Pending {
        let (answer, answers) = channel();
        let pending = Pending { began: Moment::now(), answers, asked: to.to_vec() };
        for &at in to {
            let task = Task { call: call.clone(), by, at, answer: answer.clone() };
            if let Err(error) = self.hand(at, task, order) {
                let _ = answer.send((at, Err(error)));
            }
        }
        pending
    }

    fn hand(&mut self, at: usize, task: Task, order: Order) -> Result<(), Error> {
        let target = &self.targets[at];
        let is_in_line = |desk: &Desk| order == Order::Behind || desk.open.load(Ordering::Relaxed) == 0;
        let desk = match self.desks[at].take().filter(is_in_line) {
            Some(desk) => desk,
            // A thread that is left alone ends with what it has.
            None => {
                let (tasks, work) = channel();
                let open = Arc::new(AtomicUsize::new(0));
                let (mut node, count) = (Node::new(target.clone()), open.clone());
                thread::Builder::new()
                    .name("dlock-master".into())
                    .spawn(move || node.work(&work, &count))
                    .map_err(|e| {
                        Error::Unreachable(format!("{}: cannot start a thread: {e}", target.shown))
                    })?;
                Desk { tasks, open }
            }
        };
        desk.open.fetch_add(1, Ordering::Relaxed);
        // It cannot have ended while we can still talk to it.
        let _ = desk.tasks.send(task);
        self.desks[at] = Some(desk);
        Ok(())
    }

    /// Why that master cannot be counted, if so.
    pub fn why_uncounted(&self, at: usize, answer: &Result<Answer, Error>) -> Option<String> {
        match answer {
            Err(error) => Some(error.to_string()),
            Ok(answer) => self.why_unfit(at, &answer.what, answer.counts_in),
        }
    }

    /// The same of what a script says of its master.
    pub fn why_unfit(&self, at: usize, what: &str, counts_in: Duration) -> Option<String> {
        let shown = &self.targets[at].shown;
        match what {
            "replica" => Some(format!("{shown} is a replica")),
            "young" => {
                let left = Duration::from_secs(counts_in.as_secs() + 1);
                let left = humantime::format_duration(left);
                Some(format!("{shown} has restarted and may have forgotten locks; it counts again in {left}"))
            }
            "ageless" => Some(format!(
                "{shown} does not tell this user how long it has been up (INFO), so it may have forgotten locks"
            )),
            _ => None,
        }
    }

    /// Waits for answers until `until`, or until it is not worth waiting for the rest: when most have answered, the
    /// others get `stragglers`, or longer if those took long. Who did not answer has failed.
    pub fn collect(&self, pending: Pending, until: Moment, stragglers: Duration) -> Answers {
        let mut answers: Vec<_> = self.targets.iter().map(|_| None).collect();
        let (mut until, mut awaited, mut good) = (until, pending.asked.len(), 0);
        let most = self.majority().min(awaited);
        while awaited > 0 {
            let Ok((at, answer)) = pending.answers.recv_timeout(until.left()) else { break };
            awaited -= 1;
            if answer.is_ok() {
                good += 1;
                if good == most {
                    let now = Moment::now();
                    let patience = stragglers.max(now.since(pending.began) * STRAGGLERS_SHARE);
                    until = until.min(now.after(patience.min(until.left() / 2)));
                }
            }
            answers[at] = Some(answer);
        }
        for at in pending.asked {
            answers[at].get_or_insert_with(|| {
                let shown = &self.targets[at].shown;
                Err(Error::Unreachable(format!("cannot reach {shown}: no answer in time")))
            });
        }
        Answers(answers)
    }
}

/// What the masters said, in their order. `None`: was not asked.
pub struct Answers(pub Vec<Option<Result<Answer, Error>>>);

impl Answers {
    fn get(&self, at: usize) -> Option<&Answer> {
        self.0.get(at)?.as_ref()?.as_ref().ok()
    }

    /// Whether that master said this.
    pub fn says(&self, at: usize, what: &str) -> bool {
        self.get(at).is_some_and(|answer| answer.what == what)
    }

    /// How many said this. Two that are one server count once; one that does not say which it is, is trusted only where
    /// nothing depends on that.
    pub fn count(&self, what: &str) -> usize {
        let said = (0..self.0.len()).filter(|at| self.says(*at, what));
        said.map(|at| self.run_id(at).ok_or(at)).collect::<BTreeSet<_>>().len()
    }

    /// The server behind that master, if it said who it is.
    pub fn run_id(&self, at: usize) -> Option<&str> {
        self.get(at).map(|answer| answer.run_id.as_str()).filter(|run_id| !run_id.is_empty())
    }

    /// The rest of that master's reply, if it said this.
    pub fn reply(&mut self, at: usize, what: &str) -> Option<&mut Reply> {
        let answer = self.0.get_mut(at)?.as_mut()?.as_mut().ok()?;
        (answer.what == what).then_some(&mut answer.rest)
    }

    /// The replies of all that said this.
    pub fn replies(&mut self, what: &str) -> impl Iterator<Item = &mut Reply> {
        let answers = self.0.iter_mut().flatten().flatten();
        answers.filter(move |answer| answer.what == what).map(|answer| &mut answer.rest)
    }
}

/// One master and the connection to it.
pub struct Node {
    target: Target,
    link: Option<Link>,
    /// The last request may still be on its way, so the next one brings its script along: there may be nobody any more
    /// to send the text after a NOSCRIPT.
    doubt: bool,
}

impl Node {
    /// Not connected yet.
    pub const fn new(target: Target) -> Self {
        Self { target, link: None, doubt: false }
    }

    fn work(&mut self, tasks: &Receiver<Task>, open: &AtomicUsize) {
        for task in tasks {
            let answer = self.call(&task.call, task.by);
            open.fetch_sub(1, Ordering::Relaxed);
            // Nobody may wait for it any more.
            let _ = task.answer.send((task.at, answer));
        }
    }

    /// One request and its reply, by `by`.
    pub fn call(&mut self, call: &Call, by: Moment) -> Result<Answer, Error> {
        let target = &self.target;
        if by.passed() {
            return Err(Error::Unreachable(format!("cannot reach {}: no answer in time", target.shown)));
        }
        let args: Vec<&str> = call.args.iter().map(String::as_str).collect();
        let mut link = match self.link.take().and_then(Link::if_good) {
            Some(link) => link,
            None => Link::dial(target, by.min(Moment::now().after(target.connect_timeout)))?,
        };
        let by = by.min(Moment::now().after(target.op_timeout));
        let text = || call.code.by_text(&call.keys, &args);
        let doubt = std::mem::replace(&mut self.doubt, true);
        let first = if doubt { text() } else { call.code.by_hash(&call.keys, &args) };
        let mut ask = |command| {
            link.send(target, &[command], by)?;
            link.answer(target, by)
        };
        let mut value = ask(first)?;
        if matches!(&value, Value::ServerError(error) if error.code() == "NOSCRIPT") {
            value = ask(text())?;
        }
        if let Value::ServerError(error) = &value {
            return Err(match script::lacks_right(error) {
                true => lacking(&target.shown, call.code, error),
                false => refusal(target, error.code(), error.details()),
            });
        }
        (self.doubt, self.link) = (false, Some(link));
        let (what, mut rest) = Reply::open(value, &target.shown)?;
        let run_id = rest.text()?;
        let counts_in = if what == "young" { rest.span()? } else { Duration::ZERO };
        Ok(Answer { what, run_id, counts_in, rest })
    }
}
