//! What a client reads when no node can be had: a proper error of its own protocol, in place of the handshake (DB-6).
//!
//! MySQL's server speaks first, so its error goes out at once. PostgreSQL's client speaks first: its wishes for
//! encryption are declined, since there is nobody to encrypt with, and its startup message is read to the end, since a
//! connection that is closed with bytes unread is reset and the client would never see the error.

use serde::{Deserialize, Serialize};

use super::database::settings::{Language, Port, Protocol};
use crate::limits::STARTUP_BYTES_MAX;

/// MySQL's code: "no node available", of the same number as other balancers use.
const MYSQL_CODE: u16 = 9_043;
/// PostgreSQL's code: `cannot_connect_now`, which drivers take for a reason to try again.
const POSTGRES_CODE: &str = "57P03";

/// The codes of what a PostgreSQL client may begin with.
const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSS_ENCRYPTION: u32 = 80_877_104;

/// The length and the code that every such message begins with.
const BEGINNING_BYTES: usize = 8;

/// The sentence for people.
#[must_use]
pub const fn words(port: Port, language: Language) -> &'static str {
    match (language, port) {
        (Language::En, Port::Rw) => "no node available for RW connections",
        (Language::En, Port::Ro) => "no node available for RO connections",
        (Language::Fr, Port::Rw) => "aucun nœud disponible pour les connexions RW",
        (Language::Fr, Port::Ro) => "aucun nœud disponible pour les connexions RO",
    }
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Write these bytes, then go on reading.
    Reply(Vec<u8>),
    /// Read on.
    Read,
    /// Write these bytes, which may be none, end the connection, and read nothing more of it.
    End(Vec<u8>),
}

/// One refusal under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    protocol: Protocol,
    words: String,
    /// Bytes of the client's present message that were read; at most [`BEGINNING_BYTES`] are kept.
    beginning: Vec<u8>,
    /// Bytes of its startup message that are still to come.
    rest: usize,
    /// It has asked for TLS, for encryption by GSSAPI; each is declined once.
    declined: [bool; 2],
    ended: bool,
}

impl Refusal {
    /// The refusal of a connection that came in by `port`.
    #[must_use]
    pub fn new(protocol: Protocol, port: Port, language: Language) -> Self {
        let words = words(port, language).to_owned();
        Self { protocol, words, beginning: Vec::new(), rest: 0, declined: [false; 2], ended: false }
    }

    /// What is to be done before anything was read.
    #[must_use]
    pub fn begin(&mut self) -> Step {
        match self.protocol {
            Protocol::Mysql => self.end(mysql_error(&self.words)),
            Protocol::Postgres => Step::Read,
        }
    }

    /// How many bytes to read at most: no message is read beyond its end.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match () {
            () if self.ended => 0,
            () if self.rest > 0 => self.rest,
            () => BEGINNING_BYTES - self.beginning.len(),
        }
    }

    /// Takes what was read, at most [`Refusal::wanted`] bytes.
    #[must_use]
    pub fn take(&mut self, bytes: &[u8]) -> Step {
        if bytes.len() > self.wanted() {
            return self.end(Vec::new());
        }
        if self.rest > 0 {
            self.rest -= bytes.len();
            return if self.rest == 0 { self.end(postgres_error(&self.words)) } else { Step::Read };
        }
        self.beginning.extend_from_slice(bytes);
        let Some((length, code)) = self.message() else { return Step::Read };
        self.beginning.clear();
        match code {
            SSL if length == BEGINNING_BYTES && !self.declined[0] => self.decline(0),
            GSS_ENCRYPTION if length == BEGINNING_BYTES && !self.declined[1] => self.decline(1),
            // A cancel request has no answer in this protocol; the rest is no beginning that exists.
            SSL | GSS_ENCRYPTION | CANCEL => self.end(Vec::new()),
            _ if !(BEGINNING_BYTES..=STARTUP_BYTES_MAX).contains(&length) => self.end(Vec::new()),
            _ if length == BEGINNING_BYTES => self.end(postgres_error(&self.words)),
            _ => {
                self.rest = length - BEGINNING_BYTES;
                Step::Read
            }
        }
    }

    /// The length and code of the present message, once they are there.
    fn message(&self) -> Option<(usize, u32)> {
        let number = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let bytes = &self.beginning;
        (bytes.len() == BEGINNING_BYTES).then(|| (number(bytes) as usize, number(&bytes[4..])))
    }

    fn decline(&mut self, which: usize) -> Step {
        self.declined[which] = true;
        Step::Reply(b"N".to_vec())
    }

    fn end(&mut self, bytes: Vec<u8>) -> Step {
        self.ended = true;
        Step::End(bytes)
    }
}

/// A packet in place of the server's greeting. No capabilities are agreed on yet, so it has no SQL state.
fn mysql_error(words: &str) -> Vec<u8> {
    let mut packet = vec![0xff];
    packet.extend(MYSQL_CODE.to_le_bytes());
    packet.extend(words.as_bytes());
    // The length takes three bytes; the fourth is the packet's number.
    let mut bytes = (packet.len() as u32).to_le_bytes().to_vec();
    bytes.extend(packet);
    bytes
}

fn postgres_error(words: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    for (field, value) in [(b'S', "FATAL"), (b'V', "FATAL"), (b'C', POSTGRES_CODE), (b'M', words)] {
        fields.push(field);
        fields.extend(value.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    let mut bytes = vec![b'E'];
    bytes.extend((fields.len() as u32 + 4).to_be_bytes());
    bytes.extend(fields);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn postgres() -> Refusal {
        let mut refusal = Refusal::new(Protocol::Postgres, Port::Rw, Language::En);
        assert_eq!(refusal.begin(), Step::Read);
        refusal
    }

    fn request(code: u32) -> Vec<u8> {
        [8_u32.to_be_bytes(), code.to_be_bytes()].concat()
    }

    fn startup() -> Vec<u8> {
        let parameters = b"user\0alice\0database\0shop\0\0";
        let length = (8 + parameters.len()) as u32;
        [&length.to_be_bytes()[..], &196_608_u32.to_be_bytes(), parameters].concat()
    }

    /// Gives bytes as they are wanted, in reads of at most `size`; returns all that is not [`Step::Read`].
    fn give(refusal: &mut Refusal, mut bytes: &[u8], size: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while !bytes.is_empty() && refusal.wanted() > 0 {
            let (part, rest) = bytes.split_at(refusal.wanted().min(size).min(bytes.len()));
            bytes = rest;
            match refusal.take(part) {
                Step::Read => {}
                step => steps.push(step),
            }
        }
        steps
    }

    // DB-6
    #[test]
    fn a_mysql_client_reads_error_9043_in_place_of_the_greeting() {
        let mut refusal = Refusal::new(Protocol::Mysql, Port::Rw, Language::En);
        let wanted = b"\x27\0\0\0\xff\x53\x23no node available for RW connections";
        assert_eq!(refusal.begin(), Step::End(wanted.to_vec()));
        assert_eq!(refusal.wanted(), 0);
        let mut french = Refusal::new(Protocol::Mysql, Port::Ro, Language::Fr);
        let Step::End(bytes) = french.begin() else { panic!("nothing is to be read first") };
        assert_eq!(&bytes[7..], "aucun nœud disponible pour les connexions RO".as_bytes());
        assert_eq!(usize::from(bytes[0]), bytes.len() - 4, "the length counts bytes, not characters");
    }

    // DB-6
    #[test]
    fn a_postgres_client_is_told_after_its_wishes_for_encryption_were_declined() {
        let error = b"E\0\0\0\x40SFATAL\0VFATAL\0C57P03\0Mno node available for RW connections\0\0".to_vec();
        let (no, end) = (Step::Reply(b"N".to_vec()), Step::End(error));
        for size in [1, 7, usize::MAX] {
            assert_eq!(give(&mut postgres(), &startup(), size), std::slice::from_ref(&end));
            let all = [request(GSS_ENCRYPTION), request(SSL), startup()].concat();
            assert_eq!(give(&mut postgres(), &all, size), [no.clone(), no.clone(), end.clone()]);
        }
    }

    #[test]
    fn what_is_no_beginning_of_postgres_gets_no_answer() {
        let nothing = Step::End(Vec::new());
        let cancel = [&16_u32.to_be_bytes()[..], &CANCEL.to_be_bytes(), &[0; 8]].concat();
        let tls = b"\x16\x03\x01\x02\0\x01\0\x01".to_vec();
        let large = [((STARTUP_BYTES_MAX + 1) as u32).to_be_bytes(), 196_608_u32.to_be_bytes()].concat();
        let small = [7_u32.to_be_bytes(), 196_608_u32.to_be_bytes()].concat();
        for bytes in [cancel, tls, large, small] {
            assert_eq!(give(&mut postgres(), &bytes, usize::MAX), std::slice::from_ref(&nothing), "{bytes:?}");
        }
        let twice = [request(SSL), request(SSL)].concat();
        assert_eq!(give(&mut postgres(), &twice, usize::MAX), [Step::Reply(b"N".to_vec()), nothing.clone()]);
        assert_eq!(postgres().take(&[0; 9]), nothing, "more than was wanted");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_read_on_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1_usize..20) {
            let mut refusal = postgres();
            let steps = give(&mut refusal, &bytes, size);
            prop_assert!(steps.len() <= 3);
            prop_assert!(refusal.beginning.len() < BEGINNING_BYTES && refusal.wanted() <= STARTUP_BYTES_MAX);
        }
    }
}
