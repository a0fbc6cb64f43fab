//! What Postroad decides: behaviors, the state machine and the messages, as pure functions over plain data.

pub mod balancer;
pub mod behavior;
pub mod circuit;
pub mod command;
pub mod control;
pub mod domain;
pub mod grant;
pub mod id;
pub mod invariant;
pub mod leader;
pub mod limits;
pub mod link;
pub mod node;
pub mod peer;
#[cfg(feature = "planted")]
pub mod planted;
pub mod relay;
pub mod retry;
pub mod session;
pub mod setting;
pub mod snapshot;
pub mod state;
pub mod supervision;
pub mod time;
pub mod verified;
pub mod wire;
