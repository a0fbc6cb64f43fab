//! What Postroad decides: behaviors, the state machine and the messages, as pure functions over plain data.

pub mod behavior;
pub mod command;
pub mod domain;
pub mod grant;
pub mod id;
pub mod limits;
pub mod setting;
pub mod snapshot;
pub mod state;
pub mod time;
pub mod verified;
pub mod wire;
