//! Tests whose turn it is: waiters are served in order, and those that are dead or stale are passed
//! over.

use super::*;

#[test]
fn waiters_are_woken_one_by_one_in_the_order_they_came() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.process()?;
    let mut fence = holder.granted()?;
    let mut waiters = Vec::new();
    for ahead in 0..4 {
        let mut waiter = place.process()?;
        assert_eq!(waiter.waits()?, ahead);
        waiters.push(waiter);
    }
    for mut next in waiters {
        assert!(!next.is_awake()?);
        assert!(matches!(holder.leave()?, Left::Released { .. }));
        next.woken()?;
        let new = next.granted()?;
        assert!(new > fence);
        (holder, fence) = (next, new);
    }
    Ok(())
}

#[test]
fn a_release_wakes_the_head_while_the_guard_of_the_holder_lives() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = place.holder_and_waiter()?;
    let _guard = holder.store.clone();
    holder.leave()?;
    waiter.served()?;
    Ok(())
}

#[test]
fn dead_waiters_cost_no_time() -> Result<()> {
    let place = Place::new()?;
    let holder = place.holder()?;
    let mut crowd = Vec::new();
    for _ in 0..20 {
        let mut waiter = place.process()?;
        waiter.waits()?;
        crowd.push(waiter);
    }
    let mut last = place.process()?;
    assert_eq!(last.waits()?, 20);
    crowd.into_iter().for_each(Process::die);
    last.woken()?;
    assert_eq!(last.waits()?, 0, "the dead before it are reaped one after the other");
    holder.die();
    last.served()?;
    Ok(())
}

#[test]
fn a_dead_waiter_is_skipped_by_a_grant() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut dead, mut next) = (place.process()?, place.process()?, place.process()?);
    holder.granted()?;
    dead.waits()?;
    next.waits()?;
    dead.die();
    holder.leave()?;
    next.served()?;
    Ok(())
}

/// The head is stale and the holder's lease is over, and a newcomer is the first to ask. The waiter
/// behind the head must be granted the lock all the same.
#[test]
fn the_waiter_behind_a_stale_head_keeps_its_turn() -> Result<()> {
    let (place, start) = (Place::new()?, Moment::now().since_boot());
    let mut holder = place.process()?;
    holder.granted()?;
    let mut queue = (0..4).map(|_| place.process()).collect::<Result<Vec<_>>>()?;
    let beat = |who: usize, process: &mut Process, seconds: u64| -> Result<Acquired> {
        set_fixed(start + Duration::from_secs(seconds));
        let terms = Terms { replaces: who == 2, ..Terms::default() };
        let ask = Ask { terms, ..process.ask(Patience::Queue) };
        Ok(process.store.acquire(&process.names, &ask, by())?)
    };
    for seconds in [0, 4, 8, 12, 16, 20, 24, 26, 29] {
        for (who, waiter) in queue.iter_mut().enumerate().filter(|(who, _)| *who > 0 || seconds < 29) {
            let answer = beat(who, waiter, seconds)?;
            ensure!(matches!(answer, Acquired::Waiting(_)), "{who} at {seconds} s: {answer:?}");
        }
    }
    let late = TTL.as_secs() + 2;
    let mut newcomer = place.process()?;
    beat(4, &mut newcomer, late)?;
    for (who, waiter) in queue.iter_mut().enumerate().skip(1).rev() {
        let answer = beat(who, waiter, late)?;
        assert_eq!(matches!(answer, Acquired::Granted(_)), who == 1, "{who}: {answer:?}");
    }
    Ok(())
}

/// However many waiters at the head are stale.
#[test]
fn the_waiter_behind_many_stale_ones_has_its_turn() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    let mut queue = place.many(40, Mode::Exclusive)?;
    queue.iter_mut().try_for_each(|waiter| waiter.waits().map(drop))?;
    for seconds in [2, 4, 6, 8] {
        set_ahead(Duration::from_secs(seconds));
        queue.iter_mut().skip(30).try_for_each(|waiter| waiter.waits().map(drop))?;
    }
    holder.leave()?;
    queue[30].served()?;
    Ok(())
}

/// The same if only one of several waiters is not stale.
#[test]
fn a_newcomer_overtakes_no_waiter_that_is_heard() -> Result<()> {
    let (place, start) = (Place::new()?, Moment::now().since_boot());
    let mut holder = place.process()?;
    holder.granted()?;
    let mut queue = (0..3).map(|_| place.process()).collect::<Result<Vec<_>>>()?;
    let beat = |process: &mut Process, seconds: u64| -> Result<Acquired> {
        set_fixed(start + Duration::from_secs(seconds));
        Ok(process.store.acquire(&process.names, &process.ask(Patience::Queue), by())?)
    };
    for seconds in [0, 4, 8, 12, 16, 20, 24, 26, 29] {
        for waiter in queue.iter_mut().skip(usize::from(seconds > 26)).take(if seconds > 26 { 1 } else { 3 })
        {
            let answer = beat(waiter, seconds)?;
            ensure!(matches!(answer, Acquired::Waiting(_)), "at {seconds} s: {answer:?}");
        }
    }
    let late = TTL.as_secs() + 2;
    let newcomer = beat(&mut place.process()?, late)?;
    ensure!(matches!(newcomer, Acquired::Waiting(_)), "{newcomer:?}");
    let next = beat(&mut queue[1], late)?;
    ensure!(matches!(next, Acquired::Granted(_)), "{next:?}");
    Ok(())
}

#[test]
fn a_dead_waiter_behind_a_stale_head_is_not_granted_the_lock() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut stale_at) = (place.process()?, place.process()?);
    let (mut dead, mut next) = (place.process()?, place.process()?);
    holder.granted()?;
    stale_at.waits()?;
    for ahead in [2, 4] {
        set_ahead(Duration::from_secs(ahead));
        for process in [&mut dead, &mut next] {
            process.waits()?;
        }
    }
    dead.die();
    set_ahead(Duration::from_secs(6));
    holder.leave()?;
    next.served()?;
    Ok(())
}

#[test]
fn a_waiter_that_leaves_frees_its_place() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut middle, mut last) = (place.process()?, place.process()?, place.process()?);
    holder.granted()?;
    middle.waits()?;
    last.waits()?;
    let _guard = middle.store.clone();
    assert_eq!(middle.leave()?, Left::Dequeued);
    last.woken()?;
    assert_eq!(last.waits()?, 0);
    holder.die();
    last.served()?;
    Ok(())
}

#[test]
fn a_revoked_hold_wakes_the_head() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = place.holder_and_waiter()?;
    let revoke = Revoke { when: When::Now, by: Owner::default() };
    assert!(matches!(place.store()?.revoke(&name()?, &revoke, by())?, Revoked::Holds { .. }));
    waiter.served()?;
    assert_ne!(holder.renew()?, Renewal::Renewed);
    assert_eq!(holder.acquire(Patience::Queue)?, Acquired::TokenEnded);
    Ok(())
}

#[test]
fn the_rest_of_a_min_hold_remains_and_the_head_is_told() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = (place.process()?, place.process()?);
    let ask = Ask { min_hold: Duration::from_secs(5), ..holder.ask(Patience::None) };
    ensure!(matches!(holder.store.acquire(&name()?.into(), &ask, by())?, Acquired::Granted(_)));
    waiter.waits()?;
    ensure!(matches!(holder.leave()?, Left::Released { cooling } if !cooling.is_zero()));
    waiter.woken()?;
    waiter.waits()?;
    assert_eq!(waiter.store.inspect(&name()?, by())?.state, State::Cooling);
    set_ahead(Duration::from_secs(5));
    waiter.granted()?;
    Ok(())
}
