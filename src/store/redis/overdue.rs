//! What of a renewal that is not answered in time? A server that stood still answers it afterwards, and the lease then
//! counts from when it was sent. So its connection is kept and listened to, and nothing is sent behind it: what a
//! thousand holders send again and again is what a server would have to work off before it could answer any of them.
//!
//! The request, or the connection, may also be lost. So now and then another connection is tried, seldom at first and
//! often where the job would soon have to end. There a question goes first that costs a server nothing: only when it
//! is answered, and the renewal still is not, that is sent again. The other connection is kept as well until the job would
//! soon have to end: a server that stands still for less than half of the lease sees two new connections of a holder. With TLS or
//! behind sentinels it sees more, because a connection whose handshake or ROLE is not answered is dropped.

use super::connection::Connection;
use super::script;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::silent;
use redis::{Value, cmd};
use std::time::Duration;

/// A renewal that is not answered yet.
pub struct Overdue {
    connection: Connection,
    /// Read before it was sent.
    pub sent: Moment,
    ttl: Duration,
    try_at: Moment,
    /// The connection that was tried last, on which the question is not answered yet.
    other: Option<Connection>,
}

pub enum First {
    /// The connection that was kept: with this.
    Kept(Value),
    /// The other one, so that the first will not.
    Other,
}

impl Overdue {
    /// Listens on a connection on which the renewal was sent.
    pub fn new(connection: Connection, sent: Moment, ttl: Duration) -> Self {
        Self { connection, sent, ttl, try_at: Moment::now(), other: None }
    }

    /// Whether it is time to try another connection.
    pub fn is_to_try(&mut self) -> bool {
        let now = Moment::now();
        let due = self.try_at <= now;
        if due {
            let hurry_from = self.hurry_from();
            self.try_at = if hurry_from <= now {
                // Each attempt, from its start on: one that listened first would have too little time left to connect.
                now
            } else {
                now.after(self.ttl / 8).min(hurry_from)
            };
        }
        due
    }

    /// Waits for the answer until another connection is to be tried, at most until `by`.
    pub fn wait(&mut self, by: Moment) -> Result<Option<Value>, Error> {
        let until = self.try_at.min(by);
        if !self.connection.listen(until)? {
            return Ok(None);
        }
        self.connection.answer(until.max(Moment::now().after(self.ttl / 32))).map(Some)
    }

    /// Keeps the other connection as well.
    pub fn keep_other(&mut self, other: Connection) {
        self.other = Some(other);
    }

    /// The other connection, to be tried again. It may be dead, so a new one is made when there is no time to lose.
    pub fn take_other(&mut self) -> Option<Connection> {
        let mut other = self.other.take().filter(|_| !self.hurry_from().passed())?;
        other.has_answered();
        Some(other)
    }

    /// From here on each attempt makes a new connection. An outage of half the ttl that began with this renewal ends a little
    /// later.
    fn hurry_from(&self) -> Moment {
        self.sent.after(self.ttl * 15 / 32)
    }

    /// Who is answered first, of this connection and `other`, to the same server? An error where neither is.
    pub fn race(&mut self, other: &mut Connection, by: Moment) -> Result<First, Error> {
        if !other.is_owed() {
            other.preface(cmd("TIME"));
            other.post(Vec::new(), by)?;
        }
        let (now, mut broken) = (Moment::now(), false);
        while !broken && other.listen_beside(&self.connection, by)? {
            match self.connection.listen(now) {
                Ok(true) => match self.connection.answer(by) {
                    Ok(value) if !script::is_unknown(&value) => return Ok(First::Kept(value)),
                    // What did not renew is sent again, behind the answer of the other.
                    Ok(_) | Err(_) => broken = true,
                },
                Ok(false) => {}
                Err(_) => broken = true,
            }
            if other.listen(now)? {
                break;
            }
        }
        let answered = other.settle(by);
        if answered.is_err() && !broken {
            other.keep_for_the_answer();
        }
        // Whatever it says, it is there.
        answered.map(|()| First::Other)
    }

    /// The connection, when the answer has come.
    pub fn into_connection(mut self) -> Connection {
        self.connection.has_answered();
        self.connection
    }

    /// Puts the connection that was kept in the place of another one.
    pub fn take_the_place_of(&mut self, other: &mut Connection) {
        std::mem::swap(&mut self.connection, other);
        other.has_answered();
    }

    /// The error for an answer that has not come.
    pub fn silence(&self) -> Error {
        silent(&self.connection.target().shown)
    }

    /// Whether it was sent to the server that this connection leads to.
    pub fn is_at(&self, connection: &Connection) -> bool {
        self.connection.target().address == connection.target().address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::net::Address;
    use crate::store::redis::Target;
    use std::error::Error as Any;
    use std::io::{self, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    const LONG: Duration = Duration::from_secs(20);

    /// Reads a command of one word.
    fn hear(stream: &mut impl Read, word: &str) -> io::Result<()> {
        let mut heard = vec![0; format!("*1\r\n$4\r\n{word}\r\n").len()];
        stream.read_exact(&mut heard)?;
        if heard.ends_with(format!("{word}\r\n").as_bytes()) {
            Ok(())
        } else {
            Err(io::Error::other("not it"))
        }
    }

    /// The renewal is sent again on the other connection; no reply may be left over there.
    #[test]
    fn a_script_that_is_not_known_is_no_answer() -> Result<(), Box<dyn Any>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let target = Target {
            address: Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr()?.port() },
            database: 0,
            username: None,
            password: None,
            tls: None,
            shown: "the server".into(),
            connect_timeout: LONG,
            op_timeout: LONG,
        };
        let server = thread::spawn(move || -> io::Result<()> {
            let (mut kept, _) = listener.accept()?;
            let (mut other, _) = listener.accept()?;
            hear(&mut kept, "ROLE")?;
            hear(&mut other, "TIME")?;
            kept.write_all(b"-NOSCRIPT No matching script.\r\n")?;
            other.write_all(b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n")?;
            hear(&mut other, "TIME")?;
            other.write_all(b"+PONG\r\n")
        });
        let by = Moment::now().after(LONG);
        let mut connection = Connection::dial(&target, by)?;
        connection.post(vec![cmd("ROLE")], by)?;
        let mut kept = Overdue::new(connection, Moment::now(), LONG);
        let mut other = Connection::dial(&target, by)?;
        assert!(matches!(kept.race(&mut other, by)?, First::Other));
        assert_eq!(other.ask(cmd("TIME"), by)?, Value::SimpleString("PONG".into()));
        server.join().map_err(|_| "the server has failed")??;
        Ok(())
    }
}
