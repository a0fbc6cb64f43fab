//! IPv4 addresses in IPv6 form and back: a node's socket shows quinn IPv6 addresses only, whatever it is bound to.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The address in the form of IPv6, IPv4 mapped.
pub(crate) const fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::V6(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0)),
        SocketAddr::V6(_) => address,
    }
}

/// The address in its own form, for comparisons: IPv4 unmapped.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address in the form that a socket of this family sends to.
pub(crate) fn for_family(address: SocketAddr, ipv6: bool) -> SocketAddr {
    if ipv6 {
        return mapped(address);
    }
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_round_trip() {
        let v4: SocketAddr = "192.0.2.7:9443".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::7]:9443".parse().unwrap();
        assert!(mapped(v4).is_ipv6());
        assert_eq!(canonical(mapped(v4)), v4);
        assert_eq!(for_family(mapped(v4), false), v4);
        assert_eq!(for_family(v4, true), mapped(v4));
        assert_eq!(for_family(v6, false), v6);
        assert_eq!(mapped(v6), v6);
    }
}
