//! What the demonstration sends: pseudo-random bytes from a seed, so that no two places of a stream are alike, and
//! messages that say who sent them and which one they are.

/// The length of a message of a chatty flow.
pub const MESSAGE_BYTES: usize = 100;

/// An endless stream of pseudo-random bytes (`SplitMix64`): quick, and enough to notice any byte out of place.
#[derive(Clone, Debug)]
pub struct Content(u64);

impl Content {
    /// The stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Fills `piece` with what comes next.
    pub fn fill(&mut self, piece: &mut [u8]) {
        for eight in piece.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            eight.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..eight.len()]);
        }
    }
}

/// The message number `sequence` of the flow `flow`.
pub fn message(flow: u64, sequence: u64) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&flow.to_be_bytes());
    message[8..16].copy_from_slice(&sequence.to_be_bytes());
    Content::new(flow.rotate_left(32) ^ sequence).fill(&mut message[16..]);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_stream_and_another_seed_another() {
        let piece = |seed| {
            let mut piece = [0; 1_000];
            Content::new(seed).fill(&mut piece);
            piece
        };
        assert_eq!(piece(1), piece(1));
        assert_ne!(piece(1), piece(2));
        assert_ne!(piece(1)[..500], piece(1)[500..]);
    }

    #[test]
    fn no_two_messages_are_alike() {
        assert_ne!(message(1, 2), message(2, 1));
        assert_ne!(message(1, 2), message(1, 3));
        assert_eq!(message(7, 9)[..16], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
    }
}
