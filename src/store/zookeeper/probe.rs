//! Checks whether an ensemble can hold locks: asks each server for its version and mode, and
//! creates, reads and deletes nodes like those of a lock.

use super::jute::{Answer, Ask, Code};
use super::wire::say;
use super::{Again, Stamp, Znodes, ZooKeeperStore};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::millis;
use crate::store::Error;
use crate::store::probe::{Ensemble, Member, Offset};
use std::time::{Duration, SystemTime};

/// Most round trips that are measured.
const ASKED: usize = 50;
/// Time after which no further round trip is measured.
const WITHIN: Duration = Duration::from_secs(1);

impl ZooKeeperStore {
    /// Examines the ensemble.
    pub fn probe(mut self, deadline: Moment) -> Ensemble {
        let members = self.coordinator.members(deadline);
        let tried = self.coordinator.tried(deadline);
        let answers = self.coordinator.round_trips(deadline);
        Ensemble { members, answers, tried }
    }
}

impl Znodes {
    fn members(&self, deadline: Moment) -> Vec<(String, Result<Member, Error>)> {
        let target = &*self.target;
        let ask = |server: &crate::store::net::Address| {
            let within = self.target.connect_timeout.min(deadline.left());
            let said = say(target, server, "srvr", Moment::now().after(within))?;
            let line = |begin: &str| {
                let rest = said.lines().find_map(|line| line.strip_prefix(begin));
                rest.map(|rest| rest.split(['-', ',']).next().unwrap_or(rest).trim().to_owned())
            };
            Ok(Member { version: line("Zookeeper version:"), mode: line("Mode:") })
        };
        target.servers.iter().map(|server| (server.to_string(), ask(server))).collect()
    }

    /// Round trips, fastest first, and the offset of the leader's clock by the last write.
    fn round_trips(&mut self, deadline: Moment) -> Result<(Vec<Duration>, Option<Offset>), Error> {
        let mut round_trips = Vec::new();
        let end = Moment::now().after(WITHIN);
        while round_trips.len() < ASKED && (round_trips.is_empty() || !end.passed()) {
            let began = Moment::now();
            drop(self.ask(&[Ask::Look { path: self.base(), watch: false }], Again::Yes, deadline)?);
            round_trips.push(Moment::now().since(began));
        }
        round_trips.sort_unstable();
        Ok((round_trips, self.stamp.and_then(offset)))
    }

    fn tried(&mut self, deadline: Moment) -> Result<Option<()>, Error> {
        let token = Token::random()
            .map_err(|error| Error::Unavailable(format!("the system gave no random bytes: {error}")))?;
        let path = self.lock_path(&format!("dlock.probe:{}", token.secret()));
        let below = format!("{path}/e00");
        let asks = [
            Ask::Create { path: path.clone(), data: Vec::new() },
            Ask::Create { path: below.clone(), data: Vec::new() },
            Ask::List { path: path.clone() },
            Ask::Get { path: path.clone() },
            Ask::Set { path: path.clone(), data: Vec::new(), version: Some(0) },
            Ask::All(vec![
                Ask::Check { path: path.clone(), version: Some(1) },
                Ask::Delete { path: below },
                Ask::Delete { path },
            ]),
            Ask::CreateForSession { path: self.life_path(&token) },
            Ask::Delete { path: self.life_path(&token) },
            Ask::touch(self.clock()),
        ];
        let answers = self.ask(&asks, Again::No, deadline)?;
        if answers.iter().all(|answer| matches!(answer, Err(Code::NO_NODE))) {
            return Ok(None);
        }
        let refused = answers.iter().find_map(|answer: &Result<Answer, Code>| answer.as_ref().err());
        refused.map_or(Ok(Some(())), |code| Err(self.refused(*code)))
    }
}

/// Offset of the leader's clock from this machine's. None if the stamp is older than a minute.
fn offset(stamp: Stamp) -> Option<Offset> {
    let ago = Moment::now().since(stamp.sent);
    let theirs = SystemTime::UNIX_EPOCH + Duration::from_millis(stamp.at) + ago;
    Some(match theirs.duration_since(SystemTime::now()) {
        Ok(ahead) => Offset::Ahead(ahead),
        Err(behind) => Offset::Behind(behind.duration()),
    })
    .filter(|_| millis(ago) < 60_000)
}
