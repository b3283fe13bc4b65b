//! One connection to a PostgreSQL server: connect, log in and query, under deadlines that cover a
//! whole exchange. Uses the few messages of protocol 3.0 that dlock needs. SCRAM and md5 come from
//! `postgres-protocol`. That crate's own client is not used: it brings an async runtime, and looks
//! up names on a thread that it waits for.
//!
//! After any failure the connection is not used again, because a late answer would be taken for the
//! answer to another question.

use super::super::{Answer, Failure, Link};
use super::guard::{Guard, Preamble};
use super::{NEAR, meaning};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::failure::unreachable;
use crate::store::net::password::log_in;
use crate::store::net::pipe::{ANSWER_MOST, Pipe};
use crate::store::net::streams::Bounded;
use crate::store::net::target::Target;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use std::io::{ErrorKind, Read, Write};

/// Least SCRAM iterations, PostgreSQL's default. With fewer it is cheap to guess the password from
/// the proof.
const ITERATIONS_LEAST: u32 = 4096;

/// `on` if the server cannot write now. Asked in each text if a URL names several servers, because
/// a pooler may send each text to another server. PostgreSQL 14 and later report it at the login,
/// but a pooler repeats what it was told long ago.
const IS_READ_ONLY: &str = "SELECT pg_catalog.current_setting('transaction_read_only'); ";

/// A server error.
#[derive(Debug, Default)]
pub struct Said {
    /// The SQLSTATE.
    pub code: String,
    pub text: String,
    is_fatal: bool,
}

/// The message that ends a connection.
const TERMINATE: &[u8] = b"X\0\0\0\x04";

/// A connection.
pub struct Connection {
    pipe: Pipe,
    /// The server process that serves the connection, as it said at the login.
    process: u64,
    is_notified: bool,
    /// Whether a notification with the payload [`NEAR`] has come.
    is_near: bool,
    /// Whether each text asks if the server can write.
    asks_role: bool,
    /// Provides the SQL before the next text.
    guard: Guard,
}

/// The progress of SCRAM, in which the server also proves that it knows the password.
#[derive(Default)]
struct Proof<'a> {
    password: Option<&'a str>,
    scram: Option<ScramSha256>,
    is_done: bool,
}

/// A message of the server.
struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl Connection {
    /// Connects and logs in by `deadline`.
    pub fn begin(target: &Target, server: &Address, deadline: Moment) -> Result<Self, Error> {
        let shown = target.shown_at(server);
        let begun = log_in(&shown, target.password.as_ref(), deadline, |password| {
            let mut pipe = Pipe::open(shown.clone(), target, server, deadline)?;
            if target.tls.is_some() {
                ask_for_tls(&shown, &mut Bounded { stream: &mut pipe.stream, deadline })?;
                pipe.begin_tls(target, server, deadline)?;
            }
            let (asks_role, guard) = (target.has_several(), Guard::default());
            let mut connection =
                Self { pipe, process: 0, is_notified: false, is_near: false, asks_role, guard };
            connection.log_in(target, password, deadline).map_err(Error::from)?;
            connection.pipe.farewell = TERMINATE;
            Ok(connection)
        });
        Ok(begun?)
    }

    fn log_in(&mut self, target: &Target, password: Option<&str>, deadline: Moment) -> Result<(), Failure> {
        let mut startup = vec![0, 3, 0, 0];
        let parameters = [
            ("user", target.user()),
            ("database", &target.space),
            ("application_name", "dlock"),
            ("client_encoding", "UTF8"),
        ];
        for (name, value) in parameters {
            for text in [name, value] {
                startup.extend(text.as_bytes());
                startup.push(0);
            }
        }
        startup.push(0);
        self.send(&framed(None, &startup), deadline)?;
        let mut proof = Proof { password, ..Proof::default() };
        loop {
            let message = self.message(deadline)?;
            match message.kind {
                b'R' => self.prove(&message.body, target, &mut proof, deadline)?,
                b'K' => {
                    self.process = message.body.first_chunk().map_or(0, |id| u32::from_be_bytes(*id).into())
                }
                b'Z' => return Ok(()),
                b'E' => return Err(self.error(&message.body)),
                _ => {}
            }
        }
    }

    /// Answers a request for authentication. Without TLS another program may have the server's
    /// port: then the proof must be expensive to guess the password from, and the server must prove
    /// that it knows the password too.
    fn prove(
        &mut self,
        asked: &[u8],
        target: &Target,
        proof: &mut Proof<'_>,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let store = self.pipe.store.clone();
        let denied = |why: &str| Failure::Refused(Error::Denied(format!("{store} {why}")));
        let Some((method, rest)) = asked.split_first_chunk() else { return Err(self.not_postgres()) };
        let method = u32::from_be_bytes(*method);
        if proof.scram.is_some() && !proof.is_done && !matches!(method, 11 | 12) {
            return Err(denied(
                "ended SCRAM before it proved that it knows the password; is it your server?",
            ));
        }
        if method == 0 {
            return Ok(());
        }
        let password = proof.password.ok_or_else(|| {
            denied("wants a password; give one by --password-file, --password-command or the config file")
        })?;
        let answer = match (method, &mut proof.scram) {
            (3 | 5, _) if !self.pipe.is_private() => {
                let how = if method == 3 { "in clear text" } else { "with md5" };
                return Err(denied(&format!(
                    "wants the password {how}, and the connection has no TLS; use the socket (postgres+unix://), \
                     sslmode=verify-full or verify-ca, or scram-sha-256 in pg_hba.conf"
                )));
            }
            (3, _) => [password.as_bytes(), b"\0"].concat(),
            (5, _) => {
                let salt = rest.first_chunk().copied().unwrap_or_default();
                let hash = md5_hash(target.user().as_bytes(), password.as_bytes(), salt);
                [hash.as_bytes(), b"\0"].concat()
            }
            (10, scram) if rest.split(|byte| *byte == 0).any(|name| name == SCRAM_SHA_256.as_bytes()) => {
                let begun =
                    scram.insert(ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported()));
                let first = begun.message();
                let length = u32::try_from(first.len()).unwrap_or(0).to_be_bytes();
                [SCRAM_SHA_256.as_bytes(), b"\0", &length, first].concat()
            }
            (11, Some(_)) if iterations(rest).is_some_and(|count| count < ITERATIONS_LEAST) => {
                return Err(denied(&format!(
                    "asks for a SCRAM proof with fewer than {ITERATIONS_LEAST} iterations, which makes the password easy to guess; is it your server? If so, raise scram_iterations there and set the password again"
                )));
            }
            (11, Some(scram)) => {
                scram.update(rest).map_err(|_| denied("did not follow the SCRAM protocol"))?;
                scram.message().to_vec()
            }
            (12, Some(scram)) => {
                scram.finish(rest).map_err(|_| denied("could not prove that it knows the password"))?;
                proof.is_done = true;
                return Ok(());
            }
            _ => {
                return Err(denied(
                    "asks for a login method that dlock does not have (it has SCRAM-SHA-256, md5 and password)",
                ));
            }
        };
        self.send(&framed(Some(b'p'), &answer), deadline)
    }

    fn send(&mut self, bytes: &[u8], deadline: Moment) -> Result<(), Failure> {
        match self.pipe.send(bytes, deadline) {
            Ok(()) => Ok(()),
            // The error that the server sent before it closed is more useful.
            Err(failure) => match self.message(deadline) {
                Ok(Message { kind: b'E', body }) => Err(self.error(&body)),
                _ => Err(failure.into()),
            },
        }
    }

    /// Notes a notification: process, channel, payload.
    fn note(&mut self, message: &Message) {
        let is_near = message.body.strip_suffix(b"\0").is_some_and(|body| body.ends_with(NEAR.as_bytes()));
        *(if is_near { &mut self.is_near } else { &mut self.is_notified }) = true;
    }

    /// Waits for the next message. Skips notices, and notes notifications.
    fn message(&mut self, deadline: Moment) -> Result<Message, Failure> {
        loop {
            while let Some(message) = self.take()? {
                match message.kind {
                    b'A' => self.note(&message),
                    b'N' | b'S' => {}
                    _ => return Ok(message),
                }
            }
            self.pipe.fill(deadline)?;
        }
    }

    /// The next message, if all of it has arrived.
    fn take(&mut self) -> Result<Option<Message>, Failure> {
        let Some((&kind, behind)) = self.pipe.rest().split_first() else { return Ok(None) };
        let Some(length) = behind.first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if !kind.is_ascii_alphanumeric() || !(4..=ANSWER_MOST).contains(&length) {
            return Err(self.not_postgres());
        }
        let Some(body) = behind.get(4..length) else { return Ok(None) };
        let message = Message { kind, body: body.to_vec() };
        self.pipe.take(1 + length);
        Ok(Some(message))
    }

    fn not_postgres(&self) -> Failure {
        let what = "the server there does not speak the protocol of PostgreSQL";
        Failure::Broken(Error::Garbled(format!("{}: {what}", self.pipe.store)))
    }

    fn error(&self, body: &[u8]) -> Failure {
        let said = Said::parse(body);
        match meaning(&self.pipe.store, &said) {
            Failure::Refused(error) if said.is_fatal => Failure::Silent(error),
            Failure::ReadOnly(error) if !self.asks_role => Failure::Refused(error),
            failure => failure,
        }
    }

    /// Waits for the results of a text and its preamble.
    fn answer(
        &mut self,
        preamble: &Preamble,
        deadline: Moment,
    ) -> Result<(Answer, Option<Failure>), Failure> {
        let (mut answer, mut failure) = (Answer::default(), None);
        let role = usize::from(self.asks_role);
        let (mut left, mut facts) = (preamble.statements + role, Vec::new());
        loop {
            let message = self.message(deadline)?;
            match message.kind {
                b'D' => {
                    let columns = message.body.first_chunk().map_or(0, |count| u16::from_be_bytes(*count));
                    self.pipe.count(columns.into())?;
                    let row = row(&message.body).ok_or_else(|| self.not_postgres())?;
                    if left > 0 { facts.push(row) } else { answer.rows.push(row) }
                }
                b'C' if left > 0 => {
                    left -= 1;
                    if left == 0 {
                        self.guard.learn(preamble, facts.get(role..).unwrap_or_default());
                    }
                }
                b'C' => answer.changed = changed(&message.body),
                b'E' => {
                    let said = self.error(&message.body);
                    if matches!(said, Failure::Broken(_) | Failure::Silent(_) | Failure::ReadOnly(_)) {
                        return Err(said);
                    }
                    // The tables may have been replaced. The next text finds them again.
                    if left > 0 {
                        self.guard.forget();
                    }
                    failure = failure.or(Some(said));
                }
                b'Z' if self.asks_role && is_read_only(&facts) => {
                    let why = format!("{} is read-only, as a standby is", self.pipe.store);
                    return Err(Failure::ReadOnly(Error::Unavailable(why)));
                }
                b'Z' => return Ok((answer, failure)),
                _ => {}
            }
        }
    }

    /// The message that runs a text after its preamble. It sets a lock timeout: while a server
    /// waits for rows that another client keeps locked, it does not notice that its own client has
    /// gone, and each attempt would leave a process behind.
    fn query(&self, preamble: &Preamble, text: &str, deadline: Moment) -> Vec<u8> {
        let millis = deadline.left().as_millis().clamp(1, 1 << 30);
        let role = if self.asks_role { IS_READ_ONLY } else { "" };
        let preamble = &preamble.text;
        framed(Some(b'Q'), format!("SET LOCAL lock_timeout = {millis}; {role}{preamble}{text}\0").as_bytes())
    }
}

impl Link for Connection {
    fn ask(&mut self, statements: &[String], deadline: Moment) -> Result<Vec<Answer>, Failure> {
        let preambles: Vec<_> = statements.iter().map(|text| self.guard.preamble(text)).collect();
        let texts = preambles.iter().zip(statements);
        let bytes: Vec<u8> =
            texts.flat_map(|(preamble, text)| self.query(preamble, text, deadline)).collect();
        self.send(&bytes, deadline)?;
        let (mut answers, mut failed) = (Vec::with_capacity(statements.len()), None);
        for preamble in &preambles {
            let (answer, failure) = self.answer(preamble, deadline)?;
            answers.push(answer);
            failed = failed.or(failure);
        }
        failed.map_or(Ok(answers), Err)
    }

    fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        let mut has_read = false;
        loop {
            while let Some(message) =
                self.take().map_err(|_| self.pipe.failure(&ErrorKind::InvalidData.into()))?
            {
                if message.kind == b'A' {
                    self.note(&message);
                }
                if message.kind == b'E' {
                    return Err(self.pipe.failure(&ErrorKind::ConnectionAborted.into()).into());
                }
            }
            if std::mem::take(&mut self.is_notified) {
                return Ok(true);
            }
            // Ends in time even if the server never stops sending.
            if has_read && until.passed() || !self.pipe.hear(until)? {
                return Ok(false);
            }
            has_read = true;
        }
    }

    fn has_come_near(&mut self) -> bool {
        std::mem::take(&mut self.is_near)
    }

    fn is_direct(&self, process: u64) -> bool {
        self.process == process
    }
}

/// Asks the server to switch to TLS.
fn ask_for_tls(store: &str, raw: &mut Bounded<'_>) -> Result<(), Error> {
    let mut answer = [0];
    let asked =
        raw.write_all(&framed(None, &80_877_103u32.to_be_bytes())).and_then(|()| raw.read_exact(&mut answer));
    asked.map_err(|error| unreachable(store, &error))?;
    match answer[0] {
        b'S' => Ok(()),
        b'N' => Err(Error::Misnamed(format!(
            "cannot reach {store}: the server has no TLS (ssl = off); without TLS the URL has ?sslmode=disable"
        ))),
        _ => Err(Error::Misnamed(format!("cannot reach {store}: the server there is not PostgreSQL"))),
    }
}

/// A message with its kind, if it has one, and its length.
fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
    [kind.as_slice(), &length, body].concat()
}

/// Whether the first row, which answers [`IS_READ_ONLY`], says so.
fn is_read_only(rows: &[Vec<Option<Vec<u8>>>]) -> bool {
    rows.first().and_then(|row| row.first()?.as_deref()) == Some(b"on")
}

/// Number of SCRAM iterations that the server asks for.
fn iterations(server_first: &[u8]) -> Option<u32> {
    std::str::from_utf8(server_first).ok()?.split(',').find_map(|part| part.strip_prefix("i=")?.parse().ok())
}

/// The columns of a row, as text.
fn row(body: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, behind) = rest.split_first_chunk()?;
        rest = behind;
        columns.push(match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) => {
                let (column, behind) = rest.split_at_checked(length)?;
                rest = behind;
                Some(column.to_vec())
            }
            Err(_) => None,
        });
    }
    Some(columns)
}

/// Number of rows that a command changed: the last word of its tag.
fn changed(body: &[u8]) -> u64 {
    let text = body.strip_suffix(b"\0").and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
    text.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Said {
    fn parse(body: &[u8]) -> Self {
        let mut said = Self::default();
        for field in body.split(|byte| *byte == 0) {
            let Some((kind, text)) = field.split_first() else { continue };
            let text = String::from_utf8_lossy(text).into_owned();
            match kind {
                b'C' => said.code = text,
                b'M' => said.text = text,
                b'V' => said.is_fatal = text == "FATAL" || text == "PANIC",
                _ => {}
            }
        }
        said
    }
}
