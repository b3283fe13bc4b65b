//! What does dlock do with the replies of a bad server of this kind?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dlock_fuzz::replies("zookeeper://127.0.0.1:PORT", data));
