//! Faults that tests plant to prove that their checks see them. A switch holds for its thread, since one thread is one
//! simulated world.

use std::cell::Cell;

thread_local! {
    static GOODBYES_UNGUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Has a relay take the end of an old session for that of the node's newest one.
pub fn goodbyes_are_unguarded(on: bool) {
    GOODBYES_UNGUARDED.set(on);
}

pub(crate) fn goodbyes_unguarded() -> bool {
    GOODBYES_UNGUARDED.get()
}
