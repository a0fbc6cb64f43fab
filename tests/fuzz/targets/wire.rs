//! Messages of every protocol: whatever decodes encodes to what decodes to the same, and a command that decodes is
//! applied or refused.

use std::fmt::Debug;

use postroad_cluster::{
    command::{Command, Outcome},
    grant::{Grant, SignedGrant},
    snapshot::{Accepted, SignedSnapshot, SnapshotContent, SnapshotHeader},
    state::State,
    wire::{self, Message, control, flow, join, raft, session},
};

/// A reader of one kind of message; true if the bytes were one.
type Reader = fn(&[u8]) -> bool;

fn read<M: Message + Debug>(bytes: &[u8]) -> bool {
    match wire::decode::<M>(bytes) {
        Ok(message) => {
            let again = wire::encode(&message);
            // Not every message can be compared; its bytes can.
            let message = wire::decode::<M>(&again).expect("what was written is read");
            assert_eq!(wire::encode(&message), again);
            assert!(!format!("{message:?}").is_empty());
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn apply(bytes: &[u8]) -> bool {
    let Ok(command) = wire::decode::<Command>(bytes) else { return false };
    let mut state = State::default();
    let before = state.clone();
    // Refused, it changed nothing but the number of the entry.
    if matches!(state.apply(1, command), Outcome::Refused(_)) {
        assert_eq!((&state.nodes, &state.links, &state.tokens), (&before.nodes, &before.links, &before.tokens));
    }
    true
}

/// Everything that comes over a wire or from a disk.
pub(crate) const READERS: &[Reader] = &[
    read::<Command>,
    apply,
    read::<Outcome>,
    read::<SnapshotHeader>,
    read::<SnapshotContent>,
    read::<SignedSnapshot>,
    read::<Accepted>,
    read::<Grant>,
    read::<SignedGrant>,
    read::<State>,
    read::<control::ControlRequest>,
    read::<control::ControlResponse>,
    read::<flow::OpenFrame>,
    read::<join::JoinRequest>,
    read::<join::JoinResponse>,
    read::<raft::LogPlace>,
    read::<raft::LogRecord>,
    read::<raft::RaftAnswer>,
    read::<raft::RaftMessage>,
    read::<raft::StateSnapshotMeta>,
    read::<raft::VoteRecord>,
    read::<session::NodeRequest>,
    read::<session::NodeResponse>,
    read::<session::RelayRequest>,
    read::<session::RelayResponse>,
];

/// The first byte says as what the rest is read.
pub(crate) fn run(data: &[u8]) {
    if let Some((kind, bytes)) = data.split_first() {
        READERS[usize::from(*kind) % READERS.len()](bytes);
    }
}
