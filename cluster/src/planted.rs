//! Faults that tests plant to prove that their checks see them. A switch holds for its thread, since one thread is one
//! simulated world.

use std::cell::Cell;

thread_local! {
    static GOODBYES_UNGUARDED: Cell<bool> = const { Cell::new(false) };
    static RELAYS_DEAF: Cell<bool> = const { Cell::new(false) };
}

/// Has a relay take the end of an old session for that of the node's newest one.
pub fn goodbyes_are_unguarded(on: bool) {
    GOODBYES_UNGUARDED.set(on);
}

pub(crate) fn goodbyes_unguarded() -> bool {
    GOODBYES_UNGUARDED.get()
}

/// Has relays hear of no change any more, neither of the policy nor of revocations.
pub fn relays_are_deaf(on: bool) {
    RELAYS_DEAF.set(on);
}

pub(crate) fn relays_deaf() -> bool {
    RELAYS_DEAF.get()
}
