//! Why a join failed: what each seed said, and what to do.

use core::fmt;
use std::net::SocketAddr;

use postroad_cluster::{command::Refusal, time::Span};
use postroad_trust::{Fingerprint, TrustError};

use crate::connection::Closed;

/// Why a join failed. Nothing has changed at this end; the same token with the same key may be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// There is no seed to ask.
    NoSeeds,
    /// A control node said no, and every other one would too.
    Refused {
        /// The seed.
        seed: SocketAddr,
        /// Its reason.
        refusal: Refusal,
    },
    /// No seed has answered for good: what each one did, in the order they were tried.
    NoAnswer(Vec<(SocketAddr, SeedFailure)>),
    /// The socket cannot be used.
    Socket(String),
}

/// What one seed did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeedFailure {
    /// It did not answer within this time.
    TimedOut(Span),
    /// It is no control node of the cluster that the fingerprint names. Nothing was proved to it.
    Untrusted {
        /// What is wrong with it.
        error: TrustError,
        /// The fingerprint of the authority that it showed, if it showed one.
        shown: Option<Fingerprint>,
    },
    /// The connection failed or has ended.
    Closed(Closed),
    /// It cannot decide now; another one may.
    Later(Refusal),
    /// Its answer is no answer, or does not fit the question.
    Malformed(String),
}

impl JoinError {
    /// The code that scripts rely on: the refusal's own, else the one thing that is wrong with every seed, else
    /// `SEEDS_UNREACHABLE`.
    pub fn code(&self) -> &str {
        match self {
            Self::NoSeeds => "SEEDS_MISSING",
            Self::Refused { refusal, .. } => &refusal.code,
            Self::Socket(_) => "SOCKET",
            Self::NoAnswer(attempts) => {
                attempts.iter().find_map(|(_, failure)| failure.telling()).unwrap_or("SEEDS_UNREACHABLE")
            }
        }
    }
}

impl SeedFailure {
    /// The code, where it says more than that a seed was not reached.
    fn telling(&self) -> Option<&str> {
        match self {
            Self::Untrusted { error, .. } => Some(error.code()),
            Self::Later(refusal) => Some(&refusal.code),
            Self::Malformed(_) => Some("MALFORMED"),
            Self::TimedOut(_) | Self::Closed(_) => None,
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSeeds => f.write_str("no control node's address was given; pass one with the token"),
            Self::Refused { seed, refusal } => write!(f, "join refused by {seed}: {refusal}"),
            Self::Socket(reason) => write!(f, "the UDP socket cannot be used: {reason}"),
            Self::NoAnswer(attempts) => {
                write!(f, "no control node took the join")?;
                for (seed, failure) in attempts {
                    write!(f, "; {seed}: {failure}")?;
                }
                f.write_str(". Nothing has changed; the same command may be tried again")
            }
        }
    }
}

impl fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(after) => {
                write!(f, "no answer within {} ms, check that UDP reaches this address", after.as_millis())
            }
            Self::Untrusted { error, shown: Some(shown) } => write!(f, "{error} (it showed {shown})"),
            Self::Untrusted { error, shown: None } => error.fmt(f),
            Self::Closed(closed) => closed.fmt(f),
            Self::Later(refusal) => refusal.fmt(f),
            Self::Malformed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for JoinError {}
