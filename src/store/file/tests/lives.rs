//! Tests that a holder keeps its lease and a waiter its place by their life files alone, and what
//! happens if somebody removes these.

use super::*;

const STEP: Duration = Duration::from_secs(7);

fn record(place: &Place) -> Result<Vec<u8>> {
    place.record("nightly")
}

#[test]
fn a_renewal_writes_no_record_and_is_seen_by_all() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    let before = record(&place)?;
    for step in 1..10u32 {
        set_ahead(STEP * step);
        assert_eq!(holder.renew()?, Renewal::Renewed);
        let mut store = place.store()?;
        let view = store.inspect(&name()?, by())?;
        assert!(view.holders[0].lease > TTL - Duration::from_secs(1), "{view:?}");
        let proof = store.prove(&holder.names, &holder.token, None, by())?.context("it holds it")?;
        assert!(proof.lease > TTL - Duration::from_secs(1));
    }
    assert_eq!(record(&place)?, before);
    let mut other = place.process()?;
    set_ahead(STEP * 10);
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)), "twice its lease after the grant");
    other = place.process()?;
    set_ahead(STEP * 9 + TTL);
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
    set_ahead(TTL);
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
    set_ahead(STEP * 2);
    holder.renew()?;
    let revoke = Revoke { when: When::Safe, by: Owner::default() };
    place.store()?.revoke(&name()?, &revoke, by())?;
    assert_eq!(holder.renew()?, Renewal::Revoked);
    let mut next = place.process()?;
    set_ahead(TTL);
    assert!(matches!(next.acquire(Patience::None)?, Acquired::Busy(_)), "the old lease was renewed since");
    let mut next = place.process()?;
    set_ahead(STEP * 2 + TTL + Duration::from_secs(1));
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
            set_ahead(Duration::from_millis(1600) * beat);
            waiter.waits()?;
        }
    }
    assert_eq!(record(&place)?, before);
    assert_eq!(second.waits()?, 1, "nobody was passed over");
    let mut third = place.process()?;
    set_ahead(Duration::from_secs(12));
    assert_eq!(third.waits()?, 2);
    for ahead in 13..=20 {
        for waiter in [&mut first, &mut third] {
            set_ahead(Duration::from_secs(ahead));
            waiter.waits()?;
        }
    }
    set_ahead(Duration::from_secs(20));
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
        set_ahead(step);
        assert_eq!(holder.renew()?, Renewal::Renewed);
    }
    std::fs::remove_file(place.life_of(&holder))?;
    std::fs::remove_file(place.life_of(&waiter))?;
    assert_eq!(waiter.waits()?, 0);
    // By the record the lease is over. The holder has published a later end, which nobody can read
    // any more.
    set_ahead(TTL + Duration::from_secs(1));
    assert_eq!(waiter.waits()?, 0);
    assert_eq!(holder.renew()?, Renewal::Renewed);
    set_ahead(TTL * 2);
    assert_eq!(waiter.waits()?, 0);
    // Without a life file only the lease shows that a holder is dead.
    holder.die();
    set_ahead(TTL * 4);
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
        sizes.push(record(&place)?.len());
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
    set_ahead(Duration::from_secs(2));
    next.granted()?;
    Ok(())
}

/// Even if no other process has come.
#[test]
fn a_lease_that_is_over_is_not_renewed() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    set_ahead(TTL);
    assert_eq!(holder.renew()?, Renewal::NotHeld);
    Ok(())
}
