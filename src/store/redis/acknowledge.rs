//! Have the replicas got what the hold rests on? WAIT goes out behind the script, on the same connection and in the same
//! write, because it counts the last write of its own connection only. It makes a failover less likely to lose the
//! lock; it is no quorum, for the replica that is promoted need not be one of those that acknowledged.

use super::connect::refusal;
use super::route::Line;
use crate::clock::Moment;
use crate::lock::Replicas;
use crate::store::Error;
use redis::{Cmd, Value, cmd};

/// Who asks for acknowledgements.
pub struct Acknowledge {
    replicas: Replicas,
    /// How many replicas the server had, the last time that it was asked.
    connected: u32,
}

impl Acknowledge {
    /// For this many replicas.
    pub const fn new(replicas: Replicas) -> Self {
        Self { replicas, connected: 0 }
    }

    /// How many have to acknowledge.
    pub const fn replicas(&self) -> Replicas {
        self.replicas
    }

    /// Sends a script, and asks how many replicas have what it wrote. The reply to the script, and whether they are
    /// enough, which is of no interest where the script did not do what was asked.
    pub fn ask(
        &mut self,
        line: &mut Line,
        script: Cmd,
        replicas: Replicas,
        by: Moment,
    ) -> Result<(Value, Result<(), Error>), Error> {
        let wanted = match replicas {
            Replicas::None => return Ok((line.ask(script, by)?, Ok(()))),
            Replicas::AtLeast(wanted) => wanted.get(),
            Replicas::All => self.connected.max(1),
        };
        let mut commands = vec![script];
        if replicas == Replicas::All {
            commands.push(cmd("ROLE"));
        }
        commands.push(wait(wanted, by));
        line.send(commands, by)?;
        let value = line.answer(by)?;
        let enough = self.count(line, replicas, wanted, by);
        if matches!(enough, Err(Error::Unreachable(_))) {
            // The script has been answered, and the rest may still come.
            line.spoil();
            let store = &line.target().shown;
            let unsaid = format!("{store} did not say in time how many replicas acknowledged");
            return Ok((value, Err(Error::Unacknowledged(unsaid))));
        }
        Ok((value, enough))
    }

    fn count(&mut self, line: &mut Line, replicas: Replicas, wanted: u32, by: Moment) -> Result<(), Error> {
        let mut needed = wanted;
        if replicas == Replicas::All {
            self.connected = connected(line, by)?;
            needed = self.connected.max(1);
        }
        let mut got = acknowledged(line, by)?;
        if got >= wanted && got < needed {
            // WAIT was content with those that were there the last time; it still counts the same write.
            line.send(vec![wait(needed, by)], by)?;
            got = acknowledged(line, by)?;
        }
        if got < needed { Err(too_few(line, got, needed)) } else { Ok(()) }
    }
}

/// WAIT, with a time that leaves some for the reply: the server may be late in ending it by itself.
fn wait(wanted: u32, by: Moment) -> Cmd {
    let left = by.left();
    let time = (left - left / 4).as_millis().max(1);
    let mut wait = cmd("WAIT");
    wait.arg(wanted).arg(u64::try_from(time).unwrap_or(u64::MAX));
    wait
}

fn acknowledged(line: &mut Line, by: Moment) -> Result<u32, Error> {
    let value = line.reply(by)?;
    let store = &line.target().shown;
    match value {
        Value::Int(number) => Ok(u32::try_from(number).unwrap_or(0)),
        Value::ServerError(error) if error.details().unwrap_or_default().contains("unknown command") => {
            Err(Error::Unfit(format!(
                "{store} has no WAIT, by which replicas acknowledge; --replicas asks for it"
            )))
        }
        Value::ServerError(error) => Err(refusal(line.target(), error.code(), error.details())),
        _ => Err(Error::Garbled(format!("{store} answers WAIT with what is no number"))),
    }
}

/// The number of replicas that a master says it has.
fn connected(line: &mut Line, by: Moment) -> Result<u32, Error> {
    let value = line.reply(by)?;
    let role = match value {
        Value::Array(role) => role,
        // The reply to WAIT is still to come.
        refused => {
            line.spoil();
            return Err(match refused {
                Value::ServerError(error) => refusal(line.target(), error.code(), error.details()),
                _ => Error::Garbled(format!("{} does not say what its ROLE is", line.target().shown)),
            });
        }
    };
    match role.get(2) {
        Some(Value::Array(replicas)) => Ok(u32::try_from(replicas.len()).unwrap_or(u32::MAX)),
        _ => Ok(0),
    }
}

fn too_few(line: &Line, got: u32, needed: u32) -> Error {
    Error::Unacknowledged(format!("{}: {got} of {needed} replicas acknowledged in time", line.target().shown))
}
