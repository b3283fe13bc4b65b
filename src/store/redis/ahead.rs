//! How does a server tell of many locks? Of some at a time, lest one script keep the others waiting; and it works on the
//! next ones while the answer before is taken apart here. What the records say is not known here.

use super::connection::Connection;
use super::reply::Reply;
use super::route::Whom;
use super::{RedisStore, script};
use crate::clock::Moment;
use crate::lock::Name;
use crate::store::{Error, View};

/// How many locks one script is asked to tell of at most.
const SEEN_AT_ONCE: usize = 64;
/// The fields of its answer before the first lock.
const BEFORE_LOCKS: usize = 2;

/// What a server was asked whose answer is not read yet.
pub(super) struct Ahead {
    connection: Connection,
    names: Vec<Name>,
    ends: usize,
}

impl RedisStore {
    /// Looks at the first of these locks, and at as many behind it as one answer tells of.
    pub(super) fn look(&mut self, names: &[Name], ends: usize, by: Moment) -> Result<Vec<View>, Error> {
        let mut some = self.together(names);
        if let Some(ahead) = self.ahead.take_if(|ahead| ahead.names == some && ahead.ends == ends)
            && let Some((reply, ahead)) = self.hear(ahead, names, by)
        {
            return self.views(some, reply, ahead);
        }
        self.ahead = None;
        let (reply, ahead) = loop {
            match self.see(some, names, ends, by) {
                // Perhaps of another one than the first.
                Err(error) if some.len() > 1 && !error.is_transient() => some = &some[..some.len() / 2],
                seen => break seen?,
            }
        };
        self.views(some, reply, ahead)
    }

    /// The first of these locks, and those behind it of which one script may tell.
    fn together<'a>(&self, names: &'a [Name]) -> &'a [Name] {
        let some = names.get(..SEEN_AT_ONCE).unwrap_or(names);
        // One script is for locks of one slot.
        if some.len() > 1 && self.caller.route.topology.part(some).is_some() { &some[..1] } else { some }
    }

    /// What the server says of some of these locks. The next ones are asked for.
    fn see(
        &mut self,
        some: &[Name],
        names: &[Name],
        ends: usize,
        by: Moment,
    ) -> Result<(Reply, Option<Ahead>), Error> {
        let (_, reply) = self.caller.run(&script::INSPECT, some, &[&ends.to_string()], by)?;
        let next = self.next(names, reply.len());
        let connection = next.first().and_then(|first| self.caller.route.give(Whom::Lock(first), by).ok());
        let ahead = connection.and_then(|mut connection| {
            self.post(&mut connection, next, ends, by)?;
            Some(Ahead { connection, names: next.to_vec(), ends })
        });
        Ok((reply, ahead))
    }

    /// What to ask for next, where the answer tells of so many locks: nothing where another server may have them.
    fn next<'a>(&self, names: &'a [Name], told: usize) -> &'a [Name] {
        let next = self.together(names.get(told..).unwrap_or_default());
        let part = |one: &Name, other: &Name| self.caller.route.topology.part(&[one.clone(), other.clone()]);
        match (names, next) {
            ([one, ..], [other, ..]) if part(one, other).is_none() => next,
            _ => &[],
        }
    }

    /// Asks for these locks, if there are any, and waits for nothing.
    fn post(&self, connection: &mut Connection, names: &[Name], ends: usize, by: Moment) -> Option<()> {
        if names.is_empty() {
            return Some(());
        }
        self.caller.post(connection, &script::INSPECT, names, &[&ends.to_string()], by).ok()
    }

    /// The answer to what was asked ahead, and what is asked meanwhile: the next, before the answer is read. Nothing where
    /// it is no answer: asked anew, the server says why.
    fn hear(&mut self, ahead: Ahead, names: &[Name], by: Moment) -> Option<(Reply, Option<Ahead>)> {
        let Ahead { mut connection, ends, .. } = ahead;
        let by = by.min(Moment::now().after(self.target.op_timeout));
        let told = connection.fields_to_come(by).ok()??.saturating_sub(BEFORE_LOCKS);
        if told > self.together(names).len() {
            return None;
        }
        let next = self.next(names, told);
        self.post(&mut connection, next, ends, by)?;
        let value = connection.answer(by).ok()?;
        let (_, reply) = Reply::open(value, &self.target.shown).ok()?;
        if next.is_empty() {
            self.caller.route.take_back(connection);
            return Some((reply, None));
        }
        Some((reply, Some(Ahead { connection, names: next.to_vec(), ends })))
    }

    /// Takes an answer apart, while the server works on what was asked `ahead`.
    fn views(&mut self, names: &[Name], mut reply: Reply, ahead: Option<Ahead>) -> Result<Vec<View>, Error> {
        let mut views = Vec::new();
        for name in names {
            if reply.is_empty() && !views.is_empty() {
                break;
            }
            match reply.nested().and_then(|mut lock| lock.view(name)) {
                Ok(view) => views.push(view),
                Err(error) if views.is_empty() => return Err(error),
                // It is the first the next time.
                Err(_) => break,
            }
        }
        self.ahead = ahead;
        Ok(views)
    }
}
