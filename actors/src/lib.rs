//! Who does it: actors around behaviors, one tree of supervisors a node. A map; each file says its own part.
//!
//! ```text
//! event ─▶ mailbox ─▶ behavior ─▶ effects ─▶ performer ─▶ ports
//!          bounded,   decides     journal,   acts, and sends results
//!          counted                published  back as events
//!                                 state
//! ```
//!
//! The tree of one node ([`root`] makes it; [`supervisor`] starts it from top to bottom, and stops it the other way):
//!
//! ```text
//! node
//! ├─ relay            relays only: sessions, registrations, channels, admissions
//! ├─ leader           control nodes only: leases, readiness of relays, new members
//! ├─ sessions         ─ relay-N     one a relay
//! ├─ peers            ─ peer-N      one a pair of nodes: circuit and channels
//! ├─ links            ─ link-N      one a link of this node
//! ├─ balancers        ─ NAME-N      one a database balancer that the cluster has this node run ([`balancer`])
//! ├─ control          connections to control nodes
//! └─ self             snapshot, what runs, certificate
//! ```
//!
//! Beside the actors stand what they share ([`fabric`]), flows ([`flow`]), what a control node answers ([`service`]),
//! and how a node comes to be ([`setup`]).

pub mod balancer;
pub mod carrier;
mod control;
mod dial;
pub mod directory;
pub mod fabric;
pub mod flow;
pub mod handle;
pub mod identity;
pub mod inspect;
pub mod journal;
mod leader;
mod link;
pub mod look;
pub mod mailbox;
mod node;
mod packet_size;
mod peer;
pub mod ports;
mod relay;
mod revoke;
pub mod root;
pub mod service;
mod session;
pub mod setup;
pub mod shell;
mod snapshot;
pub mod status;
pub mod supervisor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod vouch;
