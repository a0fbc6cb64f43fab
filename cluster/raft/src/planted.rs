//! Faults that tests plant to prove that their checks see them. A switch holds for its thread, since one thread is one
//! simulated world.

use std::cell::Cell;

thread_local! {
    static VOTES_UNSYNCED: Cell<bool> = const { Cell::new(false) };
}

/// Has the log acknowledge votes before they are on disk: a node that crashes may vote twice in one term.
pub fn leave_votes_unsynced(on: bool) {
    VOTES_UNSYNCED.set(on);
}

pub(crate) fn votes_are_unsynced() -> bool {
    VOTES_UNSYNCED.get()
}
