//! Tests what another user with write access to the directory can do: nothing to files elsewhere,
//! and nothing to locks whose files that user did not change.

use super::*;
use std::os::unix::fs::{PermissionsExt as _, symlink};

const STORE_FILES: [FileRole; 2] = [FileRole::Record, FileRole::Mutex];

fn fifo(path: &Path) -> Result<()> {
    ensure!(std::process::Command::new("mkfifo").arg(path).status()?.success());
    Ok(())
}

/// Creates something at a path that is not a file of dlock's.
type Put = fn(&Path) -> Result<()>;

const STRANGE: [Put; 5] = [
    fifo,
    |path| Ok(std::fs::create_dir(path)?),
    |path| Ok(symlink("/dev/null", path)?),
    |path| std::os::unix::net::UnixListener::bind(path).map(drop).map_err(Into::into),
    |path| {
        let victim = path.with_extension("victim");
        std::fs::write(&victim, "")?;
        Ok(std::fs::hard_link(victim, path)?)
    },
];

#[test]
fn a_foreign_file_is_an_error_for_its_lock_only() -> Result<()> {
    for (number, put) in STRANGE.into_iter().enumerate() {
        for kind in STORE_FILES {
            let place = Place::new()?;
            put(&place.path(kind)?)?;
            let mut process = place.process()?;
            let error = process.acquire(Patience::None).err().context(number)?.to_string();
            let file = FileName::of(name()?.as_str(), kind);
            assert!(error.starts_with("file:/locks: ") && error.contains("is not a regular file"), "{error}");
            assert!(error.contains(file.as_str()), "{error}");
            if kind == FileRole::Record {
                assert!(process.store.inspect(&name()?, by()).is_err());
            }
            let mut other = place.wants(&["other"], Mode::Exclusive)?;
            other.granted()?;
            assert_eq!(place.store()?.all("dlock:")?, [named("other")?]);
            assert!(place.path(kind)?.symlink_metadata().is_ok(), "it was left as it is");
        }
    }
    Ok(())
}

#[test]
fn a_huge_record_is_not_read() -> Result<()> {
    let place = Place::new()?;
    File::create(place.path(FileRole::Record)?)?.set_len(2 << 30)?;
    let mut process = place.process()?;
    let error = process.acquire(Patience::None).err().context("taken")?.to_string();
    assert!(error.contains("bytes"), "{error}");
    assert!(place.store()?.all("dlock:")?.is_empty());
    Ok(())
}

/// Whatever is put where dlock will write, nothing outside the directory is changed or created.
#[test]
fn links_lead_nowhere_outside_the_directory() -> Result<()> {
    let elsewhere = tempfile::tempdir()?;
    let (victim, unmade) = (elsewhere.path().join("victim"), elsewhere.path().join("unmade"));
    std::fs::write(&victim, "precious")?;
    let life = Token::random()?;
    let mut files = vec!["swept".to_owned()];
    for kind in [FileRole::Mutex, FileRole::Record, FileRole::Ends, FileRole::Draft] {
        files.push(FileName::of(name()?.as_str(), kind).as_str().into());
    }
    for kind in [FileRole::Life, FileRole::Unborn] {
        files.push(FileName::of(life.secret(), kind).as_str().into());
    }
    for target in [&victim, &unmade] {
        for file in &files {
            let place = Place::new()?;
            let path = place.directory.path().join(file);
            symlink(target, &path)?;
            let mut store = place.store()?;
            store.prepare(&life).ok();
            let mut process = Process::of(store, life.clone())?;
            process.acquire(Patience::None).ok();
            process.leave().ok();
            place.store()?.all("dlock:").ok();
            assert_eq!(std::fs::read_to_string(&victim)?, "precious", "{path:?}");
            assert!(!unmade.exists(), "{path:?}");
        }
    }
    Ok(())
}

/// A file of another user, which somebody moved there, is removed, not written to.
#[test]
fn a_file_without_the_rights_of_the_directory_is_not_written_to() -> Result<()> {
    for (role, is_crowd) in [(FileRole::Draft, true), (FileRole::Ends, false)] {
        let place = Place::new()?;
        let (path, elsewhere) = (place.path(role)?, place.directory.path().join("elsewhere"));
        std::fs::write(&elsewhere, "precious")?;
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o644))?;
        let mut open = File::open(&elsewhere)?;
        std::fs::rename(&elsewhere, &path)?;
        let mut holder = place.holder()?;
        let _crowd = if is_crowd { place.crowd("nightly")? } else { Vec::new() };
        holder.leave()?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut open, &mut text)?;
        assert_eq!(text, "precious", "{role:?}");
        assert_eq!(place.view("nightly")?.log.len(), 1);
    }
    Ok(())
}

#[test]
fn a_hard_link_is_not_written_to() -> Result<()> {
    for kind in STORE_FILES {
        let place = Place::new()?;
        let victim = place.directory.path().join("victim");
        std::fs::write(&victim, "")?;
        std::fs::hard_link(&victim, place.path(kind)?)?;
        assert!(place.process()?.acquire(Patience::None).is_err());
        assert_eq!(std::fs::metadata(&victim)?.len(), 0);
    }
    Ok(())
}

#[test]
fn files_with_other_names_stay() -> Result<()> {
    let place = Place::new()?;
    let at = |name: &str| place.directory.path().join(name);
    let hash = FileName::of("x", FileRole::Mutex).as_str().replace(".mutex", "");
    let foreign = ["notes.mutex", "a.tmp", "b.json", "c.new", &format!("{hash}.mutex.bak")];
    for name in foreign {
        std::fs::write(at(name), "")?;
    }
    fifo(&at("d.life"))?;
    std::fs::create_dir(at(&format!("{hash}.mutex")))?;
    let mut process = place.process()?;
    process.granted()?;
    process.leave()?;
    assert_eq!(place.store()?.all("dlock:")?, [name()?]);
    for name in foreign.into_iter().chain(["d.life", &format!("{hash}.mutex")]) {
        assert!(at(name).exists(), "{name}");
    }
    Ok(())
}

#[test]
fn a_directory_that_all_may_write_is_refused() -> Result<()> {
    for (mode, is_fit) in [(0o777, false), (0o1777, false), (0o770, true), (0o3770, false), (0o755, true)] {
        let place = Place::new()?;
        std::fs::set_permissions(place.directory.path(), std::fs::Permissions::from_mode(mode))?;
        let opened = place.store();
        assert_eq!(opened.is_ok(), is_fit, "{mode:o}");
        if let Err(error) = opened {
            let text = error.to_string();
            assert!(text.contains("not safe") && text.contains("chmod"), "{text}");
        }
    }
    Ok(())
}

#[test]
fn files_have_the_rights_of_the_directory() -> Result<()> {
    for (directory, file) in [(0o700, 0o600), (0o755, 0o600), (0o2770, 0o660)] {
        let place = Place::new()?;
        std::fs::set_permissions(place.directory.path(), std::fs::Permissions::from_mode(directory))?;
        let mut last = place.holder()?;
        last.leave()?;
        let holder = place.holder()?;
        let _crowd = place.crowd("nightly")?;
        for role in [FileRole::Record, FileRole::Ends, FileRole::Mutex, FileRole::Life] {
            let path = if role == FileRole::Life { place.life_of(&holder) } else { place.path(role)? };
            let mode = std::fs::metadata(&path)?.permissions().mode() & 0o7777;
            assert_eq!(mode, file, "{path:?} in {directory:o}");
        }
    }
    Ok(())
}

/// Every value in a record has bounds.
#[test]
fn a_forged_record_is_refused() -> Result<()> {
    let forged: [fn(&mut RecordFile); 9] = [
        |RecordFile { stored, .. }| {
            stored.record.holds.values_mut().for_each(|hold| hold.owner.command = "ü".repeat(1 << 20));
        },
        |RecordFile { stored, .. }| stored.record.fence = u64::MAX,
        |RecordFile { stored, .. }| stored.version = u64::MAX,
        |RecordFile { stored, .. }| stored.ends = u64::MAX,
        |RecordFile { offset, .. }| *offset = u64::MAX,
        |RecordFile { stored, .. }| {
            stored.record.waiters.values_mut().for_each(|waiter| waiter.ticket = u64::MAX)
        },
        |RecordFile { stored, .. }| {
            stored.record.waiters.values_mut().for_each(|waiter| waiter.mode = Mode::Slots(u32::MAX));
        },
        |RecordFile { stored, .. }| stored.name = "dlock:other".into(),
        |RecordFile { stored, .. }| stored.record.holds.values_mut().for_each(|hold| hold.until.0 = u64::MAX),
    ];
    for (number, change) in forged.into_iter().enumerate() {
        let place = Place::new()?;
        let (_holder, _waiter) = place.holder_and_waiter()?;
        place.forge("nightly", change)?;
        assert!(place.view("nightly").is_err(), "{number}");
        assert!(place.process()?.acquire(Patience::Queue).is_err(), "{number}");
    }
    Ok(())
}
