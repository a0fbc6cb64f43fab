//! Messages of a session (`postroad-relay/1`): between a node and a relay, each a request with its response.

use serde::{Deserialize, Serialize};

use crate::{
    command::Refusal,
    grant::SignedGrant,
    id::{Challenge, ChannelToken, CircuitId, Generation, LinkId, NodeId, TunnelId, Version},
    revocation::SignedRevocations,
    trace::TraceId,
};

/// What a node asks of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// The first request of a session.
    Hello {
        /// The generation of this session: boots of the node in the upper half, sessions since in the lower.
        session: Generation,
    },
    /// Proof of life, each second.
    Ping {
        /// Counts up.
        sequence: u64,
    },
    /// Registers an endpoint; replaces an older generation of it.
    Register {
        /// The link.
        link: LinkId,
        /// The generation of its route.
        generation: Generation,
        /// The grant to register.
        grant: SignedGrant,
    },
    /// Ends a registration of this generation or an older one.
    Unregister {
        /// The link.
        link: LinkId,
        /// The generation.
        generation: Generation,
    },
    /// Opens a channel of a circuit to a peer through this relay; the relay offers it to the peer.
    ChannelOpen {
        /// The circuit.
        circuit: CircuitId,
        /// The node at the other end.
        peer: NodeId,
    },
    /// Closes it at both ends.
    ChannelClose {
        /// The circuit.
        circuit: CircuitId,
        /// The node at the other end.
        peer: NodeId,
    },
    /// Asks for a tunnel; the relay tells the target node.
    Admit {
        /// The tunnel.
        tunnel: TunnelId,
        /// The link.
        link: LinkId,
        /// The generation of its route that the consumer knows.
        generation: Generation,
        /// The grant to open tunnels.
        grant: SignedGrant,
    },
    /// The node ends this session on purpose.
    Goodbye {
        /// The session's generation: a late goodbye ends nothing newer.
        session: Generation,
    },
    /// The node has received a challenge where it is now: its packets come from there from now on.
    AddressProof {
        /// The challenge.
        challenge: Challenge,
    },
    /// Revocations that the relay has not applied (RP-35).
    Revocations {
        /// All of them.
        signed: Box<SignedRevocations>,
    },
    /// Asks for the relay's revocations, which are newer than the node's.
    RevocationsAsk,
    /// Any other request, as part of a trace. Whoever answers goes on with the trace.
    Traced {
        /// The trace.
        trace: TraceId,
        /// The request, encoded like one.
        request: Vec<u8>,
    },
    /// Asks for tunnels that flows will open within a second, as [`NodeRequest::Admit`] does for one. An older relay
    /// takes it for no message; then each flow asks for its own.
    AdmitAhead {
        /// The tunnels, at least one and at most [`crate::limits::AHEAD_LOT_MAX`].
        tunnels: Vec<TunnelId>,
        /// The link.
        link: LinkId,
        /// The generation of its route that the consumer knows.
        generation: Generation,
        /// The grant to open tunnels.
        grant: SignedGrant,
    },
}

carries_traces!(NodeRequest, "session request of a node");

/// What a relay answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeResponse {
    /// The session stands.
    Welcome {
        /// The version of the policy that the relay admits by.
        policy: Version,
    },
    /// Done, nothing to add.
    Done,
    /// The channel is open at both ends.
    ChannelOpened {
        /// The token that the node writes into its packets.
        token_out: ChannelToken,
        /// The token of the packets that the node receives.
        token_in: ChannelToken,
    },
    /// The tunnel, or each of those that were asked for ahead, is admitted, and the target node knows.
    Admitted {
        /// The target node.
        target: NodeId,
    },
    /// Not done, and why.
    Refused(Refusal),
    /// The relay's revocations; nothing if it has none.
    Revocations {
        /// All of them.
        signed: Option<Box<SignedRevocations>>,
    },
}

/// What a relay asks of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayRequest {
    /// Proof of life, each second.
    Ping {
        /// Counts up.
        sequence: u64,
    },
    /// A peer has opened a channel.
    ChannelOffer {
        /// The circuit.
        circuit: CircuitId,
        /// The node at the other end.
        peer: NodeId,
        /// The token that the node writes into its packets.
        token_out: ChannelToken,
        /// The token of the packets that the node receives.
        token_in: ChannelToken,
    },
    /// A channel has ended.
    ChannelClosed {
        /// The circuit.
        circuit: CircuitId,
        /// The node at the other end.
        peer: NodeId,
        /// Why, for people.
        reason: String,
    },
    /// A consumer's tunnel was admitted.
    Admission {
        /// The tunnel.
        tunnel: TunnelId,
        /// Its link.
        link: LinkId,
        /// The generation of the route that the relay knows.
        generation: Generation,
        /// The consumer.
        consumer: NodeId,
    },
    /// The relay's own word on whether it drains; the node leaves it at once, without waiting for its snapshot.
    Drain {
        /// The version of the policy that says so.
        version: Version,
        /// Whether it drains.
        draining: bool,
    },
    /// What the relay has applied.
    Applied {
        /// Everything that was agreed up to this version.
        version: Version,
        /// The newest of the revocations that it has.
        revocations: Version,
    },
    /// Any other request, as part of a trace. Whoever answers goes on with the trace.
    Traced {
        /// The trace.
        trace: TraceId,
        /// The request, encoded like one.
        request: Vec<u8>,
    },
    /// Tunnels of a consumer were admitted ahead of need.
    AdmissionAhead {
        /// The tunnels, at most [`crate::limits::AHEAD_LOT_MAX`].
        tunnels: Vec<TunnelId>,
        /// Their link.
        link: LinkId,
        /// The generation of the route that the relay knows.
        generation: Generation,
        /// The consumer.
        consumer: NodeId,
    },
}

carries_traces!(RelayRequest, "session request of a relay");

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayResponse {
    /// Done, nothing to add.
    Done,
    /// Not done, and why.
    Refused(Refusal),
}
