//! Tests when a hold begins and ends: by a release, a death, the end of its lease or another boot.

use super::*;

#[test]
fn one_holds_and_the_others_are_busy() -> Result<()> {
    let place = Place::new()?;
    let (mut one, mut other) = (place.process()?, place.process()?);
    let first = one.granted()?;
    assert_eq!(one.granted()?, first, "asking again is the same grant");
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)));
    assert_eq!(one.renew()?, Renewal::Renewed);
    assert_eq!(one.leave()?, Left::Released { cooling: Duration::ZERO });
    let mut third = place.process()?;
    assert!(third.granted()? > first);
    assert_eq!(one.renew()?, Renewal::NotHeld);
    Ok(())
}

#[test]
fn the_guard_releases_what_its_dlock_held() -> Result<()> {
    let place = Place::new()?;
    let (holder, mut waiter) = place.holder_and_waiter()?;
    let mut guard = holder.store.clone();
    let token = holder.token.clone();
    holder.die();
    assert!(!waiter.is_awake()?, "as long as the guard lives, the job may");
    assert!(matches!(guard.leave(&name()?.into(), &token, &ended(), by())?, Left::Released { .. }));
    waiter.served()?;
    Ok(())
}

#[test]
fn a_death_is_seen_when_the_last_process_is_gone() -> Result<()> {
    let place = Place::new()?;
    let (mut store, token) = (place.store()?, Token::random()?);
    let fd = store.prepare(&token)?[0];
    let life = File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"))?;
    let mut holder = Process::of(store, token)?;
    let mut waiter = place.process()?;
    holder.granted()?;
    waiter.waits()?;
    let mut child = std::process::Command::new("sleep").arg("60").stdin(life).spawn()?;
    holder.die();
    assert!(!waiter.is_awake()?);
    waiter.waits()?;
    child.kill()?;
    child.wait()?;
    waiter.served()?;
    let view = waiter.store.inspect(&name()?, by())?;
    assert_eq!(view.log.iter().map(|end| end.outcome).collect::<Vec<_>>(), [Outcome::Expired]);
    place.store()?.all("dlock:")?;
    assert_eq!(place.files()?.iter().filter(|file| *file == "life").count(), 1, "the waiter's own");
    Ok(())
}

#[test]
fn the_lease_of_a_live_holder_ends_too() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut other) = (place.process()?, place.process()?);
    holder.granted()?;
    set_ahead(TTL + Duration::from_secs(1));
    other.granted()?;
    assert_eq!(holder.renew()?, Renewal::NotHeld);
    Ok(())
}

#[test]
fn another_boot_ends_the_hold_and_keeps_the_history() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = (place.process()?, place.process()?);
    let fence = holder.granted()?;
    waiter.waits()?;
    let mut after = place.process()?;
    after.store.coordinator.boot.id = "another".into();
    let view = after.store.inspect(&name()?, by())?;
    assert_eq!((view.state, view.fence.map(|fence| fence.0)), (State::Free, Some(fence)));
    assert!(view.waiters.is_empty());
    assert_eq!(view.log.iter().map(|end| end.outcome).collect::<Vec<_>>(), [Outcome::Expired]);
    assert!(after.granted()? > fence);
    Ok(())
}

#[test]
fn after_another_boot_a_pause_counts_from_the_last_renewal() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut after) = (place.holder()?, place.process()?);
    after.store.coordinator.boot.id = "another".into();
    let lasts = Some(Duration::from_secs(3600));
    place.forge("nightly", |record| {
        record.stored.record.holds.values_mut().for_each(|hold| hold.pause_on_failure = lasts);
    })?;
    for ahead in [10, 20] {
        set_ahead(Duration::from_secs(ahead));
        assert_eq!(holder.renew()?, Renewal::Renewed);
    }
    set_ahead(Duration::from_secs(90));
    // The clean-up leaves the life file, which has the end of the lease.
    let life = place.life_of(&holder);
    holder.die();
    after.store.coordinator.clean();
    assert!(life.exists());
    let view = after.store.inspect(&name()?, by())?;
    let paused = view.paused.context("it is not paused")?;
    let lease = Duration::from_millis(paused.since - view.log[0].since);
    assert!((50..55).contains(&lease.as_secs()), "{lease:?}");
    assert!(matches!(after.acquire(Patience::None)?, Acquired::Busy(_)));
    Ok(())
}

/// The guard of a waiter that was asked to end releases the token, and another process writes the
/// record, while a request of the waiter is still on its way. The guard is another process, so the
/// waiter's `LifeFile` does not know of it.
#[test]
fn a_token_that_the_guard_released_is_refused_by_its_dlock() -> Result<()> {
    let place = Place::new()?;
    let (_holder, mut waiter) = place.holder_and_waiter()?;
    Process::of(place.store()?, waiter.token.clone())?.leave()?;
    std::fs::remove_file(place.life_of(&waiter))?;
    place.process()?.waits()?;
    assert_eq!(waiter.acquire(Patience::Queue)?, Acquired::TokenEnded);
    Ok(())
}

#[test]
fn a_token_that_was_released_is_refused_in_another_thread() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    let mut thread = Process::of(process.store.clone(), process.token.clone())?;
    process.leave()?;
    // The life file is gone, so the record forgets the token. This process must not.
    place.process()?.granted()?;
    assert_eq!(thread.acquire(Patience::Queue)?, Acquired::TokenEnded);
    Ok(())
}
