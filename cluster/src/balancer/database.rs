//! The decisions of the database balancer: who is the primary, who takes reads, and which connections are closed.

pub mod evidence;
pub mod settings;
