//! Addresses that people write: `host:port` to be reached or resolved, `ip:port` to listen on.

use core::net::{IpAddr, SocketAddr};

use crate::{
    command::{Refusal, code},
    limits::ADDRESS_BYTES_MAX,
};

/// The host and the port of `host:port`. The host is lower case, without the brackets of IPv6, so that equal hosts
/// compare equal.
///
/// # Errors
/// `ADDRESS_INVALID` with what is wrong, where `what` says whose address it is.
pub fn host_and_port(what: &str, text: &str) -> Result<(String, u16), Refusal> {
    let refuse = |why: &str| {
        let shown: String = text.chars().take(80).collect();
        Refusal::new(
            code::ADDRESS_INVALID,
            format!("{what} is {shown:?}, {why}"),
            "Write host:port, for example relay.example.org:9443, 192.0.2.7:9443 or [2001:db8::7]:9443",
        )
    };
    if text.len() > ADDRESS_BYTES_MAX {
        return Err(refuse("which is longer than any address"));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("which has no port"))?;
    let port = match port.parse::<u16>() {
        Ok(port) if port > 0 && text.ends_with(&format!(":{port}")) => port,
        _ => return Err(refuse("whose port is none from 1 to 65535")),
    };
    let ip = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => Some(IpAddr::V6(inner.parse().map_err(|_| refuse("whose brackets hold no IPv6 address"))?)),
        None => host.parse::<core::net::Ipv4Addr>().ok().map(IpAddr::V4),
    };
    match ip {
        Some(ip) if ip.is_unspecified() || ip.is_multicast() => Err(refuse("which nobody can reach")),
        Some(ip) => Ok((ip.to_string(), port)),
        None if is_dns_name(host) => Ok((host.to_ascii_lowercase(), port)),
        None => Err(refuse("whose host is neither a name nor an address")),
    }
}

/// A name with letters, digits, `-` and `_` in labels of 1 to 63; one of digits and dots alone is a broken address.
fn is_dns_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(label) && !host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The address on which a consumer listens.
///
/// # Errors
/// `ADDRESS_INVALID` if it is no `ip:port` with a port.
pub fn listen_address(text: &str) -> Result<SocketAddr, Refusal> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() > 0 && !address.ip().is_multicast() => Ok(address),
        _ => {
            let shown: String = text.chars().take(80).collect();
            Err(Refusal::new(
                code::ADDRESS_INVALID,
                format!("the listen address is {shown:?}, which is no ip:port with a port from 1 to 65535"),
                "Write for example 127.0.0.1:5432 or [::1]:5432",
            ))
        }
    }
}

/// Whether two sockets of one host could not both listen there.
#[must_use]
pub fn listens_clash(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_somebody_could_reach_are_taken() {
        for (text, host, port) in [
            ("Relay.Example.org:9443", "relay.example.org", 9443),
            ("192.0.2.7:1", "192.0.2.7", 1),
            ("[2001:db8:0::7]:65535", "2001:db8::7", 65535),
            ("db_1:5432", "db_1", 5432),
        ] {
            assert_eq!(host_and_port("it", text).unwrap(), (host.to_owned(), port));
        }
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        for text in [
            "",
            ":9443",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "host:01",
            "ho st:1",
            "2001:db8::7:1",
            "[::]:1",
            "0.0.0.0:1",
            "[host]:1",
            "1.2.3:4",
            "-a:1",
            "a..b:1",
            "224.0.0.1:1",
            "ä:1",
        ] {
            let refusal = host_and_port("it", text).unwrap_err();
            assert_eq!(refusal.code, code::ADDRESS_INVALID, "{text}");
        }
        assert!(host_and_port("it", &format!("{}:1", "a".repeat(300))).is_err());
        for text in ["localhost:1", "127.0.0.1", "127.0.0.1:0", ""] {
            assert_eq!(listen_address(text).unwrap_err().code, code::ADDRESS_INVALID, "{text}");
        }
    }

    #[test]
    fn a_wildcard_takes_the_port_of_every_address() {
        let at = |text: &str| listen_address(text).unwrap();
        assert!(listens_clash(at("0.0.0.0:80"), at("127.0.0.1:80")));
        assert!(listens_clash(at("127.0.0.1:80"), at("127.0.0.1:80")));
        assert!(!listens_clash(at("127.0.0.1:80"), at("127.0.0.2:80")));
        assert!(!listens_clash(at("0.0.0.0:80"), at("0.0.0.0:81")));
    }
}
