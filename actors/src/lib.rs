//! Who does it: actors around behaviors, one tree of supervisors a node. A map; each file says its own part.
//!
//! ```text
//! event ─▶ mailbox ─▶ behavior ─▶ effects ─▶ performer ─▶ ports
//!          bounded,   decides     journal,   acts, and sends results
//!          counted                published  back as events
//!                                 state
//! ```
//!
//! The tree of one node ([`supervisor`] starts it from left to right and top to bottom, and stops it the other way):
//!
//! ```text
//! node
//! ```

pub mod directory;
pub mod handle;
pub mod inspect;
pub mod journal;
pub mod mailbox;
pub mod shell;
pub mod supervisor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
