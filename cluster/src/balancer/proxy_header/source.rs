//! The addresses from which a PROXY header is read: `proxy_protocol_from`.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::limits::PROXY_SOURCES_MAX;

/// One address or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let shifted = |value: u128, width: u32| {
            let rest = width - u32::from(self.bits);
            if rest == 128 { 0 } else { value >> rest }
        };
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                shifted(ours.to_bits().into(), 32) == shifted(theirs.to_bits().into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => shifted(ours.to_bits(), 128) == shifted(theirs.to_bits(), 128),
            _ => false,
        }
    }
}

/// Why a text names no trusted source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadSource {
    /// It is neither an address nor a network.
    Text(String),
    /// There are more than [`PROXY_SOURCES_MAX`].
    TooMany(usize),
}

impl fmt::Display for BadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => {
                write!(f, "{text:?} is no address and no network, such as 10.0.0.7 or 10.0.0.0/24 or fd00::/64")
            }
            Self::TooMany(count) => write!(f, "{count} addresses and networks, at most {PROXY_SOURCES_MAX}"),
        }
    }
}

impl FromStr for Network {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, BadSource> {
        let bad = || BadSource::Text(text.to_owned());
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| bad()))?;
        if bits > width {
            return Err(bad());
        }
        Ok(Self { address, bits })
    }
}

/// Who is trusted to say who its clients are. From these addresses a header is required; from all others nothing is
/// interpreted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedSources(Vec<Network>);

impl TrustedSources {
    /// From addresses and networks (`ADDRESS/BITS`).
    ///
    /// # Errors
    /// The first text that is neither.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, BadSource> {
        let networks: Vec<Network> = texts.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        if networks.len() > PROXY_SOURCES_MAX {
            return Err(BadSource::TooMany(networks.len()));
        }
        Ok(Self(networks))
    }

    /// Whether nobody is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a header is read from this peer.
    #[must_use]
    pub fn contains(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.0.iter().any(|network| network.contains(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_their_bits_say() {
        let trusted = TrustedSources::parse(["10.0.0.7", "192.168.4.0/22", "fd00::/8", "::1"]).unwrap();
        for (address, wanted) in [
            ("10.0.0.7", true),
            ("10.0.0.6", false),
            ("::ffff:10.0.0.7", true),
            ("192.168.7.255", true),
            ("192.168.8.0", false),
            ("fdff::1", true),
            ("fe00::1", false),
            ("::1", true),
            ("::", false),
        ] {
            assert_eq!(trusted.contains(address.parse().unwrap()), wanted, "{address}");
        }
        let everybody = TrustedSources::parse(["0.0.0.0/0", "::/0"]).unwrap();
        assert!(
            everybody.contains("203.0.113.9".parse().unwrap()) && everybody.contains("2001:db8::1".parse().unwrap())
        );
        assert!(!TrustedSources::default().contains("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_refused_by_its_text() {
        for bad in ["", "localhost", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "::/129", "10.0.0.1/8/8"] {
            assert_eq!(TrustedSources::parse([bad]).unwrap_err(), BadSource::Text(bad.to_owned()), "{bad:?}");
        }
        let many = vec!["10.0.0.1"; PROXY_SOURCES_MAX + 1];
        assert!(matches!(TrustedSources::parse(many), Err(BadSource::TooMany(_))));
    }
}
