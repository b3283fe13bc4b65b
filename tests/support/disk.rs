//! A disk with little room, which a store may use, and which can be filled.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The disk. It is gone when it is dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// At a directory that is there, of so much room (`4m`), for the user with this id; nothing where we may not mount one.
    pub fn mount(place: &Path, size: &str, owner: u32) -> Option<Self> {
        let options = format!("size={size},mode=700,uid={owner}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(place).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(place.into()))
    }

    /// Leaves no room.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).expect("a file");
        while file.write_all(&[0; 1 << 16]).is_ok() {}
        while file.write_all(&[0; 64]).is_ok() {}
    }

    /// Gives back the room that [`Disk::fill`] took.
    pub fn clear(&self) {
        fs::remove_file(self.filler()).expect("the file that fills it");
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}
