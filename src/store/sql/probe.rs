//! Checks whether this database can hold locks, for `dlock doctor`. It reads the server's version
//! and settings, and writes a temporary lock with a waiter, which it removes again.

use super::statement::{Change, NewBody};
use super::{Again, Failure, SqlStore, Tables};
use crate::clock::Moment;
use crate::lock::Mode;
use crate::lock::Token;
use crate::rules::{Record, Time, millis};
use crate::store::Error;
use crate::store::engine::Adapter;
use crate::store::engine::queue::{Place, Waiting};
use crate::store::probe::{Database, Offset, Role, Standbys, Tried, WakeUp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// Most round trips that are measured.
const ASKED: usize = 50;
/// Time limit for that measurement.
const WITHIN: Duration = Duration::from_secs(1);

impl SqlStore {
    /// Checks the database.
    pub fn probe(mut self, by: Moment) -> Result<Database, Error> {
        self.adapter.refresh(by)?;
        let said = self.adapter.survey()?;
        let tried = self.adapter.tried();
        let (round_trips, clock) = self.adapter.round_trips()?;
        let is_direct = self.adapter.line.borrow().as_ref().is_some_and(|line| line.is_direct == Some(true));
        let wake_up = match is_direct {
            false => WakeUp::Pooled,
            true if self.adapter.has_advisory_locks()? => WakeUp::Works,
            true => WakeUp::Refused,
        };
        let [version, standby, forgets, rights] = said;
        Ok(Database {
            members: Some(1),
            round_trips,
            clock,
            version,
            standbys: self.adapter.standbys()?,
            role: if standby == "1" { Role::Replica } else { Role::Master },
            forgets_by: Some(forgets).filter(|by| !by.is_empty()).into_iter().collect(),
            tried,
            wake_up,
            almighty: Some(rights).filter(|rights| !rights.is_empty()),
        })
    }
}

impl Tables {
    fn survey(&self) -> Result<[String; 4], Error> {
        let mut answers = self.ask(&[self.database.dialect().survey()], Again::Yes)?;
        let row = answers[0].rows.pop().unwrap_or_default();
        let mut texts =
            row.into_iter().map(|text| String::from_utf8_lossy(&text.unwrap_or_default()).into_owned());
        Ok([(); 4].map(|()| texts.next().unwrap_or_default()))
    }

    /// Whether a failover can lose commits, if the URL names several servers.
    fn standbys(&self) -> Result<Option<Standbys>, Error> {
        let (target, dialect) = (self.database.target(), self.database.dialect());
        if !target.has_standbys() {
            return Ok(None);
        }
        let answers = self.ask(&[dialect.acknowledgement()], Again::Yes)?;
        let text = |column: &Option<Vec<u8>>| {
            String::from_utf8_lossy(column.as_deref().unwrap_or_default()).into_owned()
        };
        let rows: BTreeMap<_, _> =
            answers[0].rows.iter().filter_map(|row| Some((text(row.first()?), text(row.get(1)?)))).collect();
        let acknowledge = dialect.is_acknowledged(&|name| rows.get(name).cloned());
        let server = self.line.borrow().as_ref().map_or(0, |line| line.server);
        let primary = target.servers[server].to_string();
        Ok(Some(Standbys { primary, acknowledge, settings: dialect.acknowledged_by() }))
    }

    /// Returns the round trips, fastest first, and the offset of the server's clock by the fastest.
    fn round_trips(&self) -> Result<(Vec<Duration>, Option<Offset>), Error> {
        let (mut round_trips, mut clock) = (Vec::new(), None);
        let end = Moment::now().after(WITHIN);
        while round_trips.is_empty() || (round_trips.len() < ASKED && !end.passed()) {
            let sent = Moment::now();
            let answers = self.ask(&[self.database.dialect().time()], Again::Yes)?;
            let took = Moment::now().since(sent);
            if round_trips.iter().all(|before| took < *before) {
                let text = answers[0].rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
                clock = String::from_utf8(text)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .and_then(|now| offset(now, took / 2));
            }
            round_trips.push(took);
        }
        round_trips.sort_unstable();
        Ok((round_trips, clock))
    }

    /// Whether the server allows advisory locks.
    fn has_advisory_locks(&self) -> Result<bool, Error> {
        let token = probe_token()?;
        let dialect = self.database.dialect();
        let advisory_locks = [dialect.take_advisory_lock(&token), dialect.drop_advisory_lock()];
        // After a query that does not need the tables, because they may be missing.
        let asked = advisory_locks.map(|advisory_lock| {
            advisory_lock.map(|advisory_lock| format!("{}; {advisory_lock}", dialect.time()))
        });
        let asked: Vec<_> = asked.into_iter().flatten().collect();
        let answers = (!asked.is_empty()).then(|| self.ask(&asked, Again::Yes));
        Ok(matches!(answers, Some(Ok(_))))
    }

    /// Writes a lock with a waiter and an end, and removes it. Does not create the tables: they
    /// would belong to the user who runs the doctor.
    fn tried(&self) -> Result<Tried, Error> {
        match self.ask(&[self.database.dialect().names()], Again::Yes) {
            Err(Failure::NoTables(_)) => return Ok(Tried::NoTables),
            answer => drop(answer?),
        }
        let token = probe_token()?;
        let name = format!("dlock.probe:{}", token.secret());
        let (rows, now) = self.lock(&BTreeSet::from([name.clone()]), Some(&token), self.by.get())?;
        let version = rows.first().map_or(0, |row| row.version);
        let bytes =
            token.secret().as_bytes().try_into().map_err(|_| Error::Garbled("a token is invalid".into()))?;
        let waiting = Waiting::new(bytes, now.0, Mode::Exclusive, Place::Queued);
        let change = Change {
            read: vec![(name.clone(), version)],
            reserves: false,
            bodies: vec![NewBody {
                name: name.clone(),
                version,
                used: now.millis(),
                is_kept: false,
                body: super::row::body(0, &Record::default()).unwrap_or_default(),
            }],
            gone: Vec::new(),
            come: vec![(name.clone(), waiting, Some(b"{}".to_vec()))],
            ends: vec![(name.clone(), 1, b"{}".to_vec())],
            old_ends: Vec::new(),
            woken: vec![token.clone()],
        };
        let dialect = self.database.dialect();
        let mut statements: Vec<String> = dialect.wake_channel(&token).into_iter().collect();
        statements.push(dialect.write(&change));
        statements.extend(dialect.remove(&name));
        self.ask(&statements, Again::No)?;
        Ok(Tried::Done)
    }
}

fn probe_token() -> Result<Token, Error> {
    Token::random().map_err(|error| Error::Unavailable(format!("the system gave no random bytes: {error}")))
}

/// The offset of a clock that showed `now` (microseconds since 1970) that long ago.
fn offset(now: u64, ago: Duration) -> Option<Offset> {
    let theirs = SystemTime::UNIX_EPOCH + Duration::from_micros(Time(now).0) + ago;
    let ours = SystemTime::now();
    Some(match theirs.duration_since(ours) {
        Ok(ahead) => Offset::Ahead(ahead),
        Err(behind) => Offset::Behind(behind.duration()),
    })
    .filter(|_| millis(ago) < 60_000)
}
