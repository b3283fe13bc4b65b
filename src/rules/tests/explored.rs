//! Every history of a few steps, by a few callers: requests, renewals, releases, lost answers,
//! deaths, late requests and passing time, in every order. After each step the invariants of
//! docs/protocol.md are checked. Faulty variants of the rules, one fault each, show that the checks
//! find something.

mod faulty;
mod promises;

use super::super::*;
use super::{name, token};
use crate::lock::{Mode, Owner};
use crate::rules::record::Hold;
use faulty::{FAULTY, Rules};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// What a caller wants, as long as it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    /// One letter for each lock.
    locks: &'static str,
    mode: Mode,
    min_hold: u64,
    terms: Terms,
}

fn wants(locks: &'static str, mode: Mode) -> Wish {
    Wish { locks, mode, min_hold: 0, terms: Terms::default() }
}

/// What a caller believes. All times are microseconds of the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asker {
    token: u32,
    /// The fence and the slot in the last grant, and the deadline of its job.
    hold: Option<(u64, Option<u32>, u64)>,
    /// When it entered the queue (without a break since), and when its last heartbeat was.
    waits: Option<(u64, u64)>,
    /// The token before this one, which was given back.
    former: Option<u32>,
    has_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Acquires and waits: the first request, a heartbeat, or a confirmation.
    Queue(usize),
    /// The same, and the answer is lost.
    QueueUnheard(usize),
    /// Acquires without waiting.
    Try(usize),
    Renew(usize),
    Leave(usize),
    /// It dies and gives nothing back. Another caller takes its place.
    Die(usize),
    /// A request of the holder arrives again, and nobody hears the answer.
    Again(usize),
    /// A request of the former token arrives.
    Late(usize),
    /// This many milliseconds pass.
    Pass(u64),
}

#[derive(Debug, Clone)]
struct State {
    table: LockTable,
    now: u64,
    askers: Vec<Asker>,
    /// The greatest fence of each lock, and until when a min-hold keeps it.
    fences: BTreeMap<char, u64>,
    kept: BTreeMap<char, u64>,
    /// When the last success arrived, and when it was granted.
    succeeded: BTreeMap<char, (u64, u64)>,
    born: u32,
    path: Vec<Step>,
}

const TTL: u64 = 4_000_000;

impl State {
    fn new(count: usize) -> Self {
        let asker = |token| Asker { token, hold: None, waits: None, former: None, has_begun: false };
        Self {
            table: LockTable::default(),
            now: 1_800_000_000_000_000,
            askers: (1..).take(count).map(asker).collect(),
            fences: BTreeMap::new(),
            kept: BTreeMap::new(),
            succeeded: BTreeMap::new(),
            born: 10,
            path: Vec::new(),
        }
    }

    /// A hash of everything that later steps depend on.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Self { table, now, askers, fences, kept, succeeded, born, path: _ } = self;
        (now, askers, fences, kept, succeeded, born).hash(&mut hasher);
        format!("{:?}", table.records).hash(&mut hasher);
        hasher.finish()
    }

    /// The possible next steps. Of several callers that want the same, the first ones begin first:
    /// other orders would only repeat that.
    fn steps(&self, wishes: &[Wish]) -> Vec<Step> {
        let mut steps = vec![Step::Pass(1500), Step::Pass(6000)];
        if matches!(self.path.last(), Some(Step::Pass(_))) {
            steps.clear();
        }
        for (who, asker) in self.askers.iter().enumerate() {
            let is_like_before =
                (0..who).any(|one| wishes[one] == wishes[who] && !self.askers[one].has_begun);
            if is_like_before {
                continue;
            }
            if asker.hold.is_some() {
                steps.extend([Step::Renew(who), Step::Again(who), Step::Leave(who), Step::Die(who)]);
            } else {
                steps.extend([Step::Queue(who), Step::QueueUnheard(who)]);
                steps.push(if asker.waits.is_some() { Step::Leave(who) } else { Step::Try(who) });
            }
            if asker.former.is_some() {
                steps.push(Step::Late(who));
            }
        }
        steps
    }

    fn apply(&mut self, rules: Rules, wishes: &[Wish], step: Step) -> Result<(), String> {
        self.now += 1;
        self.path.push(step);
        let before = self.table.clone();
        match step {
            Step::Queue(who) => self.acquire(rules, wishes, who, Patience::Queue, true)?,
            Step::QueueUnheard(who) => self.acquire(rules, wishes, who, Patience::Queue, false)?,
            Step::Try(who) => self.acquire(rules, wishes, who, Patience::None, true)?,
            Step::Renew(who) => {
                let names = names_of(&wishes[who]);
                let Some((fence, slot, _)) = self.askers[who].hold else { return Ok(()) };
                let (id, known) = (self.askers[who].token, Some(Fence(fence)));
                let answer = rules.renew(&mut self.table, self.now, &names, id, known);
                let asker = &mut self.askers[who];
                let is_of_grant = |name: &Name| {
                    let record = before.records.get(name.as_str());
                    record.is_some_and(|record| record.is_of_grant(&token(id), known))
                };
                let held = names.iter().all(|name| holds(&before, name, id, self.now) && is_of_grant(name));
                let renewed = matches!(answer, Renewal::Renewed | Renewal::Asked | Renewal::Superseded);
                // I2, I6
                if renewed != held {
                    return Err(format!("renewed {answer:?}, and held was {held}"));
                }
                asker.hold = renewed.then_some((fence, slot, self.now + TTL * 99 / 100 - 2000));
                if !renewed {
                    self.reborn(who);
                }
            }
            Step::Again(who) => {
                let (id, names, now) = (self.askers[who].token, names_of(&wishes[who]), self.now);
                let ask = ask(&wishes[who], id, Patience::Queue);
                if let Acquired::Waiting(_) = rules.acquire(&mut self.table, now, &names, &ask, id) {
                    let since = self.askers[who].waits.map_or(now, |(since, _)| since);
                    self.askers[who].waits = Some((since, now));
                }
            }
            Step::Leave(who) => self.leave(rules, wishes, who)?,
            Step::Die(who) => self.reborn(who),
            Step::Late(who) => {
                let former = self.askers[who].former.unwrap_or_default();
                let names = names_of(&wishes[who]);
                let ask = ask(&wishes[who], former, Patience::Queue);
                let answer = rules.acquire(&mut self.table, self.now, &names, &ask, former);
                // I4
                if !matches!(answer, Acquired::TokenEnded | Acquired::Superseded(_) | Acquired::Done(_)) {
                    return Err(format!("a late request is answered {answer:?}"));
                }
            }
            Step::Pass(ms) => self.now += ms * 1000,
        }
        self.look_at_grants(wishes, &before)?;
        // Totals and log decide nothing.
        for record in self.table.records.values_mut() {
            record.log.clear();
            record.stat = stat::Stat::default();
        }
        self.look(wishes, step, &before)
    }

    fn acquire(
        &mut self,
        rules: Rules,
        wishes: &[Wish],
        who: usize,
        patience: Patience,
        is_heard: bool,
    ) -> Result<(), String> {
        let (wish, names, now) = (&wishes[who], names_of(&wishes[who]), self.now);
        let id = self.askers[who].token;
        self.askers[who].has_begun = true;
        let arrived = self.askers[who].waits.map_or(now, |(since, _)| since);
        let ask = Ask { waited: Duration::from_micros(now - arrived), ..ask(wish, id, patience) };
        let answer = rules.acquire(&mut self.table, now, &names, &ask, id);
        if rules == Rules::Right {
            // I4: the same request again has the same answer.
            let mut copy = self.table.clone();
            let again = copy.acquire(Time(now), &names, &ask);
            if answer != again {
                return Err(format!("sent again: {answer:?}, then {again:?}"));
            }
        }
        let asker = &mut self.askers[who];
        match answer {
            Acquired::Granted(grant) if is_heard => {
                asker.waits = None;
                asker.hold = Some((grant.fence.0, grant.slot, now + TTL * 99 / 100 - 2000));
                let recorded = self.table.records.values().find_map(|record| record.holds.get(&token(id)));
                if recorded.is_some_and(|hold| hold.fence != grant.fence.0) {
                    return Err(format!("told fence {:?}, and recorded is {recorded:?}", grant.fence));
                }
                let due = |lock: char| {
                    let last = self.succeeded.get(&lock).copied();
                    last.zip(wish.terms.once_per)
                        .is_none_or(|((came, since), span)| arrived >= (came + micros(span)).max(since))
                };
                if wish.terms.once_per.is_some() && !wish.locks.chars().any(due) {
                    return Err("granted although it is done".into());
                }
            }
            Acquired::Waiting(_) => {
                let since = asker.waits.map_or(now, |(since, _)| since);
                asker.waits = Some((since, now));
            }
            // A granted caller has had its turn, whether it knows or not.
            Acquired::Granted(_) | Acquired::Busy(_) | Acquired::Done(_) => asker.waits = None,
            Acquired::Superseded(_) | Acquired::TokenEnded => self.reborn(who),
        }
        Ok(())
    }

    fn leave(&mut self, rules: Rules, wishes: &[Wish], who: usize) -> Result<(), String> {
        let (names, now, id) = (names_of(&wishes[who]), self.now, self.askers[who].token);
        let fence = self.askers[who].hold.map(|(fence, ..)| Fence(fence));
        let is_of_grant = |name: &Name| {
            let record = self.table.records.get(name.as_str());
            record.is_some_and(|record| record.is_of_grant(&token(id), fence))
        };
        let held = names.iter().all(|name| holds(&self.table, name, id, now) && is_of_grant(name));
        let end =
            End { ran: Ran::Yes, job: Some(crate::exit::Ended::Code(0)), once_per: true, fence, pause: None };
        let hold = self.table.records.values().find_map(|record| record.holds.get(&token(id)).cloned());
        let success = hold.map_or((now, now), |hold| (hold.since.0 - hold.waited * 1000, hold.since.0));
        let answer = rules.leave(&mut self.table, now, &names, id, &end);
        let had = self.askers[who].hold.is_some();
        if had && held != matches!(answer, Left::Released { .. }) {
            return Err(format!("left {answer:?}, and held was {held}"));
        }
        if had && held {
            for lock in wishes[who].locks.chars() {
                self.succeeded.insert(lock, success);
            }
        }
        if rules == Rules::Right {
            let again = self.table.clone().leave(Time(now), &names, &token(id), &end);
            if !matches!(again, Left::Already | Left::NotHeld) {
                return Err(format!("left again: {again:?}"));
            }
        }
        let former = id;
        self.reborn(who);
        self.askers[who].former = Some(former);
        Ok(())
    }

    fn reborn(&mut self, who: usize) {
        self.born += 1;
        let has_begun = self.askers[who].has_begun;
        self.askers[who] = Asker { token: self.born, hold: None, waits: None, former: None, has_begun };
    }
}

fn micros(span: Duration) -> u64 {
    millis(span) * 1000
}

fn names_of(wish: &Wish) -> Names {
    let mut names = wish.locks.chars().map(|lock| name(&lock.to_string()));
    names.next().map_or_else(|| unreachable!("no lock is wanted"), |first| Names::new(first, names))
}

fn ask(wish: &Wish, id: u32, patience: Patience) -> Ask {
    Ask {
        token: token(id),
        mode: wish.mode,
        ttl: Duration::from_micros(TTL),
        min_hold: Duration::from_millis(wish.min_hold),
        owner: Owner { pid: id, ..Owner::default() },
        patience,
        terms: wish.terms.clone(),
        waited: Duration::ZERO,
        has_waited: false,
    }
}

/// Whether this token holds the lock.
fn holds(table: &LockTable, name: &Name, id: u32, now: u64) -> bool {
    let Some(mut record) = table.records.get(name.as_str()).cloned() else { return false };
    record.expire(Time(now));
    record.holds.get(&token(id)).is_some_and(|hold: &Hold| hold.phase == Phase::Held)
        && record.is_held_by(&token(id))
}

/// Plays every history of `depth` steps. Returns the number of states, or the first wrong one.
fn explore(rules: Rules, wishes: &[Wish], depth: usize) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut frontier = vec![State::new(wishes.len())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for state in frontier {
            for step in state.steps(wishes) {
                let mut new = state.clone();
                new.apply(rules, wishes, step).map_err(|why| format!("{why}\nafter {:?}", new.path))?;
                if seen.insert(new.digest()) {
                    next.push(new);
                }
            }
        }
        frontier = next;
    }
    Ok(seen.len())
}

fn scenes() -> Vec<(Vec<Wish>, usize)> {
    let once = |locks| Wish {
        terms: Terms { once_per: Some(Duration::from_secs(5)), ..Terms::default() },
        ..wants(locks, Mode::Exclusive)
    };
    let newest = Wish { terms: Terms { replaces: true, ..Terms::default() }, ..wants("a", Mode::Exclusive) };
    let kept = Wish { min_hold: 5000, ..wants("a", Mode::Exclusive) };
    let x = |locks| wants(locks, Mode::Exclusive);
    let more = if std::env::var_os("DLOCK_SOAK").is_some() { 2 } else { 0 };
    vec![
        (vec![x("a"), x("a")], 6 + more),
        (vec![x("a"), x("a"), x("a")], 6 + more),
        (vec![x("a"), wants("a", Mode::Shared), wants("a", Mode::Shared)], 5 + more),
        (vec![wants("a", Mode::Slots(2)), wants("a", Mode::Slots(2)), wants("a", Mode::Slots(2))], 5 + more),
        (vec![wants("a", Mode::Slots(2)), wants("a", Mode::Slots(2)), x("a")], 5 + more),
        (vec![x("ab"), x("b"), x("a")], 5 + more),
        (vec![x("ab"), x("ba")], 5 + more),
        (vec![kept.clone(), kept, x("a")], 5 + more),
        (vec![once("a"), once("a")], 6 + more),
        (vec![newest.clone(), newest, x("a")], 5 + more),
    ]
}

#[test]
fn no_short_history_breaks_a_promise() {
    let scenes = scenes();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let play = |(wishes, depth): &(Vec<Wish>, usize)| explore(Rules::Right, wishes, *depth);
        let threads: Vec<_> = scenes.iter().map(|scene| scope.spawn(move || play(scene))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for (outcome, (wishes, depth)) in outcomes.into_iter().zip(&scenes) {
        let states = outcome.unwrap_or_else(|_| Err("it panicked".into()));
        assert!(states.is_ok(), "{wishes:?}: {}", states.err().unwrap_or_default());
        println!("{states:?} states in {depth} steps of {wishes:?}");
    }
}

#[test]
fn rules_with_a_fault_are_found_out() {
    for rules in FAULTY {
        let found = (1..=5).any(|depth| {
            scenes()
                .iter()
                .any(|(wishes, deepest)| depth <= *deepest && explore(rules, wishes, depth).is_err())
        });
        assert!(found, "{rules:?} breaks nothing");
    }
}
