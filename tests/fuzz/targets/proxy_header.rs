//! PROXY headers as trusted machines send them, and whatever else comes from there.

use postroad_cluster::{
    balancer::proxy_header::{Header, Parser, Refused},
    limits::PROXY_HEADER_BYTES_MAX,
};

use crate::mutation::edited;

/// What reading in pieces of at most `size` comes to, and how many bytes were taken; nothing where more would be needed.
fn read(mut bytes: &[u8], size: usize) -> (Option<Result<Header, Refused>>, usize) {
    let mut parser = Parser::default();
    let mut taken = 0;
    while !bytes.is_empty() {
        let wanted = parser.wanted();
        assert!(wanted > 0 && taken + wanted <= PROXY_HEADER_BYTES_MAX, "{wanted} more after {taken}");
        let (piece, rest) = bytes.split_at(wanted.min(size).min(bytes.len()));
        bytes = rest;
        taken += piece.len();
        match parser.take(piece) {
            Ok(None) => {}
            Ok(Some(header)) => return (Some(Ok(header)), taken),
            Err(refused) => {
                assert!(!refused.to_string().is_empty());
                return (Some(Err(refused)), taken);
            }
        }
    }
    (None, taken)
}

/// A header that somebody could send, by the first bytes of the data.
fn good(data: &[u8]) -> Header {
    let byte = |at: usize| data.get(at).copied().unwrap_or_default();
    let v4 =
        |at: usize| std::net::SocketAddr::from(([byte(at), byte(at + 1), 0, byte(at + 2)], u16::from(byte(at + 3))));
    let v6 =
        |at: usize| std::net::SocketAddr::from(([u16::from(byte(at)), 0, 0, 0, 0, 0, 7, 9], u16::from(byte(at + 1))));
    match byte(0) % 4 {
        0 => Header::Local,
        1 => Header::Proxied { source: v4(1), destination: v4(5) },
        2 => Header::Proxied { source: v6(1), destination: v6(5) },
        _ => Header::Proxied { source: v4(1), destination: v6(5) },
    }
}

/// Reads the data, a good header and an edited one; pieces of any size come to the same.
pub(crate) fn run(data: &[u8]) {
    let header = good(data);
    let bytes = header.encode();
    let back = read(&bytes, usize::MAX);
    assert_eq!(back.1, bytes.len(), "it is read to its last byte, and not beyond");
    match (back.0, header) {
        (Some(Ok(Header::Proxied { source, destination })), Header::Proxied { source: from, destination: to }) => {
            let same = |one: std::net::SocketAddr, other: std::net::SocketAddr| {
                (one.ip().to_canonical(), one.port()) == (other.ip().to_canonical(), other.port())
            };
            assert!(same(source, from) && same(destination, to), "{source} and {from}, {destination} and {to}");
        }
        (Some(Ok(Header::Local)), Header::Local) => {}
        other => panic!("{other:?}"),
    }
    let size = 1 + usize::from(data.first().copied().unwrap_or_default() % 40);
    for bytes in [data.to_vec(), edited(&bytes, data), [&bytes, data].concat()] {
        let (whole, taken) = read(&bytes, usize::MAX);
        let (pieces, _) = read(&bytes, size);
        // In pieces it may be refused sooner, but never otherwise.
        assert_eq!(whole.map(|result| result.is_ok()), pieces.map(|result| result.is_ok()), "{bytes:02x?}");
        if let (Some(Ok(one)), Some(Ok(other))) = (whole, pieces) {
            assert_eq!(one, other);
            assert!(taken <= bytes.len());
        }
    }
}
