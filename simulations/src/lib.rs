//! Whole clusters in one deterministic world: simulated clocks, networks and disks under the real actors, transport,
//! Raft and store.

pub mod clock;
pub mod disk;
pub mod network;
pub mod world;
