//! Bytes and messages: the only file that names bincode. Every message is an enum that only grows.

use core::fmt;

use serde::{Serialize, de::DeserializeOwned};

use crate::{limits::MESSAGE_BYTES_MAX, trace::TraceId};

/// What can be sent or kept: it knows the version of its encoding, which is its first byte.
pub trait Message: Serialize + DeserializeOwned + Sized {
    /// What it is, for errors.
    const WHAT: &'static str;
    /// The version that is written. A reader takes only versions that it knows.
    const VERSION: u8 = 1;

    /// The same as part of a trace; nothing where the message carries none.
    fn traced(&self, _trace: TraceId) -> Option<Self> {
        None
    }

    /// The message alone, and the trace that it is part of.
    ///
    /// # Errors
    /// If what carries the trace holds no message, or another trace.
    fn untraced(self) -> Result<(Option<TraceId>, Self), WireError> {
        Ok((None, self))
    }
}

/// Messages that carry a trace by a variant `Traced`, which holds any other one as bytes: a message that holds itself
/// would let a peer choose how deep a reader nests, and a stack has an end.
macro_rules! carries_traces {
    ($type:ident, $what:literal) => {
        impl crate::wire::Message for $type {
            const WHAT: &'static str = $what;

            fn traced(&self, trace: crate::trace::TraceId) -> Option<Self> {
                Some(Self::Traced { trace, request: crate::wire::encode(self) })
            }

            fn untraced(self) -> Result<(Option<crate::trace::TraceId>, Self), crate::wire::WireError> {
                let Self::Traced { trace, request } = self else { return Ok((None, self)) };
                match crate::wire::decode(&request)? {
                    Self::Traced { .. } => Err(crate::wire::WireError::Malformed { what: Self::WHAT }),
                    request => Ok((Some(trace), request)),
                }
            }
        }
    };
}

pub mod control;
pub mod flow;
pub mod join;
pub mod raft;
pub mod session;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Nothing there.
    Empty {
        /// What was expected.
        what: &'static str,
    },
    /// A version that this release does not know.
    Version {
        /// What was expected.
        what: &'static str,
        /// The version found.
        found: u8,
    },
    /// More bytes than allowed.
    TooLong {
        /// What was expected.
        what: &'static str,
        /// How many bytes there are.
        bytes: usize,
    },
    /// Bytes that do not decode, or more than the message needs.
    Malformed {
        /// What was expected.
        what: &'static str,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { what } => write!(f, "expected a {what}, found no bytes"),
            Self::Version { what, found } => {
                write!(f, "expected a {what}, found encoding version {found}: update the older of the two nodes")
            }
            Self::TooLong { what, bytes } => {
                write!(f, "expected a {what}, found {bytes} bytes, at most {MESSAGE_BYTES_MAX} are read")
            }
            Self::Malformed { what } => write!(f, "expected a {what}, found bytes that are none"),
        }
    }
}

impl std::error::Error for WireError {}

/// bincode counts what a value takes in memory: up to 8 bytes for a number that is sent in one. So that whatever is
/// short enough is also read, its limit is that much higher; the bytes themselves are counted before.
const DECODED_BYTES_MAX: usize = 8 * MESSAGE_BYTES_MAX;

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<DECODED_BYTES_MAX>()
}

/// The bytes of a message.
#[must_use]
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = vec![M::VERSION];
    bytes.extend(
        bincode::serde::encode_to_vec(message, config()).expect("our messages hold nothing that bincode cannot write"),
    );
    bytes
}

/// The message in these bytes, all of them.
///
/// # Errors
/// If the bytes are too many, of an unknown version or not exactly one message.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, WireError> {
    let what = M::WHAT;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(WireError::TooLong { what, bytes: bytes.len() });
    }
    let (version, rest) = bytes.split_first().ok_or(WireError::Empty { what })?;
    if *version != M::VERSION {
        return Err(WireError::Version { what, found: *version });
    }
    match bincode::serde::decode_from_slice(rest, config()) {
        Ok((message, read)) if read == rest.len() => Ok(message),
        _ => Err(WireError::Malformed { what }),
    }
}

impl<B: crate::behavior::Behavior> Message for crate::recording::Recording<B> {
    const WHAT: &'static str = "recording";
}

/// Names the messages that have no file of their own.
macro_rules! messages {
    ($($type:ty = $what:literal),+ $(,)?) => { $(impl Message for $type { const WHAT: &'static str = $what; })+ };
}

messages! {
    crate::command::Command = "command",
    crate::command::Outcome = "outcome",
    crate::snapshot::SnapshotHeader = "snapshot header",
    crate::snapshot::SnapshotContent = "snapshot content",
    crate::snapshot::SignedSnapshot = "signed snapshot",
    crate::snapshot::Accepted = "accepted snapshot",
    crate::grant::Grant = "grant",
    crate::grant::SignedGrant = "signed grant",
    crate::revocation::RevocationList = "revocations",
    crate::state::State = "state",
    control::ControlResponse = "control response",
    flow::OpenFrame = "open frame",
    join::JoinRequest = "join request",
    join::JoinResponse = "join response",
    raft::LogPlace = "place in the log",
    raft::LogRecord = "log entry",
    raft::RaftAnswer = "answer of the Raft group",
    raft::RaftMessage = "message of the Raft group",
    raft::StateSnapshotMeta = "description of a state snapshot",
    raft::VoteRecord = "vote",
    session::NodeResponse = "session response of a relay",
    session::RelayResponse = "session response of a node",
}

impl Message for flow::TrialFrame {
    const WHAT: &'static str = "trial frame";
    const VERSION: u8 = 2;
}

impl Message for flow::ClosingFrame {
    const WHAT: &'static str = "closing frame";
    const VERSION: u8 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{CircuitId, NodeId};

    fn open() -> session::NodeRequest {
        session::NodeRequest::ChannelOpen { circuit: CircuitId(300), peer: NodeId(1) }
    }

    #[test]
    fn nothing_but_exactly_one_known_message_decodes() {
        let bytes = encode(&open());
        assert_eq!(decode::<session::NodeRequest>(&bytes), Ok(open()));
        assert!(matches!(decode::<session::NodeRequest>(&[]), Err(WireError::Empty { .. })));
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(decode::<session::NodeRequest>(&longer), Err(WireError::Malformed { .. })));
        assert!(decode::<session::NodeRequest>(&bytes[..bytes.len() - 1]).is_err());
        let mut newer = bytes;
        newer[0] = 9;
        assert!(matches!(decode::<session::NodeRequest>(&newer), Err(WireError::Version { found: 9, .. })));
    }

    #[test]
    fn a_request_carries_its_trace_and_comes_out_alone() {
        let trace = TraceId::drawn(1);
        let traced = open().traced(trace).unwrap();
        let read: session::NodeRequest = decode(&encode(&traced)).unwrap();
        assert_eq!(read.untraced(), Ok((Some(trace), open())));
        assert_eq!(open().untraced(), Ok((None, open())));
        assert_eq!(session::RelayResponse::Done.traced(trace), None);
        // One in another is nothing that anybody sends.
        assert!(matches!(traced.traced(trace).unwrap().untraced(), Err(WireError::Malformed { .. })));
        let broken = session::NodeRequest::Traced { trace, request: vec![1, 99] };
        assert!(broken.untraced().is_err());
    }
}
