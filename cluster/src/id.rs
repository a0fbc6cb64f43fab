//! Names of things as numbers and words: every identifier that crosses a wire or enters the log.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Hides a secret where people read: in `Debug`, and in JSON, of which journals and states are shown. Elsewhere it is
/// serialized as what it holds.
macro_rules! hidden {
    ($name:ident as $inner:ty) => {
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(concat!(stringify!($name), "(hidden)"))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.serialize_str("hidden")
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <$inner as serde::Deserialize>::deserialize(deserializer).map(Self)
            }
        }
    };
}

pub(crate) use hidden;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_id!(/// A node, numbered by the log and never reused; the same number in the Raft group.
    NodeId, "n");
number_id!(/// A link.
    LinkId, "link-");
number_id!(/// A circuit of a pair of nodes, drawn by the dialling node.
    CircuitId, "circuit-");
number_id!(/// A tunnel, drawn by the consumer node; unique within its pair of nodes.
    TunnelId, "tunnel-");
number_id!(/// A one-time join token, by the first bytes of its secret's hash.
    TokenId, "token-");
number_id!(/// A generation of something that is replaced by newer ones: a session, an endpoint, a path.
    Generation, "g");
number_id!(/// A version of a snapshot: the index of the committed entry that made it.
    Version, "v");

/// The token of a channel: whoever knows it may have packets forwarded from its session's address. It crosses the wire as
/// a number; `Debug` and every form that people read hide it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelToken(pub u64);

hidden!(ChannelToken as u64);

/// What a relay sends to a new address of a session's node, which proves by naming it that it is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Challenge(pub u64);

hidden!(Challenge as u64);

impl Generation {
    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A name that people give: 1 to 63 of `a-z`, `0-9` and `-`, beginning and ending with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Why a text is no [`Name`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName(String);

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no name: 1 to 63 of a-z, 0-9 and -, not beginning or ending with -", self.0)
    }
}

impl std::error::Error for BadName {}

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let valid = (1..=63).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if valid { Ok(Self(text.to_owned())) } else { Err(BadName(text.chars().take(80).collect())) }
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a node is allowed to be; its certificate names the roles, and every protocol checks them on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A member of the Raft group; issues certificates and signs snapshots.
    Control,
    /// Admits sessions and forwards packets.
    Relay,
    /// Consumes and serves links.
    Node,
    /// A person's certificate: acts through the API.
    Operator,
}

impl Role {
    /// Every role, in order.
    pub const ALL: [Self; 4] = [Self::Control, Self::Relay, Self::Node, Self::Operator];

    /// The role's word in certificates, flags and output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Relay => "relay",
            Self::Node => "node",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.word() == text)
            .ok_or_else(|| format!("{text:?} is no role: control, relay, node or operator"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_bounds() {
        for good in ["a", "web-1", "0", &"x".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a b", "ä", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}
