//! Damaged pools to open, check, read and write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| indelible_crash::fuzz::damaged_pool(data));
