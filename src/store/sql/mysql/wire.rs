//! One connection to a MySQL or MariaDB server: connect, log in and query, under deadlines that
//! cover a whole exchange. Uses the few packets that dlock needs. Each text is sent in one command,
//! so the server has all of it before it runs any of it.
//!
//! A password, or a proof of it, is sent only over TLS or a Unix socket, or if the user wrote
//! `sslmode=disable`. Each proof of this protocol is a few rounds of SHA with a value that the server
//! chooses, so a program that took the port of a server that is down could guess the password from it. No file of this machine is read
//! for a server, whatever it asks for.
//!
//! After any failure the connection is not used again, because a late answer would be taken for the
//! answer to another question.

use super::super::row::Row;
use super::super::{Answer, Failure, Link};
use super::{IS_READ_ONLY, meaning};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::password::log_in;
use crate::store::net::pipe::Pipe;
use crate::store::net::target::Target;
use crate::store::net::{Address, budget};
use ring::digest::{Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::io::ErrorKind;
use std::time::Duration;

/// A packet of this length, 16 MiB, would continue in the next one. Nothing of dlock's is that long: a
/// lock has at most a thousand holders, and a thousand waiters.
const PACKET_MOST: usize = 0xff_ffff;
/// Most packets of a server during authentication.
const PROOFS_MOST: usize = 8;
/// utf8mb4, the character set of all statements.
const CHARSET: u8 = 45;
const ERROR: u8 = 0xff;
/// Longest wait for the rest of an answer that nobody waits for.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// Capability flags, with the protocol's names.
mod can {
    pub const LONG_PASSWORD: u32 = 1;
    /// A row that was found counts as changed.
    pub const FOUND_ROWS: u32 = 1 << 1;
    pub const LONG_FLAG: u32 = 1 << 2;
    pub const CONNECT_WITH_DB: u32 = 1 << 3;
    pub const PROTOCOL_41: u32 = 1 << 9;
    pub const SSL: u32 = 1 << 11;
    pub const TRANSACTIONS: u32 = 1 << 13;
    pub const SECURE_CONNECTION: u32 = 1 << 15;
    pub const MULTI_STATEMENTS: u32 = 1 << 16;
    pub const MULTI_RESULTS: u32 = 1 << 17;
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    /// Without LOCAL_FILES: no file of this machine is sent to a server.
    pub const ALL: u32 = LONG_PASSWORD
        | FOUND_ROWS
        | LONG_FLAG
        | CONNECT_WITH_DB
        | PROTOCOL_41
        | TRANSACTIONS
        | SECURE_CONNECTION
        | MULTI_STATEMENTS
        | MULTI_RESULTS
        | PLUGIN_AUTH;
}

/// A server error.
#[derive(Debug, Default)]
pub struct Said {
    pub code: u16,
    pub text: String,
    /// Whether this client has a password.
    pub is_password_given: bool,
}

/// The command that ends a connection (COM_QUIT), as the first packet of an exchange.
const QUIT: &[u8] = &[1, 0, 0, 0, 1];

/// A connection.
pub struct Connection {
    pipe: Pipe,
    /// The number of the next packet of an exchange.
    sequence: u8,
    has_password: bool,
    /// Whether the user has allowed dlock to send the password without TLS.
    is_clear: bool,
    /// The server's number of this connection, as it said at the login; the low 32 bits.
    process: u64,
    /// Statements before the first one; empty once they have run.
    settings: String,
    /// A statement before each text that asks whether the server can write, if a URL names several
    /// servers: that may change while a connection is open. Its answer is the first row.
    role: String,
    /// Whether an answer is still to come that nobody waits for.
    is_owed: bool,
}

/// The first packet of a server.
struct Greeting {
    process: u64,
    can: u32,
    nonce: Vec<u8>,
    plugin: String,
}

impl Connection {
    /// Connects and logs in by `deadline`. `settings` are statements, each with its semicolon.
    pub fn begin(target: &Target, server: &Address, settings: &str, deadline: Moment) -> Result<Self, Error> {
        let shown = target.shown_at(server);
        let role = if target.has_several() { format!("SELECT {IS_READ_ONLY}; ") } else { String::new() };
        let begun = log_in(&shown, target.password.as_ref(), deadline, |password| {
            let mut connection = Self {
                pipe: Pipe::open(shown.clone(), target, server, deadline)?,
                sequence: 0,
                has_password: password.is_some(),
                is_clear: target.is_clear,
                process: 0,
                settings: settings.into(),
                role: role.clone(),
                is_owed: false,
            };
            connection.log_in(target, server, password.unwrap_or_default(), deadline).map_err(Error::from)?;
            connection.pipe.farewell = QUIT;
            Ok(connection)
        });
        Ok(begun?)
    }

    fn log_in(
        &mut self,
        target: &Target,
        server: &Address,
        password: &str,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let packet = self.packet(deadline)?;
        let greeting = Greeting::parse(&packet).ok_or_else(|| self.not_mysql())?;
        self.process = greeting.process;
        let mut can = can::ALL;
        if target.tls.is_some() {
            // Bytes after the greeting came before TLS: the certificate does not vouch for them.
            if greeting.can & can::SSL == 0 || !self.pipe.rest().is_empty() {
                return Err(Failure::Refused(Error::Misnamed(format!(
                    "cannot reach {}: the server has no TLS; without TLS the URL has ?sslmode=disable",
                    self.pipe.store
                ))));
            }
            can |= can::SSL;
            self.send(&hello(can), deadline)?;
            self.pipe.begin_tls(target, server, deadline).map_err(Failure::Refused)?;
        }
        let known = ["caching_sha2_password", "mysql_native_password"].contains(&greeting.plugin.as_str());
        let mut plugin = if known { greeting.plugin } else { "mysql_native_password".into() };
        let proof = self.prove(&plugin, &greeting.nonce, password)?;
        let mut answer = hello(can);
        answer.extend(
            [target.user().as_bytes(), b"\0", &[u8::try_from(proof.len()).unwrap_or(0)], &proof].concat(),
        );
        answer.extend([target.space.as_bytes(), b"\0", plugin.as_bytes(), b"\0"].concat());
        self.send(&answer, deadline)?;
        for _ in 0..PROOFS_MOST {
            let packet = self.packet(deadline)?;
            match packet.split_first() {
                Some((0, _)) => return Ok(()),
                Some((0xfe, rest)) => {
                    let mut parts = rest.splitn(2, |byte| *byte == 0);
                    plugin = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
                    let nonce = parts.next().unwrap_or_default();
                    let nonce = nonce.strip_suffix(b"\0").unwrap_or(nonce);
                    let proof = self.prove(&plugin, nonce, password)?;
                    self.send(&proof, deadline)?;
                }
                // The server accepted the proof from its cache.
                Some((1, [3])) => {}
                Some((1, [4])) if plugin == "caching_sha2_password" => {
                    self.check_private()?;
                    let clear = self.in_clear(password)?;
                    self.send(&clear, deadline)?;
                }
                _ => return Err(self.not_mysql()),
            }
        }
        Err(self.not_mysql())
    }

    /// The proof that this client knows the password.
    fn prove(&self, plugin: &str, nonce: &[u8], password: &str) -> Result<Vec<u8>, Failure> {
        match plugin {
            "mysql_native_password" | "caching_sha2_password" => {
                Ok(scramble(plugin, self.password(password)?, nonce))
            }
            "mysql_clear_password" => self.in_clear(password),
            "sha256_password" => self.check_private().and_then(|()| self.in_clear(password)),
            // The kernel tells the server which user is connected.
            "auth_socket" | "unix_socket" => Ok(Vec::new()),
            _ => Err(self.denied(
                "asks for a login method that dlock does not have (it has mysql_native_password, caching_sha2_password, mysql_clear_password and the user of a socket)",
            )),
        }
    }

    /// Without TLS such a server wants the password encrypted with its RSA key.
    fn check_private(&self) -> Result<(), Failure> {
        if self.pipe.is_private() {
            return Ok(());
        }
        Err(self.denied(
            "wants the password encrypted with its RSA key, which dlock cannot do; use the socket (mysql+unix://), or TLS (sslmode=verify-ca&ca=FILE; MySQL itself makes a ca.pem in its data directory), or let this user log in once by another client, after which the server knows it until it is restarted",
        ))
    }

    /// The password in clear.
    fn in_clear(&self, password: &str) -> Result<Vec<u8>, Failure> {
        Ok([self.password(password)?, b"\0"].concat())
    }

    /// The password, if the connection is private, the user allowed it, or the password is empty.
    fn password<'p>(&self, password: &'p str) -> Result<&'p [u8], Failure> {
        let password = password.as_bytes();
        if !password.is_empty() && !self.pipe.is_private() && !self.is_clear {
            return Err(self.denied(
                "asks for a proof of the password, and the connection has no TLS: a false server on that port could guess the password from it; use the socket (mysql+unix://), or sslmode=verify-full or verify-ca; if no other program can have the port, as in a test, sslmode=disable",
            ));
        }
        Ok(password)
    }

    fn denied(&self, why: &str) -> Failure {
        Failure::Refused(Error::Denied(format!("{} {why}", self.pipe.store)))
    }

    fn send(&mut self, body: &[u8], deadline: Moment) -> Result<(), Failure> {
        if body.len() >= PACKET_MOST {
            let why = format!("{}: a statement is too long for one packet", self.pipe.store);
            return Err(Failure::Refused(Error::Unavailable(why)));
        }
        let length = &body.len().to_le_bytes()[..3];
        let bytes = [length, &[self.sequence], body].concat();
        self.sequence = self.sequence.wrapping_add(1);
        match self.pipe.send(&bytes, deadline) {
            Ok(()) => Ok(()),
            // The error that the server sent before it closed is more useful.
            Err(failure) => match self.packet(deadline) {
                Err(refused @ Failure::Refused(_)) => Err(refused),
                _ => Err(failure.into()),
            },
        }
    }

    /// Waits for the next packet. A server error is returned as an error.
    fn packet(&mut self, deadline: Moment) -> Result<Vec<u8>, Failure> {
        let head = self.filled(4, deadline)?;
        let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
        self.sequence = head[3].wrapping_add(1);
        if length == PACKET_MOST {
            return Err(self.not_mysql());
        }
        let packet = self.filled(4 + length, deadline)?[4..4 + length].to_vec();
        self.pipe.take(4 + length);
        match packet.split_first() {
            Some((&ERROR, body)) => Err(self.error(body)),
            _ => Ok(packet),
        }
    }

    /// The received bytes, once there are this many.
    fn filled(&mut self, length: usize, deadline: Moment) -> Result<&[u8], Failure> {
        while self.pipe.rest().len() < length {
            self.pipe.fill(deadline)?;
        }
        Ok(self.pipe.rest())
    }

    fn not_mysql(&self) -> Failure {
        let what = "the server there does not speak the protocol of MySQL";
        Failure::Silent(Error::Garbled(format!("{}: {what}", self.pipe.store)))
    }

    fn error(&self, body: &[u8]) -> Failure {
        let Some((code, text)) = body.split_first_chunk() else { return self.not_mysql() };
        // The SQLSTATE says less than the code, and is skipped.
        let text = if text.first() == Some(&b'#') { text.get(6..).unwrap_or_default() } else { text };
        let (code, text) = (u16::from_le_bytes(*code), String::from_utf8_lossy(text).into_owned());
        match meaning(&self.pipe.store, &Said { code, text, is_password_given: self.has_password }) {
            Failure::ReadOnly(error) if self.role.is_empty() => Failure::Refused(error),
            failure => failure,
        }
    }

    /// Waits for the results of the statements of one text.
    fn answer(&mut self, deadline: Moment) -> Result<Answer, Failure> {
        let mut answer = Answer::default();
        let done = self.results(&mut answer, deadline);
        let role = (!self.role.is_empty() && !answer.rows.is_empty()).then(|| answer.rows.remove(0));
        let is_read_only = role.is_some_and(|row| row.bytes(0) == Some(b"1"));
        match done {
            Ok(()) | Err(Failure::Refused(_) | Failure::NoTables(_) | Failure::Conflict) if is_read_only => {
                let why = format!("{} is read-only, as a replica is", self.pipe.store);
                Err(Failure::ReadOnly(Error::Unavailable(why)))
            }
            done => done.map(|()| answer),
        }
    }

    /// The count of changed rows is that of the last statement that changes rows.
    fn results(&mut self, answer: &mut Answer, deadline: Moment) -> Result<(), Failure> {
        loop {
            let packet = self.packet(deadline)?;
            let status = match packet.split_first() {
                Some((0, rest)) => {
                    let (changed, rest) = length_encoded(rest).ok_or_else(|| self.not_mysql())?;
                    let (_, rest) = length_encoded(rest).ok_or_else(|| self.not_mysql())?;
                    answer.changed = changed;
                    rest.first_chunk().copied()
                }
                // With 0xfb the server asks for a file of this machine.
                Some((1..=0xfa, _)) => Some(self.rows(&packet, answer, deadline)?),
                _ => None,
            };
            let status = status.ok_or_else(|| self.not_mysql())?;
            let has_more = u16::from_le_bytes(status) & 8 != 0;
            if !has_more {
                return Ok(());
            }
        }
    }

    /// Reads the rows after the packet with the number of columns. Returns the status at their end.
    fn rows(&mut self, first: &[u8], answer: &mut Answer, deadline: Moment) -> Result<[u8; 2], Failure> {
        let is_end = |packet: &[u8]| packet.first() == Some(&0xfe) && packet.len() < 9;
        let columns = length_encoded(first).map_or(0, |(count, _)| count);
        while !is_end(&self.packet(deadline)?) {}
        loop {
            let packet = self.packet(deadline)?;
            if is_end(&packet) {
                return packet.last_chunk().copied().ok_or_else(|| self.not_mysql());
            }
            self.pipe.count(usize::try_from(columns).unwrap_or(usize::MAX))?;
            let row = row(&packet, columns).ok_or_else(|| self.not_mysql())?;
            answer.rows.push(row);
        }
    }

    fn send_statement(&mut self, statement: &str, deadline: Moment) -> Result<(), Failure> {
        self.sequence = 0;
        budget::note_sent();
        let text = [b"\x03", self.settings.as_bytes(), self.role.as_bytes(), statement.as_bytes()];
        self.send(&text.concat(), deadline)
    }

    /// Waits for the answer that nobody has waited for. A refusal does not matter.
    fn settle(&mut self, deadline: Moment) -> Result<(), Failure> {
        match std::mem::take(&mut self.is_owed).then(|| self.answer(deadline)) {
            Some(Err(failure @ (Failure::Broken(_) | Failure::Silent(_) | Failure::ReadOnly(_)))) => {
                Err(failure)
            }
            _ => Ok(()),
        }
    }
}

impl Link for Connection {
    fn tell(&mut self, statement: String, deadline: Moment) -> Result<(), Failure> {
        self.settle(deadline)?;
        self.send_statement(&statement, deadline)?;
        self.is_owed = true;
        Ok(())
    }

    fn ask(&mut self, statements: &[String], deadline: Moment) -> Result<Vec<Answer>, Failure> {
        self.settle(deadline)?;
        let (mut answers, mut failed) = (Vec::with_capacity(statements.len()), None);
        for statement in statements {
            self.send_statement(statement, deadline)?;
            match self.answer(deadline) {
                Err(failure @ (Failure::Broken(_) | Failure::Silent(_) | Failure::ReadOnly(_))) => {
                    return Err(failure);
                }
                Err(failure) => {
                    answers.push(Answer::default());
                    failed = failed.or(Some(failure));
                }
                Ok(answer) => {
                    self.pipe.has_answered();
                    self.settings.clear();
                    answers.push(answer);
                }
            }
        }
        failed.map_or(Ok(answers), Err)
    }

    /// The server sends nothing on its own except when it closes.
    fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        match self.pipe.listen(until)? {
            false => Ok(false),
            true if self.is_owed => {
                self.settle(Moment::now().after(REST_WITHIN))?;
                self.listen(until)
            }
            true => Err(self.pipe.failure(&ErrorKind::ConnectionAborted.into()).into()),
        }
    }

    fn is_direct(&self, process: u64) -> bool {
        self.process == process & u64::from(u32::MAX)
    }
}

impl Greeting {
    fn parse(packet: &[u8]) -> Option<Self> {
        let rest = packet.strip_prefix(&[10])?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let (process, rest) = rest.get(end + 1..)?.split_first_chunk()?;
        let process = u32::from_le_bytes(*process).into();
        let (nonce, rest) = rest.split_at_checked(8)?;
        let (low, rest) = rest.get(1..)?.split_first_chunk()?;
        let (high, rest) = rest.get(3..)?.split_first_chunk()?;
        let can = u32::from(u16::from_le_bytes(*low)) | u32::from(u16::from_le_bytes(*high)) << 16;
        let length = usize::from(*rest.first()?);
        let (more, plugin) = rest.get(11..)?.split_at_checked(length.saturating_sub(8).max(13))?;
        let nonce = [nonce, more.strip_suffix(b"\0").unwrap_or(more)].concat();
        let plugin = String::from_utf8_lossy(plugin.split(|byte| *byte == 0).next()?).into_owned();
        (can & can::PROTOCOL_41 != 0 && can & can::PLUGIN_AUTH != 0).then_some(Self {
            process,
            can,
            nonce,
            plugin,
        })
    }
}

/// The beginning of each answer to a greeting: capabilities, longest packet, character set.
fn hello(can: u32) -> Vec<u8> {
    [&can.to_le_bytes()[..], &(1u32 << 30).to_le_bytes(), &[CHARSET], &[0; 23]].concat()
}

/// A proof of the password for a server that knows the hash of the password's hash. It does not
/// reveal the password.
fn scramble(plugin: &str, password: &[u8], nonce: &[u8]) -> Vec<u8> {
    let is_old = plugin == "mysql_native_password";
    let algorithm = if is_old { &SHA1_FOR_LEGACY_USE_ONLY } else { &SHA256 };
    if password.is_empty() {
        return Vec::new();
    }
    let once = digest(algorithm, &[password]);
    let twice = digest(algorithm, &[&once]);
    let parts: [&[u8]; 2] = if is_old { [nonce, &twice] } else { [&twice, nonce] };
    once.iter().zip(digest(algorithm, &parts)).map(|(left, right)| left ^ right).collect()
}

fn digest(algorithm: &'static Algorithm, parts: &[&[u8]]) -> Vec<u8> {
    let mut context = Context::new(algorithm);
    parts.iter().for_each(|part| context.update(part));
    context.finish().as_ref().to_vec()
}

/// A length-encoded number, and the bytes after it.
fn length_encoded(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let length = match first {
        0..=0xfa => return Some((first.into(), rest)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let (digits, rest) = rest.split_at_checked(length)?;
    Some((digits.iter().rev().fold(0, |number, digit| number << 8 | u64::from(*digit)), rest))
}

/// The columns of a row, as text.
fn row(packet: &[u8], columns: u64) -> Option<Row> {
    let (mut row, mut rest) = (Vec::new(), packet);
    for _ in 0..columns {
        if let Some(behind) = rest.strip_prefix(&[0xfb]) {
            row.push(None);
            rest = behind;
            continue;
        }
        let (length, behind) = length_encoded(rest)?;
        let (column, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
        row.push(Some(column.to_vec()));
        rest = behind;
    }
    rest.is_empty().then_some(Row(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::row::hex;

    /// The expected values come from another program.
    #[test]
    fn passwords_are_scrambled_as_the_protocol_says() {
        let nonce: Vec<u8> = (1..=20).collect();
        let scrambled = |plugin, password: &[u8]| hex(&scramble(plugin, password, &nonce));
        assert_eq!(scrambled("mysql_native_password", b"sesame"), "bd1311674b08176dc159a8f9dc74318018dc1938");
        let sha2 = "9f99182bab313a08ab7b4b184b5432ddba7fbe1215a8207c04e7ab746662f6d7";
        assert_eq!(scrambled("caching_sha2_password", b"sesame"), sha2);
        assert_eq!(scrambled("caching_sha2_password", b""), "");
    }

    /// A server may send any bytes.
    #[test]
    fn nothing_that_a_server_says_panics() {
        let greeting =
            [&[10][..], b"8.0.0\0", &[0; 4], &[1; 8], &[0], &[0xff; 2], &[45], &[0; 2], &[0xff; 2], &[21]];
        let greeting =
            [&greeting.concat()[..], &[0; 10], &[2; 12], &[0], b"caching_sha2_password\0"].concat();
        let parsed = Greeting::parse(&greeting).map(|greeting| (greeting.nonce.len(), greeting.plugin));
        assert_eq!(parsed, Some((20, "caching_sha2_password".to_owned())));
        for end in 0..greeting.len() {
            drop(Greeting::parse(&greeting[..end]));
            drop(row(&greeting[end..], 3));
        }
        assert_eq!(length_encoded(&[0xfc, 1, 2, 9]), Some((0x201, &[9][..])));
        assert_eq!(row(&[1, b'a', 0xfb], 2), Some(Row(vec![Some(b"a".to_vec()), None])));
        assert_eq!(row(&[0xfe, 255, 255, 255, 255, 255, 255, 255, 255], 1), None);
    }
}
