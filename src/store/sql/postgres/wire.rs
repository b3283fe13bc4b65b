//! One connection to a PostgreSQL server: connect, log in and query, under deadlines that cover a
//! whole exchange. Uses the few messages of protocol 3.0 that dlock needs. The messages and the
//! proofs of the password come from `postgres-protocol`. That crate's own client is not used: it
//! brings an async runtime, and looks up names on a thread that it waits for.
//!
//! After any failure the connection is not used again, because a late answer would be taken for the
//! answer to another question.

use super::super::row::Row;
use super::super::{Answer, Failure, Link};
use super::guard::{Guard, Preamble};
use super::meaning;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::unreachable;
use crate::store::net::password::log_in;
use crate::store::net::pipe::{ANSWER_MOST, Pipe};
use crate::store::net::streams::Bounded;
use crate::store::net::target::Target;
use crate::store::net::{Address, budget};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{DataRowBody, ErrorResponseBody, Header, Message};
use postgres_protocol::message::frontend;
use std::io::{self, ErrorKind, Read, Write};

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
            let mut connection = Self { pipe, process: 0, is_notified: false, asks_role, guard };
            connection.log_in(target, password, deadline).map_err(Error::from)?;
            connection.pipe.farewell = TERMINATE;
            Ok(connection)
        });
        Ok(begun?)
    }

    fn log_in(&mut self, target: &Target, password: Option<&str>, deadline: Moment) -> Result<(), Failure> {
        let parameters = [
            ("user", target.user()),
            ("database", &target.space),
            ("application_name", "dlock"),
            ("client_encoding", "UTF8"),
        ];
        self.send(|bytes| frontend::startup_message(parameters, bytes), deadline)?;
        let mut proof = Proof { password, ..Proof::default() };
        loop {
            match self.message(deadline)? {
                Message::BackendKeyData(key) => {
                    self.process = u64::try_from(key.process_id()).unwrap_or_default();
                }
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(error) => return Err(self.error(&error)),
                request => self.prove(request, target, &mut proof, deadline)?,
            }
        }
    }

    /// Answers a request for authentication. Without TLS another program may have the server's
    /// port: then the proof must be expensive to guess the password from, and the server must prove
    /// that it knows the password too.
    fn prove(
        &mut self,
        request: Message,
        target: &Target,
        proof: &mut Proof<'_>,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let goes_on =
            matches!(request, Message::AuthenticationSaslContinue(_) | Message::AuthenticationSaslFinal(_));
        if proof.scram.is_some() && !proof.is_done && !goes_on {
            return Err(
                self.denied("ended SCRAM before it proved that it knows the password; is it your server?")
            );
        }
        if matches!(request, Message::AuthenticationOk) {
            return Ok(());
        }
        let password = proof.password.ok_or_else(|| {
            self.denied(
                "wants a password; give one by DLOCK_PASSWORD_FILE, DLOCK_PASSWORD_COMMAND, DLOCK_PASSWORD or the config file",
            )
        })?;
        match (request, &mut proof.scram) {
            (Message::AuthenticationCleartextPassword, _) => {
                self.check_private("in clear text", target)?;
                self.send(|bytes| frontend::password_message(password.as_bytes(), bytes), deadline)
            }
            (Message::AuthenticationMd5Password(request), _) => {
                self.check_private("with md5", target)?;
                let hash = md5_hash(target.user().as_bytes(), password.as_bytes(), request.salt());
                self.send(|bytes| frontend::password_message(hash.as_bytes(), bytes), deadline)
            }
            (Message::AuthenticationSasl(request), scram)
                if request.mechanisms().any(|name| Ok(name == SCRAM_SHA_256)).unwrap_or(false) =>
            {
                let begun =
                    scram.insert(ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported()));
                let first = begun.message();
                self.send(|bytes| frontend::sasl_initial_response(SCRAM_SHA_256, first, bytes), deadline)
            }
            (Message::AuthenticationSaslContinue(request), Some(scram)) => {
                if iterations(request.data()).is_some_and(|count| count < ITERATIONS_LEAST) {
                    return Err(self.denied(&format!(
                        "asks for a SCRAM proof with fewer than {ITERATIONS_LEAST} iterations, which makes the password easy to guess; is it your server? If so, raise scram_iterations there and set the password again"
                    )));
                }
                scram.update(request.data()).map_err(|_| self.denied("did not follow the SCRAM protocol"))?;
                self.send(|bytes| frontend::sasl_response(scram.message(), bytes), deadline)
            }
            (Message::AuthenticationSaslFinal(request), Some(scram)) => {
                let finished = scram.finish(request.data());
                proof.is_done = finished.is_ok();
                finished.map_err(|_| self.denied("could not prove that it knows the password"))
            }
            _ => Err(self.denied(
                "asks for a login method that dlock does not have (it has SCRAM-SHA-256, md5 and password)",
            )),
        }
    }

    /// Fails if somebody else could read the password on the connection, unless the user allowed it.
    fn check_private(&self, how: &str, target: &Target) -> Result<(), Failure> {
        if self.pipe.is_private() || target.is_clear {
            return Ok(());
        }
        Err(self.denied(&format!(
            "wants the password {how}, and the connection has no TLS; use the socket (postgres+unix://), \
             sslmode=verify-full or verify-ca, or scram-sha-256 in pg_hba.conf; if nobody else can listen there, \
             as in a test, sslmode=disable"
        )))
    }

    fn denied(&self, why: &str) -> Failure {
        Failure::Refused(Error::Denied(format!("{} {why}", self.pipe.store)))
    }

    /// Sends the messages that `write` makes.
    fn send(
        &mut self,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let mut bytes = BytesMut::new();
        write(&mut bytes).map_err(|error| self.pipe.failure(&error))?;
        Ok(self.pipe.send(&bytes, deadline)?)
    }

    /// Waits for the next message. Skips notices, and notes notifications.
    fn message(&mut self, deadline: Moment) -> Result<Message, Failure> {
        loop {
            while let Some(message) = self.take()? {
                match message {
                    Message::NotificationResponse(_) => self.is_notified = true,
                    Message::NoticeResponse(_) | Message::ParameterStatus(_) => {}
                    message => return Ok(message),
                }
            }
            self.pipe.fill(deadline)?;
        }
    }

    /// The next message, if all of it has arrived.
    fn take(&mut self) -> Result<Option<Message>, Failure> {
        let Ok(header) = Header::parse(self.pipe.rest()) else { return Err(self.not_postgres()) };
        let Some(header) = header else { return Ok(None) };
        let length = usize::try_from(header.len()).unwrap_or_default();
        if length > ANSWER_MOST {
            return Err(self.not_postgres());
        }
        let Some(bytes) = self.pipe.rest().get(..=length) else { return Ok(None) };
        let message = Message::parse(&mut BytesMut::from(bytes)).map_err(|_| self.not_postgres())?;
        self.pipe.take(1 + length);
        Ok(message)
    }

    fn not_postgres(&self) -> Failure {
        let what = "the server there does not speak the protocol of PostgreSQL";
        Failure::Broken(Error::Garbled(format!("{}: {what}", self.pipe.store)))
    }

    fn error(&self, error: &ErrorResponseBody) -> Failure {
        let said = Said::parse(error);
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
            match self.message(deadline)? {
                Message::DataRow(row) => {
                    let row = columns(&row).map_err(|_| self.not_postgres())?;
                    self.pipe.count(row.0.len())?;
                    if left > 0 { facts.push(row) } else { answer.rows.push(row) }
                }
                Message::CommandComplete(_) if left > 0 => {
                    left -= 1;
                    if left == 0 {
                        self.guard.learn(facts.get(role..).unwrap_or_default());
                    }
                }
                Message::CommandComplete(done) => answer.changed = changed(done.tag().unwrap_or_default()),
                Message::ErrorResponse(error) => {
                    let said = self.error(&error);
                    if matches!(said, Failure::Broken(_) | Failure::Silent(_) | Failure::ReadOnly(_)) {
                        return Err(said);
                    }
                    // The tables may have been replaced. The next text finds them again.
                    if left > 0 {
                        self.guard.forget();
                    }
                    failure = failure.or(Some(said));
                }
                Message::ReadyForQuery(_)
                    if self.asks_role && facts.first().is_some_and(|row| row.bytes(0) == Some(b"on")) =>
                {
                    let why = format!("{} is read-only, as a standby is", self.pipe.store);
                    return Err(Failure::ReadOnly(Error::Unavailable(why)));
                }
                Message::ReadyForQuery(_) => return Ok((answer, failure)),
                _ => {}
            }
        }
    }

    /// A text with its preamble. It sets a lock timeout: while a server waits for rows that another
    /// client keeps locked, it does not notice that its own client has gone, and each attempt would
    /// leave a process behind.
    fn query(&self, preamble: &Preamble, text: &str, deadline: Moment) -> String {
        let millis = deadline.left().as_millis().clamp(1, 1 << 30);
        let role = if self.asks_role { IS_READ_ONLY } else { "" };
        let preamble = &preamble.text;
        format!("SET LOCAL lock_timeout = {millis}; {role}{preamble}{text}")
    }
}

impl Link for Connection {
    fn ask(&mut self, statements: &[String], deadline: Moment) -> Result<Vec<Answer>, Failure> {
        let preambles: Vec<_> = statements.iter().map(|text| self.guard.preamble(text)).collect();
        let texts = preambles.iter().zip(statements);
        let texts: Vec<_> = texts.map(|(preamble, text)| self.query(preamble, text, deadline)).collect();
        budget::note_sent();
        self.send(|bytes| texts.iter().try_for_each(|text| frontend::query(text, bytes)), deadline)?;
        let (mut answers, mut failed) = (Vec::with_capacity(statements.len()), None);
        for preamble in &preambles {
            let (answer, failure) = self.answer(preamble, deadline)?;
            self.pipe.has_answered();
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
                match message {
                    Message::NotificationResponse(_) => self.is_notified = true,
                    Message::ErrorResponse(_) => {
                        return Err(self.pipe.failure(&ErrorKind::ConnectionAborted.into()).into());
                    }
                    _ => {}
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

    fn is_direct(&self, process: u64) -> bool {
        self.process == process
    }
}

/// Asks the server to switch to TLS.
fn ask_for_tls(store: &str, raw: &mut Bounded<'_>) -> Result<(), Error> {
    let (mut request, mut answer) = (BytesMut::new(), [0]);
    frontend::ssl_request(&mut request);
    let exchanged = raw.write_all(&request).and_then(|()| raw.read_exact(&mut answer));
    exchanged.map_err(|error| unreachable(store, &error))?;
    match answer[0] {
        b'S' => Ok(()),
        b'N' => Err(Error::Misnamed(format!(
            "cannot reach {store}: the server has no TLS (ssl = off); without TLS the URL has ?sslmode=disable"
        ))),
        _ => Err(Error::Misnamed(format!("cannot reach {store}: the server there is not PostgreSQL"))),
    }
}

/// Number of SCRAM iterations that the server asks for.
fn iterations(server_first: &[u8]) -> Option<u32> {
    std::str::from_utf8(server_first).ok()?.split(',').find_map(|part| part.strip_prefix("i=")?.parse().ok())
}

/// The columns of a row, as text.
fn columns(row: &DataRowBody) -> io::Result<Row> {
    let columns = row.ranges().map(|range| Ok(range.map(|range| row.buffer()[range].to_vec())));
    columns.collect().map(Row)
}

/// Number of rows that a command changed: the last word of its tag.
fn changed(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Said {
    fn parse(error: &ErrorResponseBody) -> Self {
        let (mut said, mut fields) = (Self::default(), error.fields());
        while let Ok(Some(field)) = fields.next() {
            let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => said.code = text,
                b'M' => said.text = text,
                b'V' => said.is_fatal = text == "FATAL" || text == "PANIC",
                _ => {}
            }
        }
        said
    }
}
