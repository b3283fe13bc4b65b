//! How does one speak to a PostgreSQL server in bounded time? One connection: dialled, authenticated and used under deadlines
//! that cover a whole exchange. The messages of version 3.0 that this needs are few. What proves that one knows the password
//! comes from `postgres-protocol`; that crate's own client is not used, because it brings a runtime of its own, and looks up
//! names on a thread that it waits for.
//!
//! After any failure a connection is of no use any more: a late answer would answer the wrong question.

use super::super::pipe::{ANSWER_MOST, Pipe};
use super::super::{Answer, Failure, Link, Target};
use super::guard::{Guard, Preamble};
use super::meaning;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::failure::unreachable;
use crate::store::net::password::log_in;
use crate::store::net::streams::Bounded;
use crate::store::net::tls::Session;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// Fewer iterations make it cheap to guess the password from the proof. PostgreSQL's default is 4096.
const ITERATIONS_LEAST: u32 = 4096;
/// What has begun to come is there within this time.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// Whether the server can write now: `on` if it cannot. It is asked in each text where a URL names several servers, for
/// a pooler may have led this text to another one than the last. A server from 14 on would tell it at the login, and a
/// pooler what it was told long ago.
const IS_READ_ONLY: &str = "SELECT pg_catalog.current_setting('transaction_read_only'); ";

/// What a server says of an error.
#[derive(Debug, Default)]
pub struct Said {
    /// The SQLSTATE.
    pub code: String,
    pub text: String,
    is_fatal: bool,
}

/// The message by which a client ends a connection.
const TERMINATE: &[u8] = b"X\0\0\0\x04";

/// One connection.
pub struct Connection {
    pipe: Pipe,
    /// Which process serves it, by its own account.
    process: u64,
    has_rung: bool,
    /// Whether each text asks if the server can write.
    asks_role: bool,
    /// What the next text must be preceded by.
    guard: Guard,
    /// The preamble of a text that was sent and whose answer nobody waits for yet.
    owed: Option<Preamble>,
}

/// How far the server has got in proving that it knows the password, too.
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
    /// Connects and logs in by `by`.
    pub fn begin(target: &Target, server: &Address, by: Moment) -> Result<Self, Error> {
        let shown = target.shown_at(server);
        log_in(&shown, target.password.as_ref(), by, |password| Self::begin_as(target, server, password, by))
    }

    fn begin_as(
        target: &Target,
        server: &Address,
        password: Option<&str>,
        by: Moment,
    ) -> Result<Self, Error> {
        let mut pipe = Pipe::open(target, server, by)?;
        if let (Some(tls), Address::Tcp { host, .. }) = (&target.tls, server) {
            let mut raw = Bounded { stream: &mut pipe.stream, by };
            ask_for_tls(&pipe.store, &mut raw)?;
            pipe.tls = Some(Session::begin(&pipe.store, tls, host, &mut raw)?);
        }
        let (asks_role, guard) = (target.has_standbys(), Guard::default());
        let mut connection = Self { pipe, process: 0, has_rung: false, asks_role, guard, owed: None };
        connection.log_in(target, password, by).map_err(Error::from)?;
        connection.pipe.farewell = TERMINATE;
        Ok(connection)
    }

    fn log_in(&mut self, target: &Target, password: Option<&str>, by: Moment) -> Result<(), Failure> {
        let mut startup = vec![0, 3, 0, 0];
        let parameters = [
            ("user", target.user.as_str()),
            ("database", &target.database),
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
        self.send(&framed(None, &startup), by)?;
        let mut proof = Proof { password, ..Proof::default() };
        loop {
            let message = self.message(by)?;
            match message.kind {
                b'R' => self.prove(&message.body, target, &mut proof, by)?,
                b'K' => {
                    self.process = message.body.first_chunk().map_or(0, |id| u32::from_be_bytes(*id).into())
                }
                b'Z' => return Ok(()),
                b'E' => return Err(self.error(&message.body)),
                _ => {}
            }
        }
    }

    /// Answers what the server asks to know who is there. Without TLS whoever has the port may be asking: such a server gets a
    /// proof that is expensive to guess from, and must then prove the same.
    fn prove(
        &mut self,
        asked: &[u8],
        target: &Target,
        proof: &mut Proof<'_>,
        by: Moment,
    ) -> Result<(), Failure> {
        let store = self.pipe.store.clone();
        let denied = |why: &str| Failure::Refused(Error::Denied(format!("{store} {why}")));
        let Some((method, rest)) = asked.split_first_chunk() else { return Err(self.not_postgres()) };
        let method = u32::from_be_bytes(*method);
        if proof.scram.is_some() && !proof.is_done && !matches!(method, 11 | 12) {
            return Err(denied(
                "broke off SCRAM before it proved that it knows the password; is it your server?",
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
                let how = if method == 3 { "in clear" } else { "by md5" };
                return Err(denied(&format!(
                    "wants the password {how}, and the connection has no TLS; use the socket (postgres+unix://), \
                     sslmode=verify-full or verify-ca, or scram-sha-256 in pg_hba.conf"
                )));
            }
            (3, _) => [password.as_bytes(), b"\0"].concat(),
            (5, _) => {
                let salt = rest.first_chunk().copied().unwrap_or_default();
                let hash = md5_hash(target.user.as_bytes(), password.as_bytes(), salt);
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
                    "asks for a SCRAM proof with fewer than {ITERATIONS_LEAST} iterations, which makes the password \
                     cheap to guess; is it your server? If so, set scram_iterations there and the password anew"
                )));
            }
            (11, Some(scram)) => {
                scram.update(rest).map_err(|_| denied("did not keep to SCRAM"))?;
                scram.message().to_vec()
            }
            (12, Some(scram)) => {
                scram.finish(rest).map_err(|_| denied("could not prove that it knows the password"))?;
                proof.is_done = true;
                return Ok(());
            }
            _ => {
                return Err(denied(
                    "asks for a proof that dlock cannot give (it knows SCRAM-SHA-256, md5 and password)",
                ));
            }
        };
        self.send(&framed(Some(b'p'), &answer), by)
    }

    fn send(&mut self, bytes: &[u8], by: Moment) -> Result<(), Failure> {
        match self.pipe.send(bytes, by) {
            Ok(()) => Ok(()),
            // What the server said before it hung up is worth more.
            Err(error) => match self.message(by) {
                Ok(Message { kind: b'E', body }) => Err(self.error(&body)),
                _ => Err(self.pipe.failure(&error)),
            },
        }
    }

    /// Waits for the next message, but for those that nobody asked for.
    fn message(&mut self, by: Moment) -> Result<Message, Failure> {
        loop {
            while let Some(message) = self.take()? {
                match message.kind {
                    b'A' => self.has_rung = true,
                    b'N' | b'S' => {}
                    _ => return Ok(message),
                }
            }
            self.pipe.fill(by).map_err(|error| self.pipe.failure(&error))?;
        }
    }

    /// The next message, if it is there.
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
        let what = "what answers there does not speak the protocol of PostgreSQL";
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

    /// Waits for what one statement, or several in one text, did behind their preamble.
    fn answer(&mut self, preamble: &Preamble, by: Moment) -> Result<(Answer, Option<Failure>), Failure> {
        let (mut answer, mut failure) = (Answer::default(), None);
        let role = usize::from(self.asks_role);
        let (mut left, mut facts) = (preamble.statements + role, Vec::new());
        loop {
            let message = self.message(by)?;
            match message.kind {
                b'D' => {
                    let columns = message.body.first_chunk().map_or(0, |count| u16::from_be_bytes(*count));
                    self.pipe.count(columns.into()).map_err(|error| self.pipe.failure(&error))?;
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
                    // The tables may be others now: the next text looks for them again.
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

    /// A text behind its preamble, to be carried out. A server does not notice that the client has gone while it waits for
    /// what somebody else keeps locked, so it is told how long to wait: else each attempt leaves a process behind there.
    fn query(&self, preamble: &Preamble, text: &str, by: Moment) -> Vec<u8> {
        let millis = by.left().as_millis().clamp(1, 1 << 30);
        let role = if self.asks_role { IS_READ_ONLY } else { "" };
        let preamble = &preamble.text;
        framed(Some(b'Q'), format!("SET LOCAL lock_timeout = {millis}; {role}{preamble}{text}\0").as_bytes())
    }

    fn sleep(&mut self, until: Moment) -> io::Result<bool> {
        let mut has_read = false;
        loop {
            while let Some(message) = self.take().map_err(|_| ErrorKind::InvalidData)? {
                self.has_rung |= message.kind == b'A';
                if message.kind == b'E' {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
            }
            if std::mem::take(&mut self.has_rung) {
                return Ok(true);
            }
            // A server that never stops talking keeps nobody.
            if has_read && until.passed() || !self.pipe.listen(until)? {
                return Ok(false);
            }
            has_read = true;
            self.pipe.fill(Moment::now().after(REST_WITHIN))?;
        }
    }
}

impl Link for Connection {
    fn tell(&mut self, statement: &str, by: Moment) -> Result<(), Failure> {
        self.told(by)?;
        let preamble = self.guard.preamble(statement);
        self.send(&self.query(&preamble, statement, by), by)?;
        self.owed = Some(preamble);
        Ok(())
    }

    fn told(&mut self, by: Moment) -> Result<Option<Answer>, Failure> {
        let owed = self.owed.take().map(|preamble| self.answer(&preamble, by)).transpose()?;
        // What the server refused is not asked for again.
        Ok(owed.and_then(|(answer, failure)| failure.is_none().then_some(answer)))
    }

    fn ask(&mut self, statements: &[String], by: Moment) -> Result<Vec<Answer>, Failure> {
        self.told(by)?;
        let preambles: Vec<_> = statements.iter().map(|text| self.guard.preamble(text)).collect();
        let texts = preambles.iter().zip(statements);
        let bytes: Vec<u8> = texts.flat_map(|(preamble, text)| self.query(preamble, text, by)).collect();
        self.send(&bytes, by)?;
        let (mut answers, mut failed) = (Vec::with_capacity(statements.len()), None);
        for preamble in &preambles {
            let (answer, failure) = self.answer(preamble, by)?;
            answers.push(answer);
            failed = failed.or(failure);
        }
        failed.map_or(Ok(answers), Err)
    }

    fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        self.told(until)?;
        self.sleep(until).map_err(|error| self.pipe.failure(&error))
    }

    fn is_direct(&self, process: u64) -> bool {
        self.process == process
    }
}

/// Asks the server to go on over TLS.
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
        _ => Err(Error::Misnamed(format!("cannot reach {store}: what answers there is no PostgreSQL"))),
    }
}

/// A message with its kind, if it has one, and its length.
fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
    [kind.as_slice(), &length, body].concat()
}

/// What the first row says, which answers [`IS_READ_ONLY`].
fn is_read_only(rows: &[Vec<Option<Vec<u8>>>]) -> bool {
    rows.first().and_then(|row| row.first()?.as_deref()) == Some(b"on")
}

/// How often a server that uses SCRAM wants the password hashed.
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

/// How many rows a command says that it changed: the number at its end.
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
