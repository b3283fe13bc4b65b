//! The directory of a `file:` store: whether it is fit for locks, the names of its files, how they
//! are made and opened, and what error numbers mean. It does not know what is in the files.
//!
//! A user with write access to the directory can do anything to its locks, and nothing else: he must not
//! make another user of the store read, empty or create a file elsewhere. So everything is done
//! relative to one descriptor of the directory, no link is followed, and a new file is created with
//! O_EXCL. An existing file is checked after it is opened and before it is used: a FIFO, a device
//! or a hard link to another file are not dlock's. Opening never blocks (O_NONBLOCK).
//!
//! As ssh does with its keys, dlock refuses a directory that an unexpected user could write: one
//! that all users may write, sticky or not, or whose owner is neither root nor the caller, because
//! an owner can do anything in it. Its group may write, if its owner allows it; then the files
//! belong to the group too, and any of its users may replace them (so no sticky bit). No link of
//! another user on the way is followed. Otherwise the parents of the directory are not checked: a
//! user that can rename a parent can lead two runs into two directories.

use crate::store::Error;
use crate::sys::named_file::{Fault, open_directory};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, fchmod, fchown, fstat, fstatfs, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What a file of the store is for. Each role has a suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileRole {
    /// Locked while a record is changed.
    Mutex,
    /// A record.
    Record,
    /// The last ends of a lock.
    Ends,
    /// A record, or ends, that are being written.
    Draft,
    /// The FIFO of a holder or waiter.
    Life,
    /// A FIFO that its owner has not opened yet.
    Unborn,
}

impl FileRole {
    const ALL: [Self; 6] = [Self::Mutex, Self::Record, Self::Ends, Self::Draft, Self::Life, Self::Unborn];

    /// The suffix of the file's name, with the dot.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Mutex => ".mutex",
            Self::Record => ".json",
            Self::Ends => ".ends",
            Self::Draft => ".tmp",
            Self::Life => ".life",
            Self::Unborn => ".new",
        }
    }
}

/// The name of a file in the directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName {
    name: String,
}

impl FileName {
    /// The file of `what` (a full name or a token). The name is a hash, so that any text is a valid
    /// file name and a listing shows no token.
    pub(super) fn of(what: &str, kind: FileRole) -> Self {
        let mut name = sha1_smol::Sha1::from(what).digest().to_string();
        name.push_str(kind.suffix());
        Self { name }
    }

    /// The role of a file of that name; None if dlock never uses such a name.
    pub(super) fn parse(name: &[u8]) -> Option<(Self, FileRole)> {
        const HASH: usize = 40;
        let name = std::str::from_utf8(name).ok()?;
        let (hash, suffix) = name.split_at_checked(HASH)?;
        let is_hash = hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let kind = FileRole::ALL.into_iter().find(|kind| kind.suffix() == suffix)?;
        is_hash.then(|| (Self { name: name.into() }, kind))
    }

    /// The file with another role of the same lock or token.
    pub(super) fn with(&self, kind: FileRole) -> Self {
        let hash = self.name.split_once('.').map_or(&*self.name, |(hash, _)| hash);
        Self { name: format!("{hash}{}", kind.suffix()) }
    }

    /// The name as text.
    pub(super) fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The file whose modification time is that of the last clean-up.
pub(super) const CLEANED_UP: &str = "swept";

/// Flags for opening any file: follow no link, do not block, do not pass it to the job.
pub(super) const OPEN: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// What is wrong with a file of another type.
const NOT_REGULAR: &str = "is not a regular file with one name";

/// File systems that other machines may have mounted too, or that a user's program serves: there a
/// FIFO or a file lock only reaches the processes of this kernel, or nobody. From linux/magic.h and
/// the drivers' sources.
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
    fd: OwnedFd,
    /// Device and inode.
    identity: (u64, u64),
    path: PathBuf,
    shown: String,
    /// The group that shares the locks, by its id. None if nobody but the owner may read a token.
    group: Option<u32>,
}

impl Directory {
    /// Opens the directory, or creates it (mode 0700; missing parents as `mkdir -p` would). Refuses
    /// a directory that cannot hold locks. `shown` names the store in messages.
    pub(super) fn open(path: &Path, shown: &str) -> Result<Self, Error> {
        let place = Unopened { path, shown };
        if !path.is_absolute() {
            return Err(Error::Unfit(format!(
                "{shown} is not an absolute directory; write the whole path, as in file:/var/lib/dlock"
            )));
        }
        let fd = match open_directory(path) {
            Err(Fault::Errno(Errno::NOENT)) => {
                place.create()?;
                open_directory(path)
            }
            opened => opened,
        };
        let fd = fd.map_err(|fault| match fault {
            Fault::Errno(Errno::NOTDIR) => place.unfit("it is not a directory"),
            Fault::Errno(errno) => place.error("use the directory", errno),
            fault => place.unsafe_(&fault.to_string()),
        })?;
        let stat = fstat(&fd).map_err(|errno| place.error("use the directory", errno))?;
        let group = place.judge(stat.st_uid, stat.st_gid, stat.st_mode)?;
        let fs = fstatfs(&fd).map_err(|errno| place.error("use the directory", errno))?;
        if let Some(name) = not_of_this_machine(fs.f_type) {
            return Err(place.unfit(&format!("it is on {name}, where locks are not reliable")));
        }
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Self { fd, identity, path: path.into(), shown: shown.into(), group })
    }

    /// The descriptor that the guard must keep open.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The directory that has the path now, if it is another one: somebody removed or moved the one
    /// that was opened.
    pub(super) fn successor(&self) -> Result<Option<Self>, Error> {
        let there = statat(CWD, &self.path, AtFlags::empty()).map(|stat| (stat.st_dev, stat.st_ino));
        if there == Ok(self.identity) { Ok(None) } else { Self::open(&self.path, &self.shown).map(Some) }
    }

    /// Lists dlock's files; leaves out other names.
    pub(super) fn names(&self) -> Result<Vec<(FileName, FileRole)>, Errno> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            names.extend(FileName::parse(entry?.file_name().to_bytes()));
        }
        Ok(names)
    }

    /// The mode of a new file. It applies once [`Directory::adopt`] was called, whatever the umask.
    pub(super) fn mode(&self) -> Mode {
        Mode::from_raw_mode(if self.group.is_some() { 0o660 } else { 0o600 })
    }

    /// Opens and checks an existing regular file; None if there is none. `doing` is for the error.
    pub(super) fn open_file(
        &self,
        file: &str,
        access: OFlags,
        doing: &str,
    ) -> Result<Option<(OwnedFd, Stat)>, Error> {
        let Some(fd) = self.open_any(file, access, doing)? else { return Ok(None) };
        let stat = self.look_at(&fd, file, doing)?;
        Ok(Some((fd, stat)))
    }

    /// Opens an existing file of any type; None if there is none. The caller must check it before
    /// use.
    pub(super) fn open_any(&self, file: &str, access: OFlags, doing: &str) -> Result<Option<OwnedFd>, Error> {
        match openat(&self.fd, file, access | OPEN, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            // A link, a directory, a socket, a device.
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NODEV) => {
                Err(self.strange(file, NOT_REGULAR))
            }
            Err(errno) => Err(self.error(doing, errno)),
            Ok(fd) => Ok(Some(fd)),
        }
    }

    /// Checks an open file: it must be a regular file with one name. A file without a name has just
    /// been removed, which the caller must handle.
    pub(super) fn look_at(&self, fd: &OwnedFd, file: &str, doing: &str) -> Result<Stat, Error> {
        let stat = fstat(fd).map_err(|errno| self.error(doing, errno))?;
        if kind_of(&stat) == FileType::RegularFile && stat.st_nlink <= 1 {
            Ok(stat)
        } else {
            Err(self.strange(file, NOT_REGULAR))
        }
    }

    /// Whether there is a regular file of that name, of at most this many bytes.
    pub(super) fn has_file(&self, file: &FileName, most: u64) -> bool {
        let stat = statat(&self.fd, file.as_str(), AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| {
            kind_of(&stat) == FileType::RegularFile
                && stat.st_nlink == 1
                && u64::try_from(stat.st_size).is_ok_and(|size| size <= most)
        })
    }

    /// Creates a regular file; EEXIST if there is one.
    pub(super) fn create_file(&self, file: &str, access: OFlags) -> Result<OwnedFd, Errno> {
        let fd = openat(&self.fd, file, access | OPEN | OFlags::CREATE | OFlags::EXCL, self.mode())?;
        self.adopt(&fd)?;
        Ok(fd)
    }

    /// Gives a new file to the group that shares the directory.
    pub(super) fn adopt(&self, file: &OwnedFd) -> Result<(), Errno> {
        let Some(group) = self.group else { return Ok(()) };
        // Before the mode, so that no other group than the directory's can read it for a moment. Where
        // the group is not mapped, as in a container, the file has it already, and nobody can give it.
        if fstat(file)?.st_gid != group {
            fchown(file, None, Some(Gid::from_raw(group)))?;
        }
        fchmod(file, self.mode())
    }

    /// Whether a file has the group and mode that dlock gives. A user who could put a file of
    /// another user here, to have it written to, may write such a file anyway.
    pub(super) fn has_rights(&self, stat: &Stat) -> bool {
        self.group.is_none_or(|group| stat.st_gid == group)
            && Mode::from_raw_mode(stat.st_mode) == self.mode()
    }

    /// Removes a file. It is no error if there is none.
    pub(super) fn remove(&self, file: &FileName) -> Result<(), Errno> {
        match unlinkat(&self.fd, file.as_str(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    /// How messages name the store.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The error of the store for an errno.
    pub(super) fn error(&self, doing: &str, errno: Errno) -> Error {
        Unopened { path: &self.path, shown: &self.shown }.error(doing, errno)
    }

    /// The error for a file that has a name of dlock's, and that dlock did not make.
    pub(super) fn strange(&self, file: &str, what: &str) -> Error {
        Error::Garbled(format!(
            "{}: {file} {what}, and dlock did not make it; it was not changed: find out who put it there, and remove it",
            self.shown
        ))
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A directory that is not opened yet.
struct Unopened<'a> {
    path: &'a Path,
    shown: &'a str,
}

impl Unopened<'_> {
    fn create(&self) -> Result<(), Error> {
        let failed = |error| match errno(&error) {
            // As under /proc, where nothing can be created although no parent is missing.
            Errno::NOENT => self.unfit("the directory does not exist and cannot be created"),
            errno => self.error("create the directory", errno),
        };
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        match DirBuilder::new().mode(0o700).create(self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// The group that shares the locks of a directory with this owner, group and mode, if one does.
    /// Refuses it if an unexpected user could write it.
    fn judge(&self, owner: u32, group: u32, mode: u32) -> Result<Option<u32>, Error> {
        let caller = geteuid().as_raw();
        if owner != 0 && owner != caller {
            return Err(self.unsafe_(&format!(
                "it belongs to user {owner}, who is neither root nor you (user {caller}) and could change its files; name a directory that you or root own, or run dlock as that user"
            )));
        }
        if mode & 0o002 != 0 {
            return Err(self.unsafe_(&format!(
                "every user of this machine may write there (mode {:04o}); name a directory of your own, or give this one \
                 to a group: chgrp GROUP {path}; chmod 2770 {path}",
                mode & 0o7777,
                path = self.path.display(),
            )));
        }
        if mode & 0o1020 == 0o1020 {
            return Err(self.unsafe_(&format!(
                "its sticky bit keeps the users of its group from replacing each other's files; remove it: chmod -t {}",
                self.path.display()
            )));
        }
        Ok((mode & 0o020 != 0).then_some(group))
    }

    fn unsafe_(&self, why: &str) -> Error {
        Error::Unfit(format!("{}: this directory is not safe for locks: {why}", self.shown))
    }

    fn unfit(&self, why: &str) -> Error {
        Error::Unfit(format!("{} cannot hold locks: {why}; name one on a disk of this machine", self.shown))
    }

    fn error(&self, doing: &str, errno: Errno) -> Error {
        let text = format!("{}: cannot {doing}: {errno}", self.shown);
        match errno {
            Errno::ACCESS | Errno::PERM => Error::Denied(format!(
                "{text}; give this user the right to write there (a directory that several users share belongs to root and \
                 to their group, which may write it: mode 2770), or name another directory"
            )),
            Errno::NOSPC | Errno::DQUOT => Error::Unavailable(format!("{text}; make room there")),
            Errno::FBIG => Error::Unavailable(format!(
                "{text}: a limit on the size of files is set for this process; raise it (ulimit -f)"
            )),
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
            _ => Error::Unavailable(format!("{text}; correct that and try again")),
        }
    }
}

pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The type of a file.
pub(super) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The name of the file system if it is refused. The kernel's type is signed and its width varies;
/// only 32 bits count.
fn not_of_this_machine(f_type: impl TryInto<i64>) -> Option<&'static str> {
    let magic = f_type.try_into().unwrap_or(0).cast_unsigned() & 0xFFFF_FFFF;
    NOT_OF_THIS_MACHINE.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_an_unexpected_user_may_write_is_refused() {
        let (root, me, stranger) = (0, geteuid().as_raw(), 4_000_000_000);
        let place = Unopened { path: Path::new("/d"), shown: "file:/d" };
        for (owner, mode, is_fit) in [
            (root, 0o40700, Some(None)),
            (me, 0o40755, Some(None)),
            (root, 0o42770, Some(Some(7))),
            (me, 0o43770, None),
            (me, 0o41700, Some(None)),
            (me, 0o40775, Some(Some(7))),
            (me, 0o40777, None),
            (root, 0o41777, None),
            (stranger, 0o40700, None),
            (stranger, 0o42770, None),
        ] {
            let judged = place.judge(owner, 7, mode);
            assert_eq!(judged.as_ref().ok().copied(), is_fit, "{owner} {mode:o}");
            if let Err(error) = judged {
                assert!(matches!(error, Error::Unfit(_)));
                assert!(error.to_string().starts_with("file:/d: "), "{error}");
            }
        }
    }

    #[test]
    fn file_systems_of_other_machines_are_known_by_their_type() {
        assert_eq!(not_of_this_machine(0x6969_i64), Some("NFS"));
        assert_eq!(not_of_this_machine(i64::from(0xFF53_4D42_u32.cast_signed())), Some("CIFS"));
        assert_eq!(not_of_this_machine(0xEF53_i64), None);
    }

    #[test]
    fn only_names_that_dlock_gives_are_its_files() {
        for kind in FileRole::ALL {
            let file = FileName::of("dlock:k", kind);
            assert_eq!(FileName::parse(file.as_str().as_bytes()), Some((file.clone(), kind)));
        }
        for name in
            ["x.mutex", "swept", "notes.tmp", ".life", "0123456789abcdef0123456789abcdef0123456Z.json"]
        {
            assert_eq!(FileName::parse(name.as_bytes()), None, "{name}");
        }
    }
}
