//! Tests what a dlock leaves that is killed between two records. Each kill leaves the files as a
//! SIGKILL would after a number of records were put in place. The tests play every such number;
//! `crashes/histories.rs` plays random histories with such kills.

mod histories;

use super::*;

fn exclusive(place: &Place, keys: &[&str]) -> Result<Process> {
    place.wants(keys, Mode::Exclusive)
}

impl Process {
    /// Runs `does`, and is killed before it puts this record in place. Returns whether it got that
    /// far.
    fn is_killed_at(&mut self, record: usize, does: impl FnOnce(&mut Self) -> Result<()>) -> Result<bool> {
        self.store.coordinator.killed_before = Some(record);
        let result = does(self);
        self.store.coordinator.killed_before = None;
        match result {
            Err(error) if error.to_string() == "killed" => Ok(true),
            result => result.map(|()| false),
        }
    }
}

/// Whatever was cut off: once the killed processes are dead, each lock can be taken, alone and
/// together.
fn ensure_all_can_be_taken(place: &Place, keys: &[&str]) -> Result<()> {
    for key in keys {
        let mut one = exclusive(place, &[*key])?;
        one.granted_soon().with_context(|| format!("{key} alone"))?;
        one.leave()?;
    }
    let mut all = exclusive(place, keys)?;
    all.granted_soon().context("all of them")?;
    all.leave()?;
    Ok(())
}

#[test]
fn a_grant_that_is_cut_off_makes_no_holder() -> Result<()> {
    for record in 0..3 {
        let place = Place::new()?;
        let mut killed = exclusive(&place, &["a", "b", "c"])?;
        assert!(killed.is_killed_at(record, |killed| killed.acquire(Patience::None).map(drop))?);
        assert_eq!(place.store()?.prove(&killed.names, &killed.token, None, by())?, None);
        killed.die();
        ensure_all_can_be_taken(&place, &["c", "a", "b"])?;
    }
    Ok(())
}

#[test]
fn the_guard_finishes_a_release_that_is_cut_off() -> Result<()> {
    for record in 0..3 {
        let place = Place::new()?;
        let mut killed = exclusive(&place, &["a", "b", "c"])?;
        killed.granted()?;
        let mut late = Process::of(place.store()?, killed.token.clone())?;
        late.names = killed.names.clone();
        assert!(killed.is_killed_at(record, |killed| killed.leave().map(drop))?);
        let (mut guard, names, token) = (killed.store.clone(), killed.names.clone(), killed.token.clone());
        killed.die();
        if record > 0 {
            assert_eq!(
                late.acquire(Patience::Queue)?,
                Acquired::TokenEnded,
                "a request that was still on its way"
            );
        }
        let mut next = exclusive(&place, &["c"])?;
        next.waits()?;
        assert!(matches!(guard.leave(&names, &token, &ended(), by())?, Left::Released { .. }));
        next.served()?;
        next.leave()?;
        ensure_all_can_be_taken(&place, &["a", "b", "c"])?;
        let outcomes: Vec<_> = place.view("b")?.log.iter().map(|end| end.outcome).collect();
        assert_eq!(outcomes, [Outcome::Released; 3]);
    }
    Ok(())
}

#[test]
fn the_next_process_finishes_a_release_that_is_cut_off() -> Result<()> {
    for record in 0..2 {
        let place = Place::new()?;
        let mut killed = exclusive(&place, &["a", "b"])?;
        killed.granted()?;
        let mut next = exclusive(&place, &["b"])?;
        next.waits()?;
        assert!(killed.is_killed_at(record, |killed| killed.leave().map(drop))?);
        killed.die();
        next.served()?;
        next.leave()?;
        ensure_all_can_be_taken(&place, &["a", "b"])?;
    }
    Ok(())
}

/// The process that released is killed; the one that was granted some of the locks lives.
#[test]
fn a_grant_to_a_waiter_that_is_cut_off_still_reaches_it() -> Result<()> {
    for record in 0..3 {
        let place = Place::new()?;
        let mut killed = exclusive(&place, &["a", "b", "c"])?;
        killed.granted()?;
        let mut next = exclusive(&place, &["a", "b", "c"])?;
        next.waits()?;
        let (mut behind, mut aside) = (exclusive(&place, &["c", "a"])?, exclusive(&place, &["b"])?);
        behind.waits()?;
        aside.waits()?;
        assert!(killed.is_killed_at(record, |killed| killed.leave().map(drop))?);
        killed.die();
        next.served()?;
        assert_eq!(behind.waits()?, 0);
        assert_eq!(aside.waits()?, 0);
        next.leave()?;
        behind.served()?;
        aside.served()?;
    }
    Ok(())
}

/// A waiter that was granted some of its locks dies before it knows.
#[test]
fn half_a_grant_to_a_dead_waiter_goes_to_the_next() -> Result<()> {
    let place = Place::new()?;
    let mut killed = exclusive(&place, &["a", "b"])?;
    killed.granted()?;
    let mut dead = exclusive(&place, &["a", "b"])?;
    dead.waits()?;
    let mut next = exclusive(&place, &["a", "b"])?;
    next.waits()?;
    assert!(killed.is_killed_at(1, |killed| killed.leave().map(drop))?);
    killed.die();
    assert_eq!(place.view("a")?.holders.len(), 1);
    dead.die();
    next.served()?;
    Ok(())
}

#[test]
fn a_waiter_that_is_cut_off_blocks_nobody() -> Result<()> {
    for record in 0..2 {
        let place = Place::new()?;
        let (mut a, mut b) = (exclusive(&place, &["a"])?, exclusive(&place, &["b"])?);
        a.granted()?;
        b.granted()?;
        let mut killed = exclusive(&place, &["a", "b"])?;
        assert!(killed.is_killed_at(record, |killed| killed.acquire(Patience::Queue).map(drop))?);
        killed.die();
        a.leave()?;
        b.leave()?;
        ensure_all_can_be_taken(&place, &["a", "b"])?;
    }
    Ok(())
}

/// A live waiter stands in only one of its two queues. Operations on either lock must still end.
#[test]
fn a_waiter_in_only_one_of_its_queues_makes_no_endless_loop() -> Result<()> {
    let place = Place::new()?;
    let mut holder = exclusive(&place, &["a", "b"])?;
    holder.granted()?;
    let mut half = exclusive(&place, &["a", "b"])?;
    assert!(half.is_killed_at(1, |half| half.acquire(Patience::Queue).map(drop))?);
    let mut behind = exclusive(&place, &["a", "b"])?;
    assert_eq!(behind.waits()?, 1);
    holder.leave()?;
    assert_eq!(behind.waits()?, 1);
    half.granted()?;
    half.leave()?;
    behind.served()?;
    Ok(())
}

#[test]
fn a_write_that_fails_changes_no_record() -> Result<()> {
    let place = Place::new()?;
    let mut holder = exclusive(&place, &["a", "b"])?;
    holder.granted()?;
    let (_crowd, before) = (place.crowd("b")?, place.record("a")?);
    place.block("b")?;
    assert!(holder.leave().is_err());
    assert_eq!(place.record("a")?, before);
    std::fs::remove_dir(place.path_of("b", FileRole::Draft)?)?;
    assert!(matches!(holder.leave()?, Left::Released { .. }));
    Ok(())
}
