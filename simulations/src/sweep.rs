//! Many seeds, two at a time, and two runs of one seed compared.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError, mpsc},
};

use crate::{planted::Planted, report::Report, run::run, scenario::Scenario};

/// Worlds that run at a time.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the scenarios of `count` seeds from `first` on, and shows each report in the order of seeds as soon as it is
/// there. `show` says whether to go on.
pub fn sweep(first: u64, count: u64, planted: Option<Planted>, mut show: impl FnMut(&Report) -> bool) {
    let next = Mutex::new(first);
    let (send, receive) = mpsc::channel::<Report>();
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            let (next, send) = (&next, send.clone());
            scope.spawn(move || {
                loop {
                    let seed = {
                        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                        let seed = *next;
                        *next += 1;
                        seed
                    };
                    // Nobody listens any more once `show` has had enough.
                    if seed >= first + count || send.send(run(&Scenario::draw(seed, planted), false)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut waiting = BTreeMap::new();
        let mut due = first;
        for report in receive {
            waiting.insert(report.scenario.seed, report);
            while let Some(report) = waiting.remove(&due) {
                due += 1;
                if !show(&report) {
                    return;
                }
            }
        }
    });
}
