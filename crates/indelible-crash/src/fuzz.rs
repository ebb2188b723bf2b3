//! What a fuzzer drives.
