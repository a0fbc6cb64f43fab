//! Messages of joining (`postroad-join/1`): one request, one response, before the joiner has a certificate.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    command::{Enrolment, Refusal},
    id::{Name, NodeId, Role, TokenId},
};

/// What a joiner asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinRequest {
    /// To be enrolled.
    Enrol {
        /// The token's public number.
        token: TokenId,
        /// The proof that the joiner has the secret: an HMAC over the TLS exporter and its public key.
        proof: [u8; 32],
        /// Who joins.
        enrolment: Enrolment,
    },
}

/// What a control node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinResponse {
    /// The joiner is a node now.
    Welcome {
        /// The cluster.
        cluster: Name,
        /// Its number.
        node: NodeId,
        /// Its roles.
        roles: BTreeSet<Role>,
        /// Its certificate and the issuer's, DER, leaf first.
        chain: Vec<Vec<u8>>,
        /// The trusted authorities' certificates, DER.
        authorities: Vec<Vec<u8>>,
        /// The control nodes' addresses.
        controls: BTreeMap<NodeId, String>,
    },
    /// Not enrolled, and why.
    Refused(Refusal),
}
