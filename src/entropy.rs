//! The real entropy: the system's generator.

use postroad_cluster::time::Entropy;
use rustix::rand::{GetRandomFlags, getrandom};

/// Chance from the kernel's generator, which is good enough for keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
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
        assert_ne!(SystemEntropy.next_u64(), SystemEntropy.next_u64());
    }
}
