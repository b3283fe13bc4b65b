//! How does one speak HTTP to a member of etcd in bounded time? One connection: requests written, answers read, and the one
//! answer that does not end, that of a watch, line by line. What the bodies mean is told in `words`.
//!
//! This is HTTP/1.1 as etcd's JSON gateway speaks it, and no more. After any failure a connection is of no use any more: a
//! late answer would answer the wrong question.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::dial;
use crate::store::net::failure::{is_end, unreachable};
use crate::store::net::password::Refusal;
use crate::store::net::streams::{Bounded, Channel, Stream, any_readable};
use crate::store::net::tls::{Session, Tls};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// No answer is longer, nor are those to all that is asked together, nor is a line of a watch: so much say the keys of ten thousand
/// who wait, each with a command of a thousand characters, in base64; or the names of a hundred thousand locks.
const ANSWER_MOST: usize = 32 << 20;
/// Nor has it longer lines above its body.
const LINE_MOST: usize = 64 << 10;
const LINES_MOST: usize = 200;
const READ_SIZE: usize = 16 * 1024;
/// What has begun to come is there within this time.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// What went wrong in an exchange.
#[derive(Debug)]
pub enum Failure {
    /// The connection ended. It may be worth trying another one at once.
    Broken(Error),
    /// There was no answer in time.
    Silent(Error),
    /// The member cannot serve now: another one may.
    Unable(Error),
    /// Asking again or elsewhere does not mend it.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Refusal for Failure {
    fn refusal(&self) -> Option<&Error> {
        match self {
            Self::Refused(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken(error)
            | Failure::Silent(error)
            | Failure::Unable(error)
            | Failure::Refused(error) => error,
        }
    }
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where: what follows `/v3/`.
    pub path: &'static str,
    /// JSON.
    pub body: String,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// When, by the clock of the member, in whole seconds since 1970.
    pub date: Option<u64>,
    pub body: Vec<u8>,
}

/// How much of a body there is.
#[derive(Debug, Clone, Copy)]
enum Body {
    /// So many bytes more.
    Left(usize),
    /// Chunks; of the present one so many bytes more, the end of its line included.
    Chunks(usize),
    /// What stands below the last chunk, up to an empty line.
    Trailers,
    Over,
}

/// One connection.
pub struct Connection {
    store: String,
    host: String,
    stream: Stream,
    tls: Option<Session>,
    inbox: Vec<u8>,
    taken: usize,
    body: Body,
    /// How much has come since something was asked, or since a line was waited for.
    come: usize,
    /// What has come of a line of a watch.
    line: Vec<u8>,
}

impl Connection {
    /// Connects to a member, which is reached by `reached`, by `by`. `store` is how messages name it.
    pub fn begin(
        store: &str,
        address: &Address,
        tls: Option<&Tls>,
        reached: Moment,
        by: Moment,
    ) -> Result<Self, Error> {
        let mut stream = dial::open(store, address, tls, reached.min(by))?;
        let tls = match (tls, address) {
            (Some(tls), Address::Tcp { host, .. }) => {
                Some(Session::begin(store, tls, host, &mut Bounded { stream: &mut stream, by })?)
            }
            _ => None,
        };
        let (inbox, line) = (Vec::new(), Vec::new());
        let (store, host) = (store.to_owned(), address.to_string());
        Ok(Self { store, host, stream, tls, inbox, taken: 0, body: Body::Over, come: 0, line })
    }

    /// Sends requests together, and answers each in turn. `pass` is what a login was answered.
    pub fn ask(
        &mut self,
        requests: &[Request],
        pass: Option<&str>,
        by: Moment,
    ) -> Result<Vec<Answer>, Failure> {
        self.send(requests, pass, by)?;
        requests.iter().map(|_| self.answer(by)).collect()
    }

    /// Begins a request whose answer does not end, [`Connection::next_line`] by line.
    pub fn begin_lines(
        &mut self,
        request: &Request,
        pass: Option<&str>,
        by: Moment,
    ) -> Result<Option<Answer>, Failure> {
        self.send(std::slice::from_ref(request), pass, by)?;
        let (status, date) = self.head(by)?;
        if status == 200 {
            return Ok(None);
        }
        let body = self.rest(by)?;
        Ok(Some(Answer { status, date, body }))
    }

    /// The next line, if it comes until then.
    pub fn next_line(&mut self, until: Moment) -> Result<Option<Vec<u8>>, Failure> {
        let mut has_read = false;
        self.come = 0;
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.line, rest)));
            }
            // A member that never stops talking keeps nobody.
            if has_read && until.passed() {
                return Ok(None);
            }
            let mut line = std::mem::take(&mut self.line);
            let took = self.take_body(&mut line);
            self.line = line;
            match took? {
                Took::Some if self.line.len() > ANSWER_MOST => return Err(self.not_etcd()),
                Took::Some => has_read = true,
                Took::Over => return Err(self.failure(&ErrorKind::UnexpectedEof.into())),
                Took::Nothing => {
                    let is_there = self.wait(until).map_err(|error| self.failure(&error))?;
                    if !is_there {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn send(&mut self, requests: &[Request], pass: Option<&str>, by: Moment) -> Result<(), Failure> {
        self.come = 0;
        let mut text = String::new();
        for Request { path, body } in requests {
            let host = &self.host;
            // A member that knows of no leader is to say so at once.
            let _ = write!(
                text,
                "POST /v3/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
                 Grpc-Metadata-hasleader: true\r\n"
            );
            if let Some(pass) = pass {
                let _ = write!(text, "Authorization: {pass}\r\n");
            }
            let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
        }
        let mut channel = Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, by } };
        let sent = channel.write_all(text.as_bytes()).and_then(|()| channel.flush());
        let sent = sent.map_err(|error| channel.last_words().unwrap_or(error));
        sent.map_err(|error| self.failure(&error))
    }

    fn answer(&mut self, by: Moment) -> Result<Answer, Failure> {
        let (status, date) = self.head(by)?;
        let body = self.rest(by)?;
        Ok(Answer { status, date, body })
    }

    /// What stands above a body: the status, and the date.
    fn head(&mut self, by: Moment) -> Result<(u16, Option<u64>), Failure> {
        loop {
            let first = self.text_line(by)?;
            let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
            let Some(status) = status else { return Err(self.not_etcd()) };
            let (mut date, mut body) = (None, None);
            for number in 0.. {
                let line = self.text_line(by)?;
                if line.is_empty() {
                    break;
                }
                let Some((name, value)) = line.split_once(':').filter(|_| number < LINES_MOST) else {
                    return Err(self.not_etcd());
                };
                let value = value.trim();
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => {
                        let length = value.parse().ok().filter(|length| *length <= ANSWER_MOST);
                        body = Some(Body::Left(length.ok_or_else(|| self.not_etcd())?));
                    }
                    "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                        body = Some(Body::Chunks(0));
                    }
                    "date" => date = seconds(value),
                    _ => {}
                }
            }
            // What stands before a member and cannot reach it may say so in any form.
            if matches!(status, 502..=504) && body.is_none() {
                let why = format!("{} cannot serve now: HTTP {status}", self.store);
                return Err(Failure::Unable(Error::Unavailable(why)));
            }
            if status != 100 {
                self.body = body.ok_or_else(|| self.not_etcd())?;
                return Ok((status, date));
            }
        }
    }

    fn rest(&mut self, by: Moment) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            match self.take_body(&mut body)? {
                Took::Over => return Ok(body),
                Took::Some => {}
                Took::Nothing => self.fill(by).map_err(|error| self.failure(&error))?,
            }
        }
    }

    /// Moves what is there of the body.
    fn take_body(&mut self, to: &mut Vec<u8>) -> Result<Took, Failure> {
        match self.body {
            Body::Over | Body::Left(0) => {
                self.body = Body::Over;
                Ok(Took::Over)
            }
            Body::Left(left) => {
                let took = self.take(left, to);
                self.body = Body::Left(left - took);
                Ok(if took > 0 { Took::Some } else { Took::Nothing })
            }
            Body::Chunks(0) => {
                let Some(line) = self.take_line()? else { return Ok(Took::Nothing) };
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(size, 16).ok().filter(|size| *size <= ANSWER_MOST);
                match size.ok_or_else(|| self.not_etcd())? {
                    0 => self.body = Body::Trailers,
                    size => self.body = Body::Chunks(size + 2),
                }
                Ok(Took::Some)
            }
            Body::Trailers => {
                let Some(line) = self.take_line()? else { return Ok(Took::Nothing) };
                if line.is_empty() {
                    self.body = Body::Over;
                }
                Ok(Took::Some)
            }
            Body::Chunks(left) => {
                // The last two bytes end the line of the chunk.
                let mut end = Vec::new();
                let took = if left > 2 { self.take(left - 2, to) } else { self.take(left, &mut end) };
                self.body = Body::Chunks(left - took);
                Ok(if took > 0 { Took::Some } else { Took::Nothing })
            }
        }
    }

    fn take(&mut self, most: usize, to: &mut Vec<u8>) -> usize {
        let rest = &self.inbox[self.taken..];
        let count = rest.len().min(most);
        to.extend_from_slice(&rest[..count]);
        self.taken += count;
        count
    }

    /// A whole line without its end, if it is there.
    fn take_line(&mut self) -> Result<Option<String>, Failure> {
        let rest = &self.inbox[self.taken..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return if rest.len() > LINE_MOST { Err(self.not_etcd()) } else { Ok(None) };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let line = String::from_utf8_lossy(line).into_owned();
        self.taken += end + 1;
        Ok(Some(line))
    }

    fn text_line(&mut self, by: Moment) -> Result<String, Failure> {
        loop {
            if let Some(line) = self.take_line()? {
                return Ok(line);
            }
            self.fill(by).map_err(|error| self.failure(&error))?;
        }
    }

    fn fill(&mut self, by: Moment) -> io::Result<()> {
        if self.come > ANSWER_MOST {
            return Err(io::Error::new(ErrorKind::InvalidData, "its answer does not end"));
        }
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let length = self.inbox.len();
        self.inbox.resize(length + READ_SIZE, 0);
        let mut channel = Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, by } };
        let read = channel.read(&mut self.inbox[length..]);
        let count = *read.as_ref().unwrap_or(&0);
        self.inbox.truncate(length + count);
        self.come += count;
        match read {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => read.map(drop),
        }
    }

    /// Waits until there is more in the inbox, or until then (false).
    fn wait(&mut self, until: Moment) -> io::Result<bool> {
        loop {
            let is_there = match &mut self.tls {
                Some(session) => session.has_more()?,
                None => false,
            };
            if !is_there && !any_readable(&[&self.stream], until)? {
                return Ok(false);
            }
            let is_more = match &mut self.tls {
                Some(session) if !is_there => session.take_in(&mut self.stream)?,
                _ => true,
            };
            if is_more {
                self.fill(Moment::now().after(REST_WITHIN))?;
                return Ok(true);
            }
        }
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let explained = self.tls.as_ref().and_then(|session| session.explain(&self.store, error));
        let meant = explained.unwrap_or_else(|| unreachable(&self.store, error));
        if !meant.is_transient() {
            Failure::Refused(meant)
        } else if is_end(error) {
            Failure::Broken(meant)
        } else {
            Failure::Silent(meant)
        }
    }

    fn not_etcd(&self) -> Failure {
        let what = "what answers there is no etcd with its JSON gateway";
        Failure::Refused(Error::Garbled(format!("{}: {what}", self.store)))
    }
}

/// What was there of a body.
enum Took {
    /// Something.
    Some,
    /// More has to be read first.
    Nothing,
    /// It is over.
    Over,
}

/// A date as HTTP writes it, in seconds since 1970.
fn seconds(date: &str) -> Option<u64> {
    let parsed = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    u64::try_from(parsed.as_second()).ok()
}
