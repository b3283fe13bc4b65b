//! Tests which directories may hold locks, and what is found in one.

use super::*;

#[test]
fn inspect_leaves_out_the_dead_and_writes_nothing() -> Result<()> {
    let place = Place::new()?;
    assert_eq!(place.store()?.inspect(&name()?, by())?.state, State::Free);
    assert!(place.files()?.is_empty());
    let holder = place.holder()?;
    assert_eq!(place.store()?.inspect(&name()?, by())?.state, State::Held);
    holder.die();
    let before = std::fs::read(place.path(FileRole::Record)?)?;
    let view = place.store()?.inspect(&name()?, by())?;
    assert_eq!((view.state, view.log.len()), (State::Free, 1));
    assert_eq!(std::fs::read(place.path(FileRole::Record)?)?, before);
    Ok(())
}

#[test]
fn find_lists_the_locks_of_a_prefix() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    for key in ["b", "a", "ä/c"] {
        let ask = process.ask(Patience::None);
        process.store.acquire(&named(key)?.into(), &ask, by())?;
    }
    let key = Key::new("x").map_err(anyhow::Error::msg)?;
    let elsewhere = Name::new("other:", &key).map_err(anyhow::Error::msg)?;
    let ask = process.ask(Patience::None);
    process.store.acquire(&elsewhere.clone().into(), &ask, by())?;
    assert_eq!(process.store.all("dlock:")?, [named("a")?, named("b")?, named("ä/c")?]);
    assert_eq!(process.store.all("other:")?, [elsewhere]);
    assert_eq!(process.store.all("")?.len(), 4);
    Ok(())
}

#[test]
fn a_place_that_cannot_hold_locks_is_refused() -> Result<()> {
    let place = Place::new()?;
    let file = place.directory.path().join("file");
    std::fs::write(&file, "")?;
    for path in [Path::new("relative"), &file, &file.join("below")] {
        let error = FileStore::open(path, "file:/there").err().context("it was taken")?;
        assert!(matches!(error, Error::Unfit(_)), "{error}");
        assert!(error.to_string().starts_with("file:/there"), "{error}");
    }
    let new = place.directory.path().join("new/store");
    FileStore::open(&new, "file:/there")?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&new)?.permissions());
    assert_eq!(mode & 0o777, 0o700);
    Ok(())
}
