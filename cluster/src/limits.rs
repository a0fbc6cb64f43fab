//! Every bound of the system and its reason: queues, buffers, retries and waits. One file a subject, all of them used by
//! their names alone:
//!
//! - `actors`: supervision, mailboxes and journals
//! - `circuit`: circuits: silences, probes, the ring, and the socket under them
//! - `connection`: connections and messages between two nodes
//! - `console`: the console, traces and configuration
//! - `fleet`: what the fleet agrees on, and what its nodes report
//! - `flow`: flows: how they open, what they hold, and how they are measured
//! - `raft`: the Raft group
//! - `relay`: what a relay serves and forwards
//! - `session`: a node's sessions, and how it dials
//! - `splice`: the byte path of balancers, and PROXY headers
//! - `spread`: the circuits of a pair, the relays that take its new connections, and those that refuse
//! - `store`: what is kept on a disk, and clocks
//! - `trust`: certificates, the authority, and joining

mod actors;
mod circuit;
mod connection;
mod console;
mod fleet;
mod flow;
mod raft;
mod relay;
mod session;
mod splice;
mod spread;
mod store;
mod trust;

pub use self::{
    actors::*, circuit::*, connection::*, console::*, fleet::*, flow::*, raft::*, relay::*, session::*, splice::*,
    spread::*, store::*, trust::*,
};
