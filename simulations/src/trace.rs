//! What happened in a world, line by line: hashed always, kept as text on request.
//!
//! Lines hold virtual time, ends, lengths and plaintext facts only: ciphertext, global ids and wall times differ
//! between two runs of one seed.

use std::{
    fmt::{self, Write as _},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::network::Host;

/// Lines that are kept as text at most: some ten minutes of a busy world. The hash goes on beyond them.
const LINES_MAX: usize = 4_000_000;

struct Inner {
    began: Instant,
    hash: u64,
    lines: u64,
    scratch: String,
    kept: Option<Vec<String>>,
}

/// The trace of one world; clones write to the same one.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Inner>>);

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} lines)", self.lock().lines)
    }
}

/// What a trace came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// The hash over all lines.
    pub hash: u64,
    /// How many there were.
    pub lines: u64,
    /// The lines, if they were kept.
    pub text: Vec<String>,
}

impl Trace {
    /// A trace that begins now; with `keeps` its lines can be read afterwards.
    #[must_use]
    pub fn new(keeps: bool) -> Self {
        let kept = keeps.then(Vec::new);
        let inner =
            Inner { began: Instant::now(), hash: 0xCBF2_9CE4_8422_2325, lines: 0, scratch: String::new(), kept };
        Self(Arc::new(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something happens now.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let mut inner = self.lock();
        let at_us = Instant::now().duration_since(inner.began).as_micros();
        inner.line(format_args!("{:>7}.{:03} {what}", at_us / 1_000, at_us % 1_000));
    }

    /// Notes a datagram.
    pub fn datagram(&self, at: Instant, from: SocketAddr, to: SocketAddr, bytes: usize, lost: bool) {
        let mut inner = self.lock();
        let at_us = at.duration_since(inner.began).as_micros();
        let end = |address: SocketAddr| Host::of(address.ip()).map_or(0, |host| host.0);
        let (source, target, word) = (end(from), end(to), if lost { "lost" } else { "sent" });
        inner.line(format_args!(
            "{:>7}.{:03} h{source}:{} -> h{target}:{} {bytes} {word}",
            at_us / 1_000,
            at_us % 1_000,
            from.port(),
            to.port()
        ));
    }

    /// What it came to so far.
    #[must_use]
    pub fn traced(&self) -> Traced {
        let inner = self.lock();
        Traced { hash: inner.hash, lines: inner.lines, text: inner.kept.clone().unwrap_or_default() }
    }
}

impl Inner {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.scratch.clear();
        // Writing to a string does not fail.
        let _ = self.scratch.write_fmt(line);
        let mut hash = self.hash;
        for byte in self.scratch.bytes().chain([b'\n']) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        self.hash = hash;
        self.lines += 1;
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.len() < LINES_MAX) {
            kept.push(self.scratch.clone());
        }
    }
}

/// Where two traces part: the number of the line, counted from 1, and the line of each, if it has one.
#[must_use]
pub fn difference<'a>(one: &'a [String], other: &'a [String]) -> Option<(usize, Option<&'a str>, Option<&'a str>)> {
    let place = one.iter().zip(other).position(|(here, there)| here != there);
    let place = place.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))?;
    Some((place + 1, one.get(place).map(String::as_str), other.get(place).map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn the_first_different_line_is_found_also_where_one_trace_ends() {
        assert_eq!(difference(&lines(&["a", "b"]), &lines(&["a", "b"])), None);
        assert_eq!(difference(&lines(&["a", "b"]), &lines(&["a", "c"])), Some((2, Some("b"), Some("c"))));
        assert_eq!(difference(&lines(&["a"]), &lines(&["a", "c"])), Some((2, None, Some("c"))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_hash_is_the_same_whether_lines_are_kept_or_not() {
        let (kept, hashed) = (Trace::new(true), Trace::new(false));
        for trace in [&kept, &hashed] {
            trace.note(format_args!("one"));
            trace.note(format_args!("two"));
        }
        assert_eq!(kept.traced().hash, hashed.traced().hash);
        assert_eq!(kept.traced().text.len(), 2);
        kept.note(format_args!("three"));
        assert_ne!(kept.traced().hash, hashed.traced().hash);
    }
}
