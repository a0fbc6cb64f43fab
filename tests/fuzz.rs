//! The fuzz targets without libFuzzer: each takes some thousand inputs, near good ones and far from any, the same in
//! every run. No panic, no broken promise, and no memory beyond a bound. `tests/fuzz/` has the same with coverage.

#[path = "fuzz/targets/authority.rs"]
mod authority;
#[path = "fuzz/targets/certificate.rs"]
mod certificate;
#[path = "fuzz/targets/config.rs"]
mod config;
#[path = "fuzz/targets/identity.rs"]
mod identity;
#[path = "fuzz/targets/mutation.rs"]
mod mutation;
#[path = "fuzz/targets/packet.rs"]
mod packet;
#[path = "fuzz/targets/proxy_header.rs"]
mod proxy_header;
#[path = "fuzz/targets/refusal.rs"]
mod refusal;
#[path = "fuzz/targets/snapshot.rs"]
mod snapshot;
#[path = "fuzz/stored.rs"]
mod stored;
#[path = "fuzz/targets/token.rs"]
mod token;
#[path = "fuzz/targets/wire.rs"]
mod wire;

use std::{fs, panic};

/// Memory of this process that no input may exceed: the largest message in memory, twice, and the tests themselves.
const RESIDENT_MAX: u64 = 400 << 20;

/// Numbers that look random and repeat.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Runs a target on so many inputs: the seeds, edits of them, and bytes by chance.
fn fuzz(target: fn(&[u8]), seeds: &[Vec<u8>], count: usize) {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for number in 0..count {
        let seed = if seeds.is_empty() { &[][..] } else { &seeds[numbers.below(seeds.len())] };
        let input = match number {
            0..100 if number < seeds.len() => seeds[number].clone(),
            _ if seed.is_empty() || number % 4 == 0 => numbers.bytes(600),
            _ => {
                let edits = numbers.bytes(16);
                mutation::edited(seed, &edits)
            }
        };
        if let Err(reason) = panic::catch_unwind(|| target(&input)) {
            eprintln!("input {number}: {input:02x?}");
            panic::resume_unwind(reason);
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak << 10 < RESIDENT_MAX, "{peak} KiB resident at the peak");
}

/// The golden messages, each as every kind of message: the first byte of an input says which.
fn messages() -> Vec<Vec<u8>> {
    let lines = include_str!("../cluster/tests/golden.txt").lines().filter(|line| !line.starts_with('#'));
    let messages = lines.filter_map(|line| line.split_once(' ')).map(|(_, hex)| {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect::<Vec<u8>>()
    });
    let messages: Vec<Vec<u8>> = messages.collect();
    let as_each = |kind: usize| messages.iter().map(move |it| [&[kind as u8][..], it].concat());
    (0..wire::READERS.len()).flat_map(as_each).collect()
}

#[test]
fn messages_of_every_protocol() {
    let seeds = messages();
    let read = seeds.iter().filter(|seed| wire::READERS[usize::from(seed[0])](&seed[1..])).count();
    assert!(read >= 60, "the golden messages are read as what they are: {read}");
    fuzz(wire::run, &seeds, 60_000);
}

// A few bytes may claim to be a list of billions: nothing is taken from memory for what is not there.
#[test]
fn lengths_are_only_claims() {
    let mut seeds = Vec::new();
    for kind in 0..wire::READERS.len() as u8 {
        for variant in 0..24 {
            for length in [0xfb_u8, 0xfc, 0xfd] {
                seeds.push([&[kind, 1, variant, length][..], &[0xff; 40]].concat());
                seeds.push([&[kind, 1, variant, 1, length][..], &[0xff; 40]].concat());
            }
        }
    }
    fuzz(wire::run, &seeds, 20_000);
}

#[test]
fn packets_at_relays_and_nodes() {
    let seeds: Vec<Vec<u8>> = (1..40_u8)
        .map(|number| {
            let buffer = |kind: u8, flags: u8| {
                let packet: Vec<u8> = [kind, flags, 1, 0].into_iter().chain(std::iter::repeat_n(number, 60)).collect();
                [&[63, 0, 1 + number % 2, 48][..], &packet, &packet, &packet].concat()
            };
            [buffer(1 + number % 4, 2), buffer(0x40, 0), buffer(2, 6)].concat()
        })
        .collect();
    fuzz(packet::run, &seeds, 1_500);
}

#[test]
fn tokens_certificates_and_what_is_signed() {
    fuzz(token::run, &[vec![0; 8]], 4_000);
    fuzz(certificate::run, &[vec![0, 9, 0, 0, 5], vec![1, 9, 0, 0, 5]], 3_000);
    fuzz(snapshot::run, &[vec![9, 0, 0, 5]], 4_000);
    fuzz(authority::run, &[vec![9, 0, 0, 5]], 3_000);
}

// DB-6, DB-32
#[test]
fn proxy_headers_and_beginnings_of_clients() {
    let seeds: Vec<Vec<u8>> = (0..8).map(|kind| vec![kind, 10, 2, 3, 77, 8, 9, 1, 255]).collect();
    fuzz(proxy_header::run, &seeds, 20_000);
    fuzz(refusal::run, &[vec![0, 3, 9], b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec()], 20_000);
}

#[test]
fn configuration_and_stored_identities() {
    let mut seeds = vec![b"[listen]\nrelay = \"0.0.0.0:9443\"\n[link]\nflow_wait_seconds = 60\n".to_vec()];
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/config")).unwrap() {
        seeds.push(fs::read(entry.unwrap().path()).unwrap());
    }
    fuzz(config::run, &seeds, 3_000);
    fuzz(identity::run, &[vec![1, 7, b'h', b'a', b'r', b'b', b'o', b'u', b'r', 7, 3, b'w', b'e', b'b', 1, 2]], 10_000);
}

#[test]
fn database_files() {
    stored::altered_databases_open_or_say_why(400);
}
