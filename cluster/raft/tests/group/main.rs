//! Whole groups in one process: a wire with delays, losses and cuts, disks that lose what was not synced, and crashes.
//!
//! | file             | what it proves                                                            |
//! |------------------|---------------------------------------------------------------------------|
//! | `support.rs`     | the world: wire, disks, crashes, and checks on everything that is applied  |
//! | `members.rs`     | who belongs to the group, and that no change loses the majority            |
//! | `failures.rs`    | crashes, cuts and restarts lose nothing that was acknowledged              |
//! | `retention.rs`   | snapshots, purged logs, members that were away long, sizes of messages      |
//! | `messages.rs`    | whatever arrives is answered, and changes nothing it must not              |
//! | `determinism.rs` | one seed is one world                                                     |

mod determinism;
mod failures;
mod members;
mod messages;
mod retention;
mod support;
