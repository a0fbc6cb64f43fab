//! The 16-byte header before every packet of a circuit, and the key that authenticates a circuit's moves.
//!
//! ```text
//! byte  0      type: 1 data, 2 probe, 3 echo, 4 challenge; the two highest bits are clear, which no QUIC packet of ours has
//!       1      flags: 1 this path began after a silence; 2 the circuit has large packets
//!       2..4   generation of the path, its low 16 bits, little endian
//!       4..8   MAC of the path; zero while the circuit has no key
//!       8..16  token of the channel, little endian; the relay rewrites it
//! ```

use std::fmt;

use postroad_cluster::id::{CircuitId, Generation, NodeId};
use ring::hmac;

/// The length of the header.
pub const HEADER_BYTES: usize = 16;

/// The flag of a path that began after a silence: both ends send again what it may have swallowed.
pub const FLAG_AFTER_SILENCE: u8 = 1;

/// The flag of a circuit with large packets: by it the end that is dialled learns the size before the connection begins. No
/// MAC covers it, since there is no key yet.
pub const FLAG_LARGE: u8 = 2;

/// Bytes before the padding of a probe or echo: its sequence and a tag.
pub const PROBE_BODY_BYTES: usize = 16;

/// What a packet of a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketType {
    /// A QUIC packet of the circuit.
    Data,
    /// A probe, to be answered by an echo over the same relay.
    Probe,
    /// A probe's answer.
    Echo,
    /// A relay's question to the new address of a session's node, which names it in its session. It belongs to no
    /// channel: in place of the token stands the challenge.
    Challenge,
}

/// The header of a channel's packet. `Debug` leaves out the token, which is a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub packet_type: PacketType,
    /// See [`FLAG_AFTER_SILENCE`] and [`FLAG_LARGE`]; unknown ones are ignored.
    pub flags: u8,
    /// The low bits of the path's generation.
    pub generation: u16,
    /// Authenticates the path.
    pub mac: [u8; 4],
    /// Names the channel to whoever receives it.
    pub token: u64,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("packet_type", &self.packet_type)
            .field("flags", &self.flags)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Header {
    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = match self.packet_type {
            PacketType::Data => 1,
            PacketType::Probe => 2,
            PacketType::Echo => 3,
            PacketType::Challenge => 4,
        };
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.generation.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.mac);
        bytes[8..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// The header at the beginning of `packet`; none if it is too short or of an unknown type.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = packet.first_chunk()?;
        let packet_type = match bytes[0] {
            1 => PacketType::Data,
            2 => PacketType::Probe,
            3 => PacketType::Echo,
            4 => PacketType::Challenge,
            _ => return None,
        };
        let [_, flags, generation_low, generation_high, mac @ .., _, _, _, _, _, _, _, _] = *bytes;
        let generation = u16::from_le_bytes([generation_low, generation_high]);
        Some(Self { packet_type, flags, generation, mac, token: token(packet)? })
    }
}

/// Whether a packet belongs to a channel and not to QUIC: QUIC's long headers begin with a one, its short ones with
/// the fixed bit, and only Version Negotiation leaves that bit open.
#[must_use]
pub const fn is_channel_packet(first_byte: u8) -> bool {
    first_byte & 0xC0 == 0
}

/// Whether a relay forwards packets that begin so: a challenge is the relay's own word.
#[must_use]
pub const fn is_forwarded(first_byte: u8) -> bool {
    is_channel_packet(first_byte) && first_byte != 4
}

/// The token in a packet's header; none if it is too short.
#[must_use]
pub fn token(packet: &[u8]) -> Option<u64> {
    let bytes: &[u8; 8] = packet.get(8..HEADER_BYTES)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Puts another token into a packet's header. Does nothing to a packet that is too short.
pub fn replace_token(packet: &mut [u8], token: u64) {
    if let Some(bytes) = packet.get_mut(8..HEADER_BYTES) {
        bytes.copy_from_slice(&token.to_le_bytes());
    }
}

/// The generation nearest to `present` whose low bits are `low`.
#[must_use]
pub const fn expand_generation(present: Generation, low: u16) -> Generation {
    let difference = low.wrapping_sub(present.0 as u16).cast_signed();
    Generation(present.0.saturating_add_signed(difference as i64))
}

/// The key of a circuit's moves and probes, from the TLS exporter that only its two ends know.
pub struct PathKey {
    key: hmac::Key,
    circuit: CircuitId,
}

impl fmt::Debug for PathKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathKey").field("circuit", &self.circuit).finish_non_exhaustive()
    }
}

impl PathKey {
    /// The key of `circuit` from its exported secret.
    #[must_use]
    pub fn new(circuit: CircuitId, secret: &[u8; 32]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret), circuit }
    }

    /// The MAC of a path that the node `from` sends by. The relay is part of it, so that one relay cannot claim what
    /// was said of another.
    #[must_use]
    pub fn path_mac(&self, from: NodeId, relay: NodeId, generation: Generation, flags: u8) -> [u8; 4] {
        self.sign(b'p', from, relay, generation.0, flags)
    }

    /// Whether `mac` is that of such a path.
    #[must_use]
    pub fn path_holds(&self, from: NodeId, relay: NodeId, generation: Generation, flags: u8, mac: [u8; 4]) -> bool {
        same(&self.path_mac(from, relay, generation, flags), &mac)
    }

    /// The tag of the echo that the node `from` sends, so that a relay cannot answer probes itself.
    #[must_use]
    pub fn echo_tag(&self, from: NodeId, relay: NodeId, sequence: u64) -> [u8; 8] {
        self.sign(b'e', from, relay, sequence, 0)
    }

    /// Whether `tag` is that of such an echo.
    #[must_use]
    pub fn echo_holds(&self, from: NodeId, relay: NodeId, sequence: u64, tag: &[u8]) -> bool {
        same(&self.echo_tag(from, relay, sequence), tag)
    }

    fn sign<const N: usize>(&self, kind: u8, from: NodeId, relay: NodeId, number: u64, flags: u8) -> [u8; N] {
        let mut text = [0; 34];
        text[0] = kind;
        text[1] = flags;
        for (place, word) in text[2..].chunks_exact_mut(8).zip([self.circuit.0, from.0, relay.0, number]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let tag = hmac::sign(&self.key, &text);
        let mut short = [0; N];
        short.copy_from_slice(&tag.as_ref()[..N]);
        short
    }
}

/// Compares without telling by its time how much was right.
fn same(expected: &[u8], found: &[u8]) -> bool {
    expected.len() == found.len() && expected.iter().zip(found).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        let types = [PacketType::Data, PacketType::Probe, PacketType::Echo, PacketType::Challenge];
        let packet_type = proptest::sample::select(types.to_vec());
        (packet_type, any::<u8>(), any::<u16>(), any::<[u8; 4]>(), any::<u64>()).prop_map(
            |(packet_type, flags, generation, mac, token)| Header { packet_type, flags, generation, mac, token },
        )
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_parsed(header in header(), rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut packet = header.encode().to_vec();
            packet.extend(rest);
            prop_assert!(is_channel_packet(packet[0]));
            prop_assert_eq!(Header::parse(&packet), Some(header));
            replace_token(&mut packet, 7);
            prop_assert_eq!(Header::parse(&packet), Some(Header { token: 7, ..header }));
        }

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let parsed = Header::parse(&bytes);
            prop_assert_eq!(parsed.is_some(), bytes.len() >= HEADER_BYTES && (1..=4).contains(&bytes[0]));
            prop_assert_eq!(token(&bytes).is_some(), bytes.len() >= HEADER_BYTES);
            let length = bytes.len();
            replace_token(&mut bytes, 1);
            prop_assert_eq!(bytes.len(), length);
        }

        #[test]
        fn generations_survive_their_low_bits(present in 0_u64..u64::MAX / 2, ahead in -0x7FFF_i64..0x7FFF) {
            let real = present.saturating_add_signed(ahead);
            prop_assume!(real.abs_diff(present) == ahead.unsigned_abs());
            prop_assert_eq!(expand_generation(Generation(present), real as u16), Generation(real));
        }
    }

    #[test]
    fn a_mac_holds_for_one_circuit_direction_relay_generation_and_flag() {
        let key = PathKey::new(CircuitId(1), &[7; 32]);
        let mac = key.path_mac(NodeId(1), NodeId(9), Generation(3), 1);
        assert!(key.path_holds(NodeId(1), NodeId(9), Generation(3), 1, mac));
        assert!(!key.path_holds(NodeId(2), NodeId(9), Generation(3), 1, mac), "direction");
        assert!(!key.path_holds(NodeId(1), NodeId(8), Generation(3), 1, mac), "relay");
        assert!(!key.path_holds(NodeId(1), NodeId(9), Generation(4), 1, mac), "generation");
        assert!(!key.path_holds(NodeId(1), NodeId(9), Generation(3), 0, mac), "flag");
        let other = PathKey::new(CircuitId(2), &[7; 32]);
        assert!(!other.path_holds(NodeId(1), NodeId(9), Generation(3), 1, mac), "circuit");
        assert!(!format!("{key:?}").contains('7'), "the key is a secret");
    }

    #[test]
    fn an_echo_is_bound_to_its_probe() {
        let key = PathKey::new(CircuitId(1), &[7; 32]);
        let tag = key.echo_tag(NodeId(2), NodeId(9), 5);
        assert!(key.echo_holds(NodeId(2), NodeId(9), 5, &tag));
        assert!(!key.echo_holds(NodeId(2), NodeId(9), 6, &tag));
        assert!(!key.echo_holds(NodeId(2), NodeId(9), 5, &tag[..7]));
    }
}
