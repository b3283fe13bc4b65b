//! Opens what a user named: configuration, passwords, tokens, reports, files of variables, and the
//! directory of a store. It does not know what these are for.
//!
//! dlock may have rights that other users of this machine lack, and they may be able to write where
//! a name leads. So each use resolves the name once, opening never blocks, and what was opened is
//! judged: by its owner, by the users that may write it, and by its kind.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, accessat, fstat, fstatfs, major,
    minor, openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use rustix::stdio::stderr;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};
use std::time::{Duration, Instant};

/// The longest file that is read.
const MOST: u64 = 64 * 1024;
/// The kernel's own limit for links in a path.
const LINKS_MAX: usize = 40;
/// Flags for every file that is opened to be read or written.
const OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Flags for a file that is only looked at.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Why a file is not used. The text follows its name and a colon.
#[derive(Debug)]
pub enum Fault {
    /// The system refuses it.
    Errno(Errno),
    /// It belongs to this other user.
    Foreign(u32),
    /// The way to it leads through a link of this name that belongs to this other user.
    ForeignLink(OsString, u32),
    /// It is in a directory of another user, into which the caller may not look.
    Hidden,
    Unfit(String),
}

impl Fault {
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Errno(Errno::NOENT | Errno::NOTDIR))
    }

    fn irregular() -> Self {
        Self::Unfit("it is not a regular file".into())
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Errno::from_io_error(&error).map_or_else(|| Self::Unfit(error.to_string()), Self::Errno)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => {
                let text = io::Error::from(*errno).to_string();
                f.write_str(&text.split(" (os error").next().unwrap_or_default().to_lowercase())
            }
            Self::Foreign(owner) => write!(f, "it belongs to another user ({owner})"),
            Self::ForeignLink(name, owner) => write!(
                f,
                "'{}' is a link that belongs to another user ({owner}), and is not followed",
                name.display()
            ),
            Self::Hidden => f.write_str("permission denied"),
            Self::Unfit(why) => f.write_str(why),
        }
    }
}

/// Whose settings are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Any,
    RootOrCaller,
}

/// Reads a file of settings: a regular one that no other user may write, or /dev/null. If the owner
/// matters, so do the owners of the links that lead there: a user can let them lead to text of his
/// own in a file that the kernel shows as root's, as in a sysfs of his.
pub fn read_settings(path: &Path, owner: Owner) -> Result<Vec<u8>, Fault> {
    let place = look_at(path, owner).map_err(|fault| match fault {
        Fault::Errno(Errno::ACCESS) if is_hidden_by_another(path) => Fault::Hidden,
        // Without what it leads to, a link is no missing file.
        absent if absent.is_absence() => dangling(path).unwrap_or(absent),
        fault => fault,
    })?;
    let stat = fstat(&place)?;
    if kind(&stat) == FileType::CharacterDevice && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3) {
        return Ok(Vec::new());
    }
    if kind(&stat) != FileType::RegularFile || is_in_proc(&place)? {
        return Err(Fault::irregular());
    }
    if others_may_write(&stat) {
        let mode = stat.st_mode & 0o7777;
        return Err(Fault::Unfit(format!(
            "other users may write it (mode {mode:04o}, group {}); take that right from them (chmod go-w)",
            stat.st_gid
        )));
    }
    let flags = OFlags::RDONLY | OPEN;
    let file = match openat(CWD, format!("/proc/self/fd/{}", place.as_raw_fd()), flags, Mode::empty()) {
        // There is no /proc.
        Err(Errno::NOENT) => {
            let file = openat(CWD, path, flags, Mode::empty())?;
            let opened = fstat(&file)?;
            if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
                return Err(Fault::Unfit("it was replaced just now".into()));
            }
            file
        }
        opened => opened?,
    };
    let mut bytes = Vec::new();
    read_on(&File::from(file), &mut bytes)?;
    limited(bytes)
}

/// Opens a file of settings, only to look at it: to open a device can start a timer or wind a tape.
fn look_at(path: &Path, owner: Owner) -> Result<OwnedFd, Fault> {
    if owner == Owner::Any {
        return Ok(openat(CWD, path, LOOK, Mode::empty())?);
    }
    let at = Destination::find(path)?;
    let place = openat(&at.directory, &at.name, LOOK | OFlags::NOFOLLOW, Mode::empty())?;
    let (stat, directory) = (fstat(&place)?, fstat(&at.directory)?);
    // Another user's directory may have a hard link to a file of root that is meant for something else.
    let is_misplaced = stat.st_nlink > 1 && !is_trusted(directory.st_uid, &directory);
    if is_misplaced || !is_trusted(stat.st_uid, &directory) {
        return Err(Fault::Foreign(if is_misplaced { directory.st_uid } else { stat.st_uid }));
    }
    Ok(place)
}

/// The fault of a link that leads nowhere.
fn dangling(path: &Path) -> Option<Fault> {
    let link = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (kind(&link) == FileType::Symlink).then(|| Fault::Unfit("it is a link that leads nowhere".into()))
}

/// Reads a file of any kind and owner, within this time: a pipe may have no writer.
pub fn read_secret(path: &Path, within: Duration) -> Result<Vec<u8>, Fault> {
    let began = Instant::now();
    let file = File::from(openat(CWD, path, OFlags::RDONLY | OPEN, Mode::empty())?);
    let mut bytes = Vec::new();
    loop {
        let left = within.saturating_sub(began.elapsed());
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                let within = humantime::format_duration(within);
                let why = format!("no end of file came within {within}; what writes to it must close it");
                return Err(Fault::Unfit(why));
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match read_on(&file, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read.map_err(Fault::from).and_then(|()| limited(bytes)),
        }
    }
}

/// Appends to a file that only the user may read if it is new.
pub fn open_to_append(path: &Path) -> Result<File, Fault> {
    if let Some(device) = device(path) {
        return Ok(device?);
    }
    let at = Destination::find(path)?;
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OPEN;
    let new = flags | OFlags::CREATE | OFlags::EXCL;
    match openat(&at.directory, &at.name, new, Mode::from_raw_mode(0o600)) {
        Err(Errno::EXIST) => {
            at.judge(&statat(&at.directory, &at.name, AtFlags::SYMLINK_NOFOLLOW)?)?;
            let file = openat(&at.directory, &at.name, flags, Mode::empty())?;
            let stat = fstat(&file)?;
            at.judge(&stat)?;
            if stat.st_nlink > 1 {
                return Err(Fault::Unfit("it has another name, too (a hard link)".into()));
            }
            Ok(file.into())
        }
        created => Ok(created?.into()),
    }
}

/// Checks that [`replace`] can write a file there.
pub fn can_be_replaced(path: &Path) -> Result<(), Fault> {
    match device(path) {
        Some(device) => device.map(drop)?,
        None => {
            let at = Destination::find_replaceable(path)?;
            accessat(&at.directory, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Replaces a file by one with this text, in one step. `draft` is the name that the new file has
/// until then. The file is not synced.
pub fn replace(path: &Path, draft: &str, text: &[u8]) -> Result<(), Fault> {
    if let Some(device) = device(path) {
        return Ok(device?.write_all(text)?);
    }
    let at = Destination::find_replaceable(path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OPEN;
    let file = openat(&at.directory, draft, flags, Mode::from_raw_mode(0o666))?;
    let done = File::from(file)
        .write_all(text)
        .and_then(|()| Ok(renameat(&at.directory, draft, &at.directory, &at.name)?));
    if done.is_err() {
        let _ = unlinkat(&at.directory, draft, AtFlags::empty());
    }
    Ok(done?)
}

/// Opens a directory, through links of root and the caller only.
pub fn open_directory(path: &Path) -> Result<OwnedFd, Fault> {
    let at = Destination::find(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(&at.directory, &at.name, flags, Mode::empty())?)
}

/// A name in a directory that is open, so that no other directory can be put in its place. It is
/// not a link, and need not exist.
struct Destination {
    directory: OwnedFd,
    name: OsString,
}

impl Destination {
    /// Follows the path step by step, so that each link can be judged before it is followed,
    /// whatever the kernel's settings are.
    fn find(path: &Path) -> Result<Self, Fault> {
        let open = |directory: &OwnedFd, name: &OsStr, flags| {
            openat(directory, name, LOOK | OFlags::NOFOLLOW | flags, Mode::empty())
        };
        let start = |path: &Path| {
            let start = if path.is_absolute() { "/" } else { "." };
            openat(CWD, start, LOOK | OFlags::DIRECTORY, Mode::empty())
        };
        let (mut directory, mut steps, mut links) = (start(path)?, steps_of(path), 0);
        while let Some(name) = steps.pop() {
            // With this flag a file system is mounted if its directory needs that.
            match open(&directory, &name, OFlags::DIRECTORY) {
                Ok(next) if !steps.is_empty() => {
                    directory = next;
                    continue;
                }
                Ok(_) => return Ok(Self { directory, name }),
                Err(Errno::NOENT) if steps.is_empty() => return Ok(Self { directory, name }),
                Err(Errno::NOTDIR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let link = open(&directory, &name, OFlags::empty())?;
            let stat = fstat(&link)?;
            match kind(&stat) {
                FileType::Symlink => {}
                _ if steps.is_empty() => return Ok(Self { directory, name }),
                _ => return Err(Errno::NOTDIR.into()),
            }
            if !is_trusted(stat.st_uid, &fstat(&directory)?) {
                return Err(Fault::ForeignLink(name, stat.st_uid));
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            let target = OsString::from_vec(readlinkat(&link, "", Vec::new())?.into_bytes());
            let target = Path::new(&target);
            if target.is_absolute() {
                directory = start(target)?;
            }
            steps.extend(steps_of(target));
        }
        Ok(Self { directory, name: ".".into() })
    }

    /// Finds a file that may be replaced. A rename would replace a device or pipe by a file, and
    /// break it for everybody.
    fn find_replaceable(path: &Path) -> Result<Self, Fault> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Fault::irregular());
        }
        let at = Self::find(path).map_err(|fault| match fault {
            Fault::Errno(Errno::NOENT) => Fault::Unfit("there is no such directory; make it first".into()),
            fault => fault,
        })?;
        match statat(&at.directory, &at.name, AtFlags::SYMLINK_NOFOLLOW) {
            // Where a link in /proc leads need not have a path.
            Err(Errno::NOENT) if is_in_proc(&at.directory)? => Err(Fault::irregular()),
            Err(Errno::NOENT) => Ok(at),
            found => at.judge(&found?).map(|()| at),
        }
    }

    /// Whether the file may be written: it belongs to root, to the caller, or to the only user who
    /// may write in its directory.
    fn judge(&self, file: &Stat) -> Result<(), Fault> {
        if kind(file) != FileType::RegularFile {
            return Err(Fault::irregular());
        }
        let directory = fstat(&self.directory)?;
        // A group with the number of the owner is the owner's own.
        let is_private = directory.st_mode & 0o002 == 0 && directory.st_gid == directory.st_uid;
        let is_at_home = directory.st_uid == file.st_uid && (is_private || !others_may_write(&directory));
        if is_trusted(file.st_uid, &directory) || is_at_home {
            Ok(())
        } else {
            Err(Fault::Foreign(file.st_uid))
        }
    }
}

/// The steps of a path, the last one first.
fn steps_of(path: &Path) -> Vec<OsString> {
    let is_step = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(is_step).map(|part| part.as_os_str().to_owned()).collect()
}

/// The two devices that may be named in place of a file that is written.
fn device(path: &Path) -> Option<io::Result<File>> {
    match path.to_str()? {
        "/dev/null" => Some(OpenOptions::new().read(true).write(true).open(path)),
        "/dev/stderr" => Some(stderr().try_clone_to_owned().map(File::from)),
        _ => None,
    }
}

/// Reads on to the end, but not much more than may be read.
fn read_on(file: &File, bytes: &mut Vec<u8>) -> io::Result<()> {
    file.take(MOST + 1 - bytes.len() as u64).read_to_end(bytes).map(drop)
}

fn limited(bytes: Vec<u8>) -> Result<Vec<u8>, Fault> {
    if bytes.len() as u64 > MOST { Err(Fault::Unfit("it is longer than 64 KiB".into())) } else { Ok(bytes) }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_in_proc(file: impl AsFd) -> Result<bool, Errno> {
    Ok(fstatfs(file)?.f_type == PROC_SUPER_MAGIC)
}

/// Whether anybody but the owner, root and the caller may write it. The caller's group is mostly one
/// of its own, and so is a group that has the caller's number.
fn others_may_write(stat: &Stat) -> bool {
    may_be_written(stat.st_mode, stat.st_uid, stat.st_gid)
}

/// The same of a file with these permission bits, owner and group.
pub fn may_be_written(mode: u32, owner: u32, group: u32) -> bool {
    let caller = geteuid().as_raw();
    let is_private = owner == caller && group == caller;
    let is_of_others = ![0, getegid().as_raw()].contains(&group) && !is_private;
    mode & 0o002 != 0 || mode & 0o020 != 0 && is_of_others
}

/// Whether the owner is root or the caller. In a user namespace the kernel shows one id for all
/// users outside it. Root is one of them, so such an owner counts as root in a directory in which
/// nobody else may write.
fn is_trusted(owner: u32, directory: &Stat) -> bool {
    owner == 0 || owner == geteuid().as_raw() || is_unmapped(owner) && !others_may_write(directory)
}

/// Whether this id stands for the users outside of a user namespace, and for no user inside.
fn is_unmapped(id: u32) -> bool {
    let read = |path| read_to_string(path).unwrap_or_default();
    if read("/proc/sys/kernel/overflowuid").trim() != id.to_string() {
        return false;
    }
    let map = read("/proc/self/uid_map");
    let is_inside = |line: &str| {
        let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        !matches!(fields[..], [first, _, count] if !(first..first + count).contains(&id.into()))
    };
    !map.is_empty() && !map.lines().any(is_inside)
}

/// Whether the nearest directory that the caller can look at belongs to another user.
fn is_hidden_by_another(path: &Path) -> bool {
    let seen = path.ancestors().skip(1).find_map(|above| statat(CWD, above, AtFlags::empty()).ok());
    seen.is_some_and(|above| above.st_uid != geteuid().as_raw())
}
