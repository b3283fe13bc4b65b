//! Reads many locks, some at a time, so that no single script blocks the server for long. While
//! dlock parses one answer, the server already works on the next. The contents of the records are
//! not known here.

use super::connection::Connection;
use super::reply::{Reply, Seen};
use super::route::Whom;
use super::{RedisStore, script};
use crate::clock::Moment;
use crate::lock::Name;
use crate::store::{Error, View};
use serde::Serialize;

/// Most locks in one request.
const SEEN_AT_ONCE: usize = 64;
/// Texts in the answer before that of the first lock.
const BEFORE_LOCKS: usize = 1;

/// The argument of `inspect`.
#[derive(Serialize)]
struct Look {
    ends: usize,
}

/// An answer of `inspect`: the server's clock, and the locks.
type Answer = (u64, Vec<Reply>);

/// A request whose answer is not read yet.
pub(super) struct Prefetch {
    connection: Connection,
    names: Vec<Name>,
    ends: usize,
}

impl RedisStore {
    /// Reads the first of these locks, and as many after it as one answer has.
    pub(super) fn look(&mut self, names: &[Name], ends: usize, deadline: Moment) -> Result<Vec<View>, Error> {
        let mut some = self.together(names);
        if let Some(ahead) = self.ahead.take_if(|ahead| ahead.names == some && ahead.ends == ends)
            && let Some((answer, ahead)) = self.read_prefetched(ahead, names, deadline)
        {
            return self.views(some, answer, ahead);
        }
        self.ahead = None;
        let (answer, ahead) = loop {
            match self.read_some(some, names, ends, deadline) {
                // The error may be about another lock than the first one.
                Err(error) if some.len() > 1 && !error.is_transient() => some = &some[..some.len() / 2],
                seen => break seen?,
            }
        };
        self.views(some, answer, ahead)
    }

    /// The first of these locks, and those after it that the same request can read.
    fn together<'a>(&self, names: &'a [Name]) -> &'a [Name] {
        let some = names.get(..SEEN_AT_ONCE).unwrap_or(names);
        // One script takes locks of one slot only.
        if some.len() > 1 && self.caller.route.topology.part(some).is_some() { &some[..1] } else { some }
    }

    /// Reads some of these locks, and sends the request for the next ones.
    fn read_some(
        &mut self,
        some: &[Name],
        names: &[Name],
        ends: usize,
        deadline: Moment,
    ) -> Result<(Answer, Option<Prefetch>), Error> {
        let answer = self.caller.run(&script::INSPECT, some, &Look { ends }, deadline)?.locks()?;
        let next = self.next(names, answer.1.len());
        let connection =
            next.first().and_then(|first| self.caller.route.give(Whom::Lock(first), deadline).ok());
        let ahead = connection.and_then(|mut connection| {
            self.post(&mut connection, next, ends, deadline)?;
            Some(Prefetch { connection, names: next.to_vec(), ends })
        });
        Ok((answer, ahead))
    }

    /// The locks to ask for next, after `told` locks. None if another server may have them.
    fn next<'a>(&self, names: &'a [Name], told: usize) -> &'a [Name] {
        let next = self.together(names.get(told..).unwrap_or_default());
        let part = |one: &Name, other: &Name| self.caller.route.topology.part(&[one.clone(), other.clone()]);
        match (names, next) {
            ([one, ..], [other, ..]) if part(one, other).is_none() => next,
            _ => &[],
        }
    }

    /// Sends a request for these locks, if there are any, without waiting for the answer.
    fn post(&self, connection: &mut Connection, names: &[Name], ends: usize, deadline: Moment) -> Option<()> {
        if names.is_empty() {
            return Some(());
        }
        self.caller.post(connection, &script::INSPECT, names, &Look { ends }, deadline).ok()
    }

    /// Reads the answer to the prefetch request. The request for the next locks is sent before
    /// that. None on failure: asked anew, the server tells why.
    fn read_prefetched(
        &mut self,
        ahead: Prefetch,
        names: &[Name],
        deadline: Moment,
    ) -> Option<(Answer, Option<Prefetch>)> {
        let Prefetch { mut connection, ends, .. } = ahead;
        let deadline = deadline.min(Moment::now().after(self.target.op_timeout));
        let told = connection.fields_to_come(deadline).ok()??.saturating_sub(BEFORE_LOCKS);
        if told > self.together(names).len() {
            return None;
        }
        let next = self.next(names, told);
        self.post(&mut connection, next, ends, deadline)?;
        let value = connection.answer(deadline).ok()?;
        let answer = Reply::new(value, &self.target.shown).locks().ok()?;
        if next.is_empty() {
            self.caller.route.take_back(connection);
            return Some((answer, None));
        }
        Some((answer, Some(Prefetch { connection, names: next.to_vec(), ends })))
    }

    /// Parses an answer, while the server works on the request `ahead`.
    fn views(
        &mut self,
        names: &[Name],
        (now, locks): Answer,
        ahead: Option<Prefetch>,
    ) -> Result<Vec<View>, Error> {
        let mut views = Vec::new();
        for (name, lock) in names.iter().zip(&locks) {
            match lock.read::<Seen>() {
                Ok(seen) => views.push(seen.view(name, now)),
                Err(error) if views.is_empty() => return Err(error),
                // It will be the first one the next time, and its error is returned then.
                Err(_) => break,
            }
        }
        self.ahead = ahead;
        Ok(views)
    }
}
