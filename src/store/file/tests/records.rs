//! Tests records that are damaged, cut off, misplaced or cannot be written.

use super::*;

#[test]
fn a_file_that_is_no_record_is_left_alone() -> Result<()> {
    let place = Place::new()?;
    place.holder()?.leave()?;
    let record = place.record("nightly")?;
    let cut = &record[..record.len() - 1];
    let other: &[u8] = b"{\"format\":2,\"anything\":[]}";
    for bytes in [&b"{\"format\":2,"[..], b"", b"\0\0\0\0", b"hello", other, cut] {
        let place = Place::new()?;
        std::fs::write(place.path(FileRole::Record)?, bytes)?;
        let mut process = place.process()?;
        let Err(error) = process.store.acquire(&name()?.into(), &process.ask(Patience::None), by()) else {
            anyhow::bail!("{bytes:?} was taken for a record")
        };
        assert!(matches!(error, Error::Garbled(_)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("file:/locks: ") && !text.contains('\n'), "{text}");
        assert_eq!(std::fs::read(place.path(FileRole::Record)?)?, bytes);
        assert!(process.store.inspect(&name()?, by()).is_err());
        assert!(process.store.all("dlock:").is_err());
    }
    Ok(())
}

/// As if the machine had crashed before all of the file was on the disk.
#[test]
fn a_record_that_was_cut_off_before_this_boot_counts_as_none() -> Result<()> {
    let place = Place::new()?;
    place.holder()?.leave()?;
    let record = place.record("nightly")?;
    for (bytes, is_none) in [(&b""[..], true), (b"\0\0", true), (&record[..200], true), (b"hello", false)] {
        std::fs::write(place.path(FileRole::Record)?, bytes)?;
        let mut process = place.process()?;
        process.store.coordinator.boot.offset += 1_000_000_000_000;
        assert_eq!(process.acquire(Patience::None).is_ok(), is_none, "{bytes:?}");
    }
    Ok(())
}

#[test]
fn the_record_of_another_lock_is_refused() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    process.granted()?;
    let other = place.path_of("other", FileRole::Record)?;
    std::fs::copy(place.path(FileRole::Record)?, other)?;
    let error = process.store.inspect(&named("other")?, by()).err().context("taken")?;
    assert!(matches!(error, Error::Garbled(_)), "{error}");
    Ok(())
}

#[test]
fn a_record_that_cannot_be_written_stays_as_it_was() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    let _crowd = place.crowd("nightly")?;
    let (before, mut other) = (place.record("nightly")?, place.process()?);
    place.block("nightly")?;
    assert!(holder.leave().is_err());
    assert_eq!(place.record("nightly")?, before);
    std::fs::remove_dir(place.path(FileRole::Draft)?)?;
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)));
    assert!(matches!(holder.leave()?, Left::Released { .. }));
    Ok(())
}

/// Needs the right to mount; without it the test is skipped.
#[test]
fn a_full_disk_is_reported_as_such() -> Result<()> {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            std::process::Command::new("umount").arg(self.0.path()).status().ok();
        }
    }
    let directory = tempfile::tempdir()?;
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "dlock-test"]).arg(directory.path());
    if !mount.output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let mounted = Mounted(directory);
    let (mut store, token) = (FileStore::open(mounted.0.path(), "file:/locks")?, Token::random()?);
    store.prepare(&token)?;
    let mut process = Process::of(store, token)?;
    let fence = process.granted()?;
    let filler = mounted.0.path().join("filler");
    std::fs::write(&filler, vec![b'x'; 1 << 20]).err().context("the disk did not fill up")?;
    assert_eq!(process.renew()?, Renewal::Renewed);
    let mut other = Process::of(FileStore::open(mounted.0.path(), "file:/locks")?, Token::random()?)?;
    other.names = named("other")?.into();
    let error = other.acquire(Patience::None).err().context("no error")?.to_string();
    assert!(error.contains("make room"), "{error}");
    assert!(matches!(process.leave()?, Left::Released { .. }), "the record is written over the old one");
    std::fs::remove_file(filler)?;
    other.names = name()?.into();
    assert!(other.granted()? > fence);
    Ok(())
}

/// A reader reads the record first and the ends then, while others change both.
#[test]
fn a_view_shows_one_moment() -> Result<()> {
    let place = Place::new()?;
    let is_over = AtomicBool::new(false);
    let change = || -> Result<()> {
        for _ in 0..1000 {
            let mut holder = place.process()?;
            holder.granted()?;
            holder.leave()?;
        }
        Ok(())
    };
    all_at_once(4, |thread| {
        if thread == 0 {
            let changed = change();
            is_over.store(true, Ordering::Relaxed);
            return changed;
        }
        let mut store = place.store()?;
        while !is_over.load(Ordering::Relaxed) {
            let view = store.inspect(&name()?, by())?;
            let ended = view.log.first().map(|end| end.fence);
            match view.holders.first() {
                // While this thread stood still, so many holds ended that the file has no older end.
                None if view.log.is_empty() => {}
                None => ensure!(ended == view.fence, "{ended:?} ended, {:?} was the last", view.fence),
                Some(holder) => ensure!(ended < Some(holder.fence), "{ended:?} is held"),
            }
            ensure!(view.log.windows(2).all(|two| two[0].fence > two[1].fence), "each end once, in order");
        }
        Ok(())
    })
}
