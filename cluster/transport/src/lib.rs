//! How nodes reach each other: the network port, quinn and rustls.

pub mod network;
pub mod connection;
pub mod endpoint;
pub mod join;
pub mod tls;
mod address;
pub mod controller;
pub mod flow;
pub mod node_socket;
pub mod packet;
#[cfg(feature = "planted")]
pub mod planted;
pub mod ring;
pub mod switch;
mod writable;
