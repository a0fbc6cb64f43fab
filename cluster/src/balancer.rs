//! The database balancer: which node of a database cluster each connection is led to.
//!
//! | what | where |
//! |---|---|
//! | who is the primary, who takes reads, what is closed | [`database`] |
//! | every bound of it and its reason | [`limits`] |

pub mod database;
pub mod limits;
