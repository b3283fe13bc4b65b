//! Tests that a holder keeps its lease and a waiter its place by their life files alone, and what
//! happens if somebody removes these.

use super::*;

const STEP: Duration = Duration::from_secs(7);

fn record(place: &Place) -> Result<Vec<u8>> {
    Ok(std::fs::read(place.path(FileRole::Record)?)?)
}

#[test]
fn a_renewal_writes_no_record_and_is_seen_by_all() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    let before = record(&place)?;
    for step in 1..10u32 {
        holder.store.adapter.boot.ahead = STEP * step;
        assert_eq!(holder.renew()?, Renewal::Renewed);
        let mut store = place.store()?;
        store.adapter.boot.ahead = STEP * step;
        let view = store.inspect(&name()?, by())?;
        assert!(view.holders[0].lease > TTL - Duration::from_secs(1), "{view:?}");
        let proof = store.prove(&holder.names, &holder.token, by())?.context("it holds it")?;
        assert!(proof.lease > TTL - Duration::from_secs(1));
    }
    assert_eq!(record(&place)?, before);
    let mut other = place.process()?;
    other.store.adapter.boot.ahead = STEP * 10;
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)), "twice its lease after the grant");
    other = place.process()?;
    other.store.adapter.boot.ahead = STEP * 9 + TTL;
    other.granted()?;
    assert_eq!(holder.renew()?, Renewal::NotHeld);
    Ok(())
}

/// The lease was over before the renewal: the record decides.
#[test]
fn a_late_renewal_does_not_count() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut other) = (place.process()?, place.process()?);
    holder.granted()?;
    holder.store.adapter.boot.ahead = TTL;
    other.store.adapter.boot.ahead = TTL;
    other.granted()?;
    assert_eq!(holder.renew()?, Renewal::NotHeld);
    assert_eq!(other.renew()?, Renewal::Renewed);
    Ok(())
}

#[test]
fn a_renewal_returns_what_an_operator_wants() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.process()?;
    let fence = holder.granted()?;
    place.store()?.request(&name()?, Fence(fence), &Owner::default(), by())?;
    assert_eq!(holder.renew()?, Renewal::Asked);
    holder.store.adapter.boot.ahead = STEP * 2;
    holder.renew()?;
    let revoke = Revoke { when: When::Safe, by: Owner::default() };
    place.store()?.revoke(&name()?, &revoke, by())?;
    assert_eq!(holder.renew()?, Renewal::Revoked);
    let mut next = place.process()?;
    next.store.adapter.boot.ahead = TTL;
    assert!(matches!(next.acquire(Patience::None)?, Acquired::Busy(_)), "the old lease was renewed since");
    let mut next = place.process()?;
    next.store.adapter.boot.ahead = STEP * 2 + TTL + Duration::from_secs(1);
    next.granted()?;
    Ok(())
}

#[test]
fn a_heartbeat_writes_no_record_and_keeps_the_place() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut first, mut second) = (place.process()?, place.process()?, place.process()?);
    holder.granted()?;
    first.waits()?;
    second.waits()?;
    let before = record(&place)?;
    for beat in 1..8u32 {
        for waiter in [&mut first, &mut second] {
            waiter.store.adapter.boot.ahead = Duration::from_millis(1600) * beat;
            waiter.waits()?;
        }
    }
    assert_eq!(record(&place)?, before);
    assert_eq!(second.waits()?, 1, "nobody was passed over");
    let mut third = place.process()?;
    third.store.adapter.boot.ahead = Duration::from_secs(12);
    assert_eq!(third.waits()?, 2);
    for ahead in 13..=20 {
        for waiter in [&mut first, &mut third] {
            waiter.store.adapter.boot.ahead = Duration::from_secs(ahead);
            waiter.waits()?;
        }
    }
    second.store.adapter.boot.ahead = Duration::from_secs(20);
    assert_eq!(third.waits()?, 1, "the silent one was");
    assert_eq!(second.waits()?, 1, "and is back in its place");
    Ok(())
}

/// As a program that cleans up temporary files does.
#[test]
fn a_removed_life_file_is_no_death() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = place.holder_and_waiter()?;
    for step in [STEP, STEP * 2] {
        holder.store.adapter.boot.ahead = step;
        assert_eq!(holder.renew()?, Renewal::Renewed);
    }
    std::fs::remove_file(place.life_of(&holder))?;
    std::fs::remove_file(place.life_of(&waiter))?;
    assert_eq!(waiter.waits()?, 0);
    // By the record the lease is over. The holder has published a later end, which nobody can read
    // any more.
    waiter.store.adapter.boot.ahead = TTL + Duration::from_secs(1);
    assert_eq!(waiter.waits()?, 0);
    holder.store.adapter.boot.ahead = STEP * 3;
    assert_eq!(holder.renew()?, Renewal::Renewed);
    waiter.store.adapter.boot.ahead = STEP * 3 + TTL - Duration::from_secs(1);
    assert_eq!(waiter.waits()?, 0);
    // Without a life file only the lease shows that a holder is dead.
    holder.die();
    waiter.store.adapter.boot.ahead = STEP * 3 + TTL * 3;
    waiter.granted()?;
    Ok(())
}

/// A token that was handed over has no life file, and a script acquires with it no more.
#[test]
fn tokens_that_scripts_released_are_not_kept_for_ever() -> Result<()> {
    let place = Place::new()?;
    let mut sizes = Vec::new();
    for _ in 0..150 {
        let mut process = place.process()?;
        process.granted()?;
        process.store.hand_over(&process.names, &process.token, by())?;
        process.leave()?;
        sizes.push(place.length()?);
    }
    assert!(sizes[149] < sizes[100] + 200, "{sizes:?}");
    Ok(())
}

/// A dead process that held several locks is found dead at each of them, in any order, also after a
/// clean-up.
#[test]
fn a_life_file_remains_until_all_locks_have_reaped_its_owner() -> Result<()> {
    let place = Place::new()?;
    let mut both = place.wants(&["a", "b"], Mode::Exclusive)?;
    both.granted()?;
    let life = place.life_of(&both);
    both.die();
    place.wants(&["a"], Mode::Exclusive)?.granted()?;
    place.store()?.all("dlock:")?;
    assert!(life.exists());
    place.wants(&["b"], Mode::Exclusive)?.granted()?;
    place.store()?.all("dlock:")?;
    assert!(!life.exists());
    Ok(())
}

/// A waiter's heartbeat lasts longer than its lease will.
#[test]
fn a_heartbeat_is_no_lease() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter, mut next) = (place.process()?, place.process()?, place.process()?);
    holder.granted()?;
    waiter.waits()?;
    waiter.waits()?;
    holder.leave()?;
    let ask = Ask { ttl: Duration::from_secs(1), ..waiter.ask(Patience::Queue) };
    ensure!(matches!(waiter.store.acquire(&waiter.names, &ask, by())?, Acquired::Granted(_)));
    next.store.adapter.boot.ahead = Duration::from_secs(2);
    next.granted()?;
    Ok(())
}

/// Even if no other process has come.
#[test]
fn a_lease_that_is_over_is_not_renewed() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    holder.store.adapter.boot.ahead = TTL;
    assert_eq!(holder.renew()?, Renewal::NotHeld);
    Ok(())
}
