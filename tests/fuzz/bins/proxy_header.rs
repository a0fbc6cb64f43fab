//! libFuzzer on the target `proxy_header`.

#![no_main]

#[path = "../targets/mutation.rs"]
#[allow(dead_code, reason = "each target needs some of it")]
mod mutation;
#[path = "../targets/proxy_header.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
