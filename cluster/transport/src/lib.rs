//! How nodes reach each other: the network port, quinn and rustls.

pub mod network;
