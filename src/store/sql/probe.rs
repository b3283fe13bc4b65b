//! Checks whether this database can hold locks, for `dlock doctor`. It reads the server's version
//! and settings, and writes a temporary lock with a waiter, which it removes again.

use super::dialect::{NewLock, Write};
use super::{Again, Failure, SqlStore, Tables};
use crate::clock::Moment;
use crate::lock::Token;
use crate::store::Error;
use crate::store::engine::coordinator::{Coordinator, Purpose, Reading};
use crate::store::engine::stored_lock::{EndPart, Parts, WaiterPart};
use crate::store::probe::{Database, Role, Standbys, Tried, WakeUp, measure};
use std::collections::BTreeMap;
use std::time::Duration;

impl SqlStore {
    /// Checks the database.
    pub fn probe(self, deadline: Moment) -> Result<Database, Error> {
        let mut tables = self.coordinator;
        let [version, standby, forgets, rights] = tables.survey(deadline)?;
        let tried = tables.try_tables(deadline);
        let others = if tried == Ok(Tried::Done) { tables.others(deadline)? } else { None };
        let (round_trip, clock) = measure(|| tables.clock(deadline))?;
        let is_direct = tables.line.as_ref().is_some_and(|line| line.is_direct == Some(true));
        let wake_up = match is_direct {
            false => WakeUp::Pooled,
            true if tables.dialect.wake_channel(&probe_token()?).is_some() => WakeUp::Works,
            true => WakeUp::Polls,
        };
        Ok(Database {
            members: Some(1),
            round_trip,
            clock,
            version,
            standbys: tables.standbys(deadline)?,
            role: if standby == "1" { Role::Replica } else { Role::Master },
            forgets_by: Some(forgets).filter(|deadline| !deadline.is_empty()).into_iter().collect(),
            tried,
            wake_up,
            others,
            almighty: Some(rights).filter(|rights| !rights.is_empty()),
        })
    }
}

impl Tables {
    fn survey(&mut self, deadline: Moment) -> Result<[String; 4], Error> {
        let mut answers = self.ask(&[self.dialect.survey()], Again::Yes, deadline)?;
        let row = answers[0].rows.pop().unwrap_or_default();
        Ok([0, 1, 2, 3].map(|at| row.text(at).into_owned()))
    }

    /// Other users that may change the tables.
    fn others(&mut self, deadline: Moment) -> Result<Option<String>, Error> {
        let Some(text) = self.dialect.others() else { return Ok(None) };
        let answers = self.ask(&[text], Again::Yes, deadline)?;
        let named = answers[0].rows.first().map(|row| row.text(0).into_owned());
        Ok(named.filter(|named| !named.is_empty()))
    }

    /// Whether a failover can lose commits, if the URL names several servers.
    fn standbys(&mut self, deadline: Moment) -> Result<Option<Standbys>, Error> {
        if !self.target.has_several() {
            return Ok(None);
        }
        let answers = self.ask(&[self.dialect.acknowledgement()], Again::Yes, deadline)?;
        let rows: BTreeMap<_, _> = answers[0].rows.iter().map(|row| (row.text(0), row.text(1))).collect();
        let setting = |name: &str| rows.get(name).cloned().unwrap_or_default().into_owned();
        let acknowledge = self.dialect.is_acknowledged(&setting);
        let server = self.line.as_ref().map_or(0, |line| line.server);
        let primary = self.target.servers[server].to_string();
        Ok(Some(Standbys { primary, acknowledge, settings: self.dialect.acknowledged_by() }))
    }

    /// The server's time since 1970.
    fn clock(&mut self, deadline: Moment) -> Result<Option<Duration>, Failure> {
        let answers = self.ask(&[self.dialect.time()], Again::Yes, deadline)?;
        Ok(answers[0].rows.first().and_then(|row| row.text(0).parse().ok()).map(Duration::from_micros))
    }

    /// Writes a lock with a waiter and an end, and removes it. Does not create the tables: they
    /// would belong to the user who runs the doctor.
    fn try_tables(&mut self, deadline: Moment) -> Result<Tried, Error> {
        match self.ask(&[self.dialect.names()], Again::Yes, deadline) {
            Err(Failure::NoTables(_)) => return Ok(Tried::NoTables),
            answer => drop(answer?),
        }
        let token = probe_token()?;
        let name = format!("dlock.probe:{}", token.secret());
        let (names, purpose) = ([name.clone()].into(), Purpose::Change);
        let read = self.read(&Reading { names: &names, me: None, lease: None, purpose, deadline })?;
        let version = read.locks.first().map_or(0, |lock| lock.version);
        let value = || b"{}".to_vec();
        let waiters = vec![WaiterPart { token: token.clone(), is_queued: true, ticket: 1, value: value() }];
        let ends = vec![EndPart { number: 1, value: value() }];
        let parts = Parts { body: Vec::new(), waiters, gone: Vec::new(), ends };
        let list = self.dialect.bytes(name.as_bytes());
        let write = Write {
            read: vec![(name.clone(), version)],
            locks: vec![NewLock {
                name,
                version: version + 1,
                used: read.now.millis(),
                is_kept: false,
                parts,
            }],
            woken: vec![token.clone()],
            ..Write::default()
        };
        let mut statements: Vec<String> = self.dialect.wake_channel(&token).into_iter().collect();
        statements.push(self.dialect.write(&write));
        statements.extend(self.dialect.remove(&list));
        self.ask(&statements, Again::No, deadline)?;
        Ok(Tried::Done)
    }
}

fn probe_token() -> Result<Token, Error> {
    Token::random().map_err(|error| Error::Unavailable(error.to_string()))
}
