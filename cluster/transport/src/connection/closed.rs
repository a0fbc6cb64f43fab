//! Why a connection has ended: a code that stays, and a sentence, from either end.

use core::fmt;

use quinn::{ConnectionError, VarInt};

/// Why this end closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseCode {
    /// It is not needed any more.
    Done = 0,
    /// The peer's certificate, its protocol or its role was refused.
    Refused = 1,
    /// The peer's certificate has ended and it did not prove a newer one.
    CertificateExpired = 2,
    /// The peer's certificate was revoked.
    CertificateRevoked = 3,
    /// Another connection of the same peer has taken over.
    Replaced = 4,
    /// This node stops.
    Stopping = 5,
    /// This node has no room for it.
    Busy = 6,
    /// The peer broke the protocol.
    Protocol = 7,
}

impl CloseCode {
    /// The code as text.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "DONE",
            Self::Refused => "REFUSED",
            Self::CertificateExpired => "CERTIFICATE_EXPIRED",
            Self::CertificateRevoked => "CERTIFICATE_REVOKED",
            Self::Replaced => "REPLACED",
            Self::Stopping => "STOPPING",
            Self::Busy => "BUSY",
            Self::Protocol => "PROTOCOL",
        }
    }
}

/// Which end, or what, ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedBy {
    /// This end.
    Here,
    /// The peer said so.
    Peer,
    /// Nobody said anything: the peer fell silent, lost its state, or the handshake failed here.
    Network,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Who ended it.
    pub by: ClosedBy,
    /// The stable code: a [`CloseCode`], a code of [`postroad_trust::TrustError`], or `SILENT`, `PEER_RESTARTED`,
    /// `TLS`, `PROTOCOL`, `VERSION`.
    pub code: String,
    /// The sentence, without the code.
    pub reason: String,
}

/// The longest reason that is read; one that our peers write is shorter.
const REASON_CHARACTERS_MAX: usize = 500;

impl Closed {
    /// Closed by this end.
    pub(crate) fn here(word: &str, reason: &str) -> Self {
        Self { by: ClosedBy::Here, code: word.to_owned(), reason: reason.to_owned() }
    }

    fn network(code: &str, reason: impl Into<String>) -> Self {
        Self { by: ClosedBy::Network, code: code.to_owned(), reason: reason.into() }
    }

    /// What a connection's error says.
    pub(crate) fn of(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::read(ClosedBy::Peer, &close.reason, "CLOSED"),
            ConnectionError::ConnectionClosed(close) => {
                Self::read(ClosedBy::Peer, &close.reason, transport_word(close.error_code))
            }
            ConnectionError::TransportError(error) => {
                Self::read(ClosedBy::Network, error.reason.as_bytes(), transport_word(error.code))
            }
            ConnectionError::TimedOut => Self::network("SILENT", "nothing was heard from the peer any more"),
            ConnectionError::Reset => {
                Self::network("PEER_RESTARTED", "the peer does not know this connection any more")
            }
            ConnectionError::LocallyClosed => Self::here(CloseCode::Done.word(), "this end has closed it"),
            ConnectionError::VersionMismatch => {
                Self::network("VERSION", "the peer speaks no version of QUIC that this release speaks")
            }
            ConnectionError::CidsExhausted => Self::network("BUSY", "this endpoint has too many connections"),
        }
    }

    /// Takes `CODE: sentence` apart. TLS errors have words of rustls before it.
    fn read(by: ClosedBy, bytes: &[u8], otherwise: &str) -> Self {
        let text: String = String::from_utf8_lossy(bytes)
            .chars()
            .map(|character| if character.is_control() { ' ' } else { character })
            .take(REASON_CHARACTERS_MAX)
            .collect();
        let own = text.strip_prefix("unexpected error: ").unwrap_or(&text);
        match own.split_once(": ") {
            Some((code, reason)) if is_code(code) => Self { by, code: code.to_owned(), reason: reason.to_owned() },
            _ if text.is_empty() => Self { by, code: otherwise.to_owned(), reason: "it gave no reason".to_owned() },
            _ => Self { by, code: otherwise.to_owned(), reason: text },
        }
    }
}

fn is_code(text: &str) -> bool {
    (2..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

fn transport_word(code: quinn::TransportErrorCode) -> &'static str {
    match u64::from(code) {
        0x100..=0x1ff => "TLS",
        2 => "BUSY",
        _ => "PROTOCOL",
    }
}

/// Closes with `WORD: reason`, so that the peer reads both.
pub(crate) fn close(quinn: &quinn::Connection, word: &str, code: CloseCode, reason: &str) {
    quinn.close(VarInt::from_u32(code as u32), format!("{word}: {reason}").as_bytes());
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.by {
            ClosedBy::Here => "closed here",
            ClosedBy::Peer => "closed by the peer",
            ClosedBy::Network => "lost",
        };
        write!(f, "{who}: {} ({})", self.reason, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_taken_apart() {
        let table: [(&[u8], &str, &str); 6] = [
            (b"STOPPING: n1 stops", "STOPPING", "n1 stops"),
            (b"unexpected error: CERTIFICATE_EXPIRED: it ended", "CERTIFICATE_EXPIRED", "it ended"),
            (b"received fatal alert: BadCertificate", "TLS", "received fatal alert: BadCertificate"),
            (b"", "TLS", "it gave no reason"),
            (b"A\x1b[31m: \n", "TLS", "A [31m:  "),
            (b"\xff\xfe", "TLS", "\u{fffd}\u{fffd}"),
        ];
        for (bytes, code, reason) in table {
            let closed = Closed::read(ClosedBy::Peer, bytes, "TLS");
            assert_eq!((closed.code.as_str(), closed.reason.as_str()), (code, reason));
        }
        assert_eq!(Closed::read(ClosedBy::Peer, &[b'a'; 9_000], "TLS").reason.len(), REASON_CHARACTERS_MAX);
        assert_eq!(Closed::here("DONE", "so it is").to_string(), "closed here: so it is (DONE)");
    }
}
