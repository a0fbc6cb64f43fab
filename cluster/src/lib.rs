//! What Postroad decides: behaviors, the state machine and the messages, as pure functions over plain data.

pub mod behavior;
pub mod id;
pub mod limits;
pub mod time;
