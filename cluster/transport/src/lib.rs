//! How nodes reach each other: the network port, quinn and rustls.

mod address;
pub mod connection;
pub mod controller;
pub mod endpoint;
pub mod flow;
pub mod join;
pub mod network;
pub mod node_socket;
pub mod packet;
#[cfg(feature = "planted")]
pub mod planted;
pub mod proxy_header;
pub mod refusal;
pub mod ring;
mod runtime;
pub mod splice;
pub mod switch;
pub mod tls;
pub mod trace;
mod writable;
