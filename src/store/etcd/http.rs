//! HTTP to a member of etcd, in bounded time. A connection sends requests and reads their answers.
//! It reads the endless answer of a watch line by line. The module `messages` defines what the bodies
//! mean.
//!
//! This is HTTP/1.1 as etcd's JSON gateway speaks it, and no more. After any failure the connection
//! is dropped: a late answer would be taken for the answer to the next request.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::failure::Failure;
use crate::store::net::pipe::{ANSWER_MOST, Pipe};
use crate::store::net::target::Target;
use std::fmt::Write as _;
use std::io::ErrorKind;

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
    /// The member's time, in seconds since 1970.
    pub date: Option<u64>,
    pub body: Vec<u8>,
}

/// What is still to be read of a body.
#[derive(Debug, Clone, Copy)]
enum Body {
    /// This many bytes.
    Left(usize),
    /// Chunks. This many bytes of the current one are left, its line end included.
    Chunks(usize),
    /// Trailers, up to an empty line.
    Trailers,
    Over,
}

/// A connection to a member.
pub struct Connection {
    pipe: Pipe,
    host: String,
    body: Body,
    /// Bytes of a watch that were not yet returned.
    line: Vec<u8>,
}

impl Connection {
    /// Connects to a member.
    pub fn begin(target: &Target, member: &Address, deadline: Moment) -> Result<Self, Error> {
        let mut pipe = Pipe::open(target.shown.clone(), target, member, deadline)?;
        pipe.begin_tls(target, member, deadline)?;
        Ok(Self { pipe, host: member.to_string(), body: Body::Over, line: Vec::new() })
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
        let (status, date) = self.head(deadline)?;
        if status == 200 {
            return Ok(None);
        }
        let body = self.rest(deadline)?;
        Ok(Some(Answer { status, date, body }))
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
            let mut line = std::mem::take(&mut self.line);
            let took = self.take_body(&mut line);
            self.line = line;
            match took? {
                Took::Some if self.line.len() > ANSWER_MOST => return Err(self.not_etcd()),
                Took::Some => has_read = true,
                Took::Over => return Err(self.pipe.failure(&ErrorKind::UnexpectedEof.into())),
                Took::Nothing if self.pipe.hear(until).map_err(or_refused)? => {}
                Took::Nothing => return Ok(None),
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
        let (status, date) = self.head(deadline)?;
        let body = self.rest(deadline)?;
        Ok(Answer { status, date, body })
    }

    /// Reads the status line and the headers. Returns the status and the date.
    fn head(&mut self, deadline: Moment) -> Result<(u16, Option<u64>), Failure> {
        loop {
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
                        body = Some(Body::Left(length.ok_or_else(|| self.not_etcd())?));
                    }
                    "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                        body = Some(Body::Chunks(0));
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
            if status != 100 {
                self.body = body.ok_or_else(|| self.not_etcd())?;
                return Ok((status, date));
            }
        }
    }

    fn rest(&mut self, deadline: Moment) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            match self.take_body(&mut body)? {
                Took::Over => return Ok(body),
                Took::Some => {}
                Took::Nothing => self.fill(deadline)?,
            }
        }
    }

    /// Moves the part of the body that has arrived to `to`.
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
                // The last two bytes are the chunk's line end.
                let mut end = Vec::new();
                let took = if left > 2 { self.take(left - 2, to) } else { self.take(left, &mut end) };
                self.body = Body::Chunks(left - took);
                Ok(if took > 0 { Took::Some } else { Took::Nothing })
            }
        }
    }

    fn take(&mut self, most: usize, to: &mut Vec<u8>) -> usize {
        let rest = self.pipe.rest();
        let count = rest.len().min(most);
        to.extend_from_slice(&rest[..count]);
        self.pipe.take(count);
        count
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

/// What [`Connection::take_body`] found.
enum Took {
    /// A part.
    Some,
    /// Nothing yet: more has to be read.
    Nothing,
    /// The end of the body.
    Over,
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
