//! Joins what each master has seen of a lock into what a majority confirms, for refused callers and
//! for `status`. Sends no requests.

use crate::lock::{Fence, Mode};
use crate::rules::stat::Stat;
use crate::rules::{Blocker, Foreign, Holder, LoggedEnd, Outcome, Pause, State, ms};
use crate::store::redis::reply::History;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Clocks that differ by less than this, in milliseconds, count as equal, because an answer may
/// take that long to arrive.
const SET: u64 = 1000;

/// The lock on one master, as its scripts answer.
#[derive(Debug, Clone, Deserialize)]
pub struct MasterView {
    /// What the lock key says; a foreign value counts as held.
    pub state: State,
    /// Time until that state may end by itself.
    #[serde(default, with = "ms")]
    pub left: Option<Duration>,
    /// The holder's token; empty if unknown.
    #[serde(default)]
    pub token: String,
    pub holder: Option<Holder>,
    /// The foreign value, if there is one.
    pub foreign: Option<Foreign>,
    pub paused: Option<Pause>,
}

impl MasterView {
    /// A master on which nothing blocks a caller.
    pub const FREE: Self = Self {
        state: State::Free,
        left: None,
        token: String::new(),
        holder: None,
        foreign: None,
        paused: None,
    };

    /// The same with its times converted by `clock`.
    pub fn timed_by(mut self, clock: Clock) -> Self {
        clock.set(self.holder.iter_mut().map(|holder| &mut holder.since));
        clock.set(self.paused.iter_mut().flat_map(|pause| [&mut pause.since, &mut pause.until]));
        self
    }

    fn is_confirmed(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.confirmed)
    }

    fn is_hold(&self) -> bool {
        self.state == State::Held && self.holder.is_some()
    }
}

/// Converts the times of one master to the common clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    behind_ms: i64,
}

impl Clock {
    /// A clock that shows `own` when the common clock shows `common`. A small difference is
    /// ignored.
    pub fn of(own: u64, common: u64) -> Self {
        let behind = i64::try_from(common).unwrap_or_default() - i64::try_from(own).unwrap_or_default();
        Self { behind_ms: if behind.unsigned_abs() < SET { 0 } else { behind } }
    }

    /// Converts times of this clock to the common clock, in place.
    pub fn set<'t>(self, times: impl IntoIterator<Item = &'t mut u64>) {
        times.into_iter().for_each(|time| *time = time.saturating_add_signed(self.behind_ms));
    }

    /// Converts the times of a history. Returns its log and totals.
    pub fn history(self, history: &mut History) -> (Vec<LoggedEnd>, Stat) {
        let (mut log, mut stat) = (history.log(), history.stat());
        self.set(log.iter_mut().flat_map(|end| [&mut end.since, &mut end.ended]));
        self.set(stat.last.values_mut().chain(&mut stat.last_success).chain(&mut stat.last_failure));
        self.set(history.success.iter_mut().flat_map(|success| [&mut success.since, &mut success.ended]));
        self.set(history.expected.iter_mut().map(|expected| &mut expected.since));
        (log, stat)
    }
}

/// How certain it is that a caller cannot get the lock now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmness {
    /// So many masters are blocked that no majority is left: the lock is held, cooling, revoked,
    /// paused or foreign, or other callers have waited longer.
    Firm,
    /// The lock was held, and still is unless it was just given back: less than a majority has the
    /// hold, and another master does not answer.
    Doubtful,
    /// No majority blocks the lock: it is free, or several attempts run at the same time and none
    /// has a majority.
    Unblocked,
}

/// What the masters know together of one lock.
#[derive(Debug, Clone)]
pub struct Joined {
    /// What a majority confirms.
    pub seen: MasterView,
    /// How certain it is that `seen` blocks a caller.
    pub firmness: Firmness,
}

impl Joined {
    /// Joins the answers of some of `masters` masters.
    ///
    /// A confirmed hold had a majority when it was confirmed. It has lost that majority if a
    /// majority is free now. If two holds are confirmed, the later one counts: not every master of
    /// the earlier one could be told that it is over.
    pub fn of(seen: &[MasterView], masters: usize) -> Self {
        let majority = masters / 2 + 1;
        let split = |seen| Self { seen, firmness: Firmness::Unblocked };
        if seen.iter().filter(|seen| seen.state == State::Free).count() >= majority {
            return split(MasterView::FREE);
        }
        let mut holds: BTreeMap<&str, Vec<&MasterView>> = BTreeMap::new();
        for hold in seen.iter().filter(|seen| seen.is_hold()) {
            holds.entry(&hold.token).or_default().push(hold);
        }
        let fence =
            |group: &[&MasterView]| group.iter().filter_map(|seen| Some(seen.holder.as_ref()?.fence)).max();
        let has_lock = |group: &&Vec<&MasterView>| {
            group.len() >= majority || group.iter().any(|seen| seen.is_confirmed())
        };
        if let Some(group) = holds.values().filter(has_lock).max_by_key(|group| fence(group)) {
            let firmness = if group.len() >= majority { Firmness::Firm } else { Firmness::Doubtful };
            return Self { seen: represent(group, majority), firmness };
        }
        let firm: Vec<&MasterView> =
            seen.iter().filter(|seen| seen.state != State::Free && !seen.is_hold()).collect();
        if firm.len() > masters - majority {
            let like = |one: &MasterView| {
                firm.iter().filter(|seen| seen.state == one.state).copied().collect::<Vec<_>>()
            };
            let group = firm.iter().map(|one| like(one)).max_by_key(Vec::len).unwrap_or_default();
            return Self { seen: represent(&group, majority), firmness: Firmness::Firm };
        }
        match holds.values().max_by_key(|group| group.len()) {
            Some(group) => split(represent(group, majority)),
            None => split(firm.first().map_or(MasterView::FREE, |seen| (*seen).clone())),
        }
    }

    /// The answer to a refused caller.
    pub fn blocker(&self) -> Blocker {
        let MasterView { state, left, mut holder, foreign, paused, .. } = self.seen.clone();
        // Without a queue no holder is a waiter that was woken: it has a majority, or is about to
        // have it.
        holder.iter_mut().for_each(|holder| holder.confirmed = true);
        let is_nobodys = matches!(state, State::Free | State::Paused);
        let mode = if foreign.is_some() || is_nobodys { None } else { Some(Mode::Exclusive) };
        Blocker { at: 0, state, mode, holder, others: 0, left, paused, before: None, queue_full: None }
    }
}

/// One view for masters that agree: that of the master at whose end no majority is left.
fn represent(group: &[&MasterView], majority: usize) -> MasterView {
    let mut sorted = group.to_vec();
    sorted.sort_by_key(|seen| std::cmp::Reverse(seen.left.unwrap_or(Duration::MAX)));
    let Some(one) = sorted.get((majority - 1).min(sorted.len().saturating_sub(1))) else {
        return MasterView::FREE;
    };
    let mut one = (*one).clone();
    // An unconfirmed hold has only this master's candidate for the fence.
    let fence =
        group.iter().filter(|seen| seen.is_confirmed()).filter_map(|seen| Some(seen.holder.as_ref()?.fence));
    if let (Some(holder), Some(fence)) = (&mut one.holder, fence.max()) {
        (holder.fence, holder.confirmed) = (fence, true);
        let asked =
            group.iter().find_map(|seen| seen.holder.as_ref().filter(|holder| holder.asked.is_some()));
        if let Some(asked) = asked {
            (holder.asked, holder.superseded) = (asked.asked.clone(), asked.superseded);
        }
    }
    one
}

/// Joins several logs, newest first. Masters know more or less about the end of one hold: one that
/// was cut off saw only that the lease ran out, or that the key was gone.
pub fn join_logs(logs: impl IntoIterator<Item = LoggedEnd>) -> Vec<LoggedEnd> {
    let knows = |end: &LoggedEnd| match end.outcome {
        // Its own dlock or guard reported it.
        Outcome::Released | Outcome::Crashed | Outcome::Timeout => 3,
        Outcome::Stopped | Outcome::Superseded => 3,
        Outcome::Expired | Outcome::Lost if end.job.is_some() => 3,
        Outcome::Forced => 2,
        Outcome::Expired => 1,
        Outcome::Lost => 0,
    };
    let mut ends: BTreeMap<Fence, LoggedEnd> = BTreeMap::new();
    for end in logs {
        match ends.get(&end.fence) {
            Some(known) if knows(known) >= knows(&end) => {}
            _ => drop(ends.insert(end.fence, end)),
        }
    }
    ends.into_values().rev().take(crate::rules::LOG_KEPT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Owner;

    fn hold(token: &str, fence: u64, left: u64, confirmed: bool) -> MasterView {
        let holder = Holder {
            owner: Owner::default(),
            fence: Fence(fence),
            since: 0,
            held: Duration::ZERO,
            waited: Duration::ZERO,
            lease: Duration::from_secs(left),
            slot: None,
            asked: None,
            superseded: false,
            during_pause: false,
            confirmed,
        };
        let left = Some(Duration::from_secs(left));
        MasterView { state: State::Held, left, token: token.into(), holder: Some(holder), ..MasterView::FREE }
    }

    fn cooling() -> MasterView {
        MasterView { state: State::Cooling, left: Some(Duration::from_secs(9)), ..MasterView::FREE }
    }

    fn joined(seen: &[MasterView]) -> (State, Firmness, String, Option<u64>) {
        let Joined { seen, firmness } = Joined::of(seen, 3);
        (seen.state, firmness, seen.token, seen.left.map(|left| left.as_secs()))
    }

    #[test]
    fn a_majority_that_is_free_is_free_whatever_one_remembers() {
        let free = (State::Free, Firmness::Unblocked, String::new(), None);
        assert_eq!(joined(&[MasterView::FREE, MasterView::FREE, hold("a", 1, 5, true)]), free);
        assert_eq!(joined(&[MasterView::FREE, MasterView::FREE]), free);
    }

    #[test]
    fn a_hold_ends_when_its_majority_does() {
        let held = |left| (State::Held, Firmness::Firm, "a".into(), Some(left));
        assert_eq!(joined(&[hold("a", 1, 7, true), hold("a", 1, 5, true), hold("a", 1, 6, true)]), held(6));
        assert_eq!(joined(&[hold("a", 1, 7, true), hold("a", 1, 5, true), MasterView::FREE]), held(5));
        // While a master does not answer, a confirmed hold may still have its majority.
        let doubtful = (State::Held, Firmness::Doubtful, "a".into(), Some(7));
        assert_eq!(joined(&[hold("a", 1, 7, true), MasterView::FREE]), doubtful);
    }

    #[test]
    fn of_two_confirmed_holds_the_later_counts() {
        let seen = [hold("a", 1, 7, true), hold("b", 2, 5, true), hold("b", 2, 5, true)];
        assert_eq!(joined(&seen), (State::Held, Firmness::Firm, "b".into(), Some(5)));
    }

    #[test]
    fn attempts_without_a_majority_hold_nothing() {
        let seen = [hold("a", 1, 7, false), hold("b", 2, 5, false), hold("c", 2, 5, false)];
        assert_eq!(joined(&seen).1, Firmness::Unblocked);
        assert_eq!(
            joined(&[hold("a", 1, 7, false), hold("b", 2, 5, false), cooling()]).1,
            Firmness::Unblocked
        );
        assert_eq!(joined(&[hold("a", 1, 7, false), hold("a", 2, 5, false), cooling()]).1, Firmness::Firm);
    }

    #[test]
    fn a_cooling_majority_blocks() {
        let kept = (State::Cooling, Firmness::Firm, String::new(), Some(9));
        assert_eq!(joined(&[cooling(), cooling(), hold("a", 1, 7, false)]), kept);
        assert_eq!(joined(&[cooling(), MasterView::FREE, MasterView::FREE]).0, State::Free);
    }

    #[test]
    fn of_one_end_the_best_informed_log_counts() {
        let end = |fence, outcome| LoggedEnd {
            outcome,
            owner: Owner::default(),
            fence: Fence(fence),
            since: 0,
            ended: 0,
            waited: 0,
            job: None,
            by: None,
            during_pause: false,
        };
        let logs = [
            end(1, Outcome::Expired),
            end(2, Outcome::Lost),
            end(1, Outcome::Released),
            end(2, Outcome::Lost),
        ];
        assert_eq!(join_logs(logs), [end(2, Outcome::Lost), end(1, Outcome::Released)]);
    }
}
