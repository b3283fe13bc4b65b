//! Tests that nothing is left behind: files of the dead, drafts, and tokens that were given back.

use super::*;
use crate::rules::{EXPECTED_KEPT, HEARTBEAT, HISTORY_KEPT, SILENCE, TICKET_KEPT};
use crate::store::file::cleanup::CLEANS_UP_EVERY;
use std::time::SystemTime;

#[test]
fn the_draft_of_a_killed_writer_blocks_nobody() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    std::fs::write(place.path(FileRole::Draft)?, "{\"form")?;
    let fence = process.granted()?;
    std::fs::write(place.path(FileRole::Draft)?, "{\"form")?;
    assert_eq!(process.granted()?, fence);
    let long_ago = SystemTime::now() - CLEANS_UP_EVERY * 2;
    File::options().write(true).open(place.path(FileRole::Draft)?)?.set_modified(long_ago)?;
    place.store()?.all("dlock:")?;
    assert!(place.path(FileRole::Draft)?.exists(), "a writer may be about to exchange it with the record");
    std::fs::remove_file(place.path(FileRole::Record)?)?;
    place.store()?.all("dlock:")?;
    assert!(!place.path(FileRole::Draft)?.exists());
    Ok(())
}

#[test]
fn nothing_leaks() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    assert_eq!(process.renew()?, Renewal::NotHeld);
    let revoke = Revoke { when: When::Safe, by: Owner::default() };
    assert_eq!(process.store.revoke(&name()?, &revoke, by())?, Revoked::Free);
    assert_eq!(place.files()?, ["life"]);
    process.granted()?;
    let mut busy = place.process()?;
    busy.acquire(Patience::None)?;
    let mut waiter = place.process()?;
    waiter.waits()?;
    waiter.leave()?;
    process.leave()?;
    assert_eq!(place.files()?, ["ends", "json", "mutex", "swept"]);

    // A process that was killed before it asked.
    place.process()?.die();
    assert_eq!(place.store()?.all("dlock:")?, [name()?]);
    assert_eq!(place.files()?, ["ends", "json", "mutex", "swept"]);

    let past = SystemTime::now() - HISTORY_KEPT - CLEANS_UP_EVERY;
    File::options().write(true).open(place.path(FileRole::Record)?)?.set_modified(past)?;
    let mut later = place.store()?;
    set_ahead(HISTORY_KEPT + CLEANS_UP_EVERY);
    assert!(later.all("dlock:")?.is_empty());
    assert_eq!(place.files()?, ["swept"]);
    Ok(())
}

/// A job that has been dead for 41 days is still overdue.
#[test]
fn a_lock_of_which_runs_are_expected_is_kept_for_longer() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    let terms = Terms { expect: Some(Duration::from_secs(24 * 60 * 60)), ..Terms::default() };
    let ask = Ask { terms, ..process.ask(Patience::None) };
    assert!(matches!(process.store.acquire(&process.names, &ask, by())?, Acquired::Granted(_)));
    process.leave()?;
    for (kept, overdue) in [(HISTORY_KEPT, Some(true)), (2 * HISTORY_KEPT, Some(true)), (EXPECTED_KEPT, None)]
    {
        let age = kept + CLEANS_UP_EVERY;
        let record = File::options().write(true).open(place.path(FileRole::Record)?)?;
        record.set_modified(SystemTime::now() - age)?;
        set_ahead(age);
        let mut later = place.store()?;
        assert_eq!(later.all("dlock:")?.is_empty(), overdue.is_none());
        assert_eq!(later.inspect(&name()?, by())?.overdue(), overdue);
    }
    assert_eq!(place.files()?, ["swept"]);
    Ok(())
}

/// A waiter became stale, lost its place and kept its ticket, and then died. The record keeps it
/// until more waiters come.
#[test]
fn the_life_of_one_whose_ticket_is_void_is_removed() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, waiter) = place.holder_and_waiter()?;
    let mut next = place.process()?;
    let mut passed = Duration::ZERO;
    while passed <= SILENCE {
        set_ahead(passed);
        next.waits()?;
        passed += HEARTBEAT;
    }
    set_ahead(passed);
    holder.leave()?;
    set_ahead(passed);
    next.granted()?;
    next.leave()?;
    waiter.die();
    let mut later = place.store()?;
    for (ahead, files) in [
        (passed, &["ends", "json", "life", "mutex", "swept"][..]),
        (passed + TICKET_KEPT, &["ends", "json", "mutex", "swept"]),
    ] {
        set_ahead(ahead);
        later.all("dlock:")?;
        assert_eq!(place.files()?, files);
    }
    Ok(())
}

#[test]
fn released_tokens_are_not_kept_for_ever() -> Result<()> {
    let place = Place::new()?;
    let mut sizes = Vec::new();
    for _ in 0..100 {
        let mut process = place.process()?;
        process.granted()?;
        process.leave()?;
        sizes.push(place.record("nightly")?.len());
    }
    assert!(sizes[99] < sizes[70] + 100, "{sizes:?}");
    let view = place.store()?.inspect(&name()?, by())?;
    assert_eq!(view.log.len(), 64);
    let ends = std::fs::read(place.path(FileRole::Ends)?)?;
    assert_eq!(ends.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(), 64 + 36);
    assert!(view.log.is_sorted_by_key(|end| std::cmp::Reverse(end.fence)));
    Ok(())
}
