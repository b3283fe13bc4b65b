//! Random histories of four processes: no two hold together, fences grow, and the dead keep no lock.

use super::*;

#[derive(Debug, Clone)]
enum Event {
    Acquire(usize, Patience),
    Renew(usize),
    Leave(usize, Ran),
    Die(usize),
    Revoke(When),
    Inspect,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..4usize;
    let patience = prop_oneof![Just(Patience::None), Just(Patience::Queue)];
    let ran = prop_oneof![Just(Ran::Yes), Just(Ran::No)];
    let when = prop_oneof![Just(When::Safe), Just(When::Now)];
    prop_oneof![
        8 => (who.clone(), patience).prop_map(|(who, patience)| Event::Acquire(who, patience)),
        3 => who.clone().prop_map(Event::Renew),
        3 => (who.clone(), ran).prop_map(|(who, ran)| Event::Leave(who, ran)),
        2 => who.prop_map(Event::Die),
        1 => when.prop_map(Event::Revoke),
        1 => Just(Event::Inspect),
        2 => (0..40_000u64).prop_map(Event::Pass),
    ]
}

/// Plays a history. Fails if two processes hold at once, or if a fence is not greater than all
/// before it.
fn play(events: &[Event]) -> Result<()> {
    let place = Place::new()?;
    let mut processes = (0..4).map(|_| place.process()).collect::<Result<Vec<_>>>()?;
    let mut fences = [0u64; 4];
    let mut last = 0;
    // The holder, and the end of its lease by the clock that is ahead.
    let mut holder: Option<(usize, Duration)> = None;
    let mut ahead = Duration::ZERO;
    let clock = || Moment::now().since_boot();
    for event in events {
        match event {
            Event::Acquire(who, patience) => {
                let before = clock();
                match processes[*who].acquire(*patience)? {
                    Acquired::Granted(grant) => {
                        if let Some((other, until)) = holder {
                            ensure!(other == *who || until <= clock(), "{who} and {other} hold");
                        }
                        let fence = grant.fence.0;
                        ensure!(fence == fences[*who] || fence > last, "fence {fence} after {last}");
                        last = last.max(fence);
                        fences[*who] = fence;
                        holder = Some((*who, before + TTL - Duration::from_millis(1)));
                    }
                    // The process ends, and with it what it held: a revoked holder may get Busy.
                    Acquired::TokenEnded
                    | Acquired::Busy(_)
                    | Acquired::Done(_)
                    | Acquired::Superseded(_) => {
                        processes[*who] = place.process()?;
                        holder = holder.filter(|(holder, _)| holder != who);
                    }
                    // Dead waiters stay in the queue until another waiter comes behind them.
                    Acquired::Waiting(waiting) => ensure!(usize::try_from(waiting.ahead)? < events.len()),
                }
            }
            Event::Renew(who) => {
                let before = clock();
                let process = &mut processes[*who];
                if process.renew()? == Renewal::Renewed {
                    if let Some((other, until)) = holder {
                        ensure!(other == *who || until <= clock(), "{who} and {other} hold");
                    }
                    holder = Some((*who, before + TTL - Duration::from_millis(1)));
                }
            }
            Event::Leave(who, ran) => {
                let process = &mut processes[*who];
                process.store.leave(
                    &name()?.into(),
                    &process.token,
                    &End { ran: *ran, job: None, once_per: false, fence: None, pause: None },
                    by(),
                )?;
                holder = holder.filter(|(holder, _)| holder != who);
                processes[*who] = place.process()?;
            }
            Event::Die(who) => {
                processes[*who] = place.process()?;
                holder = holder.filter(|(holder, _)| holder != who);
            }
            Event::Revoke(when) => {
                let revoke = Revoke { when: *when, by: Owner::default() };
                let mut store = place.store()?;
                store.revoke(&name()?, &revoke, by())?;
                if *when == When::Now {
                    holder = None;
                }
            }
            Event::Inspect => {
                let mut store = place.store()?;
                let before = std::fs::read(place.path(FileRole::Record)?).ok();
                let view = store.inspect(&name()?, by())?;
                ensure!(view.waiters.len() <= 4);
                ensure!(std::fs::read(place.path(FileRole::Record)?).ok() == before);
            }
            Event::Pass(millis) => {
                ahead += Duration::from_millis(*millis);
                set_ahead(ahead);
            }
        }
    }
    drop(processes);
    // After any history, once all processes are dead, a new one must get the lock.
    let mut survivor = place.process()?;
    ensure!(survivor.granted_soon()? > last, "the dead keep the lock");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    #[test]
    fn random_histories_keep_the_rules(events in prop::collection::vec(event(), 1..60)) {
        play(&events).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
    }
}
