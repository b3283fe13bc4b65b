//! A small disk that a store may use, and that can be filled.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small disk, unmounted when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts a disk of this size (`4m`) on an existing directory, for the user with this id.
    /// Returns None where the test may not mount.
    pub fn mount(place: &Path, size: &str, owner: u32) -> Option<Self> {
        let options = format!("size={size},mode=700,uid={owner}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(place).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(place.into()))
    }

    /// Fills the disk.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).expect("a file");
        while file.write_all(&[0; 1 << 16]).is_ok() {}
        while file.write_all(&[0; 64]).is_ok() {}
    }

    /// Frees the space that [`Disk::fill`] took.
    pub fn clear(&self) {
        fs::remove_file(self.filler()).expect("the file that fills it");
    }

    /// Where the disk is mounted.
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
