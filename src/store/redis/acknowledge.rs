//! Acknowledgements by replicas. WAIT follows the script on the same connection and in the same
//! write, because it counts the last write of its own connection only. This makes a failover less
//! likely to lose the lock. It is no quorum: the replica that is promoted need not be one of those
//! that acknowledged.

use super::connection::Connection;
use super::failure::refusal;
use super::route::ReplicaCount;
use crate::clock::Moment;
use crate::lock::Replicas;
use crate::store::Error;
use redis::{Cmd, Value, cmd};

/// The script's reply, and whether enough replicas acknowledged. That matters only if the script did
/// what was asked.
pub type Answer = (Value, Result<(), Error>);

pub struct Acknowledge {
    pub replicas: Replicas,
    /// Number of replicas at the last request.
    counted: u32,
}

impl Acknowledge {
    pub const fn new(replicas: Replicas) -> Self {
        Self { replicas, counted: 0 }
    }

    /// Sends a script, and asks how many replicas have what it wrote.
    pub fn ask(
        &mut self,
        connection: &mut Connection,
        script: Cmd,
        replicas: Replicas,
        replica_count: ReplicaCount,
        deadline: Moment,
    ) -> Result<Answer, Error> {
        let wanted = match (replicas, replica_count) {
            (Replicas::None, _) => return Ok((connection.ask(script, deadline)?, Ok(()))),
            (Replicas::AtLeast(wanted), _) => wanted.get(),
            (Replicas::All, ReplicaCount::Known(known)) => known.max(self.counted).max(1),
            (Replicas::All, ReplicaCount::Connected | ReplicaCount::Nodes) => self.counted.max(1),
        };
        let mut commands = vec![script];
        if replicas == Replicas::All {
            commands.push(question(replica_count));
        }
        commands.push(wait(wanted, deadline));
        connection.send(commands, deadline)?;
        let value = connection.answer(deadline)?;
        let enough = self.count(connection, replicas, replica_count, wanted, deadline);
        if matches!(enough, Err(Error::Unreachable(_) | Error::Overloaded(_))) {
            // The script was answered; the other replies may still come.
            connection.spoil();
            let store = &connection.target().shown;
            let unsaid = format!("{store} did not say in time how many replicas acknowledged");
            return Ok((value, Err(Error::Unacknowledged(unsaid))));
        }
        Ok((value, enough))
    }

    fn count(
        &mut self,
        connection: &mut Connection,
        replicas: Replicas,
        replica_count: ReplicaCount,
        wanted: u32,
        deadline: Moment,
    ) -> Result<(), Error> {
        let mut needed = wanted;
        if replicas == Replicas::All {
            self.counted = counted(connection, replica_count, deadline)?;
            needed = self.counted.max(1);
        }
        let mut got = acknowledged(connection, deadline)?;
        if got >= wanted && got < needed {
            // WAIT returned for the number of replicas before; sent again, it still counts the same
            // write.
            connection.send(vec![wait(needed, deadline)], deadline)?;
            got = acknowledged(connection, deadline)?;
        }
        let shown = &connection.target().shown;
        let too_few =
            || Error::Unacknowledged(format!("{shown}: {got} of {needed} replicas acknowledged in time"));
        if got < needed { Err(too_few()) } else { Ok(()) }
    }
}

/// WAIT with less than the time left, because the server may be late in ending it.
fn wait(wanted: u32, deadline: Moment) -> Cmd {
    let left = deadline.left();
    let time = (left - left / 4).as_millis().max(1);
    cmd("WAIT").arg(wanted).arg(u64::try_from(time).unwrap_or(u64::MAX)).take()
}

fn acknowledged(connection: &mut Connection, deadline: Moment) -> Result<u32, Error> {
    let value = connection.reply(deadline)?;
    let store = &connection.target().shown;
    match value {
        Value::Int(number) => Ok(u32::try_from(number).unwrap_or(0)),
        Value::ServerError(error) if error.details().unwrap_or_default().contains("unknown command") => {
            Err(Error::Unfit(format!(
                "{store} has no WAIT command, which --replicas needs; leave --replicas out"
            )))
        }
        Value::ServerError(error) => Err(refusal(store, &error)),
        _ => Err(Error::Garbled(format!("the answer of {store} to WAIT is not a number"))),
    }
}

/// The command that counts the replicas. A master forgets disconnected replicas; the nodes of a
/// cluster do not.
fn question(replica_count: ReplicaCount) -> Cmd {
    match replica_count {
        ReplicaCount::Connected | ReplicaCount::Known(_) => cmd("ROLE"),
        ReplicaCount::Nodes => cmd("CLUSTER").arg("NODES").take(),
    }
}

/// Reads the number of a master's replicas.
fn counted(connection: &mut Connection, replica_count: ReplicaCount, deadline: Moment) -> Result<u32, Error> {
    let value = connection.reply(deadline)?;
    let count = match (&value, replica_count) {
        (Value::Array(role), ReplicaCount::Connected) => Some(connected(role)),
        (Value::Array(role), ReplicaCount::Known(known)) => Some(known.max(connected(role))),
        (Value::BulkString(nodes), ReplicaCount::Nodes) => Some(followers(&String::from_utf8_lossy(nodes))),
        _ => None,
    };
    count.ok_or_else(|| {
        // The reply to WAIT is still to come.
        connection.spoil();
        match value {
            Value::ServerError(error) => refusal(&connection.target().shown, &error),
            _ => Error::Garbled(format!("{} does not say which replicas it has", connection.target().shown)),
        }
    })
}

/// Parses the answer to ROLE.
fn connected(role: &[Value]) -> u32 {
    match role.get(2) {
        Some(Value::Array(replicas)) => u32::try_from(replicas.len()).unwrap_or(u32::MAX),
        _ => 0,
    }
}

/// Parses the answer to CLUSTER NODES: a line for each node, with id, address, flags and the id of
/// its master.
fn followers(nodes: &str) -> u32 {
    let fields = || nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let own = fields().find(|node| node.get(2).is_some_and(|flags| flags.contains("myself")));
    let Some(own) = own.and_then(|node| node.first().copied()) else { return 0 };
    let count = fields().filter(|node| node.get(3) == Some(&own)).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::followers;

    #[test]
    fn failed_replicas_count_too() {
        let nodes = "07c3 127.0.0.1:30004@31004,host4 slave e7d1 0 1426238317239 4 connected\n\
                     67ed 127.0.0.1:30002@31002,host2 master - 0 1426238316232 2 connected 5461-10922\n\
                     6ec2 127.0.0.1:30005@31005,host5 slave,fail 67ed 0 1426238316232 5 disconnected\n\
                     824f 127.0.0.1:30006@31006,host6 slave,fail e7d1 0 1426238317741 6 disconnected\n\
                     e7d1 127.0.0.1:30001@31001,host1 myself,master - 0 0 1 connected 0-5460\n";
        assert_eq!(followers(nodes), 2);
        assert_eq!(followers(""), 0);
    }
}
