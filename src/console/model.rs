//! What each page shows, as plain data made by pure functions. The browser, the terminal and scripts see the same.
//!
//! - [`overview`]: is the fleet well, and who is in it
//! - [`alarms`]: what nodes say of themselves, in one list
//! - [`lints`]: what only shows when the whole fleet is looked at
//! - [`topology`]: who stands where and what moves over whom
//! - [`control`]: the control group, votes, terms, policies, suspicions
//! - [`why`]: why a circuit is on its relay, and what if one died
//! - [`vitals`]: one node in a few figures, for the overview of others
//! - [`tree`]: who supervises whom
//! - [`actors`]: the busiest, deepest, slowest
//! - [`actor`]: one actor, now and before
//! - [`state`]: a state as lines, with what a turn changed
//! - [`trace`]: one request across nodes

pub mod actor;
pub mod actors;
pub mod alarms;
pub mod control;
pub mod lints;
pub mod overview;
pub mod state;
pub mod topology;
pub mod trace;
pub mod tree;
pub mod vitals;
pub mod why;
