//! Which node of a cluster has the slot of a lock, and which nodes there are. Any node can be
//! asked: it executes the request, or answers MOVED or ASK. So a lock needs one connection (a
//! waiter two). The map of the cluster comes along with the first answer and only saves the detour.
//! A node's own answer overrides the map, and after a failure the whole map is dropped.

use super::connection::{Asking, Connection};
use super::failure::refusal;
use super::route::{Hop, Next, ReplicaCount, Topology, Whom};
use super::target::Target;
use crate::clock::Moment;
use crate::lock::Name;
use crate::store::Error;
use crate::store::net::Address;
use redis::{Value, cmd};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Most redirections that a call follows. One is usual, two happen in a failover; more are a
/// circle.
const HOPS_MAX: u32 = 5;

pub struct Nodes {
    /// Credentials and options for each node; the address is ignored.
    template: Target,
    /// Nodes to ask: the one that answered last is first, the one that failed last is last.
    known: Vec<Address>,
    /// Nodes that this topology and its copies ([`Topology::anew`]) have learned, because a node in
    /// the URL may be gone.
    discovered: Arc<Mutex<Vec<Address>>>,
    map: Vec<Range>,
    /// Slots learned by MOVED since the map was read.
    moved: BTreeMap<u16, Address>,
    redirects: Redirects,
}

/// Slots that one master has.
struct Range {
    first: u16,
    last: u16,
    master: Address,
}

#[derive(Default)]
struct Redirects {
    /// The node that the last redirection names.
    next: Option<(Address, Asking)>,
    hops: u32,
    /// Nodes that could not be reached, and why.
    failed: Vec<(Address, Error)>,
}

impl Nodes {
    /// A cluster of which some nodes are known. `node` has the credentials and options of each
    /// node; its address is ignored.
    pub fn new(seeds: Vec<Address>, node: Target) -> Self {
        Self {
            template: node,
            known: seeds,
            discovered: Arc::default(),
            map: Vec::new(),
            moved: BTreeMap::new(),
            redirects: Redirects::default(),
        }
    }

    fn owner(&self, slot: u16) -> Option<&Address> {
        let range = || self.map.iter().find(|range| (range.first..=range.last).contains(&slot));
        self.moved.get(&slot).or_else(|| range().map(|range| &range.master))
    }

    fn hop(&self, address: &Address, until: Moment, asking: Asking) -> Hop {
        let shown = format!("{} (node {address})", self.template.shown);
        Hop { target: Target { address: address.clone(), shown, ..self.template.clone() }, until, asking }
    }

    /// Some node that was not tried yet, with its share of the time.
    fn guide(&mut self, deadline: Moment) -> Result<Hop, Error> {
        let tried = |address: &&Address| !self.redirects.failed.iter().any(|(failed, _)| failed == *address);
        let mut untried = self.known.iter().filter(tried);
        let Some(address) = untried.next() else {
            let last = self.redirects.failed.pop().map(|(_, error)| error);
            return Err(last.unwrap_or_else(|| {
                Error::Unreachable(format!("cannot reach {}: it has no nodes", self.template.shown))
            }));
        };
        let share = deadline.left() / u32::try_from(1 + untried.count()).unwrap_or(u32::MAX);
        Ok(self.hop(address, Moment::now().after(share), Asking::No))
    }

    fn add(&mut self, address: &Address) {
        if !self.known.contains(address) {
            self.known.push(address.clone());
            let mut discovered = self.discovered.lock().unwrap_or_else(PoisonError::into_inner);
            if !discovered.contains(address) {
                discovered.push(address.clone());
            }
        }
    }

    fn learn(&mut self, target: &Target, map: Value) -> Result<(), Error> {
        if let Value::ServerError(error) = &map {
            // Two single servers behind one URL would be two locks.
            if error.details().unwrap_or_default().contains("cluster support disabled") {
                return Err(Error::Unfit(format!("{} is no cluster; write redis://", target.shown)));
            }
            return Err(refusal(&target.shown, error));
        }
        let (map, nodes) = read_map(&map, &target.address).ok_or_else(|| {
            Error::Garbled(format!(
                "{} names nodes that dlock cannot contact (over TLS it needs 'tls-cluster yes')",
                target.shown
            ))
        })?;
        for address in &nodes {
            self.add(address);
        }
        self.map = map;
        self.moved.clear();
        Ok(())
    }
}

impl Topology for Nodes {
    fn begin(&mut self) {
        self.redirects = Redirects::default();
        let discovered = self.discovered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        discovered.iter().for_each(|address| self.add(address));
    }

    fn next_server(&mut self, whom: Whom<'_>, deadline: Moment) -> Result<Hop, Error> {
        let name = match whom {
            Whom::Server(address) => {
                return match self.redirects.failed.pop() {
                    Some((_, error)) => Err(error),
                    None => Ok(self.hop(address, deadline, Asking::No)),
                };
            }
            Whom::Lock(name) => name,
        };
        let named =
            self.redirects.next.take().or_else(|| Some((self.owner(slot_of(name))?.clone(), Asking::No)));
        let Some((address, asking)) = named else { return self.guide(deadline) };
        match self.redirects.failed.iter().find(|(failed, _)| *failed == address) {
            // The other nodes still name the dead one.
            Some((_, error)) if self.redirects.hops > 0 => Err(error.clone()),
            Some(_) => self.guide(deadline),
            None => Ok(self.hop(&address, deadline, asking)),
        }
    }

    fn greet(&mut self, connection: &mut Connection, _: Moment) -> Result<(), Error> {
        if self.map.is_empty() {
            connection.preface(cmd("CLUSTER").arg("SLOTS").take());
        }
        Ok(())
    }

    fn heard(&mut self, connection: &mut Connection, value: &Value) -> Result<Next, Error> {
        let aside = connection.aside();
        let target = connection.target();
        for map in aside.into_iter().filter(|value| !matches!(value, Value::Okay)) {
            self.learn(target, map)?;
        }
        if let Some(at) = self.known.iter().position(|address| *address == target.address) {
            self.known[..=at].rotate_right(1);
        }
        let Value::ServerError(error) = value else { return Ok(Next::Done) };
        let asking = match error.code() {
            "MOVED" => Asking::No,
            "ASK" => Asking::Yes,
            "TRYAGAIN" => {
                self.redirects.hops = 0;
                return Ok(Next::Again);
            }
            _ => return Ok(Next::Done),
        };
        let Some((slot, address)) = directed(error.details().unwrap_or_default(), &target.address) else {
            return Err(Error::Garbled(format!("{} redirects without an address", target.shown)));
        };
        self.redirects.hops += 1;
        if self.redirects.hops > HOPS_MAX {
            return Err(Error::Unavailable(format!(
                "{}: its nodes redirect in a circle; perhaps a failover is going on",
                self.template.shown
            )));
        }
        self.add(&address);
        if asking == Asking::No {
            self.moved.insert(slot, address.clone());
        }
        self.redirects.next = Some((address, asking));
        Ok(Next::Elsewhere)
    }

    fn failed(&mut self, address: &Address, error: &Error) -> Next {
        if let Some(at) = self.known.iter().position(|known| known == address) {
            self.known[at..].rotate_left(1);
        }
        self.redirects.failed.push((address.clone(), error.clone()));
        match error {
            Error::Unreachable(_) | Error::Overloaded(_) | Error::Misnamed(_) => Next::Elsewhere,
            _ => Next::Done,
        }
    }

    fn reset(&mut self) {
        self.map.clear();
        self.moved.clear();
    }

    fn replica_count(&self) -> ReplicaCount {
        ReplicaCount::Nodes
    }

    fn masters(&mut self, deadline: Moment) -> Result<Vec<Target>, Error> {
        self.begin();
        while self.map.is_empty() {
            let hop = self.guide(deadline)?;
            let (target, until) = (&hop.target, hop.until);
            let said = Connection::dial(target, until).and_then(|mut connection| {
                connection.send(vec![cmd("CLUSTER").arg("SLOTS").take()], until)?;
                connection.reply(until)
            });
            match said {
                Ok(map) => {
                    self.learn(target, map)?;
                    if self.map.is_empty() {
                        return Err(Error::Unavailable(format!("{} has no slots", target.shown)));
                    }
                }
                Err(error) => match self.failed(&hop.target.address, &error) {
                    Next::Done => return Err(error),
                    Next::Elsewhere | Next::Again => {}
                },
            }
        }
        let masters = self.map.iter().map(|range| &range.master).chain(self.moved.values());
        let mut seen = Vec::new();
        for master in masters {
            if !seen.contains(master) {
                seen.push(master.clone());
            }
        }
        Ok(seen.iter().map(|address| self.hop(address, deadline, Asking::No).target).collect())
    }

    fn anew(&self) -> Box<dyn Topology> {
        let discovered = Arc::clone(&self.discovered);
        Box::new(Self { discovered, ..Self::new(self.known.clone(), self.template.clone()) })
    }

    fn part(&self, names: &[Name]) -> Option<String> {
        apart(names)
    }
}

/// Why a cluster cannot take these locks together; None if it can.
pub fn apart(names: &[Name]) -> Option<String> {
    let slots: BTreeSet<u16> = names.iter().map(slot_of).collect();
    (slots.len() > 1).then(|| {
        "these keys are in different slots of the cluster and cannot be taken together; give them one {tag}, as in \
         {app}:a and {app}:b"
            .into()
    })
}

/// The slot of a lock and of everything that belongs to it.
pub fn slot_of(name: &Name) -> u16 {
    crc16(name.tag().as_bytes()) % 16384
}

/// CRC-16/XMODEM, as in the specification of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// The slot and the node in `SLOT HOST:PORT`. If the host is missing, it is the node that answered:
/// a node that does not know its own external address leaves it out.
fn directed(details: &str, from: &Address) -> Option<(u16, Address)> {
    let (slot, place) = details.split_once(' ')?;
    let (host, port) = place.split_once(' ').map_or(place, |(place, _)| place).rsplit_once(':')?;
    Some((slot.parse().ok()?, address(host, port.parse().ok()?, from)?))
}

fn address(host: &str, port: u16, from: &Address) -> Option<Address> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match from {
        Address::Tcp { host: from, .. } if port != 0 && (host.is_empty() || host == "?") => {
            Some(Address::Tcp { host: from.clone(), port })
        }
        _ if host.is_empty() || port == 0 => None,
        _ => Some(Address::Tcp { host: host.into(), port }),
    }
}

/// Parses the answer to CLUSTER SLOTS: the ranges, and every node, with replicas, because one of
/// them may be the next master.
fn read_map(value: &Value, from: &Address) -> Option<(Vec<Range>, Vec<Address>)> {
    let Value::Array(rows) = value else { return None };
    let (mut map, mut nodes) = (Vec::new(), Vec::new());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), servers @ ..] = row.as_slice() else { return None };
        let mut here = Vec::new();
        for server in servers {
            let Value::Array(server) = server else { return None };
            let [host, Value::Int(port), ..] = server.as_slice() else { return None };
            let host = match host {
                Value::BulkString(host) => std::str::from_utf8(host).ok()?,
                _ => "",
            };
            here.push(address(host, u16::try_from(*port).ok()?, from)?);
        }
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        map.push(Range { first, last, master: here.first()?.clone() });
        nodes.append(&mut here);
    }
    Some((map, nodes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Key;

    /// The slots are those of `redis-cli CLUSTER KEYSLOT`.
    #[test]
    fn slots() -> Result<(), String> {
        for (name, slot) in
            [("foo", 12182), ("123456789", 12739), ("{user1000}.a", 3443), ("dlock:{user1000}.b", 3443)]
        {
            assert_eq!(slot_of(&Name::new("", &Key::new(name)?)?), slot, "{name}");
        }
        Ok(())
    }

    #[test]
    fn directions() {
        let tcp = |host: &str, port| Address::Tcp { host: host.into(), port };
        let from = tcp("10.0.0.1", 7000);
        for (said, to) in [
            ("3999 127.0.0.1:6381", Some((3999, tcp("127.0.0.1", 6381)))),
            ("3999 :6381", Some((3999, tcp("10.0.0.1", 6381)))),
            ("3999 ?:6381", Some((3999, tcp("10.0.0.1", 6381)))),
            ("3999 ::1:6381", Some((3999, tcp("::1", 6381)))),
            ("3999 [::1]:6381", Some((3999, tcp("::1", 6381)))),
            ("1 node-3.example:6379", Some((1, tcp("node-3.example", 6379)))),
            ("", None),
            ("3999", None),
            ("3999 x", None),
            ("3999 x:99999", None),
            ("3999 x:0", None),
            ("3999 :0", None),
        ] {
            assert_eq!(directed(said, &from), to, "{said}");
        }
    }
}
