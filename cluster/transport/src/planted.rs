//! Faults that tests plant to prove that their checks see them. A switch holds for its thread, since one thread is one
//! simulated world.

use std::cell::Cell;

thread_local! {
    static RING_LAST: Cell<bool> = const { Cell::new(false) };
}

/// Has new packets go before those that a silence swallowed and that wait to go again.
pub fn send_ring_last(on: bool) {
    RING_LAST.set(on);
}

pub(crate) fn ring_is_last() -> bool {
    RING_LAST.get()
}
