//! The trace of a request: one number that every message which follows from it carries, through actors and nodes.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Names one request and everything that follows from it. It crosses wires as a number, and people read it as 16
/// hexadecimal digits. It is never 0, so that a script can tell it from nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(u64);

/// The bit of those that somebody has begun: nodes remember them longer than what only follows from a timer.
const BEGUN: u64 = 1;

impl TraceId {
    /// The trace of a message that nobody has asked for, from 64 bits of chance. They may serve for other draws as well:
    /// what is made of them here tells nothing that those would.
    #[must_use]
    pub const fn drawn(chance: u64) -> Self {
        let bits = spread(chance) & !BEGUN;
        Self(if bits == 0 { BEGUN << 1 } else { bits })
    }

    /// The trace of what somebody asks for, from 64 bits of chance.
    #[must_use]
    pub const fn begun(chance: u64) -> Self {
        Self(spread(chance) | BEGUN)
    }

    /// Whether somebody has asked for what it is of.
    #[must_use]
    pub const fn is_begun(self) -> bool {
        self.0 & BEGUN != 0
    }
}

/// The finalizer of `MurmurHash3` (Appleby 2011), other constants than those of `Turn::draw`.
const fn spread(chance: u64) -> u64 {
    let mut bits = chance ^ 0x7472_6163_6500_0001;
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    bits ^ (bits >> 33)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for TraceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|number| digits && *number != 0);
        let shown: String = text.chars().take(40).collect();
        number.map(Self).ok_or_else(|| format!("{shown:?} is no trace: 16 hexadecimal digits, as messages show it"))
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Programs that read JSON may keep no more than 53 bits of a number.
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for TraceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return String::deserialize(deserializer)?.parse().map_err(D::Error::custom);
        }
        match u64::deserialize(deserializer)? {
            0 => Err(D::Error::custom("a trace is never 0")),
            number => Ok(Self(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn traces_read_as_they_are_written_and_differ() {
        let drawn: BTreeSet<TraceId> = (0..1_000).map(TraceId::drawn).collect();
        let begun: BTreeSet<TraceId> = (0..1_000).map(TraceId::begun).collect();
        assert_eq!((drawn.len(), begun.len()), (1_000, 1_000));
        assert!(begun.iter().all(|trace| trace.is_begun()) && !drawn.iter().any(|trace| trace.is_begun()));
        for trace in drawn.into_iter().chain(begun) {
            assert_eq!(trace.to_string().parse(), Ok(trace));
            assert_eq!(trace.to_string().len(), 16);
        }
        for bad in ["", "0000000000000000", "12", "+123456789abcdef", "123456789abcdefg", "0123456789abcdef0"] {
            assert!(bad.parse::<TraceId>().is_err(), "{bad}");
        }
    }
}
