//! Good input with edits in it: a certificate or a sealed file is hardly found by trying bytes, but one bit beside a good
//! one is.

use postroad_cluster::time::Entropy;

/// `good` with the edits that `data` describes, four bytes each: where, what, and how.
pub(crate) fn edited(good: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for edit in data.chunks_exact(4) {
        let [low, high, value, kind] = [edit[0], edit[1], edit[2], edit[3]];
        let at = usize::from(u16::from_le_bytes([low, high])) % (bytes.len() + 1);
        match kind % 6 {
            0 | 1 if at < bytes.len() => bytes[at] = value,
            2 if at < bytes.len() => bytes[at] ^= 1 << (value % 8),
            3 => bytes.insert(at, value),
            4 => bytes.truncate(at),
            5 => {
                let end = (at + usize::from(value)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {}
        }
        // No edit makes more of it than a few times what it was.
        bytes.truncate(good.len() * 4 + 64);
    }
    bytes
}

/// Chance that repeats: what is good must be the same in every run.
#[derive(Debug)]
pub(crate) struct Repeating(pub(crate) u8);

impl Entropy for Repeating {
    fn fill(&self, bytes: &mut [u8]) {
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = (place as u8).wrapping_mul(31).wrapping_add(self.0);
        }
    }
}
