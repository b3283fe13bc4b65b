//! What does dlock do with a record that another program has changed? The record is that of the
//! `file:` store; the other stores that keep JSON read it by the same code. The seeds have no sum (it
//! is zero), or each change would be refused for that alone.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static RECORD: OnceLock<PathBuf> = OnceLock::new();

fn place() -> String {
    format!("/dev/shm/dlock-fuzz-{}", std::process::id())
}

/// The file of a lock that was held once.
fn record() -> PathBuf {
    let url = format!("file:{}", place());
    dlock_fuzz::run(&["dlock", "acquire", "-k", "k", "-t", "1h", "--store", &url]);
    let files = Path::new(&place()).read_dir().expect("a directory").flatten();
    let mut files = files.map(|file| file.path());
    files.find(|path| path.extension().is_some_and(|end| end == "json")).expect("a record")
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    std::fs::write(RECORD.get_or_init(record), rest).expect("a file");
    let url = format!("file:{}", place());
    let command: &[&str] = match first % 4 {
        0 => &["status", "--json", "k"],
        1 => &["history", "--refused", "k"],
        2 => &["acquire", "-k", "k", "-t", "1h"],
        _ => &["release", "k", "--force", "-y"],
    };
    dlock_fuzz::run(&[&["dlock"], command, &["--store", &url]].concat());
});
