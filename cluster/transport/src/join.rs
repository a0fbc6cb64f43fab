//! Joining: somebody with a token and a fingerprint, but no certificate, becomes a node. The joiner proves its secret
//! only to a control node whose authority has that fingerprint, and never sends it.
//!
//! - `seeds`: the joiner's attempts, seed by seed
//! - `answer`: the control node's side
//! - [`failure`]: why a join failed

mod answer;
pub mod failure;
mod seeds;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use postroad_cluster::id::{Name, NodeId, Role};

pub use answer::{JoinAnswer, answer_join};
pub use failure::{JoinError, SeedFailure};
pub use seeds::{JoinOptions, join};

/// The label of the exporter that a proof is bound to.
const PROOF_LABEL: &str = "EXPORTER-postroad-join";

/// A join that was granted and whose certificate was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The seed that answered.
    pub through: SocketAddr,
    /// The cluster.
    pub cluster: Name,
    /// The new node's number.
    pub node: NodeId,
    /// Its roles.
    pub roles: BTreeSet<Role>,
    /// Its certificate and the issuer's, DER, leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The trusted authorities' certificates, DER.
    pub authorities: Vec<Vec<u8>>,
    /// The control nodes' addresses.
    pub controls: BTreeMap<NodeId, String>,
}
