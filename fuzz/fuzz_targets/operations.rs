//! Operations and crash points from bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| indelible_crash::fuzz::operations(data));
