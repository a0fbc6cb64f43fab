//! How decisions are agreed: the control nodes' Raft group over the state machine and the store. Only this crate names
//! openraft, and its interface does not.
//!
//! | file               | what lives there                                                                 |
//! |--------------------|----------------------------------------------------------------------------------|
//! | `consensus.rs`     | [`Consensus`], one member of the group: propose, read, hand over, shut down       |
//! | `consensus/`       | `incoming.rs` what other members ask, `change.rs` changes of the members, `status.rs` what people see |
//! | `options.rs`       | what a member needs to start, with the ports [`Carrier`] and [`Observer`]          |
//! | `cause.rs`         | why a term began                                                                 |
//! | `quorum.rs`        | which change of the members is refused, and why: pure                             |
//! | `error.rs`         | every error, with its code                                                        |
//! | `log.rs`           | the log and the vote on the store                                                 |
//! | `state_machine.rs` | the agreed state in memory, its snapshots on the store                            |
//! | `network.rs`       | what this member asks of others, over the carrier                                 |
//! | `reassembly.rs`    | a snapshot that arrives in chunks                                                 |
//! | `types.rs`         | the library's types and their conversion to and from ours                         |
//! | `runtime.rs`       | tasks, timers and chance for the library, the same in production and simulation    |
//! | `watch.rs`         | a value that others wait on, waking in order                                      |
//! | `planted.rs`       | faults that tests plant (feature `planted`)                                       |

mod cause;
mod consensus;
mod error;
mod log;
mod network;
mod options;
#[cfg(feature = "planted")]
pub mod planted;
mod quorum;
mod reassembly;
pub mod runtime;
mod state_machine;
mod types;
mod watch;

pub use cause::TermCause;
pub use consensus::{Consensus, ControlStatus, FollowerStatus, Leadership, MemberRole};
pub use error::{ChangeError, ConsensusError, ProposeError, ReadError};
pub use options::{Carrier, Observer, Options, Reply, Retention, Timing};
pub use state_machine::{AppliedAt, AppliedEntry, TracedEntry, hash_of};
pub use watch::Subscription;
