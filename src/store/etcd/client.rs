//! Sends requests to a cluster of etcd. It stays with one member while that answers, and then tries
//! the next one, within the time of the operation. It also logs in, and turns etcd's errors into
//! dlock's.

use super::http::{Answer, Connection, Request, or_refused};
use super::messages::{
    Act, Header, LeaseAnswer, Number, Range, ServerError, Streamed, Txn, TxnAnswer, bundled,
};
use crate::clock::Moment;
use crate::rules::Time;
use crate::store::Error;
use crate::store::net::failure::{Failure, plain};
use crate::store::net::target::Target;
use crate::store::net::{self, budget, interrupt, password};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Most commas in an answer. Parsed, an answer takes up to forty times its size, and there is a
/// comma between any two of its parts. A key has four or five parts, so this allows a hundred
/// thousand locks or waiters.
const PARTS_MOST: usize = 1 << 19;
/// Most logins for one request. Each costs the member a hash that is slow on purpose.
const LOGINS_MOST: u32 = 2;
/// Pause before the next round through all members, if a member answered that it cannot serve now:
/// a leader is probably being elected.
const ROUND: Duration = Duration::from_millis(50);

/// Start of a member's error for a client certificate with a name, if the cluster has users.
const NAMED_CERTIFICATE: &str = "CommonName of client sending a request against gateway";

/// gRPC code of a member that cannot serve now.
const UNAVAILABLE: u16 = 14;

/// A client. A clone opens its own connections.
pub struct Client {
    pub target: Arc<Target>,
    /// Index of the member in use.
    member: usize,
    connection: Option<Connection>,
    /// How often it has connected.
    pub dials: u64,
    /// The token of the login.
    pass: Option<String>,
    /// Id of the cluster, once a member has reported it.
    cluster: Option<u64>,
}

/// The answer to a request, or etcd's error.
pub type Reply = Result<Answer, ServerError>;

impl Clone for Client {
    fn clone(&self) -> Self {
        let Self { member, cluster, .. } = *self;
        Self {
            target: Arc::clone(&self.target),
            member,
            connection: None,
            dials: 0,
            pass: self.pass.clone(),
            cluster,
        }
    }
}

impl Client {
    /// A client that connects at its first request. It begins with a random member, to spread the
    /// load.
    pub fn new(target: Target) -> Self {
        let chance = getrandom::u32().map_or(0, |chance| chance as usize);
        let member = chance % target.servers.len().max(1);
        Self { target: Arc::new(target), member, connection: None, dials: 0, pass: None, cluster: None }
    }

    pub fn shown(&self) -> &str {
        &self.target.shown
    }

    /// Time for a request that has no deadline of its own.
    pub fn request_time(&self) -> Duration {
        self.target.request_time()
    }

    /// Moves on to the next member, on a new connection.
    pub fn next_member(&mut self) {
        self.connection = None;
        self.member = (self.member + 1) % self.target.servers.len();
    }

    /// Sends requests in one batch. Each may arrive more than once. While another member is left to
    /// try, a member has half of the remaining time, at most a connect and an operation timeout.
    pub fn ask(&mut self, requests: &[Request], deadline: Moment) -> Result<Vec<Reply>, Failure> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let members = self.target.servers.len();
        let (mut untried, mut is_reused) = (members, self.connection.is_some());
        let mut unable = None;
        loop {
            let share = net::turn(members, untried.min(2), self.request_time(), deadline);
            let failure = match self.ask_member(requests, share) {
                Err(Failure::Refused(error)) => return Err(Failure::Refused(error)),
                Err(failure) => failure,
                answers => return answers,
            };
            // The member may have closed an idle connection. A new one to the same member may work.
            if std::mem::take(&mut is_reused) && matches!(failure, Failure::Broken(_)) {
                continue;
            }
            // Some gateways close the connection on an expired login.
            if matches!(failure, Failure::Broken(_)) {
                self.pass = None;
            }
            self.next_member();
            if let Failure::Unable(error) = &failure {
                unable = Some(error.clone());
            }
            untried -= 1;
            if deadline.passed() || (untried == 0 && unable.is_none()) {
                // A member's own error says more than a timeout.
                return Err(unable.map_or(failure, Failure::Unable));
            }
            if untried == 0 {
                untried = members;
                interrupt::pause(ROUND.min(deadline.left())).map_err(|_| failure)?;
            }
        }
    }

    fn ask_member(&mut self, requests: &[Request], deadline: Moment) -> Result<Vec<Reply>, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.dials += 1;
                self.connect(deadline)?
            }
        };
        let mut logins = 0;
        loop {
            if self.pass.is_none() && self.target.user.is_some() {
                logins += 1;
                self.log_in(&mut connection, deadline)?;
            }
            budget::note_sent();
            let answers = connection.ask(requests, self.pass(), deadline)?;
            let replies: Vec<Reply> = answers.into_iter().map(reply).collect();
            let old =
                replies.iter().find_map(|reply| reply.as_ref().err().filter(|error| is_old_pass(error)));
            if let Some(error) = old.filter(|_| self.target.user.is_some()) {
                // The login is no longer valid, for instance after a restart of the member. A new
                // one is invalid if the password was set just now.
                self.pass = None;
                if logins < LOGINS_MOST {
                    continue;
                }
                return Err(Failure::Refused(self.ended_login(error)));
            }
            let mut failures = replies.iter().filter_map(|reply| Some(self.meaning(reply.as_ref().err()?)));
            if let Some(failure) = failures.find(|failure| matches!(failure, Failure::Unable(_))) {
                return Err(failure);
            }
            self.connection = Some(connection);
            return Ok(replies);
        }
    }

    /// Connects to the member in use.
    pub fn connect(&self, deadline: Moment) -> Result<Connection, Failure> {
        let begun = Connection::begin(&self.target, &self.target.servers[self.member], deadline);
        begun.map_err(|error| or_refused(Failure::Silent(error)))
    }

    /// The token to send with a request, after the login.
    pub fn pass(&self) -> Option<&str> {
        self.pass.as_deref()
    }

    fn log_in(&mut self, connection: &mut Connection, deadline: Moment) -> Result<(), Failure> {
        let target = Arc::clone(&self.target);
        let shown = &target.shown;
        let Some(password) = &target.password else {
            return Err(Failure::Refused(Error::Denied(format!(
                "{shown}: a user is set, but no password; give it with --password-file, --password-command or the config file"
            ))));
        };
        password::log_in(shown, Some(password), deadline, |text| {
            self.authenticate(connection, text.unwrap_or_default(), deadline)
        })
    }

    fn authenticate(
        &mut self,
        connection: &mut Connection,
        password: &str,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let body = json!({ "name": self.target.user, "password": password }).to_string();
        let answer = connection.ask(&[Request { path: "auth/authenticate", body }], None, deadline)?;
        match answer.into_iter().next().map(reply) {
            Some(Ok(good)) => {
                let login: Value = self.parse(&good.body)?;
                let pass = login["token"].as_str().unwrap_or_default();
                if pass.is_empty() || !pass.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(Failure::Refused(
                        self.garbled("its answer to the login has no usable token"),
                    ));
                }
                self.pass = Some(pass.into());
                Ok(())
            }
            // Without authentication in the cluster, no login is needed.
            Some(Err(error)) if error.message.contains("authentication is not enabled") => {
                self.pass = Some("-".into());
                Ok(())
            }
            Some(Err(error)) => Err(self.meaning(&error)),
            None => Err(Failure::Refused(self.garbled("no answer"))),
        }
    }

    /// Parses a body of at most [`PARTS_MOST`] commas.
    pub fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Failure> {
        if body.iter().filter(|byte| **byte == b',').count() > PARTS_MOST {
            return Err(Failure::Refused(self.garbled("it has too many parts")));
        }
        serde_json::from_slice(body).map_err(|error| Failure::Refused(self.garbled(&error.to_string())))
    }

    pub fn garbled(&self, why: &str) -> Error {
        Error::Garbled(format!("{}: dlock does not understand the answer: {}", self.shown(), plain(why)))
    }

    /// The failure of a member that cannot serve now.
    fn unable(&self, why: &str) -> Failure {
        // The gateway is a client of the member, and uses the member's own certificate. If that
        // certificate is not valid for clients, the member closes the connection.
        let is_own_handshake = self.target.tls.is_some()
            && ["broken pipe", "connection reset", "connection closed", "handshake", "bad certificate"]
                .iter()
                .any(|end| why.contains(end));
        let hint = if is_own_handshake {
            "; if this goes on: with --client-cert-auth the certificate of each member must be valid for clients, too (clientAuth; \
             docs/stores.md)"
        } else {
            ""
        };
        Failure::Unable(Error::Unavailable(format!("{} cannot serve now: {why}{hint}", self.shown())))
    }

    /// The error for a token that the member no longer accepts. An outage: the member had accepted
    /// the login.
    pub(super) fn ended_login(&self, error: &ServerError) -> Error {
        Error::Unavailable(format!(
            "{} refuses the token of a login that it has accepted: {}; if this goes on: a gateway may change the Authorization header",
            self.shown(),
            plain(&error.message)
        ))
    }

    /// Translates an etcd error.
    pub fn meaning(&self, error: &ServerError) -> Failure {
        let (shown, why) = (self.shown(), plain(&error.message));
        Failure::Refused(match error.code {
            // UNAVAILABLE and DEADLINE_EXCEEDED (4): no leader, a new leader, a member that stops or
            // is a learner. CANCELLED (1): a member that shuts down closes its own connections.
            1 | 4 | UNAVAILABLE => return self.unable(&why),
            _ if why.contains("too many operations") => {
                Error::Unfit(format!("{shown} cannot take so many locks at once (its --max-txn-ops)"))
            }
            _ if why.contains("invalid user ID or password") => {
                Error::Password(format!("{shown} refused the user name or the password"))
            }
            _ if why.contains("user name is empty") || why.contains("user name not found") => {
                Error::Denied(format!(
                    "{shown} needs a user and a password; set the user with DLOCK_USERNAME or in the URL, and give the password \
                 by --password-file, --password-command or the config file"
                ))
            }
            7 => Error::Denied(format!(
                "{shown} denies this user its keys: its role needs readwrite on the prefix {}/ (docs/stores.md)",
                self.target.space
            )),
            16 => Error::Denied(format!("{shown} does not let this user in: {why}")),
            8 if why.contains("space exceeded") => Error::Unavailable(format!(
                "{shown} has no space left and takes no writes (alarm NOSPACE): compact and defragment it, then disarm the alarm"
            )),
            8 => Error::Overloaded(format!("{shown} is overloaded: {why}")),
            0 if why == NAMED_CERTIFICATE => Error::Denied(format!(
                "{shown} has users, and then its gateway refuses client certificates with a common name (CN): give dlock one without a CN (docs/stores.md)"
            )),
            0 if why == "HTTP 404" => Error::Unfit(format!(
                "{shown} has no JSON gateway at /v3: dlock needs etcd 3.4 or later with --enable-grpc-gateway; if etcd is started with --config-file, write enable-grpc-gateway: true there"
            )),
            2 | 13 => Error::Unavailable(format!("{shown} cannot serve now: {why}")),
            code => Error::Garbled(format!("{shown} answered {code} {why}")),
        })
    }

    /// Returns the transaction's answer and the time of the member that sent it.
    pub fn txn(&mut self, txn: &Txn, deadline: Moment) -> Result<(TxnAnswer, Time), Failure> {
        let mut replies = self.ask(&[txn.request(self)?], deadline)?;
        self.txn_answer(replies.pop())
    }

    /// Reads these ranges at one revision. Returns also the time of the member that answered.
    pub fn read(&mut self, ranges: Vec<Range>, deadline: Moment) -> Result<(TxnAnswer, Time), Failure> {
        let acts = ranges.into_iter().map(Act::Range).collect();
        self.txn(&Txn { compare: Vec::new(), success: bundled(acts, 0) }, deadline)
    }

    pub fn txn_answer(&mut self, reply: Option<Reply>) -> Result<(TxnAnswer, Time), Failure> {
        let good = self.good(reply)?;
        let answer: TxnAnswer = self.parse(&good.body)?;
        let cluster = answer.header.cluster_id.0;
        // The last one counts from then on: the cluster may have been restored under a new number.
        if self.cluster.replace(cluster).is_some_and(|before| before != cluster) {
            let why = format!("{}: its members belong to different clusters", self.shown());
            return Err(Failure::Refused(Error::Unfit(why)));
        }
        Ok((answer, good.now))
    }

    fn good(&self, reply: Option<Reply>) -> Result<Answer, Failure> {
        match reply {
            Some(Ok(good)) => Ok(good),
            Some(Err(error)) => Err(self.meaning(&error)),
            None => Err(Failure::Refused(self.garbled("no answer"))),
        }
    }

    /// Reads the answer to [`grant`]: for how many seconds the lease was granted now. None if a lease
    /// with this id existed already.
    pub fn granted(&self, reply: Option<Reply>) -> Result<Option<u64>, Failure> {
        match reply {
            Some(Err(error)) if error.message.contains("lease already exists") => Ok(None),
            reply => {
                let good = self.good(reply)?;
                Ok(Some(self.parse::<LeaseAnswer>(&good.body)?.ttl.0))
            }
        }
    }

    /// Reads the answer to [`keep`]: the member that answered, its term, and the seconds left. None
    /// if the lease is gone.
    pub fn kept_alive(&self, reply: Option<Reply>) -> Result<Option<(Header, u64)>, Failure> {
        let good = self.good(reply)?;
        let streamed: Streamed<LeaseAnswer> = self.parse(&good.body)?;
        match streamed {
            Streamed { error: Some(error), .. } => Err(self.meaning(&error)),
            Streamed { result: Some(kept_alive), .. } => {
                Ok(Some((kept_alive.header, kept_alive.ttl.0)).filter(|(_, ttl)| *ttl > 0))
            }
            Streamed { .. } => Err(Failure::Refused(self.garbled("the answer names no lease"))),
        }
    }

    /// Renews a lease. Returns the member that answered, its term, and the seconds left, or None if
    /// the lease is gone. A follower forwards the request to its leader, and answers with its own
    /// id.
    pub fn keep(&mut self, lease: u64, deadline: Moment) -> Result<Option<(Header, u64)>, Failure> {
        let mut replies = self.ask(&[keep(lease)], deadline)?;
        self.kept_alive(replies.pop())
    }

    /// Revokes leases, and so deletes all keys on them. A lease that is gone already is no error.
    pub fn revoke(&mut self, leases: &[u64], deadline: Moment) -> Result<(), Failure> {
        let revoke =
            |lease: &u64| Request { path: "lease/revoke", body: json!({ "ID": Number(*lease) }).to_string() };
        let requests: Vec<Request> = leases.iter().map(revoke).collect();
        self.ask(&requests, deadline).map(drop)
    }
}

impl Txn {
    pub fn request(&self, client: &Client) -> Result<Request, Failure> {
        let body = serde_json::to_string(self)
            .map_err(|error| Failure::Refused(Error::Garbled(format!("{}: {error}", client.shown()))))?;
        Ok(Request { path: "kv/txn", body })
    }
}

/// Turns an HTTP answer into a body, or into etcd's error.
pub fn reply(answer: Answer) -> Reply {
    if answer.status == 200 {
        return Ok(answer);
    }
    let Answer { status, body, .. } = answer;
    let streamed = || serde_json::from_slice::<Streamed<IgnoredAny>>(&body).ok()?.error;
    let error =
        serde_json::from_slice::<ServerError>(&body).ok().filter(|error| error.code != 0).or_else(streamed);
    // The answer of a proxy in front of a member has no etcd error in it.
    let code = if matches!(status, 502..=504) { UNAVAILABLE } else { 0 };
    let is_of_certificate = status == 400 && body.starts_with(NAMED_CERTIFICATE.as_bytes());
    let message = if is_of_certificate { NAMED_CERTIFICATE.into() } else { format!("HTTP {status}") };
    Err(error.unwrap_or(ServerError { code, message }))
}

/// Request for a lease of this many seconds.
pub fn grant(lease: u64, seconds: u64) -> Request {
    let body = json!({ "ID": Number(lease), "TTL": Number(seconds) }).to_string();
    Request { path: "lease/grant", body }
}

/// Request that renews a lease.
pub fn keep(lease: u64) -> Request {
    Request { path: "lease/keepalive", body: json!({ "ID": Number(lease) }).to_string() }
}

/// Whether the member no longer accepts the login's token.
pub(super) fn is_old_pass(error: &ServerError) -> bool {
    error.code == 16 || error.message.contains("revision of auth store is old")
}
