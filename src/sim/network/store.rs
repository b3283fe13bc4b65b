//! The store of one process of a fleet: its requests go through the network to the server.

use super::super::Planted;
use super::super::time::{MS, MachineId, TaskId};
use super::{Net, Reply, Step, What, lock};
use crate::clock::{self, Moment};
use crate::lock::{Fence, Name, Names, Owner, Token};
use crate::rules::{
    Acquired, Ask, End, Forget, Grant, Left, NewPause, Proof, Refusal, Renew, Renewal, Requested, Revoke,
    Revoked,
};
use crate::store::{Error, Found, Listener, Slept, Store, Subscription, View, Which};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The store of one process.
#[derive(Clone)]
pub struct SimStore {
    pub net: Arc<Net>,
    pub machine: MachineId,
    /// The task that uses it.
    pub task: TaskId,
    /// The task to wake after an answer.
    pub observer: Option<TaskId>,
}

impl SimStore {
    fn call(&self, names: &Names, token: &Token, what: What, deadline: Moment) -> Result<Reply, Error> {
        let sim = &self.net.sim;
        let deadline = sim.true_time(self.task, deadline);
        let step = Arc::new(Step { names: names.clone(), token: token.clone(), what });
        let place: Arc<Mutex<Option<Reply>>> = Arc::default();
        let (there, waking, task) = (Arc::clone(&place), Arc::clone(sim), self.task);
        self.net.send(self.machine, &step, move |reply| {
            lock(&there).get_or_insert(reply);
            waking.wake(task);
        });
        let answer = loop {
            if let Some(reply) = lock(&place).take() {
                break Ok(reply);
            }
            if sim.now() >= deadline {
                break Err(Error::Overloaded("no answer in time".into()));
            }
            sim.park(self.task, deadline);
        };
        if let Some(observer) = self.observer {
            let at = sim.now() + MS / 50;
            sim.at(at, move |sim| sim.wake(observer));
        }
        answer
    }
}

fn garbled<T>(_: Reply) -> Result<T, Error> {
    Err(Error::Garbled("another answer".into()))
}

impl Store for SimStore {
    fn acquire(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error> {
        match self.call(names, &ask.token, What::Acquire(Box::new(ask.clone())), deadline)? {
            Reply::Acquired(answer) => Ok(match *answer {
                Acquired::Waiting(waiting)
                    if self.net.planted == Planted::StartsUnconfirmed && waiting.ahead == 0 =>
                {
                    let holder = waiting.blocker.holder;
                    let fence = Fence(holder.map_or(1, |holder| holder.fence.0 + 1));
                    Acquired::Granted(Grant { fence, waited: Duration::ZERO, slot: None })
                }
                answer => answer,
            }),
            other => garbled(other),
        }
    }

    fn renew(&mut self, names: &Names, renew: &Renew<'_>, deadline: Moment) -> Result<Renewal, Error> {
        match self.call(names, renew.token, What::Renew(renew.fence, renew.ttl), deadline)? {
            Reply::Renewal(_) if self.net.planted == Planted::BelievesInAnyRenewal => Ok(Renewal::Renewed),
            Reply::Renewal(answer) => Ok(answer),
            other => garbled(other),
        }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, deadline: Moment) -> Result<Left, Error> {
        match self.call(names, token, What::Leave(end.clone()), deadline)? {
            Reply::Left(answer) => Ok(answer),
            other => garbled(other),
        }
    }

    fn sleep(&mut self, _: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        let (sim, rung) = (Arc::clone(&self.net.sim), Arc::new(Mutex::new(false)));
        let mine = (self.machine, self.task, Arc::clone(&rung));
        self.net.inner().sleepers.insert(token.clone(), mine);
        let deadline = sim.true_time(self.task, until);
        while sim.now() < deadline && !*lock(&rung) {
            sim.park(self.task, deadline);
        }
        Ok(if *lock(&rung) { Slept::Woken } else { Slept::Through })
    }

    fn subscribe(&mut self, _: &[Name], _: &Token, _: Listener) -> Box<dyn Subscription> {
        Box::new(NoNotifications)
    }

    fn inspect(&mut self, name: &Name, _: Moment) -> Result<View, Error> {
        Err(Error::Unavailable(format!("nobody looks at {} in a fleet", name.as_str())))
    }

    fn prove(&mut self, _: &Names, _: &Token, _: Option<Fence>, _: Moment) -> Result<Option<Proof>, Error> {
        Ok(None)
    }

    fn request(&mut self, _: &Name, _: Fence, _: &Owner, _: Moment) -> Result<Requested, Error> {
        Ok(Requested::Gone)
    }

    fn watch(&mut self, _: &Name, _: &Token, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<bool, Error> {
        let by = refusal.notice.as_ref().and_then(|notice| Token::parse(&notice.by).ok());
        let Some(by) = by else { return Ok(false) };
        match self.call(&name.clone().into(), &by, What::Refuse(Box::new(refusal.clone())), deadline)? {
            Reply::Noted(announces) => Ok(announces),
            other => garbled(other),
        }
    }

    fn refusals(&mut self, _: &Name, _: Moment) -> Result<Vec<Refusal>, Error> {
        Ok(Vec::new())
    }

    fn forget(&mut self, _: &Name, _: Forget, _: Moment) -> Result<bool, Error> {
        Ok(false)
    }

    fn pause(&mut self, _: &Name, _: Option<NewPause<'_>>, _: Moment) -> Result<bool, Error> {
        Ok(false)
    }

    fn revoke(&mut self, _: &Name, _: &Revoke, _: Moment) -> Result<Revoked, Error> {
        Ok(Revoked::Free)
    }

    fn find(&mut self, _: &str, _: Which) -> Result<Found, Error> {
        Ok(Found::default())
    }

    fn reset(&mut self) {}
}

/// A holder that is notified of nothing between two renewals.
struct NoNotifications;

impl Subscription for NoNotifications {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        clock::sleep_until(until);
        Ok(false)
    }
}
