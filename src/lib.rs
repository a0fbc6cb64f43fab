//! Map of the `postroad` program: the command line, the configuration, and the real side of every port.
//!
//! | what | where |
//! |---|---|
//! | command line, one file a command | [`cli`] |
//! | configuration, every key with its reason | [`config`] |
//! | what a command that failed says | [`errors`] |
//! | logs | [`telemetry`] |
//! | clock, entropy, disk and network ports | [`clock`], [`entropy`], [`disk`], [`net`] |

#[cfg(not(target_os = "linux"))]
compile_error!(
    "postroad runs on Linux: its clock, sockets and locks are Linux's; use a container or a virtual machine"
);

pub mod cli;
pub mod clock;
pub mod config;
pub mod disk;
pub mod entropy;
pub mod errors;
pub mod net;
pub mod telemetry;
