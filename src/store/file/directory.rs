//! Where do the records live, and who may read them? The directory of a `file:` store: whether it is fit, what its
//! files are called and which mode they get, and what an error number means there. It knows nothing of what is in
//! the files.
//!
//! Who may write the directory may do everything to its locks, and nobody else may read a token: a file gets 0600,
//! with the rights of the group or of all others only where the directory lets these write, and not where it is
//! sticky, for there nobody can replace another user's record.

use crate::store::Error;
use rustix::fs::{AtFlags, CWD, Mode, statat, statfs, unlinkat};
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What a file of the store is for; its suffix says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Locked while a record is changed.
    Mutex,
    /// A record.
    Record,
    /// A record being written.
    Draft,
    /// The FIFO of a holder or waiter.
    Life,
    /// A FIFO that nobody has opened yet.
    Unborn,
}

impl Kind {
    /// The end of the file's name, dot included.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Mutex => ".mutex",
            Self::Record => ".json",
            Self::Draft => ".tmp",
            Self::Life => ".life",
            Self::Unborn => ".new",
        }
    }
}

/// File systems that other machines may have mounted too, or that a user's program serves: there a FIFO or a file
/// lock joins only the processes of this kernel, or nobody. From linux/magic.h and the drivers' sources.
const NOT_OF_THIS_MACHINE: [(u64, &str); 20] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00C3_6400, "Ceph"),
    (0x564C, "NCP"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x0BD0_0BD0, "Lustre"),
    (0x786F_4256, "vboxsf"),
    (0x4750_5346, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0xBACB_ACBC, "vmhgfs"),
    (0x6163_6673, "ACFS"),
];

/// A directory that can hold locks.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    shown: String,
    mode: Mode,
}

impl Directory {
    /// Creates the directory if there is none (0700; missing parents as `mkdir -p` would), and refuses one that
    /// cannot hold locks. `shown` names the store in messages.
    pub(super) fn open(path: &Path, shown: &str) -> Result<Self, Error> {
        if !path.is_absolute() {
            return Err(Error::Unfit(format!(
                "{shown} is not an absolute directory; write the whole path, as in file:/var/lib/dlock"
            )));
        }
        let mut this = Self { path: path.into(), shown: shown.into(), mode: Mode::from_raw_mode(0o600) };
        this.create()?;
        let stat =
            statat(CWD, path, AtFlags::empty()).map_err(|errno| this.error("use the directory", errno))?;
        if stat.st_mode & 0o170_000 != 0o040_000 {
            return Err(this.unfit("it is not a directory"));
        }
        let fs = statfs(path).map_err(|errno| this.error("use the directory", errno))?;
        if let Some(name) = not_of_this_machine(fs.f_type) {
            return Err(this.unfit(&format!("it is on {name}, which does not carry locks reliably")));
        }
        this.mode = mode_of_files(stat.st_mode);
        Ok(this)
    }

    fn create(&self) -> Result<(), Error> {
        if self.path.exists() {
            return Ok(());
        }
        let failed = |error: std::io::Error| match error.kind() {
            // As under /proc, where nothing can be created, and yet nothing is missing.
            std::io::ErrorKind::NotFound => self.unfit("the directory does not exist and cannot be created"),
            _ => self.io("create the directory", &error),
        };
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// The directory itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that is called after `what` (a full name, a token): by a hash, so that any text makes a file name and
    /// a listing shows no token.
    pub(super) fn file(&self, what: &str, kind: Kind) -> PathBuf {
        let mut name = sha1_smol::Sha1::from(what).digest().to_string();
        name.push_str(kind.suffix());
        self.path.join(name)
    }

    /// The file whose date says when abandoned files were last looked for.
    pub(super) fn swept(&self) -> PathBuf {
        self.path.join("swept")
    }

    /// The mode of a new file.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether other users take part, so that a mode must not depend on the umask.
    pub(super) fn is_shared(&self) -> bool {
        self.mode != Mode::from_raw_mode(0o600)
    }

    /// How the store is named in messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// What failed, as an error of the store.
    pub(super) fn error(&self, doing: &str, errno: Errno) -> Error {
        let text = format!("{}: cannot {doing}: {errno}", self.shown);
        match errno {
            Errno::ACCESS | Errno::PERM => Error::Denied(format!(
                "{text}; give this user the right to write there (a directory that several users share is group-writable, \
                 set-gid and not sticky), or name another directory"
            )),
            Errno::NOSPC | Errno::DQUOT => Error::Unavailable(format!("{text}; make room there")),
            Errno::ROFS
            | Errno::NOTDIR
            | Errno::EXIST
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::NOSYS
            | Errno::OPNOTSUPP => Error::Unfit(format!("{text}; name another directory")),
            Errno::NOENT => {
                Error::Unavailable(format!("{text}; was the directory or a file in it removed by hand?"))
            }
            _ => Error::Unavailable(format!("{text}; mend that and try again")),
        }
    }

    /// As [`Directory::error`].
    pub(super) fn io(&self, doing: &str, error: &std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(code) => self.error(doing, Errno::from_raw_os_error(code)),
            None => Error::Unavailable(format!("{}: cannot {doing}: {error}; try again", self.shown)),
        }
    }

    fn unfit(&self, why: &str) -> Error {
        Error::Unfit(format!(
            "{}: this place cannot hold locks: {why}; name a directory on a disk of this machine",
            self.shown
        ))
    }
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> Result<(), Errno> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// The name of a file system that is refused. The kernel's type is signed and of different widths; only 32 bits count.
fn not_of_this_machine(f_type: impl TryInto<i64>) -> Option<&'static str> {
    let magic = f_type.try_into().unwrap_or(0).cast_unsigned() & 0xFFFF_FFFF;
    NOT_OF_THIS_MACHINE.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

fn mode_of_files(directory: u32) -> Mode {
    let shared = if directory & 0o1000 == 0 { directory & 0o022 } else { 0 };
    let group = if shared & 0o020 == 0 { 0 } else { 0o060 };
    let others = if shared & 0o002 == 0 { 0 } else { 0o006 };
    Mode::from_raw_mode(0o600 | group | others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_open_as_the_directory() {
        for (directory, file) in
            [(0o40700, 0o600), (0o40755, 0o600), (0o42770, 0o660), (0o40777, 0o666), (0o41777, 0o600)]
        {
            assert_eq!(mode_of_files(directory), Mode::from_raw_mode(file), "{directory:o}");
        }
    }

    #[test]
    fn file_systems_of_other_machines_are_known_by_their_type() {
        assert_eq!(not_of_this_machine(0x6969_i64), Some("NFS"));
        assert_eq!(not_of_this_machine(i64::from(0xFF53_4D42_u32.cast_signed())), Some("CIFS"));
        assert_eq!(not_of_this_machine(0xEF53_i64), None);
    }
}
