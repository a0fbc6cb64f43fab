//! Failure domains and independence: which nodes would die together.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Name;

/// Where a node stands, as its operator says; nothing is guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FailureDomain {
    /// The physical host.
    pub host: Option<Name>,
    /// The power supply.
    pub power: Option<Name>,
    /// The uplink, firewall and route.
    pub network: Option<Name>,
    /// Country or provider; groups votes and is no failure domain.
    pub zone: Option<Name>,
}

/// What two failure domains have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Independence {
    /// All three names are given on both sides and differ.
    Independent,
    /// They share these: each a word and the name.
    Shares(Vec<(&'static str, Name)>),
    /// Nothing shared is known, but these names are missing on a side.
    Unconfirmed(Vec<&'static str>),
}

impl FailureDomain {
    fn parts(&self) -> [(&'static str, Option<&Name>); 3] {
        [("host", self.host.as_ref()), ("power", self.power.as_ref()), ("network", self.network.as_ref())]
    }

    /// Whether two nodes would survive each other's failures (RP-3): only if all three names are given and differ.
    #[must_use]
    pub fn independence(&self, other: &Self) -> Independence {
        let mut shared = Vec::new();
        let mut missing = Vec::new();
        for ((word, mine), (_, theirs)) in self.parts().into_iter().zip(other.parts()) {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) if mine == theirs => shared.push((word, mine.clone())),
                (Some(_), Some(_)) => {}
                _ => missing.push(word),
            }
        }
        if !shared.is_empty() {
            Independence::Shares(shared)
        } else if missing.is_empty() {
            Independence::Independent
        } else {
            Independence::Unconfirmed(missing)
        }
    }

    /// Whether all three names are given.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.parts().iter().all(|(_, name)| name.is_some())
    }
}

impl Independence {
    /// Whether the two are known to be independent.
    #[must_use]
    pub fn is_independent(&self) -> bool {
        *self == Self::Independent
    }
}

impl fmt::Display for Independence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Independent => f.write_str("independent"),
            Self::Shares(shared) => {
                f.write_str("share ")?;
                for (index, (word, name)) in shared.iter().enumerate() {
                    write!(f, "{}{word} {name}", if index == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::Unconfirmed(missing) => write!(f, "unconfirmed: {} not given", missing.join(", ")),
        }
    }
}

/// The largest number of domains of which every two are independent, taken greedily in the given order. Exact
/// search is exponential; the order is by node id, so that every node counts the same.
#[must_use]
pub fn independent_count<'a>(domains: impl IntoIterator<Item = &'a FailureDomain>) -> usize {
    let mut chosen: Vec<&FailureDomain> = Vec::new();
    for domain in domains {
        if domain.is_complete() && chosen.iter().all(|other| other.independence(domain).is_independent()) {
            chosen.push(domain);
        }
    }
    chosen.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(host: &str, power: &str, network: &str) -> FailureDomain {
        let name = |text: &str| text.parse().ok();
        FailureDomain { host: name(host), power: name(power), network: name(network), zone: None }
    }

    // RP-3: independent only if all three are given and differ.
    #[test]
    fn independence_needs_three_different_names() {
        let fra = domain("h1", "p1", "n1");
        assert!(fra.independence(&domain("h2", "p2", "n2")).is_independent());
        assert_eq!(fra.independence(&domain("h2", "p1", "n2")).to_string(), "share power p1");
        assert_eq!(fra.independence(&domain("h2", "", "n2")).to_string(), "unconfirmed: power not given");
        assert_eq!(fra.independence(&domain("h1", "", "n2")).to_string(), "share host h1");
        assert_eq!(
            independent_count([&fra, &domain("h2", "p1", "n2"), &domain("h3", "p3", "n3"), &domain("h4", "", "")]),
            2
        );
    }
}
