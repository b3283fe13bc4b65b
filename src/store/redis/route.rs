//! Which server is the master for this lock, now? The seam between running a script and knowing where: whoever wants to
//! speak to "the server" asks the route, which keeps the connections, goes where it is sent, and hears what went wrong.
//! How the master is found is the business of the [`Topology`]: one server, sentinels (`sentinel.rs`) or a cluster
//! (`cluster.rs`). What is said on a connection is none of the route's.
//!
//! Every call obeys one deadline, however many servers are asked on the way. That calls are sent again elsewhere is
//! safe, because every operation is idempotent (I4).

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

/// How long to wait where a server says TRYAGAIN.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub enum Whom<'a> {
    Lock(&'a Name),
    /// This server, which [`Route::masters`] named.
    Server(&'a Address),
}

/// How long a server that was reached is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// As long as an operation may take.
    OpTimeout,
    /// Until the request as a whole is to be answered: one that is given up is of no use when its answer comes.
    Deadline,
}

/// Where to go next, and until when that may take.
pub struct Hop {
    pub target: Target,
    /// How long this server may take, connecting included.
    pub until: Moment,
    /// What the command is to be preceded by.
    pub asking: Asking,
}

/// What follows from an answer or a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This was it, good or bad.
    Done,
    /// The topology knows another server to try.
    Elsewhere,
    /// The same again, a moment later.
    Again,
}

/// Who knows how many replicas a master has?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaCount {
    /// The master alone, who knows those that are connected.
    Connected,
    Nodes,
    /// Somebody who has been asked: that many.
    Known(u32),
}

/// How servers belong together. For one call of [`Route::exchange`]: `begin`, then for each hop `next_server`,
/// `greet` on a new connection, and `heard` or `failed`.
pub trait Topology: Send {
    /// A call of [`Route::exchange`] begins.
    fn begin(&mut self) {}

    /// The server to speak to; asks around by `by` where that is not known.
    fn next_server(&mut self, whom: Whom<'_>, by: Moment) -> Result<Hop, Error>;

    /// The first words on a new connection.
    fn greet(&mut self, _connection: &mut Connection, _by: Moment) -> Result<(), Error> {
        Ok(())
    }

    /// The master of the lock as far as is known. Asks nobody.
    fn known(&self, whom: Whom<'_>) -> Option<Address>;

    fn heard(&mut self, _connection: &mut Connection, _value: &Value) -> Result<Next, Error> {
        Ok(Next::Done)
    }

    /// A server could not be reached, or refused.
    fn failed(&mut self, _address: &Address, _error: &Error) -> Next {
        Next::Done
    }

    /// Whatever is believed may be wrong: ask anew.
    fn reset(&mut self) {}

    /// Beside a request that goes over an existing connection: has somebody else asked who the master is. Never waits.
    fn ask_beside(&mut self) {}

    /// Whether the answer to that names another master, which is the one from now on. Waits until `until` at most.
    fn is_superseded(&mut self, _until: Moment) -> bool {
        false
    }

    /// Replicas are to acknowledge: it has to be known how many there are, and whether one of them is about to be made the
    /// master.
    fn look_at_replicas(&mut self) {}

    /// Whether somebody who was asked since [`Topology::ask_beside`] is about to put another server in the place of the
    /// master.
    fn fails_over(&self) -> bool {
        false
    }

    /// How many replicas the master that was found has.
    fn replica_count(&self) -> ReplicaCount {
        ReplicaCount::Connected
    }

    fn masters(&mut self, by: Moment) -> Result<Vec<Target>, Error>;

    /// A copy without connections, for a second attempt beside the first one.
    fn anew(&self) -> Box<dyn Topology>;

    /// Why these locks cannot be taken together here, if they cannot.
    fn part(&self, _names: &[Name]) -> Option<String> {
        None
    }
}

/// Where the master of the lock was found the last time: for whoever listens there on a connection of its own.
#[derive(Clone, Default)]
pub struct LastMaster(Arc<Mutex<Option<Target>>>);

impl LastMaster {
    /// The server; none if nothing has been asked for yet.
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

/// The connections, and the way to more of them.
pub struct Route {
    pub topology: Box<dyn Topology>,
    /// Idle, at most one for each server. A lock needs one; a list of a cluster's locks one for each master.
    connections: Vec<Connection>,
    pub last_master: LastMaster,
    looks_at_replicas: bool,
    op_timeout: Duration,
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
        }
    }

    /// Has `talk` speak to the master of the lock, and to another server where the answer says so. `talk` gets the
    /// connection and its deadline; the value that it returns is the reply that decides.
    pub fn exchange<T>(
        &mut self,
        whom: Whom<'_>,
        by: Moment,
        talk: impl FnMut(&mut Connection, Moment) -> Result<(Value, T), Error>,
    ) -> Result<(Value, T), Error> {
        self.exchange_within(whom, by, Limit::OpTimeout, talk)
    }

    /// [`Route::exchange`] with another limit for each server.
    pub fn exchange_within<T>(
        &mut self,
        whom: Whom<'_>,
        by: Moment,
        limit: Limit,
        mut talk: impl FnMut(&mut Connection, Moment) -> Result<(Value, T), Error>,
    ) -> Result<(Value, T), Error> {
        self.topology.begin();
        loop {
            let hop = self.topology.next_server(whom, by)?;
            let address = hop.target.address.clone();
            let said = self.connection(&hop, limit).and_then(|mut connection| {
                let (value, more) = talk(&mut connection, self.until(&hop, limit))?;
                let next = self.topology.heard(&mut connection, &value)?;
                Ok((connection, value, more, next))
            });
            let next = match said {
                Ok((connection, Value::ServerError(error), _, Next::Done)) => {
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
                Ok((connection, Value::ServerError(error), _, Next::Again)) if by.left() < AGAIN_PAUSE => {
                    return Err(refusal(&connection.target().shown, &error));
                }
                Ok((connection, _, _, next)) => {
                    // Whoever sends us elsewhere is not needed again.
                    if next == Next::Again && connection.is_usable() {
                        self.connections.push(connection);
                    }
                    next
                }
                Err(error) => match self.topology.failed(&address, &error) {
                    Next::Done => return Err(error),
                    _ if by.passed() => return Err(error),
                    next => next,
                },
            };
            if next == Next::Again {
                sleep_until(Moment::now().after(AGAIN_PAUSE));
            }
        }
    }

    /// Replicas are to acknowledge; see [`Route::replica_count`] and [`Route::fails_over`].
    pub fn look_at_replicas(&mut self) {
        self.looks_at_replicas = true;
        self.topology.look_at_replicas();
    }

    /// How many replicas the master of the lock has, which is looked for if it is not known.
    pub fn replica_count(&mut self, whom: Whom<'_>, by: Moment) -> Result<ReplicaCount, Error> {
        if self.topology.known(whom).is_none() {
            self.topology.begin();
            self.topology.next_server(whom, by)?;
        }
        Ok(self.topology.replica_count())
    }

    /// A connection to the master of the lock, given away: for a waiter to sleep on.
    pub fn give(&mut self, whom: Whom<'_>, by: Moment) -> Result<Connection, Error> {
        self.topology.begin();
        let hop = self.topology.next_server(whom, by)?;
        let connection = self.connection(&hop, Limit::OpTimeout);
        connection.inspect_err(|error| {
            self.topology.failed(&hop.target.address, error);
        })
    }

    /// Takes a connection back that [`Route::give`] gave, unless there is another one to the same server by now.
    pub fn take_back(&mut self, connection: Connection) -> Option<Connection> {
        if self.connections.iter().any(|other| other.target().address == connection.target().address) {
            return Some(connection);
        }
        self.connections.push(connection);
        None
    }

    /// Whether this connection still leads to the master of the lock, as far as is known.
    pub fn leads_to(&self, connection: &Connection, whom: Whom<'_>) -> bool {
        self.topology.known(whom).is_none_or(|address| address == connection.target().address)
    }

    /// What a connection that was given away was told: MOVED is remembered.
    pub fn learn(&mut self, connection: &mut Connection, value: &Value) {
        let _ = self.topology.heard(connection, value);
    }

    /// Before a request by which a hold is relied on: asks who the master is, besides. Never waits.
    pub fn ask_beside(&mut self) {
        // Who was asked the last time, and was slower than the master, has answered since.
        self.is_superseded(Moment::now());
        // Where there is no connection yet, the master is asked for anyway.
        if !self.connections.is_empty() || self.looks_at_replicas {
            self.topology.ask_beside();
        }
    }

    /// After that request: whether there is another master, so that it must be made there.
    pub fn is_superseded(&mut self, until: Moment) -> bool {
        let superseded = self.topology.is_superseded(until);
        if superseded {
            self.connections.clear();
        }
        superseded
    }

    /// Forgets every connection, and who was said to be the master.
    pub fn reset(&mut self) {
        self.connections.clear();
        self.topology.reset();
    }

    /// Until when an answer is waited for that is asked for now.
    fn until(&self, hop: &Hop, limit: Limit) -> Moment {
        match limit {
            Limit::OpTimeout => hop.until.min(Moment::now().after(self.op_timeout)),
            Limit::Deadline => hop.until,
        }
    }

    /// The connection there is, or a new one.
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

/// One server, which is the master as long as it takes writes.
pub struct Server(pub Target);

impl Topology for Server {
    fn next_server(&mut self, _: Whom<'_>, by: Moment) -> Result<Hop, Error> {
        Ok(Hop { target: self.0.clone(), until: by, asking: Asking::No })
    }

    fn known(&self, _: Whom<'_>) -> Option<Address> {
        Some(self.0.address.clone())
    }

    fn masters(&mut self, _: Moment) -> Result<Vec<Target>, Error> {
        Ok(vec![self.0.clone()])
    }

    fn anew(&self) -> Box<dyn Topology> {
        Box::new(Self(self.0.clone()))
    }
}
