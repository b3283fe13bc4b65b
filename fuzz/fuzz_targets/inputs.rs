//! What does dlock do with a store URL, a config file, DLOCK_HELD, a duration, a key or a command
//! line that nobody would write? The first byte chooses which of them the rest is.
#![no_main]

use dlock::cli::{duration, usage};
use dlock::commands::held::Holds;
use dlock::config::{file::File, url};
use dlock::lock::{Key, Name};
use std::ffi::OsString;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    if first % 6 == 1 {
        return drop(File::parse(Path::new("fuzz.toml"), rest));
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match first % 6 {
        0 => drop(url::parse(text)),
        2 => drop(Holds::parse(text)),
        3 => drop(duration::parse(text)),
        4 => drop(Key::new(text).and_then(|key| Name::new(text, &key))),
        _ => {
            let words = ["dlock"].into_iter().chain(text.split('\n'));
            drop(usage::parse(words.map(OsString::from)));
        }
    }
});
