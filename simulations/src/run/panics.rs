//! Panics of a world: tasks swallow them, so a hook notes those of threads that are worlds.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    static NOTED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// From now on this thread's panics are noted.
pub(super) fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let other = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let noted = NOTED.with_borrow_mut(|noted| noted.as_mut().map(|noted| noted.push(info.to_string())));
            if noted.is_none() {
                other(info);
            }
        }));
    });
    NOTED.set(Some(Vec::new()));
}

/// The panics of this thread since.
pub(super) fn take() -> Vec<String> {
    NOTED.take().unwrap_or_default()
}
