//! Messages of the control protocol (`postroad-control/1`): from any node to a control node, and among control nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    command::{Command, Outcome, PublicKeyBytes, Refusal},
    id::{CircuitId, Name, NodeId, Version},
    snapshot::SignedSnapshot,
    trace::TraceId,
};

/// What is asked of a control node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// The caller's next snapshot; answered as soon as there is a newer one, else at the request's deadline.
    SnapshotAfter {
        /// The version that the caller has.
        have: Version,
        /// The hash of its content, so that equal content is not sent again.
        content_hash: Option<[u8; 32]>,
    },
    /// A new certificate for the caller's (new) key.
    CertificateRenew {
        /// The key.
        public: PublicKeyBytes,
    },
    /// Brings a command to the leader. Control nodes may propose anything, others only what concerns themselves.
    Propose {
        /// The command.
        command: Box<Command>,
    },
    /// Soft facts; the newest wins.
    Report(Report),
    /// A message of the Raft group, between control nodes only.
    Raft {
        /// The message, encoded by the Raft crate.
        message: Vec<u8>,
    },
    /// A request of the HTTP API, by an operator or another node's command line: method, path and JSON body.
    Api {
        /// `GET`, `POST` or `DELETE`.
        method: String,
        /// Path and query.
        path: String,
        /// The JSON body, or nothing.
        body: Vec<u8>,
    },
    /// A node's facts, passed on to the leader by the control node that got them.
    Reported {
        /// The node that reported.
        from: NodeId,
        /// What it reported.
        report: Report,
    },
    /// A page of the console of a node, through whoever is connected to it; by any member, since it only reads.
    Look {
        /// The node to look at.
        node: NodeId,
        /// The page: path and query.
        path: String,
    },
    /// Has a node do what its console may: through whoever is connected to it, and by control nodes only.
    Act {
        /// The node.
        node: NodeId,
        /// The path of the API that does it.
        path: String,
    },
    /// Any other request, as part of a trace. Whoever answers goes on with the trace.
    Traced {
        /// The trace.
        trace: TraceId,
        /// The request, encoded like one.
        request: Vec<u8>,
    },
}

carries_traces!(ControlRequest, "control request");

/// What a control node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlResponse {
    /// A newer snapshot.
    Snapshot(Box<SignedSnapshot>),
    /// No newer one until the deadline.
    Unchanged,
    /// A certificate and its issuer's, DER, leaf first.
    Certificate {
        /// The chain.
        chain: Vec<Vec<u8>>,
    },
    /// What came of a command.
    Outcome(Outcome),
    /// This node does not lead and could not reach who does.
    NoLeader {
        /// The leader, as far as known.
        leader: Option<NodeId>,
    },
    /// Taken.
    Done,
    /// A message of the Raft group.
    Raft {
        /// The message, encoded by the Raft crate.
        message: Vec<u8>,
    },
    /// An answer of the HTTP API.
    Api {
        /// The HTTP status.
        status: u16,
        /// The JSON body.
        body: Vec<u8>,
    },
    /// Not done, and why.
    Refused(Refusal),
    /// A newer snapshot that is part of a trace: that of the newest entry in it.
    SnapshotTraced {
        /// The trace.
        trace: TraceId,
        /// The snapshot.
        signed: Box<SignedSnapshot>,
    },
}

/// What a node reports of itself and its relays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Each relay that it tried: the round-trip time in microseconds, or why it was not reached.
    pub relays: BTreeMap<NodeId, Result<u64, String>>,
    /// The version of the snapshot that it works by.
    pub snapshot: Version,
    /// Open flows.
    pub flows: u64,
    /// What each relay carries for it.
    pub loads: BTreeMap<NodeId, Load>,
    /// The circuits that it dials, one by one, at most [`crate::limits::REPORT_CIRCUITS_MAX`].
    pub circuits: Vec<CircuitReport>,
    /// What each relay with a session has applied, by its own word.
    pub applied: BTreeMap<NodeId, Version>,
    /// The database balancers that the cluster has it run, by name.
    pub balancers: BTreeMap<Name, BalancerReport>,
}

/// How a database balancer does on a node that runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerReport {
    /// The entry by which it has its list of nodes; nothing while it does not run.
    pub changed: Option<Version>,
    /// The database node that takes writes.
    pub primary: Option<String>,
    /// What is wrong, in a sentence; at most [`crate::balancer::limits::TROUBLE_CHARACTERS_MAX`].
    pub trouble: Option<String>,
}

/// What a relay carries for a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Circuits.
    pub circuits: u64,
    /// Flows on them.
    pub flows: u64,
}

/// A circuit as its dialling node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitReport {
    /// The node at the other end.
    pub peer: NodeId,
    /// The circuit.
    pub circuit: CircuitId,
    /// The relay that carries it.
    pub relay: Option<NodeId>,
    /// Open flows on it.
    pub flows: u64,
}
