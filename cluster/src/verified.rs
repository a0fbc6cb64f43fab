//! A value whose signature or certificate has been checked: behaviors ask for it where an unchecked one would be a hole.

use serde::{Deserialize, Serialize};

/// A value that somebody trusted has vouched for.
///
/// Only `postroad-trust` calls [`Verified::vouch`], after it has checked a signature or a chain of certificates. It
/// serializes because events do, for the journal of one node; no message on a wire may hold one, since a peer would
/// then vouch for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// Declares `value` checked. Nothing but `postroad-trust` may call this.
    pub const fn vouch(value: T) -> Self {
        Self(value)
    }

    /// The checked value.
    pub const fn get(&self) -> &T {
        &self.0
    }

    /// The checked value itself; from here on nothing says that it was checked.
    pub fn into_inner(self) -> T {
        self.0
    }
}
