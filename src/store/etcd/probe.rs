//! For `dlock doctor`: checks whether a cluster can hold locks. Asks for its version and clock, and
//! writes and removes a lock under keys that no user's lock has.

use super::client::grant;
use super::http::Request;
use super::lease::LeaseOf;
use super::messages::{Act, Number, Put, Span, Txn};
use super::{EtcdStore, Keys};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::Time;
use crate::store::Error;
use crate::store::probe::{Database, Offset, Role, Tried, WakeUp, measure, offset};
use serde_json::Value;
use std::time::Duration;

impl EtcdStore {
    /// Fails if the cluster cannot be asked for its version or its clock. If only the test lock
    /// fails, the result says so.
    pub fn probe(mut self, deadline: Moment) -> Result<Database, Error> {
        let keys = &mut self.coordinator;
        let version = keys.version(deadline)?;
        let (round_trip, clock) = keys.round_trip(deadline)?;
        let tried = keys.tried(deadline);
        let members = keys.members(deadline);
        Ok(Database {
            round_trip,
            clock: Some(clock),
            version,
            members,
            role: Role::Master,
            standbys: None,
            forgets_by: Vec::new(),
            tried,
            wake_up: WakeUp::Works,
            others: None,
            almighty: None,
        })
    }
}

impl Keys {
    fn version(&mut self, deadline: Moment) -> Result<String, Error> {
        let request = Request { path: "maintenance/status", body: "{}".into() };
        let mut replies = self.client.ask(&[request], deadline)?;
        let status: Value = match replies.pop() {
            Some(Ok(good)) => self.client.parse(&good.body)?,
            Some(Err(error)) => match self.client.meaning(&error).into() {
                // Later releases of 3.5 allow this to root only. The test lock shows whether the
                // keys are allowed.
                Error::Denied(_) => return Ok("etcd (only its root user can see the version)".into()),
                other => return Err(other),
            },
            None => Value::Null,
        };
        Ok(format!("etcd {}", status["version"].as_str().unwrap_or_default()))
    }

    /// Number of members, if the cluster tells it.
    fn members(&mut self, deadline: Moment) -> Option<usize> {
        let request = Request { path: "cluster/member/list", body: "{}".into() };
        let mut replies = self.client.ask(&[request], deadline).ok()?;
        let list: Value = self.client.parse(&replies.pop()?.ok()?.body).ok()?;
        Some(list["members"].as_array()?.len())
    }

    /// The slowest round trip, and the offset of the member's clock, which is exact to a second.
    fn round_trip(&mut self, deadline: Moment) -> Result<(Duration, Offset), Error> {
        let range = Span::one(self.layout().lock("")).whole();
        // This is this machine's time at the arrival of the answer, moved into the second that the
        // member names. So half a round trip must not be added.
        let mut now = Time(0);
        let (slowest, _) = measure(|| {
            (_, now) = self.client.read(vec![range.clone()], deadline)?;
            Ok::<_, Error>(None)
        })?;
        Ok((slowest, offset(Duration::from_micros(now.0))))
    }

    /// Writes a key of each kind, and revokes the lease that they are on. No lock has their empty
    /// name, so nobody takes them for a lock.
    fn tried(&mut self, deadline: Moment) -> Result<Tried, Error> {
        let token = Token::random().map_err(|error| Error::Unavailable(error.to_string()))?;
        let (layout, of, id) = (self.layout(), LeaseOf::Waiter, LeaseOf::Waiter.id(&token));
        let of_lock = [layout.lock(""), layout.end("", 1)];
        let of_token = [layout.waiter("", &token), layout.session("", &token), layout.life(&token)];
        let put = |key| Act::Put(Put { key, lease: Some(Number(id)), ..Put::default() });
        let success = of_lock.into_iter().chain(of_token).map(put).collect();
        let txn = Txn { compare: Vec::new(), success };
        let mut replies =
            self.client.ask(&[grant(id, of.seconds()), txn.request(&self.client)?], deadline)?;
        let done = self.client.txn_answer(replies.pop());
        self.client.granted(replies.pop())?;
        self.client.revoke(&[id], deadline)?;
        done?;
        Ok(Tried::Done)
    }
}
