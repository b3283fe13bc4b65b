//! Parses RESP2, which Redis speaks to clients that ask for nothing newer. The parser of the
//! `redis` crate believes every length and buffers without limit; here a reply is bounded in memory
//! and in depth. The time is bounded by the stream.

use crate::store::net::streams::{Channel, Inbox};
use redis::Value;
use std::io::{self, ErrorKind};
use std::mem::size_of;

/// Most memory for one reply. The largest real one lists some ten thousand waiters.
const REPLY_MAX: usize = 32 * 1024 * 1024;
/// Longest line.
const LINE_MAX: usize = 64 * 1024;
/// Deepest nesting of arrays. The replies of the scripts are three deep, those of a server four.
const DEPTH_MAX: usize = 8;

/// Why there is no reply.
#[derive(Debug)]
pub enum Failure {
    Io(io::Error),
    /// It is longer than any real reply.
    TooLong,
    /// It is not RESP.
    NotRedis,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

pub fn read(inbox: &mut Inbox, channel: Channel<'_>) -> Result<Value, Failure> {
    Reading { inbox, channel, room: REPLY_MAX, line: Vec::new() }.value(0)
}

struct Reading<'a> {
    inbox: &'a mut Inbox,
    channel: Channel<'a>,
    /// Memory that the reply may still take.
    room: usize,
    /// The last line that was read, without its end.
    line: Vec<u8>,
}

impl Reading<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, Failure> {
        self.take_room(size_of::<Value>())?;
        let kind = self.byte()?;
        if !b"+-:$*".contains(&kind) {
            return Err(Failure::NotRedis);
        }
        self.read_line()?;
        let line = &self.line;
        match kind {
            b'+' if line == b"OK" => Ok(Value::Okay),
            b'+' => String::from_utf8(line.clone()).map(Value::SimpleString).map_err(|_| Failure::NotRedis),
            b'-' => error(line),
            b':' => number(line).map(Value::Int),
            _ => match (kind, usize::try_from(number(line)?)) {
                // A negative length is nil.
                (_, Err(_)) => Ok(Value::Nil),
                (b'$', Ok(length)) => self.bytes(length).map(Value::BulkString),
                (_, Ok(_)) if depth == DEPTH_MAX => Err(Failure::NotRedis),
                (_, Ok(length)) => {
                    (0..length).map(|_| self.value(depth + 1)).collect::<Result<_, _>>().map(Value::Array)
                }
            },
        }
    }

    fn take_room(&mut self, size: usize) -> Result<(), Failure> {
        self.room = self.room.checked_sub(size).ok_or(Failure::TooLong)?;
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Failure> {
        if self.inbox.is_empty() {
            self.inbox.fill(&mut self.channel)?;
            if self.inbox.is_empty() {
                return Err(Failure::Io(ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Failure> {
        self.fill()?;
        Ok(self.inbox.take(1)[0])
    }

    /// Reads the rest of a line.
    fn read_line(&mut self) -> Result<(), Failure> {
        self.line.clear();
        while self.line.last() != Some(&b'\n') {
            self.fill()?;
            let part = self.inbox.take_line();
            if self.line.len() + part.len() > LINE_MAX {
                return Err(Failure::TooLong);
            }
            self.line.extend_from_slice(part);
        }
        self.take_room(self.line.len())?;
        if !self.line.ends_with(b"\r\n") {
            return Err(Failure::NotRedis);
        }
        self.line.truncate(self.line.len() - 2);
        Ok(())
    }

    /// Reads this many bytes, and the end of their line.
    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, Failure> {
        self.take_room(length)?;
        let (mut bytes, whole) = (Vec::new(), length + 2);
        while bytes.len() < whole {
            self.fill()?;
            bytes.extend_from_slice(self.inbox.take(whole - bytes.len()));
        }
        if !bytes.ends_with(b"\r\n") {
            return Err(Failure::NotRedis);
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}

fn number(line: &[u8]) -> Result<i64, Failure> {
    std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()).ok_or(Failure::NotRedis)
}

/// Parses an error reply by the crate, which knows the codes.
fn error(line: &[u8]) -> Result<Value, Failure> {
    let whole = [b"-".as_slice(), String::from_utf8_lossy(line).as_bytes(), b"\r\n"].concat();
    redis::parse_redis_value(&whole).map_err(|_| Failure::NotRedis)
}
