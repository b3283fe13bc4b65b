//! Checks whether an ensemble can hold locks: asks each server for its version and mode, and
//! creates, reads and deletes nodes like those of a lock.

use super::jute::{Ask, Code};
use super::wire::say;
use super::{Stamp, Znodes, ZooKeeperStore};
use crate::clock::Moment;
use crate::lock::Token;
use crate::store::Error;
use crate::store::probe::{Ensemble, Member, Offset, measure, offset};
use std::collections::BTreeSet;
use std::time::Duration;

impl ZooKeeperStore {
    /// Examines the ensemble.
    pub fn probe(mut self, deadline: Moment) -> Ensemble {
        let members = self.coordinator.members(deadline);
        let tried = self.coordinator.tried(deadline);
        let answers = self.coordinator.round_trip(deadline);
        Ensemble { members, answers, tried }
    }
}

impl Znodes {
    fn members(&self, deadline: Moment) -> Vec<(String, Result<Member, Error>)> {
        let target = &*self.session.target;
        let ask = |server: &crate::store::net::Address| {
            let within = self.session.target.connect_timeout.min(deadline.left());
            let said = say(target, server, "srvr", Moment::now().after(within))?;
            let line = |begin: &str| {
                let rest = said.lines().find_map(|line| line.strip_prefix(begin));
                rest.map(|rest| rest.split(['-', ',']).next().unwrap_or(rest).trim().to_owned())
            };
            Ok(Member { version: line("Zookeeper version:"), mode: line("Mode:") })
        };
        target.servers.iter().map(|server| (server.to_string(), ask(server))).collect()
    }

    /// The slowest round trip, and the offset of the leader's clock by the last write.
    fn round_trip(&mut self, deadline: Moment) -> Result<(Duration, Option<Offset>), Error> {
        let look = [Ask::Look(self.base())];
        let (slowest, _) = measure(|| self.ask(&look, deadline).map(|_| None))?;
        let clock = self.stamp.map(|Stamp { at, sent, .. }| {
            offset(Duration::from_millis(at).saturating_add(Moment::now().since(sent)))
        });
        Ok((slowest, clock))
    }

    /// Tries what locks need. Returns the other users that may change the nodes.
    fn tried(&mut self, deadline: Moment) -> Result<Option<BTreeSet<String>>, Error> {
        let token = Token::random().map_err(|error| Error::Unavailable(error.to_string()))?;
        let path = self.lock_path(&format!("dlock.probe:{}", token.secret()));
        let below = format!("{path}/e00");
        let above = self.above_locks();
        let mut asks = vec![
            Ask::Create { path: path.clone(), data: Vec::new() },
            Ask::Create { path: below.clone(), data: Vec::new() },
            Ask::Acl(path.clone()),
            Ask::List(path.clone()),
            Ask::Get(path.clone()),
            Ask::Set { path: path.clone(), data: Vec::new(), version: Some(0) },
            Ask::All(vec![
                Ask::Check { path: path.clone(), version: Some(1) },
                Ask::Delete(below),
                Ask::Delete(path),
            ]),
            Ask::CreateForSession(self.life_path(&token)),
            Ask::Delete(self.life_path(&token)),
            Ask::touch(self.clock()),
        ];
        let count = asks.len();
        asks.extend(above.iter().cloned().map(Ask::Acl));
        let mut answers = self.ask_once(&asks, deadline)?;
        let lists = answers.split_off(count.min(answers.len()));
        if answers.iter().all(|answer| matches!(answer, Err(Code::NO_NODE))) {
            return Ok(None);
        }
        if self.session.target.user.is_some() {
            self.test(&above, &lists)?;
        }
        let refused = answers.iter().find_map(|answer| answer.as_ref().err());
        let own = answers.iter().flatten().flat_map(|answer| answer.acl.iter().cloned()).collect::<Vec<_>>();
        refused.map_or_else(|| Ok(Some(self.others(&lists, &own))), |code| Err(self.refused(*code)))
    }
}
