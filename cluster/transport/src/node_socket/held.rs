//! Datagrams that wait for more of their circuit while a driver runs: quinn hands out ten at a time, and a send costs the
//! same for many.

use std::{cell::RefCell, sync::Arc};

use super::cell::Cell;

/// Whose datagrams this thread keeps.
#[derive(Default)]
enum Holder {
    /// No driver runs.
    #[default]
    None,
    /// A driver runs and has sent nothing.
    Driver,
    /// The driver that runs has sent for this circuit.
    Circuit(Arc<Cell>),
}

thread_local! {
    static HOLDER: RefCell<Holder> = const { RefCell::new(Holder::None) };
}

/// What was kept is sent when this goes, also if the driver panics.
struct Sends;

impl Drop for Sends {
    fn drop(&mut self) {
        if let Holder::Circuit(cell) = HOLDER.take() {
            cell.flush();
        }
    }
}

/// Runs a driver, and sends what it left behind.
pub(crate) fn together<T>(run: impl FnOnce() -> T) -> T {
    HOLDER.set(Holder::Driver);
    let _sends = Sends;
    run()
}

/// Whether a circuit may keep what it is to send until the driver that runs on this thread has done. A driver serves one
/// circuit; what another one sends meanwhile goes at once.
pub(super) fn may_hold(cell: &Arc<Cell>) -> bool {
    HOLDER.with_borrow_mut(|holder| match holder {
        Holder::None => false,
        Holder::Driver => {
            *holder = Holder::Circuit(Arc::clone(cell));
            true
        }
        Holder::Circuit(known) => Arc::ptr_eq(known, cell),
    })
}
