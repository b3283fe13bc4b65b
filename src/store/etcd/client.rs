//! How is a cluster of etcd asked, of which a member may be gone? One member is asked as long as it answers, and then the
//! next one, within the time that an operation has. Logging in, and what each error means to a lock.

use super::http::{Answer, Connection, Failure, Request};
use super::words::{Header, LeaseAnswer, Login, Number, Said, Streamed, Txn, TxnAnswer};
use crate::clock::Moment;
use crate::rules::Time;
use crate::store::Error;
use crate::store::net::failure::plain;
use crate::store::net::password::{self, Password};
use crate::store::net::tls::Tls;
use crate::store::net::{Address, alarm};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An answer has no more commas, of which one stands before each thing in it but the first: what is read takes up to forty times
/// as much room here as there. A key has four or five, so these are a hundred thousand locks or waiters.
const PARTS_MOST: usize = 1 << 19;
/// How long one waits before all members are asked again of which one is there and cannot serve: it is about to have a leader.
const ROUND: Duration = Duration::from_millis(50);

/// So begins what a member with users answers to a request with a client certificate that has a name.
const NAMED_CERTIFICATE: &str = "CommonName of client sending a request against gateway";

/// The code of an error by which a member says that it cannot serve now.
const UNAVAILABLE: u16 = 14;

/// Which cluster, and how to get into it.
#[derive(Clone)]
pub struct Target {
    /// At least one.
    pub members: Vec<Address>,
    pub user: Option<String>,
    pub password: Option<Password>,
    /// Set where they are spoken to over TLS.
    pub tls: Option<Tls>,
    /// What all keys begin with, without a slash at the end.
    pub prefix: String,
    /// How messages name the store.
    pub shown: String,
    pub connect_timeout: Duration,
    pub op_timeout: Duration,
}

/// One who asks. A copy has connections of its own.
pub struct Client {
    pub target: Arc<Target>,
    /// Which member is asked.
    member: Cell<usize>,
    line: RefCell<Option<Connection>>,
    /// What logging in was answered.
    pass: RefCell<Option<String>>,
    /// Whose members they are.
    cluster: Cell<Option<u64>>,
    /// When the operation under way is to end.
    pub by: Cell<Moment>,
}

/// What a request was answered: a value, or why not.
pub type Reply = Result<Good, Said>;

/// A value, and the time of whoever answered.
pub struct Good {
    pub body: Vec<u8>,
    pub now: Time,
}

/// What became of asking for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// It is there from now on, for so many seconds.
    New(u64),
    /// It was there.
    Old,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        let member = self.member.clone();
        let (target, by, cluster) = (Arc::clone(&self.target), self.by.clone(), self.cluster.clone());
        Self { target, member, line: RefCell::default(), pass: self.pass.clone(), cluster, by }
    }
}

impl Client {
    /// It connects when it first asks; to any of the members, lest all ask the same.
    pub fn new(target: Target) -> Self {
        let chance = getrandom::u32().map_or(0, |chance| chance as usize);
        let member = Cell::new(chance % target.members.len().max(1));
        let by = Cell::new(Moment::now());
        let (line, pass, cluster) = (RefCell::default(), RefCell::default(), Cell::new(None));
        Self { target: Arc::new(target), member, line, pass, cluster, by }
    }

    pub fn shown(&self) -> &str {
        &self.target.shown
    }

    /// What is asked between two operations has a time of its own.
    pub fn allow(&self) {
        if self.by.get().passed() {
            self.by.set(Moment::now().after(self.target.connect_timeout + self.target.op_timeout));
        }
    }

    /// Which member is asked next.
    pub fn member(&self) -> usize {
        self.member.get()
    }

    /// From now on the next member is asked, on a new connection.
    pub fn turn_away(&self) {
        self.line.take();
        self.member.set((self.member.get() + 1) % self.target.members.len());
    }

    /// Sends requests together. Each may arrive twice. While there is another member, one has half of the time that is left,
    /// and no longer than connecting and one operation may take.
    pub fn ask(&self, requests: &[Request]) -> Result<Vec<Reply>, Failure> {
        let members = self.target.members.len();
        let (mut asked, mut is_there, mut is_reused) = (0, false, self.line.borrow().is_some());
        let mut unable = None;
        loop {
            let by = self.by.get();
            let each = self.target.connect_timeout + self.target.op_timeout;
            let share = match members.saturating_sub(asked) {
                _ if members == 1 => by,
                1 => by.min(Moment::now().after(each)),
                _ => Moment::now().after(each.min(by.left() / 2)),
            };
            let failure = match self.ask_member(requests, share) {
                Err(Failure::Refused(error)) => return Err(Failure::Refused(error)),
                Err(failure) => failure,
                answers => return answers,
            };
            // One that had been quiet for long may just have ended.
            if std::mem::take(&mut is_reused) && matches!(failure, Failure::Broken(_)) {
                self.line.take();
                continue;
            }
            // Some gateways hang up on whoever shows a login that has expired.
            if matches!(failure, Failure::Broken(_)) {
                self.pass.take();
            }
            self.turn_away();
            if let Failure::Unable(error) = &failure {
                is_there = true;
                unable = Some(error.clone());
            }
            asked += 1;
            if by.passed() || (asked >= members && !is_there) {
                // What a member said tells more than that there was no time left to ask it again.
                return Err(unable.map_or(failure, Failure::Unable));
            }
            if asked >= members {
                (asked, is_there) = (0, false);
                alarm::pause(ROUND.min(by.left())).map_err(|_| failure)?;
            }
        }
    }

    fn ask_member(&self, requests: &[Request], by: Moment) -> Result<Vec<Reply>, Failure> {
        let mut line = self.take_line(by)?;
        let mut is_new = false;
        loop {
            if self.pass.borrow().is_none() && self.target.user.is_some() {
                is_new = true;
                self.log_in(&mut line, by)?;
            }
            let answers = line.ask(requests, self.pass.borrow().as_deref(), by)?;
            let replies: Vec<Reply> = answers.into_iter().map(|answer| self.read(answer)).collect();
            if let Some(failure) = replies.iter().find_map(|reply| self.unable(reply.as_ref().err()?)) {
                return Err(failure);
            }
            let is_stale = |reply: &Reply| reply.as_ref().is_err_and(is_old_pass);
            if !is_new && self.target.user.is_some() && replies.iter().any(is_stale) {
                // A member that was started again has forgotten it.
                self.pass.take();
                continue;
            }
            self.line.replace(Some(line));
            return Ok(replies);
        }
    }

    fn take_line(&self, by: Moment) -> Result<Connection, Failure> {
        match self.line.take() {
            Some(line) => Ok(line),
            None => self.connect(by),
        }
    }

    /// A connection to the member that is asked.
    pub fn connect(&self, by: Moment) -> Result<Connection, Failure> {
        let Target { members, tls, shown, connect_timeout, .. } = &*self.target;
        let address = &members[self.member.get()];
        let reached = Moment::now().after(*connect_timeout);
        Connection::begin(shown, address, tls.as_ref(), reached, by).map_err(|error| {
            if error.is_transient() { Failure::Silent(error) } else { Failure::Refused(error) }
        })
    }

    /// What a request has to show, once somebody has logged in.
    pub fn pass(&self) -> Option<String> {
        self.pass.borrow().clone()
    }

    fn log_in(&self, line: &mut Connection, by: Moment) -> Result<(), Failure> {
        let shown = self.shown();
        let Some(password) = &self.target.password else {
            return Err(Failure::Refused(Error::Denied(format!(
                "{shown} has a user and no password; give one by --password-file, --password-command or the config file"
            ))));
        };
        password::log_in(shown, Some(password), by, |text| {
            self.authenticate(line, text.unwrap_or_default(), by)
        })
    }

    fn authenticate(&self, line: &mut Connection, password: &str, by: Moment) -> Result<(), Failure> {
        let body = json!({ "name": self.target.user, "password": password }).to_string();
        let answer = line.ask(&[Request { path: "auth/authenticate", body }], None, by)?;
        let reply = answer.into_iter().next().map(|answer| self.read(answer));
        match reply {
            Some(Ok(good)) => {
                let login: Login = self.parse(&good.body)?;
                let is_plain = login.token.bytes().all(|byte| byte.is_ascii_graphic());
                if login.token.is_empty() || !is_plain {
                    return Err(Failure::Refused(self.garbled("it lets one in, and does not say how")));
                }
                self.pass.replace(Some(login.token));
                Ok(())
            }
            // Whoever is let in anyway needs no name.
            Some(Err(said)) if said.message.contains("authentication is not enabled") => {
                self.pass.replace(Some("-".into()));
                Ok(())
            }
            Some(Err(said)) => {
                Err(self.unable(&said).unwrap_or_else(|| Failure::Refused(self.meaning(&said))))
            }
            None => Err(Failure::Refused(self.garbled("no answer"))),
        }
    }

    fn read(&self, answer: Answer) -> Reply {
        let Answer { status, date, body } = answer;
        if status == 200 {
            return Ok(Good { body, now: time(date) });
        }
        let streamed = || serde_json::from_slice::<Streamed<IgnoredAny>>(&body).ok()?.error;
        let said = serde_json::from_slice::<Said>(&body).ok().filter(|said| said.code != 0).or_else(streamed);
        // A balancer, or what else stands before a member, has no words of etcd's.
        let code = if matches!(status, 502..=504) { UNAVAILABLE } else { 0 };
        let is_of_certificate = status == 400 && body.starts_with(NAMED_CERTIFICATE.as_bytes());
        let message = if is_of_certificate { NAMED_CERTIFICATE.into() } else { format!("HTTP {status}") };
        Err(said.unwrap_or(Said { code, message }))
    }

    /// A body that was expected to be such a value.
    pub fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Failure> {
        if body.iter().filter(|byte| **byte == b',').count() > PARTS_MOST {
            return Err(Failure::Refused(self.garbled("it has too many parts")));
        }
        serde_json::from_slice(body).map_err(|error| Failure::Refused(self.garbled(&error.to_string())))
    }

    pub fn garbled(&self, why: &str) -> Error {
        Error::Garbled(format!("{}: the answer is not understood: {}", self.shown(), plain(why)))
    }

    /// That this member cannot serve now, where an error says so.
    fn unable(&self, said: &Said) -> Option<Failure> {
        let shown = self.shown();
        // Unavailable, and too late: no leader, another leader, a member that stops or only learns.
        let why = plain(&said.message);
        // Its gateway shows the member's own certificate to the member, which hangs up on that.
        let is_own_handshake = self.target.tls.is_some()
            && ["broken pipe", "connection reset", "connection closed", "handshake", "bad certificate"]
                .iter()
                .any(|end| why.contains(end));
        let hint = if is_own_handshake {
            "; if it stays so: with --client-cert-auth the certificate of a member has to be for clients, too (clientAuth; \
             docs/stores.md)"
        } else {
            ""
        };
        matches!(said.code, 4 | UNAVAILABLE)
            .then(|| Failure::Unable(Error::Unavailable(format!("{shown} cannot serve now: {why}{hint}"))))
    }

    /// What an error means.
    pub fn meaning(&self, said: &Said) -> Error {
        let (shown, why) = (self.shown(), plain(&said.message));
        match said.code {
            _ if why.contains("too many operations") => {
                Error::Unfit(format!("{shown} takes no run of so many locks at once, by its --max-txn-ops"))
            }
            _ if why.contains("invalid user ID or password") => {
                Error::Denied(format!("{shown} refused the user name or the password"))
            }
            _ if why.contains("user name is empty") || why.contains("user name not found") => {
                Error::Denied(format!(
                    "{shown} wants a user and a password; name the user by DLOCK_USERNAME or in the URL, and give the password \
                 by --password-file, --password-command or the config file"
                ))
            }
            7 => Error::Denied(format!(
                "{shown} denies this user its keys: its role needs readwrite on the prefix {}/ (docs/stores.md)",
                self.target.prefix
            )),
            16 => Error::Denied(format!("{shown} does not let this user in: {why}")),
            8 if why.contains("space exceeded") => Error::Unavailable(format!(
                "{shown} has no space left and takes no writes (alarm NOSPACE): compact and defragment it, then disarm the alarm"
            )),
            8 => Error::Unavailable(format!("{shown} is overloaded: {why}")),
            0 if why == NAMED_CERTIFICATE => Error::Denied(format!(
                "{shown} has users, and its gateway takes no client certificate with a name (CN) then: give dlock one without \
                 a CN (docs/stores.md)"
            )),
            0 if why == "HTTP 404" => Error::Unfit(format!(
                "{shown} has no JSON gateway at /v3: etcd 3.4 or later has, where --enable-grpc-gateway is not off; one that is \
                 started with --config-file has none unless that file says enable-grpc-gateway: true"
            )),
            2 | 13 => Error::Unavailable(format!("{shown} cannot serve now: {why}")),
            code => Error::Garbled(format!("{shown} answered {code} {why}")),
        }
    }

    /// One transaction.
    pub fn txn(&self, txn: &Txn) -> Result<(TxnAnswer, Time), Failure> {
        let mut replies = self.ask(&[txn.request(self)?])?;
        self.txn_answer(replies.pop())
    }

    pub fn txn_answer(&self, reply: Option<Reply>) -> Result<(TxnAnswer, Time), Failure> {
        let good = self.good(reply)?;
        let answer: TxnAnswer = self.parse(&good.body)?;
        let cluster = answer.header.cluster_id.0;
        if self.cluster.replace(Some(cluster)).is_some_and(|before| before != cluster) {
            let why = format!("{}: its members belong to different clusters", self.shown());
            return Err(Failure::Refused(Error::Unfit(why)));
        }
        Ok((answer, good.now))
    }

    fn good(&self, reply: Option<Reply>) -> Result<Good, Failure> {
        match reply {
            Some(Ok(good)) => Ok(good),
            Some(Err(said)) => Err(Failure::Refused(self.meaning(&said))),
            None => Err(Failure::Refused(self.garbled("no answer"))),
        }
    }

    /// What asking for a lease was answered.
    pub fn leased(&self, reply: Option<Reply>) -> Result<Leased, Failure> {
        match reply {
            Some(Err(said)) if said.message.contains("lease already exists") => Ok(Leased::Old),
            reply => {
                let good = self.good(reply)?;
                Ok(Leased::New(self.parse::<LeaseAnswer>(&good.body)?.ttl.0))
            }
        }
    }

    /// Who has kept a lease, and for how many seconds; none if it is no more.
    pub fn kept(&self, reply: Option<Reply>) -> Result<Option<(Header, u64)>, Failure> {
        let good = self.good(reply)?;
        let streamed: Streamed<LeaseAnswer> = self.parse(&good.body)?;
        match streamed {
            Streamed { error: Some(said), .. } => {
                Err(self.unable(&said).unwrap_or_else(|| Failure::Refused(self.meaning(&said))))
            }
            Streamed { result: Some(kept), .. } => {
                Ok(Some((kept.header, kept.ttl.0)).filter(|(_, ttl)| *ttl > 0))
            }
            Streamed { .. } => Err(Failure::Refused(self.garbled("nothing is said of a lease"))),
        }
    }

    /// Keeps a lease: who has, and for how many seconds; none if it is no more.
    pub fn keep(&self, lease: u64) -> Result<Option<(Header, u64)>, Failure> {
        let mut replies = self.ask(&[keep(lease)])?;
        self.kept(replies.pop())
    }

    /// Ends leases, and all keys on them. One that is no more is none.
    pub fn revoke(&self, leases: &[u64]) -> Result<(), Failure> {
        let revoke =
            |lease: &u64| Request { path: "lease/revoke", body: json!({ "ID": Number(*lease) }).to_string() };
        let requests: Vec<Request> = leases.iter().map(revoke).collect();
        self.ask(&requests).map(drop)
    }
}

impl Txn {
    pub fn request(&self, client: &Client) -> Result<Request, Failure> {
        let body = serde_json::to_string(self)
            .map_err(|error| Failure::Refused(Error::Garbled(format!("{}: {error}", client.shown()))))?;
        Ok(Request { path: "kv/txn", body })
    }
}

/// Asks for a lease of so many seconds.
pub fn grant(lease: u64, seconds: u64) -> Request {
    let body = json!({ "ID": Number(lease), "TTL": Number(seconds) }).to_string();
    Request { path: "lease/grant", body }
}

/// Keeps a lease.
pub fn keep(lease: u64) -> Request {
    Request { path: "lease/keepalive", body: json!({ "ID": Number(lease) }).to_string() }
}

/// That what logging in was answered is not believed any more.
fn is_old_pass(said: &Said) -> bool {
    said.code == 16 || said.message.contains("revision of auth store is old")
}

/// The time of a member, which tells whole seconds; what is finer, and all where it tells nothing, comes from here.
fn time(date: Option<u64>) -> Time {
    let here = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
    Time(date.map_or(here, |date| {
        let begin = date.saturating_mul(1_000_000);
        here.clamp(begin, begin.saturating_add(999_999))
    }))
}
