//! Each line of case D6, and properties: byte at a time, never a panic, what is written is read back.

use proptest::prelude::*;

use super::*;

fn header(command: u8, family: u8, length: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(rest);
    bytes
}

fn with_block(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    header(command, family, block.len() as u16, block)
}

/// Gives bytes one by one; returns the outcome and how many were taken.
fn one_by_one(bytes: &[u8]) -> (Result<Option<Header>, Refused>, usize) {
    let mut parser = Parser::default();
    for (at, byte) in bytes.iter().enumerate() {
        match parser.take(&[*byte]) {
            Ok(None) => {}
            outcome => return (outcome, at + 1),
        }
    }
    (Ok(None), bytes.len())
}

/// Gives bytes in reads as large as the parser asks for.
fn as_wanted(mut bytes: &[u8]) -> Result<Option<Header>, Refused> {
    let mut parser = Parser::default();
    loop {
        let (part, rest) = bytes.split_at(parser.wanted().min(bytes.len()));
        match parser.take(part) {
            Ok(None) if !rest.is_empty() => bytes = rest,
            outcome => return outcome,
        }
    }
}

fn outcome(bytes: &[u8]) -> Result<Option<Header>, Refused> {
    let (slow, _) = one_by_one(bytes);
    assert_eq!(as_wanted(bytes), slow, "the size of reads changes nothing");
    slow
}

fn client() -> Header {
    Header::Proxied { source: "203.0.113.9:51000".parse().unwrap(), destination: "10.0.0.1:3306".parse().unwrap() }
}

fn v4_block() -> Vec<u8> {
    client().encode()[FIXED_BYTES..].to_vec()
}

// D6, DB-32
#[test]
fn local_means_the_real_peer_and_its_address_block_is_skipped() {
    assert_eq!(outcome(&with_block(LOCAL, UNSPECIFIED, &[])), Ok(Some(Header::Local)));
    assert_eq!(outcome(&with_block(LOCAL, TCP_OVER_V4, &v4_block())), Ok(Some(Header::Local)));
    // The family and what the block holds are nobody's business then.
    assert_eq!(outcome(&with_block(LOCAL, 0xff, b"anything")), Ok(Some(Header::Local)));
    let peer = "192.0.2.1:9".parse().unwrap();
    assert_eq!(Header::Local.client(peer), peer);
    assert_eq!(client().client(peer), "203.0.113.9:51000".parse().unwrap());
}

// D6, DB-32
#[test]
fn an_unspecified_or_unix_client_is_the_real_peer() {
    assert_eq!(outcome(&with_block(PROXY, UNSPECIFIED, &[])), Ok(Some(Header::Local)));
    assert_eq!(outcome(&with_block(PROXY, UNSPECIFIED, b"what it is, nobody says")), Ok(Some(Header::Local)));
    assert_eq!(outcome(&with_block(PROXY, UNIX_STREAM, &[7; PROXY_HEADER_UNIX_BYTES])), Ok(Some(Header::Local)));
}

// D6, DB-32
#[test]
fn extensions_are_read_and_a_wrong_checksum_is_refused() {
    let mut block = v4_block();
    block.extend([0x04, 0, 2, 0, 0, 0x02, 0, 4]);
    block.extend(b"host");
    assert_eq!(outcome(&with_block(PROXY, TCP_OVER_V4, &block)), Ok(Some(client())));
    block.extend([0xEE, 0, 9, 1]);
    assert_eq!(outcome(&with_block(PROXY, TCP_OVER_V4, &block)), Err(Refused::Extension));

    let mut checked = v4_block();
    checked.extend([CHECKSUM, 0, 4, 0, 0, 0, 0]);
    let mut bytes = with_block(PROXY, TCP_OVER_V4, &checked);
    let at = bytes.len() - 4;
    let sum = crc32c(&bytes, &(0..0));
    bytes[at..].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(outcome(&bytes), Ok(Some(client())));
    bytes[20] ^= 1;
    assert_eq!(outcome(&bytes), Err(Refused::Checksum));
    // The known answer of RFC 3720, B.4: 32 bytes of zeros.
    assert_eq!(crc32c(&[0; 32], &(0..0)), 0x8A91_36AA);
}

// D6, DB-32
#[test]
fn a_header_of_the_greatest_length_is_read() {
    let mut block = v4_block();
    let filling = usize::from(u16::MAX) - block.len() - 3;
    block.push(0x04);
    block.extend((filling as u16).to_be_bytes());
    block.resize(usize::from(u16::MAX), 0);
    let bytes = with_block(PROXY, TCP_OVER_V4, &block);
    assert_eq!(bytes.len(), PROXY_HEADER_BYTES_MAX);
    assert_eq!(as_wanted(&bytes), Ok(Some(client())));
    assert_eq!(one_by_one(&bytes), (Ok(Some(client())), PROXY_HEADER_BYTES_MAX));
}

// D6, DB-32
#[test]
fn what_is_unknown_is_refused_at_its_byte() {
    for (bytes, refused, at) in [
        (header(0x22, TCP_OVER_V4, 12, &[]), Refused::Command(2), 13),
        (header(0x2f, TCP_OVER_V4, 12, &[]), Refused::Command(15), 13),
        (header(0x11, TCP_OVER_V4, 12, &[]), Refused::Version(1), 13),
        (header(0x31, TCP_OVER_V4, 12, &[]), Refused::Version(3), 13),
        (header(PROXY, 0x41, 12, &[]), Refused::Family(0x41), 14),
        (header(PROXY, 0x10, 12, &[]), Refused::Family(0x10), 14),
        // A datagram cannot have made a connection.
        (header(PROXY, 0x12, 12, &[]), Refused::Family(0x12), 14),
        (header(PROXY, TCP_OVER_V4, 11, &[]), Refused::Length(11), 16),
        (header(PROXY, TCP_OVER_V6, 35, &[]), Refused::Length(35), 16),
        (header(PROXY, UNIX_STREAM, 215, &[]), Refused::Length(215), 16),
    ] {
        assert_eq!(one_by_one(&bytes), (Err(refused), at), "{refused}");
    }
}

// D6, DB-32: version 1 text
#[test]
fn a_header_of_version_1_is_told_apart_from_none() {
    let text = b"PROXY TCP4 203.0.113.9 10.0.0.1 51000 3306\r\n";
    assert_eq!(one_by_one(text), (Err(Refused::VersionOne), 6));
    assert_eq!(outcome(text), Err(Refused::VersionOne));
}

// D6, DB-32: missing from a trusted address
#[test]
fn bytes_that_are_no_header_are_refused_at_the_first_wrong_one() {
    for (bytes, at) in
        [(&b"\0\0\0\x08\x04\xd2\x16\x2f"[..], 1), (b"\x16\x03\x01", 1), (b"PROXIMA", 5), (b"\r\n\r\nGET", 5)]
    {
        assert_eq!(one_by_one(bytes), (Err(Refused::Missing), at), "{bytes:?}");
    }
    assert_eq!(Parser::default().take(b""), Ok(None));
}

#[test]
fn a_reader_that_takes_more_than_wanted_is_told() {
    let mut bytes = client().encode();
    bytes.push(0x0a);
    assert_eq!(Parser::default().take(&bytes), Err(Refused::Extension));
}

// DB-30
#[test]
fn what_is_written_is_what_the_protocol_says() {
    let wanted = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x09\x0a\0\0\x01\xc7\x38\x0c\xea";
    assert_eq!(client().encode(), wanted);
    assert_eq!(Header::Local.encode(), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    // A socket that takes both families shows an IPv4 client as a mapped one.
    let shown = Header::Proxied {
        source: "[::ffff:203.0.113.9]:51000".parse().unwrap(),
        destination: "[::ffff:10.0.0.1]:3306".parse().unwrap(),
    };
    assert_eq!(shown.encode(), wanted);
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<[u8; 4]>().prop_map(IpAddr::from);
    let v6 = any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical());
    (prop_oneof![v4, v6], any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(source in address(), destination in address(), follows: Vec<u8>) {
        let header = Header::Proxied { source, destination };
        let mut bytes = header.encode();
        let length = bytes.len();
        bytes.extend(follows);
        prop_assert_eq!(one_by_one(&bytes), (Ok(Some(header)), length));
        prop_assert_eq!(as_wanted(&bytes[..length]), Ok(Some(header)));
    }

    #[test]
    fn no_bytes_make_it_panic(
        prefix in 0..=SIGNATURE.len(),
        command in prop_oneof![Just(LOCAL), Just(PROXY), any::<u8>()],
        family in prop_oneof![Just(0), Just(0x11), Just(0x21), Just(0x31), any::<u8>()],
        length in prop_oneof![0_u16..300, any::<u16>()],
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = SIGNATURE[..prefix].to_vec();
        bytes.extend([command, family]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(rest);
        let (slow, taken) = one_by_one(&bytes);
        prop_assert!(taken <= bytes.len());
        prop_assert_eq!(as_wanted(&bytes), slow);
    }
}
