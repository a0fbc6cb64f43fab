//! The PROXY protocol's version 2 header: who the client of a connection really is, told by the machine before us.
//!
//! Nothing is guessed (DB-32): a header is either understood to its last byte or refused, and it is read only from
//! addresses that are trusted to tell the truth.

mod source;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use serde::{Deserialize, Serialize};
pub use source::{BadSource, TrustedSources};

use crate::limits::{PROXY_HEADER_BYTES_MAX, PROXY_HEADER_UNIX_BYTES};

/// What every header begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// What a header of version 1 begins with.
const VERSION_1: &[u8] = b"PROXY ";
/// Signature, version and command, family, length.
const FIXED_BYTES: usize = 16;
/// Two addresses and two ports.
const V4_BYTES: usize = 12;
const V6_BYTES: usize = 36;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;
const TCP_OVER_V4: u8 = 0x11;
const TCP_OVER_V6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;

/// The type of a TLV that holds a checksum (CRC32C) over the header, with zeros in its own place.
const CHECKSUM: u8 = 0x03;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Header {
    /// The connection is the sender's own, or it tells no address: the peer of the socket is who speaks.
    Local,
    /// The connection was made for a client.
    Proxied {
        /// The client's address.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
}

impl Header {
    /// Who speaks over a connection whose socket's peer is `peer`.
    #[must_use]
    pub const fn client(&self, peer: SocketAddr) -> SocketAddr {
        match self {
            Self::Local => peer,
            Self::Proxied { source, .. } => *source,
        }
    }

    /// The header's bytes, for one write. If only one of the two addresses is IPv4, it is written as a mapped IPv6 one.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        match *self {
            Self::Local => bytes.extend([LOCAL, UNSPECIFIED, 0, 0]),
            Self::Proxied { source, destination } => {
                let (family, addresses) = match (plain(source), plain(destination)) {
                    (IpAddr::V4(from), IpAddr::V4(to)) => (TCP_OVER_V4, [from.octets(), to.octets()].concat()),
                    (from, to) => (TCP_OVER_V6, [mapped(from).octets(), mapped(to).octets()].concat()),
                };
                bytes.extend([PROXY, family]);
                bytes.extend((addresses.len() as u16 + 4).to_be_bytes());
                bytes.extend(addresses);
                bytes.extend(source.port().to_be_bytes());
                bytes.extend(destination.port().to_be_bytes());
            }
        }
        bytes
    }
}

/// The address as it is, not as a socket that takes both families shows it.
fn plain(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Why a header was not taken. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// The bytes are no header at all.
    Missing,
    /// It did not come whole in time.
    Late,
    /// The connection ended within it.
    Ended,
    /// It is a header of version 1.
    VersionOne,
    /// Its version is none that exists.
    Version(u8),
    /// Its command is none that exists.
    Command(u8),
    /// Its family of addresses is none that exists for streams.
    Family(u8),
    /// It is too short for the addresses of its family.
    Length(u16),
    /// What follows the addresses does not fit the header's length.
    Extension,
    /// Its checksum does not fit its content.
    Checksum,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it began without a PROXY header, which this address has to send"),
            Self::Late => f.write_str("its PROXY header did not come in time"),
            Self::Ended => f.write_str("it ended within its PROXY header"),
            Self::VersionOne => f.write_str("its PROXY header is of version 1; have the sender use version 2"),
            Self::Version(version) => write!(f, "its PROXY header is of version {version}, which does not exist"),
            Self::Command(command) => write!(f, "its PROXY header has the unknown command {command}"),
            Self::Family(family) => {
                write!(f, "its PROXY header has the family {family:#04x}, which is none of streams")
            }
            Self::Length(length) => write!(f, "its PROXY header has {length} bytes, too few for its addresses"),
            Self::Extension => f.write_str("its PROXY header has extensions that do not fit its length"),
            Self::Checksum => f.write_str("its PROXY header has a wrong checksum"),
        }
    }
}

/// Reads a header as its bytes come. It asks for as many as it needs, so that none of the client's are taken with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parser {
    bytes: Vec<u8>,
}

impl Parser {
    /// How many more bytes are needed before anything more can be said; never 0 before the end. At most
    /// [`PROXY_HEADER_BYTES_MAX`] come together.
    #[must_use]
    pub fn wanted(&self) -> usize {
        let whole = if self.bytes.len() < FIXED_BYTES { FIXED_BYTES } else { FIXED_BYTES + self.length() };
        whole.saturating_sub(self.bytes.len())
    }

    /// Takes at most [`Parser::wanted`] bytes; whoever gives more has read what is not the header's, and is told that
    /// the extension does not fit. `None` while more bytes are needed.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a header that is understood.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Option<Header>, Refused> {
        if bytes.len() > self.wanted() {
            return Err(Refused::Extension);
        }
        self.bytes.extend_from_slice(bytes);
        self.check_beginning()?;
        if self.bytes.len() < FIXED_BYTES || self.wanted() > 0 {
            return Ok(None);
        }
        self.read().map(Some)
    }

    fn length(&self) -> usize {
        usize::from(u16::from_be_bytes([self.bytes[14], self.bytes[15]]))
    }

    /// Whether what is there so far can become a header.
    fn check_beginning(&self) -> Result<(), Refused> {
        let bytes = &self.bytes;
        let signature = bytes.len().min(SIGNATURE.len());
        if bytes[..signature] != SIGNATURE[..signature] {
            let known = bytes.len().min(VERSION_1.len());
            return match bytes[..known] == VERSION_1[..known] {
                true if known == VERSION_1.len() => Err(Refused::VersionOne),
                // One more byte tells whether it is a header of version 1.
                true => Ok(()),
                false => Err(Refused::Missing),
            };
        }
        if let Some(second) = bytes.get(12) {
            match (second >> 4, second & 0x0f) {
                (2, 0 | 1) => {}
                (2, command) => return Err(Refused::Command(command)),
                (version, _) => return Err(Refused::Version(version)),
            }
        }
        let proxied = bytes.get(12) == Some(&PROXY);
        let Some(family) = bytes.get(13).filter(|_| proxied) else { return Ok(()) };
        let least = match *family {
            UNSPECIFIED => 0,
            TCP_OVER_V4 => V4_BYTES,
            TCP_OVER_V6 => V6_BYTES,
            UNIX_STREAM => PROXY_HEADER_UNIX_BYTES,
            other => return Err(Refused::Family(other)),
        };
        if bytes.len() >= FIXED_BYTES && self.length() < least {
            return Err(Refused::Length(self.length() as u16));
        }
        Ok(())
    }

    /// Reads a whole header whose beginning was checked.
    fn read(&self) -> Result<Header, Refused> {
        if self.bytes[12] == LOCAL {
            return Ok(Header::Local);
        }
        let block = &self.bytes[FIXED_BYTES..];
        let (header, addresses) = match self.bytes[13] {
            TCP_OVER_V4 => (v4(block), V4_BYTES),
            TCP_OVER_V6 => (v6(block), V6_BYTES),
            UNIX_STREAM => (Header::Local, PROXY_HEADER_UNIX_BYTES),
            // Without a family nobody can say where its addresses end.
            _ => return Ok(Header::Local),
        };
        self.check_extensions(FIXED_BYTES + addresses)?;
        Ok(header)
    }

    /// Every TLV must lie within the header, and a checksum must be right; the rest is nobody's business here.
    fn check_extensions(&self, mut at: usize) -> Result<(), Refused> {
        let bytes = &self.bytes;
        while at < bytes.len() {
            let fixed = bytes.get(at..at + 3).ok_or(Refused::Extension)?;
            let length = usize::from(u16::from_be_bytes([fixed[1], fixed[2]]));
            let value = bytes.get(at + 3..at + 3 + length).ok_or(Refused::Extension)?;
            if fixed[0] == CHECKSUM {
                let said: [u8; 4] = value.try_into().map_err(|_| Refused::Extension)?;
                let zeros = at + 3..at + 7;
                if u32::from_be_bytes(said) != crc32c(bytes, &zeros) {
                    return Err(Refused::Checksum);
                }
            }
            at += 3 + length;
        }
        Ok(())
    }
}

fn port(block: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([block[at], block[at + 1]])
}

fn v4(block: &[u8]) -> Header {
    let address = |at: usize| Ipv4Addr::new(block[at], block[at + 1], block[at + 2], block[at + 3]);
    Header::Proxied {
        source: SocketAddr::new(address(0).into(), port(block, 8)),
        destination: SocketAddr::new(address(4).into(), port(block, 10)),
    }
}

fn v6(block: &[u8]) -> Header {
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&block[at..at + 16]);
        Ipv6Addr::from(octets).to_canonical()
    };
    Header::Proxied {
        source: SocketAddr::new(address(0), port(block, 32)),
        destination: SocketAddr::new(address(16), port(block, 34)),
    }
}

/// The checksum of RFC 3309 over `bytes` with zeros in the given place. Headers are rare and short, so no table.
fn crc32c(bytes: &[u8], zeros: &std::ops::Range<usize>) -> u32 {
    let mut crc = u32::MAX;
    for (at, byte) in bytes.iter().enumerate() {
        crc ^= if zeros.contains(&at) { 0 } else { u32::from(*byte) };
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

const _: () = assert!(PROXY_HEADER_BYTES_MAX == FIXED_BYTES + u16::MAX as usize);

#[cfg(test)]
mod tests;
