//! Checks whether a cluster can hold locks: asks for its version and clock, and writes and removes
//! a lock with a random name.

use super::client::grant;
use super::entry::{Row, body};
use super::http::Request;
use super::lease::LeaseOf;
use super::words::{Act, Bytes, MemberList, Number, Put, Range, Span, Status, Txn};
use super::{EtcdStore, Keys};
use crate::clock::Moment;
use crate::lock::{Mode, Token};
use crate::rules::{Record, Time};
use crate::store::Error;
use crate::store::engine::Adapter;
use crate::store::engine::queue::{Place, Waiting};
use crate::store::probe::{Database, Offset, Role, Tried, WakeUp};
use std::time::{Duration, SystemTime};

/// Most round trips that are measured.
const ASKED: usize = 50;
/// Time after which no further round trip is measured.
const WITHIN: Duration = Duration::from_secs(1);

impl EtcdStore {
    /// Fails if the cluster cannot be asked for its version or its clock. If only the test lock
    /// fails, the result says so.
    pub fn probe(mut self, by: Moment) -> Result<Database, Error> {
        self.adapter.refresh(by)?;
        let version = self.adapter.version()?;
        let (round_trips, clock) = self.adapter.round_trips()?;
        let tried = self.adapter.tried();
        let members = self.adapter.members();
        let (role, forgets_by, wake_up, almighty) = (Role::Master, Vec::new(), WakeUp::Works, None);
        let standbys = None;
        Ok(Database {
            round_trips,
            clock,
            version,
            members,
            role,
            standbys,
            forgets_by,
            tried,
            wake_up,
            almighty,
        })
    }
}

impl Keys {
    fn version(&self) -> Result<String, Error> {
        let mut replies = self.client.ask(&[Request { path: "maintenance/status", body: "{}".into() }])?;
        let status: Status = match replies.pop() {
            Some(Ok(good)) => self.client.parse(&good.body)?,
            Some(Err(said)) => match self.client.meaning(&said) {
                // Later releases of 3.5 allow this to root only. The test lock shows whether the
                // keys are allowed.
                Error::Denied(_) => return Ok("etcd (only its root user can see the version)".into()),
                other => return Err(other),
            },
            None => Status::default(),
        };
        Ok(format!("etcd {}", status.version))
    }

    /// Number of members, if the cluster tells it.
    fn members(&self) -> Option<usize> {
        let mut replies =
            self.client.ask(&[Request { path: "cluster/member/list", body: "{}".into() }]).ok()?;
        let list: MemberList = self.client.parse(&replies.pop()?.ok()?.body).ok()?;
        Some(list.members.len())
    }

    /// Round trips, fastest first, and the offset of the member's clock, which is exact to a
    /// second.
    fn round_trips(&self) -> Result<(Vec<Duration>, Option<Offset>), Error> {
        let (mut round_trips, mut clock) = (Vec::new(), None);
        let key = self.layout().lock("");
        let range = Range { span: Span { key, range_end: None }, ..Range::default() };
        let read = Txn { compare: Vec::new(), success: vec![Act::Range(range)] };
        let end = Moment::now().after(WITHIN);
        while round_trips.is_empty() || (round_trips.len() < ASKED && !end.passed()) {
            let sent = Moment::now();
            let (_, now) = self.client.txn(&read)?;
            round_trips.push(Moment::now().since(sent));
            clock = Some(offset(now));
        }
        round_trips.sort_unstable();
        Ok((round_trips, clock))
    }

    /// Writes a lock with a waiter and an end, and revokes the lease that all of it is on.
    fn tried(&self) -> Result<Tried, Error> {
        let token = Token::random()
            .map_err(|error| Error::Unavailable(format!("the system gave no random bytes: {error}")))?;
        let (layout, name) = (self.layout(), format!("dlock.probe:{}", token.secret()));
        let bytes =
            token.secret().as_bytes().try_into().map_err(|_| Error::Garbled("a token is invalid".into()))?;
        let waiting = Waiting::new(bytes, 1, Mode::Exclusive, Place::Queued);
        let failed = |error: serde_json::Error| Error::Garbled(error.to_string());
        let values = [
            (layout.lock(&name), body(0, 0, &Record::default()).map_err(failed)?),
            (layout.hold(&name, &token), b"0".to_vec()),
            (layout.waiter(&name, &waiting), Row::of(&waiting, b"{}").map_err(failed)?),
            (layout.life(&token), Vec::new()),
            (layout.end(&name, 1), b"{}".to_vec()),
        ];
        let of = LeaseOf::Waiter;
        let put = |(key, value): (Bytes, Vec<u8>)| {
            let lease = Some(Number(of.id(&token)));
            Act::Put(Put { key, value: Some(Bytes(value)), lease, ..Put::default() })
        };
        let txn = Txn { compare: Vec::new(), success: values.into_iter().map(put).collect() };
        let mut replies =
            self.client.ask(&[grant(of.id(&token), of.seconds()), txn.request(&self.client)?])?;
        let done = self.client.txn_answer(replies.pop());
        self.client.leased(replies.pop())?;
        self.client.revoke(&[of.id(&token)])?;
        done?;
        Ok(Tried::Done)
    }
}

/// Offset of a clock that shows this time now. Less than a second cannot be seen.
fn offset(theirs: Time) -> Offset {
    let theirs = SystemTime::UNIX_EPOCH + Duration::from_micros(theirs.0);
    let ours = SystemTime::now();
    match theirs.duration_since(ours) {
        Ok(ahead) => Offset::Ahead(ahead),
        Err(behind) => Offset::Behind(behind.duration()),
    }
}
