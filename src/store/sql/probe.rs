//! Can this database hold locks? Asks it what it is, and takes a lock there that nobody else has, as one who waits does, and
//! removes it again.

use super::statement::{Change, NewBody};
use super::{Again, Failure, SqlStore, Tables};
use crate::clock::Moment;
use crate::lock::Mode;
use crate::lock::Token;
use crate::rules::{Record, Time, millis};
use crate::store::Error;
use crate::store::engine::Adapter;
use crate::store::engine::queue::{Place, Waiting};
use crate::store::probe::{Bell, Database, Offset, Role, Standbys, Tried};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// How often it is asked.
const ASKED: usize = 50;
/// Asking ends after this time, whatever it found.
const WITHIN: Duration = Duration::from_secs(1);

impl SqlStore {
    /// Looks at the database.
    pub fn probe(mut self, by: Moment) -> Result<Database, Error> {
        self.adapter.refresh(by)?;
        let said = self.adapter.survey()?;
        let tried = self.adapter.tried();
        let (round_trips, clock) = self.adapter.round_trips()?;
        let is_direct = self.adapter.line.borrow().as_ref().is_some_and(|line| line.is_direct == Some(true));
        let bell = match is_direct {
            false => Bell::Unheard,
            true if self.adapter.has_a_latch()? => Bell::Heard,
            true => Bell::Missing,
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
            bell,
            almighty: Some(rights).filter(|rights| !rights.is_empty()),
        })
    }
}

impl Tables {
    fn survey(&self) -> Result<[String; 4], Error> {
        let mut answers = self.ask(&[self.database.grammar().survey()], Again::Yes)?;
        let row = answers[0].rows.pop().unwrap_or_default();
        let mut texts =
            row.into_iter().map(|text| String::from_utf8_lossy(&text.unwrap_or_default()).into_owned());
        Ok([(); 4].map(|()| texts.next().unwrap_or_default()))
    }

    /// Whether a failover forgets, where there may be one.
    fn standbys(&self) -> Result<Option<Standbys>, Error> {
        let (target, grammar) = (self.database.target(), self.database.grammar());
        if !target.has_standbys() {
            return Ok(None);
        }
        let answers = self.ask(&[grammar.acknowledgement()], Again::Yes)?;
        let text = |column: &Option<Vec<u8>>| {
            String::from_utf8_lossy(column.as_deref().unwrap_or_default()).into_owned()
        };
        let rows: BTreeMap<_, _> =
            answers[0].rows.iter().filter_map(|row| Some((text(row.first()?), text(row.get(1)?)))).collect();
        let acknowledge = grammar.is_acknowledged(&|name| rows.get(name).cloned());
        let server = self.line.borrow().as_ref().map_or(0, |line| line.server);
        let primary = target.servers[server].to_string();
        Ok(Some(Standbys { primary, acknowledge, settings: grammar.acknowledged_by() }))
    }

    /// Fastest first, and the clock as the fastest has told it.
    fn round_trips(&self) -> Result<(Vec<Duration>, Option<Offset>), Error> {
        let (mut round_trips, mut clock) = (Vec::new(), None);
        let end = Moment::now().after(WITHIN);
        while round_trips.is_empty() || (round_trips.len() < ASKED && !end.passed()) {
            let sent = Moment::now();
            let answers = self.ask(&[self.database.grammar().time()], Again::Yes)?;
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

    /// Whether the server lets one sleep until another lets go.
    fn has_a_latch(&self) -> Result<bool, Error> {
        let token = probe_token()?;
        let grammar = self.database.grammar();
        let latches = [grammar.hold_latch(&token), grammar.drop_latch()];
        // Behind the time, which is asked without the tables: there may be none.
        let asked = latches.map(|latch| latch.map(|latch| format!("{}; {latch}", grammar.time())));
        let asked: Vec<_> = asked.into_iter().flatten().collect();
        let answers = (!asked.is_empty()).then(|| self.ask(&asked, Again::Yes));
        Ok(matches!(answers, Some(Ok(_))))
    }

    /// Makes a lock with a waiter and an end, and removes it. It makes no tables: they would be those of whoever runs this.
    fn tried(&self) -> Result<Tried, Error> {
        match self.ask(&[self.database.grammar().names()], Again::Yes) {
            Err(Failure::NoTables(_)) => return Ok(Tried::NoTables),
            answer => drop(answer?),
        }
        let token = probe_token()?;
        let name = format!("dlock.probe:{}", token.secret());
        let (rows, now) = self.lock(&BTreeSet::from([name.clone()]), Some(&token), self.by.get())?;
        let version = rows.first().map_or(0, |row| row.version);
        let bytes =
            token.secret().as_bytes().try_into().map_err(|_| Error::Garbled("a token is none".into()))?;
        let waiting = Waiting::new(bytes, now.0, Mode::Exclusive, Place::Queued);
        let change = Change {
            read: vec![(name.clone(), version)],
            insists: false,
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
        let grammar = self.database.grammar();
        let mut statements: Vec<String> = grammar.bell(&token).into_iter().collect();
        statements.push(grammar.write(&change));
        statements.extend(grammar.remove(&name));
        self.ask(&statements, Again::No)?;
        Ok(Tried::Done)
    }
}

fn probe_token() -> Result<Token, Error> {
    Token::random().map_err(|error| Error::Unavailable(format!("no randomness from the system: {error}")))
}

/// What a clock shows, in microseconds since 1970, that was read so long ago.
fn offset(now: u64, ago: Duration) -> Option<Offset> {
    let theirs = SystemTime::UNIX_EPOCH + Duration::from_micros(Time(now).0) + ago;
    let ours = SystemTime::now();
    Some(match theirs.duration_since(ours) {
        Ok(ahead) => Offset::Ahead(ahead),
        Err(behind) => Offset::Behind(behind.duration()),
    })
    .filter(|_| millis(ago) < 60_000)
}
