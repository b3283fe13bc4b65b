//! HTTP to a member of etcd, in bounded time. A connection sends requests and reads their answers.
//! It reads the endless answer of a watch line by line. The module `messages` defines what the bodies
//! mean.
//!
//! This is HTTP/1.1 as etcd's JSON gateway speaks it, and no more. After any failure the connection
//! is dropped: a late answer would be taken for the answer to the next request.

use crate::clock::Moment;
use crate::rules::Time;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::failure::Failure;
use crate::store::net::pipe::{ANSWER_MOST, Pipe};
use crate::store::net::target::Target;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes of a header line.
const LINE_MOST: usize = 64 << 10;
const LINES_MOST: usize = 200;

/// A POST to the gateway.
#[derive(Debug, Clone)]
pub struct Request {
    /// The path behind `/v3/`.
    pub path: &'static str,
    /// JSON.
    pub body: String,
}

/// An answer that has arrived whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The time of the member that answered.
    pub now: Time,
    pub body: Vec<u8>,
}

/// What follows in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A chunk, and before it the line end of the last one.
    Chunk,
    /// Trailers, up to an empty line.
    Trailer,
    Nothing,
}

/// A connection to a member.
pub struct Connection {
    pipe: Pipe,
    host: String,
    /// Bytes that are left of the body or of its current chunk.
    left: usize,
    /// What follows them.
    next: Next,
    /// Bytes of a watch that were not yet returned.
    line: Vec<u8>,
}

impl Connection {
    /// Connects to a member.
    pub fn begin(target: &Target, member: &Address, deadline: Moment) -> Result<Self, Error> {
        let mut pipe = Pipe::open(target.shown.clone(), target, member, deadline)?;
        pipe.begin_tls(target, member, deadline)?;
        Ok(Self { pipe, host: member.to_string(), left: 0, next: Next::Nothing, line: Vec::new() })
    }

    /// Sends requests in one batch and returns their answers in order. `pass` is the token of a
    /// login.
    pub fn ask(
        &mut self,
        requests: &[Request],
        pass: Option<&str>,
        deadline: Moment,
    ) -> Result<Vec<Answer>, Failure> {
        self.send(requests, pass, deadline)?;
        requests.iter().map(|_| self.answer(deadline)).collect()
    }

    /// Sends a request with an endless answer, to be read by [`Connection::next_line`]. Returns an
    /// answer only if that is an error.
    pub fn begin_lines(
        &mut self,
        request: &Request,
        pass: Option<&str>,
        deadline: Moment,
    ) -> Result<Option<Answer>, Failure> {
        self.send(std::slice::from_ref(request), pass, deadline)?;
        let mut answer = self.head(deadline)?;
        if answer.status == 200 {
            self.pipe.has_answered();
            return Ok(None);
        }
        self.read_body(&mut answer.body, deadline)?;
        Ok(Some(answer))
    }

    /// The next line, or None if none is complete at `until`.
    pub fn next_line(&mut self, until: Moment) -> Result<Option<Vec<u8>>, Failure> {
        let mut has_read = false;
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.line, rest)));
            }
            // A member that sends without end must not hold up the caller.
            if has_read && until.passed() {
                return Ok(None);
            }
            if self.is_over() {
                return Err(self.pipe.failure(&ErrorKind::UnexpectedEof.into()));
            }
            match self.take_part()? {
                Some(part) => {
                    self.line.extend(part);
                    has_read = true;
                }
                None if self.pipe.hear(until).map_err(or_refused)? => {}
                None => return Ok(None),
            }
            if self.line.len() > ANSWER_MOST {
                return Err(self.not_etcd());
            }
        }
    }

    fn send(&mut self, requests: &[Request], pass: Option<&str>, deadline: Moment) -> Result<(), Failure> {
        let mut text = String::new();
        for Request { path, body } in requests {
            let host = &self.host;
            // With `hasleader`, a member without a leader says so at once.
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
        self.pipe.send(text.as_bytes(), deadline).map_err(or_refused)
    }

    fn answer(&mut self, deadline: Moment) -> Result<Answer, Failure> {
        let mut answer = self.head(deadline)?;
        self.read_body(&mut answer.body, deadline)?;
        if answer.status == 200 {
            self.pipe.has_answered();
        }
        Ok(answer)
    }

    /// Reads the status line and the headers. The body of the answer is still to be read.
    fn head(&mut self, deadline: Moment) -> Result<Answer, Failure> {
        let first = self.text_line(deadline)?;
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let Some(status) = status else { return Err(self.not_etcd()) };
        let (mut date, mut body) = (None, None);
        for number in 0.. {
            let line = self.text_line(deadline)?;
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
                    body = Some((length.ok_or_else(|| self.not_etcd())?, Next::Nothing));
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                    body = Some((0, Next::Chunk));
                }
                "date" => date = seconds(value),
                _ => {}
            }
        }
        // A proxy that cannot reach the member may say so without a length.
        if matches!(status, 502..=504) && body.is_none() {
            let why = format!("{} cannot serve now: HTTP {status}", self.pipe.store);
            return Err(Failure::Unable(Error::Unavailable(why)));
        }
        (self.left, self.next) = body.ok_or_else(|| self.not_etcd())?;
        Ok(Answer { status, now: time(date), body: Vec::new() })
    }

    fn read_body(&mut self, to: &mut Vec<u8>, deadline: Moment) -> Result<(), Failure> {
        while !self.is_over() {
            match self.take_part()? {
                Some(part) => to.extend(part),
                None => self.fill(deadline)?,
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.left == 0 && self.next == Next::Nothing
    }

    /// The next part of the body, without framing. None if nothing has arrived.
    fn take_part(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        if self.left > 0 {
            let rest = self.pipe.rest();
            let part = rest[..rest.len().min(self.left)].to_vec();
            self.pipe.take(part.len());
            self.left -= part.len();
            return Ok(Some(part).filter(|part| !part.is_empty()));
        }
        let Some(line) = self.take_line()? else { return Ok(None) };
        match self.next {
            Next::Chunk if !line.is_empty() => {
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(size, 16).ok().filter(|size| *size <= ANSWER_MOST);
                self.left = size.ok_or_else(|| self.not_etcd())?;
                self.next = if self.left == 0 { Next::Trailer } else { Next::Chunk };
            }
            Next::Trailer if line.is_empty() => self.next = Next::Nothing,
            _ => {}
        }
        Ok(Some(Vec::new()))
    }

    /// A line without its end, if all of it has arrived.
    fn take_line(&mut self) -> Result<Option<String>, Failure> {
        let rest = self.pipe.rest();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return if rest.len() > LINE_MOST { Err(self.not_etcd()) } else { Ok(None) };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let line = String::from_utf8_lossy(line).into_owned();
        self.pipe.take(end + 1);
        Ok(Some(line))
    }

    fn text_line(&mut self, deadline: Moment) -> Result<String, Failure> {
        loop {
            if let Some(line) = self.take_line()? {
                return Ok(line);
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Moment) -> Result<(), Failure> {
        self.pipe.fill(deadline).map_err(or_refused)
    }

    fn not_etcd(&self) -> Failure {
        let what = "the server there is not etcd with its JSON gateway";
        Failure::Refused(Error::Garbled(format!("{}: {what}", self.pipe.store)))
    }
}

/// The failure, or a refusal if a retry would fail as well: no member accepts this client's
/// certificate.
pub fn or_refused(failure: Failure) -> Failure {
    match failure {
        Failure::Broken(error) | Failure::Silent(error) if !error.is_transient() => Failure::Refused(error),
        failure => failure,
    }
}

/// Seconds since 1970 of an HTTP date.
fn seconds(date: &str) -> Option<u64> {
    let parsed = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    u64::try_from(parsed.as_second()).ok()
}

/// This machine's time. If the member names a second, the time is moved into that second.
fn time(date: Option<u64>) -> Time {
    let here = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
    Time(date.map_or(here, |date| {
        let begin = date.saturating_mul(1_000_000);
        here.clamp(begin, begin.saturating_add(999_999))
    }))
}
