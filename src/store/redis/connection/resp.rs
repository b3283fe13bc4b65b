//! Parses RESP2, which Redis speaks to clients that ask for nothing newer. The parser of the
//! `redis` crate believes every length and buffers without limit; here a reply is bounded in memory
//! and in depth.

use crate::clock::Moment;
use crate::store::net;
use crate::store::net::pipe::Pipe;
use redis::Value;
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
    Net(net::failure::Failure),
    /// It is longer than any real reply.
    TooLong,
    /// It is not RESP.
    NotRedis,
}

/// Reads the next reply, by `deadline`.
pub fn read(pipe: &mut Pipe, deadline: Moment) -> Result<Value, Failure> {
    Reading { pipe, deadline, room: REPLY_MAX }.value(0)
}

struct Reading<'a> {
    pipe: &'a mut Pipe,
    deadline: Moment,
    /// Memory that the reply may still take.
    room: usize,
}

impl Reading<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, Failure> {
        self.take_room(size_of::<Value>())?;
        let (kind, line) = self.line()?;
        match kind {
            b'+' if line == b"OK" => Ok(Value::Okay),
            b'+' => String::from_utf8(line).map(Value::SimpleString).map_err(|_| Failure::NotRedis),
            b'-' => error(&line),
            b':' => number(&line).map(Value::Int),
            _ => match (kind, usize::try_from(number(&line)?)) {
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
        self.pipe.fill(self.deadline).map_err(Failure::Net)
    }

    /// Reads a line. Returns its first byte, and the rest without the end.
    fn line(&mut self) -> Result<(u8, Vec<u8>), Failure> {
        loop {
            let rest = self.pipe.rest();
            let kind = rest.first().copied();
            if kind.is_some_and(|kind| !b"+-:$*".contains(&kind)) {
                return Err(Failure::NotRedis);
            }
            if let (Some(kind), Some(end)) = (kind, rest.iter().position(|byte| *byte == b'\n')) {
                let line = rest[1..end].strip_suffix(b"\r").ok_or(Failure::NotRedis)?.to_vec();
                self.pipe.take(end + 1);
                self.take_room(line.len())?;
                return Ok((kind, line));
            }
            if rest.len() > LINE_MAX {
                return Err(Failure::TooLong);
            }
            self.fill()?;
        }
    }

    /// Reads this many bytes, and the end of their line.
    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, Failure> {
        self.take_room(length)?;
        let (mut bytes, whole) = (Vec::new(), length + 2);
        loop {
            let rest = self.pipe.rest();
            let count = rest.len().min(whole - bytes.len());
            bytes.extend_from_slice(&rest[..count]);
            self.pipe.take(count);
            if bytes.len() == whole {
                break;
            }
            self.fill()?;
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
