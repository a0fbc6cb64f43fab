//! Whole clusters in one deterministic world: simulated clocks, networks and disks under the real actors, transport,
//! Raft and store.

//!
//! | file              | what                                                                      |
//! |-------------------|---------------------------------------------------------------------------|
//! | `world.rs`        | hosts and the nodes on them: started, crashed, started again              |
//! | `network.rs`      | conditions between hosts, UDP and TCP over them                           |
//! | `disk.rs`         | files that lose and tear what was not synced                              |
//! | `clock.rs`        | clocks with an offset, a rate and pauses of their own                     |
//! | `scenario.rs`     | what a seed comes to, as a value                                          |
//! | `faults.rs`       | what happens to a world from outside                                      |
//! | `workload.rs`     | flows with verified content                                               |
//! | `checks.rs`       | what must hold, one property a file                                       |
//! | `run.rs`          | one world from its scenario to its report, in a thread of its own         |
//! | `balancers.rs`    | a world of its own: database balancers over nodes that fail over          |
//! | `sweep.rs`        | many seeds, their speed, and two runs of one seed compared                |
//! | `shrink.rs`       | the least faults of a scenario that still fails                           |
//! | `trace.rs`        | what happened, line by line                                               |
//! | `report.rs`       | what a run came to, for people                                            |
//! | `recording.rs`    | what one actor of a real node went through, played again                  |
//! | `planted.rs`      | faults in the code that the checks must see                               |

pub mod balancers;
pub mod checks;
pub mod clock;
pub mod disk;
pub mod faults;
pub mod network;
pub mod planted;
pub mod recording;
pub mod report;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod sweep;
pub mod trace;
pub mod workload;
pub mod world;
