//! Who removes what the dead have left? Whoever uses the store, now and then, and whoever lists it: FIFOs that nobody
//! reads, mutexes without a record, records too old to keep. Nothing waits for it, and no lock depends on it. What has
//! another name than dlock gives its files, or another type, is somebody else's and stays.

use crate::rules::HISTORY_KEPT;
use crate::store::engine::queue::Waiting;
use crate::store::file::directory::{FileName, FileRole, SWEPT, kind_of};
use crate::store::file::mutex::Mutex;
use crate::store::file::record::RecordFile;
use crate::store::file::slot::{Access, load};
use crate::store::file::{Files, liveness};
use rustix::fs::{AtFlags, FileType, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, futimens, statat};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// How often abandoned files are looked for on behalf of a lock that is used.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

impl Files {
    /// Sweeps if nobody did for a while.
    pub(super) fn sweep_now_and_then(&self) {
        if self.is_time_to_sweep() {
            self.sweep();
        }
    }

    /// Whether nobody did for a while; from now on somebody has, so that of many that find it old few sweep.
    fn is_time_to_sweep(&self) -> bool {
        let stat = statat(&*self.directory, SWEPT, AtFlags::SYMLINK_NOFOLLOW);
        if stat.as_ref().is_ok_and(|stat| age(stat) < SWEEP_EVERY) {
            return false;
        }
        match self.directory.open_file(SWEPT, OFlags::WRONLY, "sweep") {
            Ok(None) => self.directory.create_file(SWEPT, OFlags::WRONLY).is_ok(),
            Ok(Some((file, _))) => {
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                futimens(&file, &Timestamps { last_access: now, last_modification: now }).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Removes what the dead have left, and records too old to keep. What cannot be removed now is met again.
    pub(super) fn sweep(&self) {
        let directory = &*self.directory;
        let Ok(files) = directory.names() else { return };
        let mut dead: Vec<FileName> = Vec::new();
        for (file, kind) in &files {
            let stat = statat(directory, file.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            let is_old = |span: Duration| stat.as_ref().is_ok_and(|stat| age(stat) > span);
            match kind {
                FileRole::Life if liveness::is_abandoned(directory, file) => dead.push(file.clone()),
                // One that was never opened may be about to be.
                FileRole::Unborn if is_old(SWEEP_EVERY) && liveness::is_abandoned(directory, file) => {
                    directory.remove(file).ok();
                }
                FileRole::Draft if is_old(SWEEP_EVERY) && is_regular(stat.as_ref().ok()) => {
                    directory.remove(file).ok();
                }
                FileRole::Record if is_old(HISTORY_KEPT) => self.remove_history(file),
                FileRole::Mutex if is_regular(stat.as_ref().ok()) => {
                    let record = file.with(FileRole::Record);
                    if !files.iter().any(|(file, _)| *file == record) {
                        self.remove_history(&record);
                    }
                }
                _ => {}
            }
        }
        if dead.is_empty() {
            return;
        }
        // As long as a record names it, the file is what shows that its owner is dead. One that is dead is not named anew
        // by a record that did not name it.
        let Some(named) = self.named() else { return };
        for file in dead.iter().filter(|file| !named.contains(*file)) {
            directory.remove(file).ok();
        }
    }

    /// The lives of which a record knows; nothing if one cannot be read.
    fn named(&self) -> Option<BTreeSet<FileName>> {
        let records = self.records().ok()?.into_iter().collect::<Result<Vec<_>, _>>().ok()?;
        let waiters = records.iter().flat_map(|record| {
            let now = record.now(&self.boot);
            record.queue.waiting.iter().filter(move |waiting| !waiting.is_forgotten(now))
        });
        let tracked = records.iter().flat_map(|record| record.tracked.keys().cloned());
        let tokens = tracked.chain(waiters.filter_map(Waiting::token));
        Some(tokens.map(|token| FileName::of(token.secret(), FileRole::Life)).collect())
    }

    /// Removes the record of that name with all that belongs to it, if it says nothing.
    fn remove_history(&self, record: &FileName) {
        let directory = &*self.directory;
        let Some(mutex) = Mutex::take_idle(directory, &record.with(FileRole::Mutex)) else { return };
        let is_empty = match load(directory, record, Access::Look) {
            Ok(None) => true,
            Ok(Some(content)) => RecordFile::parse(directory, record, Some(&content), None, &self.boot)
                .is_ok_and(|record| record.is_empty()),
            Err(_) => false,
        };
        let draft = record.with(FileRole::Draft);
        if is_empty && directory.remove(record).is_ok() && directory.remove(&draft).is_ok() {
            mutex.remove(directory).ok();
        }
    }
}

fn is_regular(stat: Option<&Stat>) -> bool {
    stat.is_some_and(|stat| kind_of(stat) == FileType::RegularFile)
}

/// How long ago it was changed; nothing for the future, where a clock that stepped may have put it.
fn age(stat: &Stat) -> Duration {
    let changed = u64::try_from(stat.st_mtime).unwrap_or(0);
    (SystemTime::UNIX_EPOCH + Duration::from_secs(changed)).elapsed().unwrap_or_default()
}
