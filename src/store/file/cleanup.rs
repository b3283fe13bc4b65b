//! Removes what dead processes have left: FIFOs without a reader, mutexes without a record, and
//! records that are too old to keep. Processes that use the store do it now and then, and listing
//! does it too. Nothing waits for it, and no lock depends on it. Files with other names than
//! dlock's stay.

use crate::lock::Token;
use crate::rules::HISTORY_KEPT;
use crate::store::engine::coordinator::Purpose;
use crate::store::file::directory::{CLEANED_UP, FileName, FileRole};
use crate::store::file::draft;
use crate::store::file::mutex::Mutex;
use crate::store::file::record::RecordFile;
use crate::store::file::{Files, liveness};
use rustix::fs::{AtFlags, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, futimens, statat};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// Interval between two clean-ups by processes that use a lock.
pub(super) const CLEANS_UP_EVERY: Duration = Duration::from_secs(60 * 60);

impl Files {
    /// Cleans up if no process did within [`CLEANS_UP_EVERY`].
    pub(super) fn clean_up_now_and_then(&self) {
        if self.is_clean_up_due() {
            self.clean();
        }
    }

    /// Whether a clean-up is due. Marks it as done at once, so that of many processes only few
    /// clean up.
    fn is_clean_up_due(&self) -> bool {
        let stat = statat(&*self.directory, CLEANED_UP, AtFlags::SYMLINK_NOFOLLOW);
        if stat.as_ref().is_ok_and(|stat| age(stat) < CLEANS_UP_EVERY) {
            return false;
        }
        match self.directory.open_file(CLEANED_UP, OFlags::WRONLY, "clean up") {
            Ok(None) => self.directory.create_file(CLEANED_UP, OFlags::WRONLY).is_ok(),
            Ok(Some((file, _))) => {
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                futimens(&file, &Timestamps { last_access: now, last_modification: now }).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Removes abandoned files, and records that are too old. A file that cannot be removed is
    /// tried again the next time.
    pub(super) fn clean(&self) {
        let directory = &*self.directory;
        let Ok(files) = directory.names() else { return };
        let mut dead = Vec::new();
        let records: BTreeSet<&FileName> =
            files.iter().filter(|(_, role)| *role == FileRole::Record).map(|(file, _)| file).collect();
        let has_record = |file: &FileName| records.contains(&file.with(FileRole::Record));
        for (file, kind) in &files {
            let stat = statat(directory, file.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            let is_old = |span: Duration| stat.as_ref().is_ok_and(|stat| age(stat) > span);
            match kind {
                FileRole::Life if liveness::is_abandoned(directory, file) => dead.push(file.clone()),
                FileRole::Record if is_old(HISTORY_KEPT) => self.remove_history(file),
                // One that is new may be in use.
                FileRole::Unborn | FileRole::Draft | FileRole::Ends
                    if is_old(CLEANS_UP_EVERY) && !has_record(file) =>
                {
                    directory.remove(file).ok();
                }
                FileRole::Mutex if !has_record(file) => {
                    self.remove_history(&file.with(FileRole::Record));
                }
                _ => {}
            }
        }
        if dead.is_empty() {
            return;
        }
        // While a record names the token, its file shows that the owner is dead. A record that does
        // not name a dead token never names it again.
        let Some(named) = self.named() else { return };
        for file in dead.iter().filter(|file| !named.contains(*file)) {
            directory.remove(file).ok();
        }
    }

    /// The life files of all tokens that a record names; None if a record cannot be read.
    fn named(&self) -> Option<BTreeSet<FileName>> {
        let records = self.records().ok()?.into_iter().collect::<Result<Vec<_>, _>>().ok()?;
        let tokens = records.iter().flat_map(|RecordFile { stored, offset, .. }| {
            let now = self.boot.time(*offset);
            let is_forgotten = move |token: &Token| {
                stored.record.waiters.get(token).is_some_and(|waiter| waiter.forget.is_strictly_past(now))
                    && !stored.record.holds.contains_key(token)
            };
            stored.tracked.keys().filter(move |token| !is_forgotten(token))
        });
        Some(tokens.map(|token| FileName::of(token.secret(), FileRole::Life)).collect())
    }

    /// Removes the record of that name, with its ends, draft and mutex, if it is empty.
    fn remove_history(&self, record: &FileName) {
        let directory = &self.directory;
        let Some(mut mutex) = Mutex::take_idle(directory, &record.with(FileRole::Mutex)) else { return };
        let read = RecordFile::read(directory, record, None, Purpose::Change, &self.boot);
        let is_empty = read.is_ok_and(|record| record.stored.is_empty());
        mutex.has_record = !(is_empty && draft::remove(directory, record).is_ok());
    }
}

/// Time since the last modification; zero if it is in the future, because the wall clock was set
/// back.
fn age(stat: &Stat) -> Duration {
    let changed = u64::try_from(stat.st_mtime).unwrap_or(0);
    (SystemTime::UNIX_EPOCH + Duration::from_secs(changed)).elapsed().unwrap_or_default()
}
