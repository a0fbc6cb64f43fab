//! What must hold of every world, one property a file.
//!
//! - [`raft`]: one leader a term, nothing committed is lost or changed, equal state at equal index, votes are kept
//! - [`store`]: what a node was told is on disk is there after a crash
//! - [`flows`]: bytes exact and in order; nothing ends unless an end asked or no path was there for long
//! - [`sessions`]: no registration is lost while its session stands
//! - [`circuits`]: what a silence swallowed goes before anything new
//! - [`supervision`]: no orphan, no failed actor, intensity kept
//! - [`balancer`]: no connection to an older epoch once a newer one was seen
//! - [`convergence`]: when everything is well again, everything works again

pub mod balancer;
pub mod circuits;
pub mod convergence;
pub mod flows;
pub mod raft;
pub mod sessions;
pub mod store;
pub mod supervision;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::trace::Trace;

/// Findings that are kept: after so many, more say nothing new.
const FINDINGS_MAX: usize = 50;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The property.
    pub check: &'static str,
    /// When, since the world began.
    pub at: Duration,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.check, self.at.as_secs_f64(), self.what)
    }
}

/// What the checks of a world have found; clones add to the same list.
#[derive(Clone, Debug)]
pub struct Findings {
    began: Instant,
    trace: Trace,
    list: Arc<Mutex<Vec<Finding>>>,
}

impl Findings {
    /// No finding yet, in a world that begins now.
    #[must_use]
    pub fn new(trace: Trace) -> Self {
        Self { began: Instant::now(), trace, list: Arc::default() }
    }

    /// Adds a finding.
    pub fn add(&self, check: &'static str, what: String) {
        self.trace.note(format_args!("FOUND {check}: {what}"));
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let known = list.iter().any(|finding| finding.check == check && finding.what == what);
        if list.len() < FINDINGS_MAX && !known {
            list.push(Finding { check, at: Instant::now().duration_since(self.began), what });
        }
    }

    /// Adds what a check says, if it says something.
    pub fn expect(&self, check: &'static str, result: Result<(), String>) {
        if let Err(what) = result {
            self.add(check, what);
        }
    }

    /// Everything found so far.
    #[must_use]
    pub fn all(&self) -> Vec<Finding> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
