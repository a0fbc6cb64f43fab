//! Map of the `postroad` program: the command line, the configuration, and the real side of every port.
//!
//! | what | where |
//! |---|---|
//! | a node: its start, its life, its stop | [`boot`] |
//! | its HTTP API, for commands and other control nodes | [`api`] |
//! | the database balancer | [`balancer`] |
//! | the console: pages for a browser, figures for Prometheus | [`console`] |
//! | command line, one file a command | [`cli`] |
//! | configuration, every key with its reason | [`config`] |
//! | what a command that failed says | [`errors`] |
//! | a cluster on one machine, to look at | [`demo`] |
//! | logs | [`telemetry`] |
//! | clock, entropy, disk and network ports | [`clock`], [`entropy`], [`disk`], [`net`] |

#[cfg(not(target_os = "linux"))]
compile_error!(
    "postroad runs on Linux: its clock, sockets and locks are Linux's; use a container or a virtual machine"
);

pub mod api;
pub mod balancer;
pub mod boot;
pub mod cli;
pub mod clock;
pub mod config;
pub mod console;
pub mod demo;
pub mod disk;
pub mod entropy;
pub mod errors;
pub mod net;
pub mod telemetry;
