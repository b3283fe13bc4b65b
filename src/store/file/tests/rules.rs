//! Tests that a directory answers as the lock rules do. Plays random histories of many waiters for
//! the same few locks, on a clock that stands still between two steps. Each answer, and all that
//! can be seen, must be that of the rules.

use super::*;
use crate::rules::{ABSENCE, Due, Forget, LockTable, NewPause, Requested, Time, Waiting};
use crate::store::engine::stored_lock::drop_old_tombstones;
use proptest::sample::subsequence;
use std::mem::discriminant;

const KEYS: [&str; 3] = ["a", "b", "c"];
const PEOPLE: usize = 10;
/// The offset of all records, in microseconds since 1970.
const OFFSET: u64 = 1_700_000_000_000_000;

#[derive(Debug, Clone)]
struct Want {
    keys: Vec<&'static str>,
    mode: Mode,
    replaces: bool,
    not_replaceable: bool,
}

#[derive(Debug, Clone)]
enum Event {
    Acquire { who: usize, patience: Patience, ttl: u64, min_hold: u64, once_per: Option<u64>, waited: u64 },
    Renew { who: usize, ttl: u64 },
    Leave { who: usize, ran: Ran },
    Revoke { key: usize, when: When },
    Request { key: usize },
    Forget { key: usize },
    Pause { key: usize, lasts: Option<u64> },
    Pass(u64),
}

fn wants() -> impl Strategy<Value = Want> {
    let keys = prop_oneof![4 => Just(vec!["a"]), 3 => subsequence(KEYS.to_vec(), 1..=KEYS.len())];
    let mode = prop_oneof![
        6 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        2 => Just(Mode::Slots(2)),
    ];
    let flag = || prop_oneof![2 => Just(false), 1 => Just(true)];
    (keys, mode, flag(), flag()).prop_map(|(keys, mode, replaces, not_replaceable)| Want {
        keys,
        mode,
        replaces,
        not_replaceable,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let (who, key) = (0..PEOPLE, 0..KEYS.len());
    let ttl = prop_oneof![500..6000u64, Just(30_000u64)];
    let min_hold = prop_oneof![4 => Just(0u64), 1 => 1..8000u64];
    let patience = prop_oneof![7 => Just(Patience::Queue), 1 => Just(Patience::None)];
    let once_per = prop_oneof![2 => Just(None), 1 => (50..3000u64).prop_map(Some)];
    let waited = prop_oneof![6 => Just(0u64), 1 => 1..3000u64];
    let span = prop_oneof![6 => 1..100u64, 2 => 100..1000u64];
    let ran = prop_oneof![3 => Just(Ran::Yes), 1 => Just(Ran::Cut(Outcome::Timeout)), 1 => Just(Ran::No)];
    let when = prop_oneof![Just(When::Safe), Just(When::Now)];
    prop_oneof![
        24 => (who.clone(), patience, ttl.clone(), min_hold, once_per, waited).prop_map(
            |(who, patience, ttl, min_hold, once_per, waited)| {
                Event::Acquire { who, patience, ttl, min_hold, once_per, waited }
            }
        ),
        4 => (who.clone(), ttl).prop_map(|(who, ttl)| Event::Renew { who, ttl }),
        6 => (who, ran).prop_map(|(who, ran)| Event::Leave { who, ran }),
        1 => (key.clone(), when).prop_map(|(key, when)| Event::Revoke { key, when }),
        1 => key.clone().prop_map(|key| Event::Request { key }),
        1 => key.clone().prop_map(|key| Event::Forget { key }),
        1 => (key, prop_oneof![Just(None), (1..3000u64).prop_map(Some)])
            .prop_map(|(key, lasts)| Event::Pause { key, lasts }),
        8 => span.prop_map(Event::Pass),
    ]
}

/// An answer without the lengths of leases: the holders may have published later ends, which are
/// read only if a decision depends on them.
fn without_leases(answer: &Acquired) -> Acquired {
    let mut answer = answer.clone();
    if let Acquired::Waiting(Waiting { blocker, .. }) | Acquired::Busy(blocker) = &mut answer {
        blocker.left = None;
        // With several holders it is the one whose lease ends last.
        blocker.holder = blocker.holder.take().filter(|_| blocker.mode == Some(Mode::Exclusive));
        if let Some(holder) = &mut blocker.holder {
            holder.lease = Duration::ZERO;
        }
    }
    if let Acquired::Waiting(waiting) = &mut answer {
        waiting.next = Duration::ZERO;
    }
    answer
}

/// A directory and the rules, side by side.
struct Sides<'a> {
    place: &'a Place,
    wants: &'a [Want],
    people: Vec<Process>,
    rules: LockTable,
    /// Time since boot.
    clock: Duration,
    began: Duration,
}

impl<'a> Sides<'a> {
    fn new(place: &'a Place, wants: &'a [Want]) -> Result<Self> {
        let clock = Moment::now().since_boot();
        let mut sides =
            Sides { place, wants, people: Vec::new(), rules: LockTable::default(), clock, began: clock };
        for who in 0..PEOPLE {
            sides.people.push(sides.reborn(who)?);
        }
        Ok(sides)
    }

    fn now(&self) -> Time {
        set_fixed(self.clock);
        Time(OFFSET + u64::try_from(self.clock.as_micros()).unwrap_or(0))
    }

    fn store(&self) -> Result<FileStore> {
        let mut store = self.place.store()?;
        store.coordinator.boot.offset = OFFSET;
        Ok(store)
    }

    /// A new process for the same locks.
    fn reborn(&self, who: usize) -> Result<Process> {
        let mut process = self.place.wants(&self.wants[who].keys, self.wants[who].mode)?;
        process.store.coordinator.boot.offset = OFFSET;
        Ok(process)
    }

    fn play(&mut self, event: &Event) -> Result<()> {
        self.pass(Duration::from_micros(7));
        let now = self.now();
        let ms = Duration::from_millis;
        match *event {
            Event::Acquire { who, patience, ttl, min_hold, once_per, waited } => {
                let Want { replaces, not_replaceable, .. } = self.wants[who];
                let process = &mut self.people[who];
                let owner = Owner { pid: u32::try_from(who)?, ..Owner::default() };
                let expect = (ttl % 4).checked_sub(1).map(|hours| Duration::from_secs(hours * 3600));
                let once_per = once_per.map(ms);
                let terms = Terms { once_per, replaces, not_replaceable, expect, ..Terms::default() };
                let (ttl, min_hold, waited) = (ms(ttl), ms(min_hold), ms(waited));
                let ask = Ask { ttl, min_hold, owner, terms, waited, ..process.ask(patience) };
                let answer = process.store.acquire(&process.names, &ask, by())?;
                let rules = self.rules.acquire(now, &process.names, &ask);
                ensure!(without_leases(&answer) == without_leases(&rules), "{answer:?}, {rules:?}");
                // Then the process ends.
                if matches!(
                    answer,
                    Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::TokenEnded
                ) {
                    let _ = self.rules.leave(now, &process.names, &process.token, &ended());
                    process.leave()?;
                    self.people[who] = self.reborn(who)?;
                }
            }
            Event::Renew { who, ttl } => {
                let process = &mut self.people[who];
                let answer = process.store.renew(
                    &process.names,
                    &Renew { token: &process.token, fence: None, ttl: ms(ttl), rest: None },
                    by(),
                )?;
                let rules = self.rules.renew(
                    now,
                    &process.names,
                    &Renew { token: &process.token, fence: None, ttl: ms(ttl), rest: None },
                );
                ensure!(answer == rules, "{answer:?}, {rules:?}");
                // A holder publishes the new end of its lease before it learns that the renewal is
                // refused.
                for name in process.names.iter().filter(|_| rules == Renewal::Revoked) {
                    let record = self.rules.records.get_mut(name.as_str()).context("no record")?;
                    record.lasts(&process.token, Due::after(now, ms(ttl)));
                }
                // A renewal in the life file does not run the rules for others, but the rules' own
                // renewal does. So another process runs them in both.
                let (all, stranger) = (names_of(&KEYS)?, Token::random()?);
                self.store()?.leave(&all, &stranger, &ended(), by())?;
                let _ = self.rules.leave(now, &all, &stranger, &ended());
            }
            Event::Leave { who, ran } => {
                let (process, end) = (
                    &mut self.people[who],
                    End {
                        ran,
                        job: Some(Ended::Code(0)),
                        once_per: who.is_multiple_of(2),
                        fence: None,
                        pause: None,
                    },
                );
                let answer = process.store.leave(&process.names, &process.token, &end, by())?;
                let rules = self.rules.leave(now, &process.names, &process.token, &end);
                ensure!(answer == rules, "{answer:?}, {rules:?}");
                self.people[who] = self.reborn(who)?;
            }
            Event::Forget { key } => {
                let name = named(KEYS[key])?;
                let (answer, rules) = (
                    self.store()?.forget(&name, Forget::Success, by())?,
                    self.rules.forget_success(now, &name),
                );
                ensure!(answer == rules, "{answer:?}, {rules:?}");
            }
            Event::Pause { key, lasts } => {
                let (name, by_whom) = (named(KEYS[key])?, Owner::default());
                let pause = lasts.map(|lasts| NewPause { by: &by_whom, lasts: ms(lasts), shortens: true });
                let (answer, rules) =
                    (self.store()?.pause(&name, pause, by())?, self.rules.pause(now, &name, pause));
                ensure!(answer == rules, "{answer:?}, {rules:?}");
            }
            Event::Revoke { key, when } => {
                let (name, revoke) = (named(KEYS[key])?, Revoke { when, by: Owner::default() });
                let answer = self.store()?.revoke(&name, &revoke, by())?;
                let rules = self.rules.revoke(now, &name, &revoke);
                ensure!(discriminant(&answer) == discriminant(&rules), "{answer:?}, {rules:?}");
            }
            Event::Request { key } => {
                let (name, who) = (named(KEYS[key])?, Owner::default());
                let holders = self.store()?.inspect(&name, by())?.holders;
                let fence = holders.last().map_or(Fence(1), |holder| holder.fence);
                let answer: Requested = self.store()?.request(&name, fence, &who, by())?;
                ensure!(answer == self.rules.request(now, &name, fence, &who), "{answer:?}");
            }
            // Time does not pass far enough for a stale waiter: the store finds a waiter stale only
            // when the rules see it.
            Event::Pass(span) if self.clock + ms(span) < self.began + ABSENCE => self.pass(ms(span)),
            Event::Pass(_) => {}
        }
        self.rules.records.values_mut().for_each(drop_old_tombstones);
        self.compare()
    }

    fn pass(&mut self, span: Duration) {
        self.clock += span;
        set_fixed(self.clock);
    }

    fn compare(&self) -> Result<()> {
        for key in KEYS {
            let mut seen = self.store()?.inspect(&named(key)?, by())?;
            let rules = self.rules.records.get(named(key)?.as_str()).cloned().unwrap_or_default();
            let mut rules = rules.inspect(&named(key)?, self.now());
            // A holder may have published the end of a renewal that was refused.
            for seen in [&mut seen, &mut rules] {
                seen.left = None;
                seen.holders.iter_mut().for_each(|holder| holder.lease = Duration::ZERO);
            }
            let (mine, of_rules) = (format!("{seen:?}"), format!("{rules:?}"));
            ensure!(seen == rules, "{key}: {mine}\n{of_rules}");
        }
        Ok(())
    }
}

fn answers_as_the_rules_do(wants: &[Want], events: &[Event]) -> Result<()> {
    let place = Place::new()?;
    let mut sides = Sides::new(&place, wants)?;
    for (number, event) in events.iter().enumerate() {
        sides.play(event).with_context(|| format!("event {number}, {event:?}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::with_cases(150) })]
    #[test]
    fn a_directory_answers_as_the_rules_do(
        wants in prop::collection::vec(wants(), PEOPLE),
        events in prop::collection::vec(event(), 1..80),
    ) {
        answers_as_the_rules_do(&wants, &events).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
    }

    /// So many waiters for one lock that the rules see only a few of them.
    #[test]
    fn a_long_queue_answers_as_the_rules_do(events in prop::collection::vec(event(), 20..80)) {
        let want = |who| Want { keys: vec!["a"], mode: Mode::Exclusive, replaces: who % 3 == 0, not_replaceable: who % 2 == 0 };
        let wants: Vec<_> = (0..PEOPLE).map(want).collect();
        answers_as_the_rules_do(&wants, &events).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
    }
}

/// A waiter whose renewal confirmed its grant stays among the waiters until its ticket lapses. What
/// its life file has then is the end of its lease, not a heartbeat.
#[test]
fn the_lease_of_a_holder_is_no_heartbeat() -> Result<()> {
    let place = Place::new()?;
    let want = Want { keys: vec!["a"], mode: Mode::Exclusive, replaces: false, not_replaceable: false };
    let wants = vec![want; PEOPLE];
    let mut sides = Sides::new(&place, &wants)?;
    let ask =
        |who, patience| Event::Acquire { who, patience, ttl: 500, min_hold: 0, once_per: None, waited: 0 };
    sides.play(&ask(0, Patience::Queue))?;
    sides.play(&ask(1, Patience::Queue))?;
    sides.play(&Event::Leave { who: 0, ran: Ran::Yes })?;
    sides.play(&Event::Renew { who: 1, ttl: 30_000 })?;
    sides.play(&ask(2, Patience::Queue))?;
    for patience in [Patience::None, Patience::Queue] {
        // Together longer than [`SILENCE`], so the waiter remains only because nobody could be
        // heard.
        sides.pass(ABSENCE + Duration::from_millis(100));
        sides.play(&ask(3, patience))?;
    }
    Ok(())
}
