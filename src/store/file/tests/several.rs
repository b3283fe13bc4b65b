//! Tests that the rules are kept if several processes hold one lock, and if one process holds
//! several: shared locks, slots, and locks that are taken together.

use super::*;
use std::sync::Mutex as Shared;

fn slot(process: &mut Process) -> Result<Option<u32>> {
    match process.acquire(Patience::Queue)? {
        Acquired::Granted(grant) => Ok(grant.slot),
        other => anyhow::bail!("not granted: {other:?}"),
    }
}

#[test]
fn a_release_wakes_all_shared_waiters_before_an_exclusive_one() -> Result<()> {
    let place = Place::new()?;
    let mut writer = place.process()?;
    writer.granted()?;
    let mut readers = place.many(3, Mode::Shared)?;
    for reader in &mut readers {
        reader.waits()?;
    }
    let mut next = place.process()?;
    next.waits()?;
    let mut late = place.wants(&["nightly"], Mode::Shared)?;
    assert_eq!(late.waits()?, 4);
    writer.leave()?;
    for reader in &mut readers {
        reader.woken()?;
    }
    for reader in &mut readers {
        reader.granted()?;
    }
    assert!(!late.is_awake()?);
    assert!(matches!(place.wants(&["nightly"], Mode::Shared)?.acquire(Patience::None)?, Acquired::Busy(_)));
    let view = place.view("nightly")?;
    assert_eq!((view.mode, view.holders.len(), view.waiters.len()), (Some(Mode::Shared), 3, 2));
    assert_eq!(
        view.waiters.iter().map(|waiter| waiter.mode).collect::<Vec<_>>(),
        [Mode::Exclusive, Mode::Shared]
    );
    for reader in &mut readers {
        reader.leave()?;
    }
    next.served()?;
    next.leave()?;
    late.served()?;
    Ok(())
}

#[test]
fn a_shared_holder_dies_and_the_others_go_on() -> Result<()> {
    let place = Place::new()?;
    let mut readers = place.many(3, Mode::Shared)?;
    for reader in &mut readers {
        reader.granted()?;
    }
    let mut writer = place.process()?;
    writer.waits()?;
    readers.remove(1).die();
    writer.woken()?;
    writer.waits()?;
    assert_eq!(place.view("nightly")?.holders.len(), 2);
    let mut last = readers.remove(0);
    for mut reader in readers {
        assert_eq!(reader.renew()?, Renewal::Renewed);
        reader.leave()?;
    }
    assert_eq!(writer.waits()?, 0);
    assert!(!writer.is_awake()?);
    assert_eq!(last.renew()?, Renewal::Renewed);
    last.die();
    writer.served()?;
    let outcomes: Vec<_> = place.view("nightly")?.log.iter().map(|end| end.outcome).collect();
    assert_eq!(outcomes, [Outcome::Expired, Outcome::Released, Outcome::Expired]);
    Ok(())
}

/// The writer stood behind the last reader only, until all readers were granted the lock at once.
#[test]
fn a_new_head_learns_which_holders_it_waits_for() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    let mut readers = place.many(2, Mode::Shared)?;
    for reader in &mut readers {
        reader.waits()?;
    }
    let mut writer = place.process()?;
    writer.waits()?;
    holder.leave()?;
    for reader in &mut readers {
        reader.granted()?;
    }
    writer.woken()?;
    assert_eq!(writer.waits()?, 0);
    let mut last = readers.remove(1);
    readers.remove(0).die();
    writer.woken()?;
    writer.waits()?;
    last.leave()?;
    writer.served()?;
    Ok(())
}

#[test]
fn slots_are_given_lowest_first_and_reused_after_a_death() -> Result<()> {
    let place = Place::new()?;
    let mut workers = place.many(3, Mode::Slots(3))?;
    for (number, worker) in (0..).zip(&mut workers) {
        assert_eq!(slot(worker)?, Some(number));
    }
    let mut next = place.wants(&["nightly"], Mode::Slots(3))?;
    next.waits()?;
    let other = place.wants(&["nightly"], Mode::Slots(2))?.acquire(Patience::None)?;
    assert!(matches!(other, Acquired::Busy(blocker) if blocker.mode == Some(Mode::Slots(3))));
    workers.remove(1).die();
    next.woken()?;
    assert_eq!(slot(&mut next)?, Some(1));
    workers.remove(0).die();
    let mut last = place.wants(&["nightly"], Mode::Slots(3))?;
    assert_eq!(slot(&mut last)?, Some(0), "nobody was in the way, and yet the dead one's is free");
    let mut slots: Vec<_> = place.view("nightly")?.holders.iter().map(|holder| holder.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [Some(0), Some(1), Some(2)]);
    Ok(())
}

#[test]
fn a_cooling_slot_has_no_liveness_and_wakes_nobody() -> Result<()> {
    let place = Place::new()?;
    let mut worker = place.wants(&["nightly"], Mode::Slots(1))?;
    let ask = Ask { min_hold: Duration::from_secs(20), ..worker.ask(Patience::None) };
    ensure!(matches!(worker.store.acquire(&worker.names, &ask, by())?, Acquired::Granted(_)));
    let mut next = place.wants(&["nightly"], Mode::Slots(1))?;
    next.waits()?;
    ensure!(matches!(worker.leave()?, Left::Released { cooling } if !cooling.is_zero()));
    next.woken()?;
    next.waits()?;
    assert!(!next.is_awake()?);
    assert_eq!(place.view("nightly")?.state, State::Cooling);
    worker.die();
    next.waits()?;
    assert!(!next.is_awake()?);
    set_ahead(Duration::from_secs(21));
    assert_eq!(slot(&mut next)?, Some(0));
    Ok(())
}

#[test]
fn locks_are_taken_and_released_together() -> Result<()> {
    let place = Place::new()?;
    let (mut both, mut a, mut b) = (
        place.wants(&["b", "a"], Mode::Exclusive)?,
        place.wants(&["a"], Mode::Exclusive)?,
        place.wants(&["b"], Mode::Exclusive)?,
    );
    b.granted()?;
    assert!(matches!(both.acquire(Patience::None)?, Acquired::Busy(blocker) if blocker.at == 1));
    let mut both = place.wants(&["b", "a"], both.mode)?;
    both.waits()?;
    assert_eq!(a.waits()?, 1, "it does not overtake, though its lock is free");
    assert!(!both.is_awake()?);
    b.leave()?;
    both.woken()?;
    let fence = both.granted()?;
    for key in ["a", "b"] {
        let view = place.view(key)?;
        assert_eq!((view.state, view.fence.map(|fence| fence.0)), (State::Held, Some(fence)));
    }
    let proof = both.store.prove(&both.names, &both.token, None, by())?.context("it holds both")?;
    assert_eq!((proof.mode, proof.fence.0), (Mode::Exclusive, fence));
    assert_eq!(both.store.prove(&named("c")?.into(), &both.token, None, by())?, None);
    assert_eq!(both.renew()?, Renewal::Renewed);
    assert_eq!(both.leave()?, Left::Released { cooling: Duration::ZERO });
    a.served()?;
    b = place.wants(&["b"], Mode::Exclusive)?;
    b.granted()?;
    Ok(())
}

#[test]
fn a_dead_holder_has_no_proof_and_nothing_is_written() -> Result<()> {
    let place = Place::new()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    both.granted()?;
    let (names, token) = (both.names.clone(), both.token.clone());
    let before = std::fs::read(place.path_of("a", FileRole::Record)?)?;
    assert!(place.store()?.prove(&names, &token, None, by())?.is_some());
    both.die();
    assert_eq!(place.store()?.prove(&names, &token, None, by())?, None);
    assert_eq!(std::fs::read(place.path_of("a", FileRole::Record)?)?, before);
    Ok(())
}

#[test]
fn a_dead_holder_of_several_is_reaped_at_each_of_them() -> Result<()> {
    let place = Place::new()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    both.granted()?;
    let (mut a, mut b) = (place.wants(&["a"], Mode::Exclusive)?, place.wants(&["b"], Mode::Shared)?);
    a.waits()?;
    b.waits()?;
    both.die();
    a.served()?;
    b.served()?;
    Ok(())
}

#[test]
fn a_dead_waiter_for_several_locks_blocks_nobody() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.wants(&["b"], Mode::Exclusive)?;
    holder.granted()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    both.waits()?;
    let (mut a, mut b) = (place.wants(&["a"], Mode::Exclusive)?, place.wants(&["b"], Mode::Exclusive)?);
    a.waits()?;
    b.waits()?;
    both.die();
    a.served()?;
    b.woken()?;
    assert_eq!(b.waits()?, 0);
    holder.leave()?;
    b.served()?;
    Ok(())
}

#[test]
fn a_stale_waiter_comes_back_to_its_place_in_every_queue() -> Result<()> {
    let place = Place::new()?;
    let (mut a, mut b) = (place.wants(&["a"], Mode::Exclusive)?, place.wants(&["b"], Mode::Exclusive)?);
    a.granted()?;
    b.granted()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    both.waits()?;
    let (mut behind, mut late) =
        (place.wants(&["a", "b"], Mode::Exclusive)?, place.wants(&["b"], Mode::Exclusive)?);
    let later = Duration::from_secs(6);
    for ahead in [later / 3, later / 3 * 2, later] {
        set_ahead(ahead);
        behind.waits()?;
        late.waits()?;
    }
    assert_eq!(behind.waits()?, 0, "the silent one was passed over");
    assert_eq!(late.waits()?, 1);
    set_ahead(later);
    assert_eq!(both.waits()?, 0);
    assert_eq!(behind.waits()?, 1);
    a.leave()?;
    assert_eq!(place.view("a")?.state, State::Free, "not granted without the other");
    both.waits()?;
    b.leave()?;
    for key in ["a", "b"] {
        assert_eq!(place.view(key)?.holders.len(), 1, "granted by a step on one of them");
    }
    both.served()?;
    both.leave()?;
    behind.granted()?;
    behind.leave()?;
    late.granted()?;
    Ok(())
}

#[test]
fn a_lock_that_was_never_granted_leaves_no_file() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.wants(&["a"], Mode::Exclusive)?;
    holder.granted()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    both.waits()?;
    assert!(place.path_of("b", FileRole::Record)?.exists());
    both.leave()?;
    for kind in [FileRole::Record, FileRole::Mutex, FileRole::Draft] {
        assert!(!place.path_of("b", kind)?.exists(), "{kind:?}");
    }
    Ok(())
}

/// The wall clock was set between the beginnings of the two records.
#[test]
fn records_with_different_offsets_agree_on_one_time() -> Result<()> {
    let place = Place::new()?;
    let mut old = place.wants(&["a"], Mode::Shared)?;
    old.granted()?;
    let mut waiter = place.wants(&["a"], Mode::Exclusive)?;
    waiter.waits()?;
    let (an_hour, a) = (Duration::from_secs(3600), named("a")?);
    // As if all of it had happened with a clock that was an hour behind.
    place.forge("a", |record| record.offset -= 3_600_000_000)?;
    let files = place.store()?.coordinator;
    let file = FileName::of(a.as_str(), FileRole::Record);
    let mut record = RecordFile::read(&files.directory, &file, None, Purpose::Look, &files.boot)?;
    let now = files.boot.time(record.offset);
    let lease = |record: &RecordFile| record.stored.record.inspect(&a, now).holders[0].lease;
    let before = lease(&record);
    assert!(before > an_hour);
    record.lift(record.offset + 3_600_000_000);
    assert_eq!(lease(&record), before + an_hour);

    // Every time in it is now an hour ahead of its clock, and stays so when another record shifts
    // it.
    let left = place.view("a")?.left.context("held")?;
    assert!(left > Duration::from_secs(3600));
    let mut new = place.wants(&["b"], Mode::Exclusive)?;
    new.granted()?;
    new.leave()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    assert_eq!(both.waits()?, 1);
    let lifted = place.view("a")?.left.context("held")?;
    assert!(lifted <= left && lifted > Duration::from_secs(3600), "{lifted:?} of {left:?}");
    old.leave()?;
    waiter.served()?;
    waiter.leave()?;
    both.served()?;
    Ok(())
}

#[test]
fn crossing_requests_neither_deadlock_nor_overlap() -> Result<()> {
    const KEYS: [&[&str]; 5] = [&["a", "b"], &["b", "a"], &["b", "c"], &["c", "a"], &["a", "b", "c"]];
    const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Slots(2)];
    let place = Place::new()?;
    // The holders of each lock.
    let inside = Shared::new(BTreeMap::<String, Vec<(Mode, Option<u32>)>>::new());
    let served = AtomicU32::new(0);
    let turn = |number: usize| -> Result<()> {
        let mode = MODES[number % MODES.len()];
        let mut process = place.wants(KEYS[number % KEYS.len()], mode)?;
        let end = Moment::now().after(Duration::from_secs(60));
        let grant = loop {
            ensure!(!end.passed(), "never granted");
            match process.acquire(Patience::Queue)? {
                Acquired::Granted(grant) => break grant,
                Acquired::Waiting(waiting) => {
                    let until = Moment::now().after(waiting.next);
                    process.store.sleep(&process.names, &process.token, until)?;
                }
                other => anyhow::bail!("{other:?}"),
            }
        };
        let me = (mode, grant.slot);
        let poisoned = |_| anyhow::anyhow!("poisoned");
        {
            let mut inside = inside.lock().map_err(|_| poisoned(()))?;
            for name in &process.names {
                let others = inside.entry(name.as_str().to_owned()).or_default();
                for other in others.iter() {
                    let shares = *other == (Mode::Shared, None) && mode == Mode::Shared;
                    let beside = other.0 == mode && other.1 != me.1;
                    ensure!(shares || beside, "{me:?} and {other:?} at {name:?}");
                }
                others.push(me);
            }
        }
        thread::yield_now();
        {
            let mut inside = inside.lock().map_err(|_| poisoned(()))?;
            for name in &process.names {
                let others = inside.get_mut(name.as_str()).context("nobody is in")?;
                let at = others.iter().position(|other| *other == me).context("not in")?;
                others.remove(at);
            }
        }
        served.fetch_add(1, Ordering::SeqCst);
        // Every fourth process dies instead of releasing its locks.
        if !number.is_multiple_of(4) {
            process.leave()?;
        }
        Ok(())
    };
    all_at_once(30, turn)?;
    assert_eq!(served.into_inner(), 30);
    Ok(())
}
