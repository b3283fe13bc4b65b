//! The lock rules, and variants of them with one fault each.

use super::*;
use crate::rules::record::Lock;

/// The rules, or a variant with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    Right,
    /// The lock key is ignored.
    GrantsTwice,
    /// Leases end before their time.
    EndsEarly,
    /// A renewal succeeds for any token.
    RenewsAnybody,
    /// A renewal extends a hold that a late request was granted, and a release ends it.
    RenewsAnyGrant,
    /// Fences become smaller.
    FenceFalls,
    /// A released token is forgotten.
    ForgetsSpent,
    /// A release frees what another one holds.
    LeavesForOthers,
    /// A caller that does not wait is granted what others wait for.
    Overtakes,
    /// No waiter is granted a lock that becomes free.
    ServesNobody,
    /// Two holders get the same slot.
    OneSlot,
    /// A lock that a min-hold keeps counts as free.
    ForgetsMinHold,
    /// `--once-per` grants although the job is done.
    ForgetsSuccess,
    /// Of several locks only the first one is taken.
    TakesOne,
}

pub(super) const FAULTY: [Rules; 13] = [
    Rules::GrantsTwice,
    Rules::EndsEarly,
    Rules::RenewsAnybody,
    Rules::RenewsAnyGrant,
    Rules::FenceFalls,
    Rules::ForgetsSpent,
    Rules::LeavesForOthers,
    Rules::Overtakes,
    Rules::ServesNobody,
    Rules::OneSlot,
    Rules::ForgetsMinHold,
    Rules::ForgetsSuccess,
    Rules::TakesOne,
];

impl Rules {
    /// Applies the fault to the records before an operation.
    fn before(self, table: &mut LockTable, now: u64, asker: u32, queues: bool) {
        for record in table.records.values_mut() {
            match self {
                Self::GrantsTwice => record.lock = Lock::Free,
                Self::EndsEarly => {
                    if let Lock::Exclusive { until, .. } | Lock::Shared { until } | Lock::Slots { until, .. } =
                        &mut record.lock
                        && until.left(Time(now)) < Duration::from_micros(TTL / 2)
                    {
                        record.lock = Lock::Free;
                    }
                }
                Self::Overtakes if !queues && !record.waiters.contains_key(&token(asker)) => {
                    record.queue.clear()
                }
                Self::ForgetsSpent => record.tombstones.clear(),
                Self::ForgetsSuccess => record.success = None,
                Self::ForgetsMinHold => {
                    if matches!(record.lock, Lock::Cooling { .. }) {
                        record.lock = Lock::Free;
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn acquire(
        self,
        table: &mut LockTable,
        now: u64,
        names: &Names,
        ask: &Ask,
        who: u32,
    ) -> Acquired {
        self.before(table, now, who, ask.patience == Patience::Queue);
        let first = names.first().clone();
        let names = if self == Self::TakesOne { &first.into() } else { names };
        let answer = table.acquire(Time(now), names, ask);
        let Acquired::Granted(mut grant) = answer else { return answer };
        if self == Self::FenceFalls {
            grant.fence.0 -= 1_000_000;
            for record in table.records.values_mut() {
                record.fence = record.fence.saturating_sub(1_000_000);
                record.holds.values_mut().for_each(|hold| hold.fence = hold.fence.saturating_sub(1_000_000));
            }
        }
        if self == Self::OneSlot {
            grant.slot = grant.slot.map(|_| 0);
        }
        Acquired::Granted(grant)
    }

    pub(super) fn renew(
        self,
        table: &mut LockTable,
        now: u64,
        names: &Names,
        who: u32,
        fence: Option<Fence>,
    ) -> Renewal {
        self.before(table, now, who, true);
        let fence = fence.filter(|_| self != Self::RenewsAnyGrant);
        match table.renew(
            Time(now),
            names,
            &Renew { token: &token(who), fence, ttl: Duration::from_micros(TTL), rest: None },
        ) {
            Renewal::NotHeld if self == Self::RenewsAnybody => Renewal::Renewed,
            answer => answer,
        }
    }

    pub(super) fn leave(self, table: &mut LockTable, now: u64, names: &Names, who: u32, end: &End) -> Left {
        self.before(table, now, who, true);
        if self == Self::LeavesForOthers {
            names.iter().for_each(|name| table.record(name.as_str()).lock = Lock::Free);
        }
        let hidden: Vec<_> = match self {
            Self::ServesNobody => {
                let queue = |record: &mut Record| std::mem::take(&mut record.queue);
                table.records.iter_mut().map(|(name, record)| (name.clone(), queue(record))).collect()
            }
            _ => Vec::new(),
        };
        let fence = end.fence.filter(|_| self != Self::RenewsAnyGrant);
        let answer = table.leave(Time(now), names, &token(who), &End { fence, ..end.clone() });
        for (name, queue) in hidden {
            let record = table.record(&name);
            record.queue = queue.into_iter().filter(|(_, waiter)| *waiter != token(who)).collect();
        }
        answer
    }
}
