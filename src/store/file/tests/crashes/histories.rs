//! Random histories with kills between two records: of five processes that want up to three locks.

use super::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const KEYS: [&str; 3] = ["a", "b", "c"];
const MANY: usize = 5;

#[derive(Debug, Clone)]
enum Deed {
    Acquire(Patience),
    Renew,
    Leave,
}

#[derive(Debug, Clone)]
enum Event {
    Do(usize, Deed),
    /// Killed before a record; and whether its guard releases the token.
    Killed(usize, Deed, usize, Guard),
    Revoke(usize, When),
    Pass(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    GivesBack,
    Dies,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let who = 0..MANY;
    let deed = || {
        prop_oneof![
            1 => Just(Deed::Acquire(Patience::None)),
            6 => Just(Deed::Acquire(Patience::Queue)),
            2 => Just(Deed::Renew),
            3 => Just(Deed::Leave),
        ]
    };
    let guard = prop_oneof![Just(Guard::GivesBack), Just(Guard::Dies)];
    let when = prop_oneof![Just(When::Safe), Just(When::Now)];
    let event = prop_oneof![
        10 => (who.clone(), deed()).prop_map(|(who, deed)| Event::Do(who, deed)),
        3 => (who, deed(), 0..3usize, guard).prop_map(|(who, deed, at, guard)| Event::Killed(who, deed, at, guard)),
        1 => (0..KEYS.len(), when).prop_map(|(key, when)| Event::Revoke(key, when)),
        2 => prop_oneof![0..8000u64, 0..40_000u64].prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..60)
}

/// What each process wants in the whole history: a set of locks as bits, and the mode.
fn wants() -> impl Strategy<Value = Vec<(usize, Mode)>> {
    let mode = prop_oneof![
        4 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        1 => Just(Mode::Slots(1)),
        2 => Just(Mode::Slots(2)),
    ];
    prop::collection::vec((1..1usize << KEYS.len(), mode), MANY)
}

/// What a holder counts on.
struct Belief {
    mode: Mode,
    slot: Option<u32>,
    names: Vec<String>,
    until: Duration,
}

struct World<'a> {
    place: &'a Place,
    wants: &'a [(usize, Mode)],
    processes: Vec<Process>,
    beliefs: Vec<Option<Belief>>,
    ahead: Duration,
    fences: BTreeMap<String, u64>,
}

impl World<'_> {
    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn fresh(&self, who: usize) -> Result<Process> {
        let (bits, mode) = self.wants[who];
        let keys: Vec<&str> =
            (0..KEYS.len()).filter(|bit| bits >> bit & 1 == 1).map(|bit| KEYS[bit]).collect();
        self.place.wants(&keys, mode)
    }

    fn end(&mut self, who: usize) -> Result<()> {
        self.beliefs[who] = None;
        self.processes[who] = self.fresh(who)?;
        Ok(())
    }

    /// Records the hold of `who`. Fails if another process counts on a hold that excludes it.
    fn believe(&mut self, who: usize, slot: Option<u32>, from: Duration) -> Result<()> {
        let process = &self.processes[who];
        let belief = Belief {
            mode: process.mode,
            slot,
            names: process.names.iter().map(|name| name.as_str().to_owned()).collect(),
            until: from + TTL - Duration::from_millis(1),
        };
        let now = self.now();
        for (other, held) in self.beliefs.iter().enumerate() {
            let Some(held) = held.as_ref().filter(|held| other != who && held.until > now) else { continue };
            let shared = belief.mode == Mode::Shared && held.mode == Mode::Shared;
            let beside = belief.mode == held.mode && belief.slot != held.slot;
            let apart = !belief.names.iter().any(|name| held.names.contains(name));
            ensure!(shared || beside || apart, "{who} and {other} hold");
        }
        self.beliefs[who] = Some(belief);
        Ok(())
    }

    fn act(&mut self, who: usize, deed: &Deed) -> Result<()> {
        let before = self.now();
        match deed {
            Deed::Acquire(patience) => match self.processes[who].acquire(*patience)? {
                Acquired::Granted(grant) => {
                    // One of several that were granted it together may learn of it after a later
                    // one.
                    let again = self.beliefs[who].is_some() || self.processes[who].mode != Mode::Exclusive;
                    for name in &self.processes[who].names.clone() {
                        let last = self.fences.entry(name.as_str().to_owned()).or_default();
                        ensure!(grant.fence.0 > *last || again, "fence {} after {last}", grant.fence);
                        *last = grant.fence.0.max(*last);
                    }
                    self.believe(who, grant.slot, before)?;
                }
                Acquired::TokenEnded | Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) => {
                    self.end(who)?;
                }
                Acquired::Waiting(_) => self.beliefs[who] = None,
            },
            Deed::Renew => {
                let process = &mut self.processes[who];
                let renewal = process.renew()?;
                let slot = self.beliefs[who].as_ref().and_then(|belief| belief.slot);
                match renewal {
                    // A process that was granted the locks and has not asked yet may be renewed
                    // too; it counts on nothing.
                    Renewal::Renewed if self.beliefs[who].is_some() => self.believe(who, slot, before)?,
                    Renewal::Renewed | Renewal::Asked | Renewal::Superseded => {}
                    Renewal::Revoked | Renewal::NotHeld => self.beliefs[who] = None,
                }
            }
            Deed::Leave => {
                self.processes[who].leave()?;
                self.end(who)?;
            }
        }
        Ok(())
    }

    fn play(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Do(who, deed) => self.act(*who, deed)?,
            Event::Killed(who, deed, record, guard) => {
                let process = &mut self.processes[*who];
                let token = process.token.clone();
                process.is_killed_at(*record, |process| {
                    match deed {
                        Deed::Acquire(patience) => process.acquire(*patience).map(drop)?,
                        Deed::Renew => {
                            process.store.renew(
                                &process.names,
                                &Renew { token: &token, fence: None, ttl: TTL, rest: None },
                                by(),
                            )?;
                        }
                        Deed::Leave => process.leave().map(drop)?,
                    }
                    Ok(())
                })?;
                let mut store = process.store.clone();
                let names = process.names.clone();
                self.end(*who)?;
                if *guard == Guard::GivesBack {
                    store.leave(&names, &token, &ended(), by())?;
                }
            }
            Event::Revoke(key, when) => {
                let revoke = Revoke { when: *when, by: Owner::default() };
                let mut store = self.place.store()?;
                let name = named(KEYS[*key])?;
                store.revoke(&name, &revoke, by())?;
                if *when == When::Now {
                    for belief in self.beliefs.iter_mut().flatten() {
                        belief.names.retain(|held| *held != name.as_str());
                    }
                }
            }
            Event::Pass(millis) => {
                self.ahead += Duration::from_millis(*millis);
                set_ahead(self.ahead);
            }
        }
        Ok(())
    }

    /// Nobody dies any more and all keep asking: each is granted its locks once.
    fn serve_all(&mut self) -> Result<()> {
        let mut left: BTreeSet<usize> = (0..MANY).collect();
        for _ in 0..40 {
            for who in left.clone() {
                self.act(who, &Deed::Acquire(Patience::Queue))?;
                if self.beliefs[who].is_some() {
                    self.act(who, &Deed::Leave)?;
                    left.remove(&who);
                }
            }
            self.play(&Event::Pass(1000))?;
        }
        let mut text = String::new();
        for key in KEYS {
            write!(text, "{key}: {:?}; ", self.place.view(key)?)?;
        }
        ensure!(left.is_empty(), "{left:?} were never served; {text}");
        Ok(())
    }
}

fn play(wants: &[(usize, Mode)], events: &[Event]) -> Result<()> {
    let place = Place::new()?;
    let mut world = World {
        place: &place,
        wants,
        processes: Vec::new(),
        beliefs: (0..MANY).map(|_| None).collect(),
        ahead: Duration::ZERO,
        fences: BTreeMap::new(),
    };
    for who in 0..MANY {
        world.processes.push(world.fresh(who)?);
    }
    for event in events {
        world.play(event)?;
    }
    if events.len().is_multiple_of(2) {
        world.serve_all()?;
    }
    world.processes.clear();
    let mut survivor = exclusive(&place, &KEYS)?;
    survivor.granted_soon().context("with all the others dead")?;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 300, ..ProptestConfig::with_cases(200) })]
    #[test]
    fn random_histories_with_kills_keep_the_rules(wants in wants(), events in events()) {
        play(&wants, &events).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
    }
}
