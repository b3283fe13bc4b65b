//! Which server is the master of a lock, now. The route keeps the connections, follows
//! redirections, and handles failures. How the master is found is up to the [`Topology`]: one
//! server, sentinels (`sentinel.rs`) or a cluster (`cluster.rs`). The route does not know what is
//! sent on a connection.
//!
//! Each call has one deadline, however many servers are asked on the way. A call may be sent again
//! to another server, because every operation is idempotent (I4).

use super::connection::{Asking, Connection};
use super::failure::refusal;
use super::target::Target;
use crate::clock::{Moment, sleep_until};
use crate::lock::Name;
use crate::store::Error;
use crate::store::net::Address;
use redis::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Pause after a TRYAGAIN.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub enum Whom<'a> {
    Lock(&'a Name),
    /// This server, which [`Route::masters`] named.
    Server(&'a Address),
}

/// How long to wait for a server that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The op-timeout.
    OpTimeout,
    /// The deadline of the whole request: an answer that is not waited for is of no use.
    Deadline,
}

/// The server to use next.
pub struct Hop {
    pub target: Target,
    /// Deadline for this server, connecting included.
    pub until: Moment,
    /// Whether ASKING precedes the command.
    pub asking: Asking,
}

/// What to do after an answer or a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This is the result, good or bad.
    Done,
    /// The topology knows another server to try.
    Elsewhere,
    /// Try the same server again after a pause.
    Again,
}

/// Where the number of a master's replicas comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaCount {
    /// The master, which knows the connected ones.
    Connected,
    Nodes,
    /// It is known: this many.
    Known(u32),
}

/// How several servers belong together. For one call of [`Route::exchange`]: `begin`; then for each
/// server `next_server`, `greet` on a new connection, and `heard` or `failed`.
pub trait Topology: Send {
    /// A call of [`Route::exchange`] begins.
    fn begin(&mut self) {}

    /// The server to use. If it is not known, asks other servers until `deadline`.
    fn next_server(&mut self, whom: Whom<'_>, deadline: Moment) -> Result<Hop, Error>;

    /// The first commands on a new connection.
    fn greet(&mut self, _connection: &mut Connection, _by: Moment) -> Result<(), Error> {
        Ok(())
    }

    fn heard(&mut self, _connection: &mut Connection, _value: &Value) -> Result<Next, Error> {
        Ok(Next::Done)
    }

    /// A server could not be reached, or refused.
    fn failed(&mut self, _address: &Address, _error: &Error) -> Next {
        Next::Done
    }

    /// Forgets what is known: it may be wrong.
    fn reset(&mut self) {}

    /// Sends the question which server is the master, beside a request on an existing connection.
    /// Does not wait.
    fn ask_beside(&mut self) {}

    /// Whether the answer to that question names another master, which is used from now on. Waits
    /// until `until` at most.
    fn is_superseded(&mut self, _until: Moment) -> bool {
        false
    }

    /// Replicas must acknowledge: learn how many there are, and whether one of them is about to
    /// become the master.
    fn look_at_replicas(&mut self) {}

    /// Whether a server asked since [`Topology::ask_beside`] is about to replace the master.
    fn fails_over(&self) -> bool {
        false
    }

    /// The number of replicas of the server that [`Topology::next_server`] named last.
    fn replica_count(&self) -> ReplicaCount {
        ReplicaCount::Connected
    }

    fn masters(&mut self, deadline: Moment) -> Result<Vec<Target>, Error>;

    /// A copy without connections, for a second attempt beside the first one.
    fn anew(&self) -> Box<dyn Topology>;

    /// Why these locks cannot be taken together; None if they can.
    fn part(&self, _names: &[Name]) -> Option<String> {
        None
    }
}

/// Where the master of the lock was found last, for a subscription with a connection of its own.
#[derive(Clone, Default)]
pub struct LastMaster(Arc<Mutex<Option<Target>>>);

impl LastMaster {
    /// The server; None before the first request.
    pub fn get(&self) -> Option<Target> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, target: &Target) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_none_or(|known| known.address != target.address) {
            *place = Some(target.clone());
        }
    }
}

/// The connections, and how to open more.
pub struct Route {
    pub topology: Box<dyn Topology>,
    /// Idle connections, at most one for each server. A lock needs one; a list of a cluster's locks
    /// needs one for each master.
    connections: Vec<Connection>,
    pub last_master: LastMaster,
    looks_at_replicas: bool,
    op_timeout: Duration,
    /// The server was still loading its data when it answered last.
    is_loading: bool,
}

impl Route {
    /// A route that connects when it is first used.
    pub fn new(topology: Box<dyn Topology>, op_timeout: Duration) -> Self {
        Self {
            topology,
            connections: Vec::new(),
            last_master: LastMaster::default(),
            looks_at_replicas: false,
            op_timeout,
            is_loading: false,
        }
    }

    /// Runs `talk` with the master of the lock, and with another server if the answer redirects.
    /// `talk` gets the connection, its deadline, and how many replicas the master has; the value
    /// that it returns is the reply that decides.
    pub fn exchange<T>(
        &mut self,
        whom: Whom<'_>,
        deadline: Moment,
        limit: Limit,
        mut talk: impl FnMut(&mut Connection, Moment, ReplicaCount) -> Result<(Value, T), Error>,
    ) -> Result<(Value, T), Error> {
        self.topology.begin();
        loop {
            self.is_loading = false;
            let hop = self.topology.next_server(whom, deadline)?;
            let address = hop.target.address.clone();
            let said = self.connection(&hop, limit).and_then(|mut connection| {
                let (value, more) =
                    talk(&mut connection, self.until(&hop, limit), self.topology.replica_count())?;
                if let Value::ServerError(error) = &value
                    && error.code() == "LOADING"
                {
                    // New connections of thousands of holders would hold it up.
                    let refused = refusal(&connection.target().shown, error);
                    self.is_loading = connection.is_usable();
                    self.connections.extend(Some(connection).filter(Connection::is_usable));
                    return Err(refused);
                }
                let next = self.topology.heard(&mut connection, &value)?;
                Ok((connection, value, more, next))
            });
            let next = match said {
                Ok((connection, Value::ServerError(error), _, next))
                    if next == Next::Done || next == Next::Again && deadline.left() < AGAIN_PAUSE =>
                {
                    return Err(refusal(&connection.target().shown, &error));
                }
                Ok((connection, value, more, Next::Done)) => {
                    if matches!(whom, Whom::Lock(_)) && hop.asking == Asking::No {
                        self.last_master.set(connection.target());
                    }
                    if connection.is_usable() {
                        self.connections.push(connection);
                    }
                    return Ok((value, more));
                }
                Ok((connection, _, _, next)) => {
                    // The connection to a server that redirects is not needed again.
                    if next == Next::Again && connection.is_usable() {
                        self.connections.push(connection);
                    }
                    next
                }
                Err(error) => match self.topology.failed(&address, &error) {
                    Next::Done => return Err(error),
                    _ if deadline.passed() => return Err(error),
                    next => next,
                },
            };
            if next == Next::Again {
                sleep_until(Moment::now().after(AGAIN_PAUSE));
            }
        }
    }

    /// See [`Topology::look_at_replicas`].
    pub fn look_at_replicas(&mut self) {
        self.looks_at_replicas = true;
        self.topology.look_at_replicas();
    }

    /// Asks the sentinels which server is the master, beside a request that a hold depends on. Does
    /// not wait.
    pub fn ask_beside(&mut self) {
        // Sentinels that were slower than the master the last time have answered since.
        self.is_superseded(Moment::now());
        // Without a connection the master will be looked up anyway.
        if !self.connections.is_empty() || self.looks_at_replicas {
            self.topology.ask_beside();
        }
    }

    /// After that request: whether there is another master, where the request must be repeated.
    pub fn is_superseded(&mut self, until: Moment) -> bool {
        let superseded = self.topology.is_superseded(until);
        if superseded {
            self.connections.clear();
        }
        superseded
    }

    /// Forgets the master, and closes every connection, except to a server that is loading its data.
    pub fn reset(&mut self) {
        if !std::mem::take(&mut self.is_loading) {
            self.connections.clear();
        }
        self.topology.reset();
    }

    /// The deadline for an answer to a request sent now.
    fn until(&self, hop: &Hop, limit: Limit) -> Moment {
        match limit {
            Limit::OpTimeout => hop.until.min(Moment::now().after(self.op_timeout)),
            Limit::Deadline => hop.until,
        }
    }

    /// The existing connection, or a new one.
    fn connection(&mut self, hop: &Hop, limit: Limit) -> Result<Connection, Error> {
        let same = |connection: &Connection| connection.target().address == hop.target.address;
        if let Some(at) = self.connections.iter().position(same)
            && let Some(mut connection) = self.connections.swap_remove(at).if_good()
        {
            connection.asking = hop.asking;
            return Ok(connection);
        }
        let mut connection = Connection::dial(&hop.target, hop.until)?;
        self.topology.greet(&mut connection, self.until(hop, limit))?;
        connection.asking = hop.asking;
        Ok(connection)
    }
}

/// One server. It is the master as long as it takes writes.
pub struct Server(pub Target);

impl Topology for Server {
    fn next_server(&mut self, _: Whom<'_>, deadline: Moment) -> Result<Hop, Error> {
        Ok(Hop { target: self.0.clone(), until: deadline, asking: Asking::No })
    }

    fn masters(&mut self, _: Moment) -> Result<Vec<Target>, Error> {
        Ok(vec![self.0.clone()])
    }

    fn anew(&self) -> Box<dyn Topology> {
        Box::new(Self(self.0.clone()))
    }
}
