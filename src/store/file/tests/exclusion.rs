//! Tests that the mutex of a lock excludes other processes, and never for long; and that readers
//! do without it.

use super::*;
use crate::store::file::mutex::Mutex;
use rustix::fs::{FlockOperation, flock};
use std::sync::Mutex as Shared;

/// In both ways of writing: over the old record, and beside it.
#[test]
fn a_reader_without_the_mutex_never_sees_half_a_record() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    for is_long in [false, true] {
        let crowd = if is_long { place.crowd("nightly")? } else { Vec::new() };
        let done = AtomicU32::new(0);
        let mut writer = || -> Result<()> {
            for _ in 0..300 {
                let busy = place.process()?.acquire(Patience::None)?;
                ensure!(matches!(busy, Acquired::Busy(_)));
                ensure!(
                    holder.store.renew(
                        &holder.names,
                        &Renew { token: &holder.token, fence: None, ttl: TTL, rest: None },
                        by()
                    )? == Renewal::Renewed
                );
            }
            Ok(())
        };
        thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<()> {
                let mut store = place.store()?;
                while done.load(Ordering::SeqCst) == 0 {
                    let view = store.inspect(&name()?, by())?;
                    ensure!((view.state, view.waiters.len()) == (State::Held, crowd.len()));
                }
                Ok(())
            });
            let written = writer();
            done.store(1, Ordering::SeqCst);
            reader.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            written
        })?;
    }
    Ok(())
}

#[test]
fn a_stopped_process_with_the_mutex_blocks_only_until_the_deadline() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    process.granted()?;
    let mutex = File::open(place.path(FileRole::Mutex)?)?;
    flock(&mutex, FlockOperation::LockExclusive)?;
    assert_eq!(process.renew()?, Renewal::Renewed);
    let mut other = place.process()?;
    let by = Moment::now().after(Duration::from_millis(200));
    let error = other.store.acquire(&other.names, &other.ask(Patience::None), by).err().context("taken")?;
    assert!(by.passed() && by.after(Duration::from_secs(5)) > Moment::now());
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(process.store.inspect(&name()?, by).is_ok(), "reading needs no mutex");
    drop(mutex);
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)));
    Ok(())
}

#[test]
fn a_mutex_that_is_removed_and_recreated_still_excludes() -> Result<()> {
    let place = Place::new()?;
    let store = place.store()?;
    let inside = AtomicU32::new(0);
    let rounds = || -> Result<()> {
        for _ in 0..300 {
            // flock serves in no order: on a busy machine the others may overtake one for long.
            let deadline = Moment::now().after(Duration::from_secs(60));
            let mut mutex = Mutex::lock(&store.coordinator.directory, name()?.as_str(), deadline)?;
            ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two at once");
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            mutex.has_record = false;
        }
        Ok(())
    };
    all_at_once(4, |_| rounds())
}

#[test]
fn a_crowd_never_holds_together() -> Result<()> {
    const CROWD: usize = 30;
    let place = Place::new()?;
    let inside = AtomicU32::new(0);
    let fences = Shared::new(Vec::new());
    let turn = || -> Result<()> {
        let mut process = place.process()?;
        let end = Moment::now().after(Duration::from_secs(60));
        let fence = loop {
            ensure!(!end.passed(), "never granted");
            match process.acquire(Patience::Queue)? {
                Acquired::Granted(grant) => break grant.fence,
                Acquired::Waiting(waiting) => {
                    let until = Moment::now().after(waiting.next);
                    process.store.sleep(&name()?.into(), &process.token, until)?;
                }
                other => anyhow::bail!("{other:?}"),
            }
        };
        ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two at once");
        fences.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(fence);
        inside.fetch_sub(1, Ordering::SeqCst);
        // Every third process dies instead of releasing the lock.
        if fence.0 % 3 != 0 {
            process.leave()?;
        }
        Ok(())
    };
    all_at_once(CROWD, |_| turn())?;
    let fences = fences.into_inner()?;
    assert_eq!(fences.len(), CROWD);
    assert!(fences.is_sorted_by(|a, b| a < b));
    Ok(())
}
