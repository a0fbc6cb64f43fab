//! libFuzzer on the target `identity`.

#![no_main]

#[path = "../targets/identity.rs"]
mod target;
#[path = "../targets/mutation.rs"]
#[allow(dead_code, reason = "each target needs some of it")]
mod mutation;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
