//! The database balancer: which node of a database cluster each connection is led to.
//!
//! | what | where |
//! |---|---|
//! | who is the primary, who takes reads, what is closed | [`database`] |
//! | who the client really is, told by the machine before | [`proxy_header`] |
//! | what a client reads when no node can be had | [`refusal`] |
//! | every bound of it and its reason | [`limits`] |

pub mod database;
pub mod limits;
pub mod proxy_header;
pub mod refusal;
