//! Datagrams that wait for more of their circuit while a driver runs: quinn hands out ten at a time, and a send costs the
//! same for many.

use std::{cell::RefCell, sync::Arc};

use super::cell::Cell;

thread_local! {
    /// Outside while no driver runs on this thread; inside the circuit that has something to send.
    static HOLDER: RefCell<Option<Option<Arc<Cell>>>> = const { RefCell::new(None) };
}

/// What was held is sent when this goes, also if the driver panics.
struct Sends;

impl Drop for Sends {
    fn drop(&mut self) {
        if let Some(cell) = HOLDER.take().flatten() {
            cell.flush();
        }
    }
}

/// Runs a driver, and sends what it left behind.
pub(crate) fn together<T>(run: impl FnOnce() -> T) -> T {
    HOLDER.set(Some(None));
    let _sends = Sends;
    run()
}

/// Whether a circuit may keep what it is to send until the driver that runs on this thread has done. A driver serves one
/// circuit; what another one sends meanwhile goes at once.
pub(super) fn may_hold(cell: &Arc<Cell>) -> bool {
    HOLDER.with_borrow_mut(|holder| match holder {
        None => false,
        Some(held) => Arc::ptr_eq(held.get_or_insert_with(|| Arc::clone(cell)), cell),
    })
}
