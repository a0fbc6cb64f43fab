//! The real entropy: the system's generator.

use std::cell::RefCell;

use postroad_cluster::time::Entropy;
use rustix::rand::{GetRandomFlags, getrandom};

/// Chance from the kernel's generator, which is good enough for keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

/// Numbers that one call of the system brings: 256 bytes come whole and at once.
const STORED: usize = 32;

/// Numbers of one thread that the system has given and nobody has had: every turn of an actor takes one, and asking the
/// system each time would cost more than the turn.
struct Store {
    numbers: [u64; STORED],
    left: usize,
}

thread_local! {
    static STORE: RefCell<Store> = const { RefCell::new(Store { numbers: [0; STORED], left: 0 }) };
}

impl Store {
    fn next(&mut self) -> u64 {
        if self.left == 0 {
            let mut bytes = [0; 8 * STORED];
            SystemEntropy.fill(&mut bytes);
            for (number, bytes) in self.numbers.iter_mut().zip(bytes.as_chunks().0) {
                *number = u64::from_le_bytes(*bytes);
            }
            self.left = self.numbers.len();
        }
        self.left -= 1;
        // Taken out, so that it is not to be found in memory a second time.
        std::mem::take(&mut self.numbers[self.left])
    }
}

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        STORE.with_borrow_mut(Store::next)
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                // Without chance there are no keys and no unguessable tokens: going on would be worse than stopping.
                Err(error) => panic!("the system gives no random bytes: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_the_whole_buffer_and_never_twice_the_same() {
        let (mut first, mut second) = ([0; 1_000], [0; 1_000]);
        SystemEntropy.fill(&mut first);
        SystemEntropy.fill(&mut second);
        assert_ne!(first, second);
        assert!(first[968..].iter().any(|byte| *byte != 0), "the end was left empty");
        let numbers: std::collections::BTreeSet<u64> = (0..1_000).map(|_| SystemEntropy.next_u64()).collect();
        assert_eq!(numbers.len(), 1_000);
    }
}
