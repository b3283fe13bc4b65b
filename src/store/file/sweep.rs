//! Who removes what the dead have left? Whoever uses the store, now and then, and whoever lists it: FIFOs that nobody
//! reads, mutexes without a record, records too old to keep. Nothing waits for it, and no lock depends on it.

use crate::law::HISTORY_KEPT;
use crate::store::file::directory::{Kind, remove};
use crate::store::file::mutex::Mutex;
use crate::store::file::record::{Kept, load};
use crate::store::file::{FileStore, life};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often abandoned files are looked for on behalf of a lock that is used.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

impl FileStore {
    /// Sweeps if nobody did for a while.
    pub(super) fn sweep_now_and_then(&self) {
        let path = self.directory.swept();
        let swept = std::fs::metadata(&path).and_then(|meta| meta.modified());
        if swept.is_ok_and(|time| age(time) < SWEEP_EVERY) {
            return;
        }
        // First, so that of many that find it old few sweep. Made anew, for it may be another user's.
        if remove(&path).is_ok() && std::fs::write(&path, b"").is_ok() {
            self.sweep();
        }
    }

    /// Removes what the dead have left, and records too old to keep. What cannot be removed now is met again.
    pub(super) fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(self.directory.path()) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let is = |kind: Kind| entry.file_name().as_encoded_bytes().ends_with(kind.suffix().as_bytes());
            let is_older_than = |span: Duration| {
                let modified = entry.metadata().and_then(|meta| meta.modified());
                modified.is_ok_and(|time| age(time) > span)
            };
            // One that was never opened may be about to be.
            let is_life = is(Kind::Life) || is(Kind::Unborn) && is_older_than(SWEEP_EVERY);
            if is_life && life::is_abandoned(&path) {
                remove(&path).ok();
            } else if is(Kind::Record) && is_older_than(HISTORY_KEPT) {
                self.remove_history(&path);
            } else if is(Kind::Mutex) && !with(&path, Kind::Record).exists() {
                self.remove_history(&with(&path, Kind::Record));
            }
        }
    }

    /// Removes the record at `path` with all that belongs to it, if it says nothing.
    fn remove_history(&self, path: &Path) {
        let Some(mutex) = Mutex::take_idle(&with(path, Kind::Mutex)) else { return };
        let is_empty = match load(&self.directory, path) {
            Ok(None) => true,
            Ok(Some(bytes)) => Kept::parse(&self.directory, path, Some(&bytes), None, &self.boot)
                .is_ok_and(|kept| kept.is_empty()),
            Err(_) => false,
        };
        if is_empty && remove(path).is_ok() && remove(&with(path, Kind::Draft)).is_ok() {
            mutex.remove().ok();
        }
    }
}

/// The file that belongs to the same lock.
fn with(path: &Path, kind: Kind) -> PathBuf {
    path.with_extension(&kind.suffix()[1..])
}

/// How long ago that was; nothing for the future, where a clock that stepped may have put it.
fn age(time: SystemTime) -> Duration {
    time.elapsed().unwrap_or_default()
}
