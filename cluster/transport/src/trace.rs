//! What runs on this thread for whom: the trace that it is part of, and who does it. Messages that leave meanwhile, to
//! other actors and to other nodes, carry that on. Nobody passes it along by hand, so nobody forgets to.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
};

use postroad_cluster::trace::TraceId;

/// What runs on a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doing {
    /// What it is part of, if that is known.
    pub trace: Option<TraceId>,
    /// Who does it: an actor's path, or a word for somebody else.
    pub by: Option<Arc<str>>,
}

thread_local! {
    static DOING: RefCell<Doing> = const { RefCell::new(Doing { trace: None, by: None }) };
}

/// What runs on this thread now.
#[must_use]
pub fn doing() -> Doing {
    DOING.with_borrow(Clone::clone)
}

/// The trace that runs on this thread now.
#[must_use]
pub fn current() -> Option<TraceId> {
    DOING.with_borrow(|doing| doing.trace)
}

/// From now on what runs on this thread is part of `trace`; who does it stays.
pub fn go_on(trace: Option<TraceId>) {
    DOING.with_borrow_mut(|doing| doing.trace = trace);
}

/// While this lives, what runs on this thread is something else than before.
#[derive(Debug)]
pub struct During(Doing);

impl During {
    /// From now on `doing` runs on this thread.
    #[must_use]
    pub fn new(doing: Doing) -> Self {
        Self(DOING.replace(doing))
    }
}

impl Drop for During {
    fn drop(&mut self) {
        DOING.set(std::mem::take(&mut self.0));
    }
}

/// `work`, whichever threads it runs on, as `doing`.
pub async fn carry<T>(doing: Doing, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        let _during = During::new(doing.clone());
        work.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u64) -> Doing {
        Doing { trace: Some(TraceId::drawn(number)), by: Some("somebody".into()) }
    }

    #[tokio::test]
    async fn work_carries_what_it_is_part_of_over_its_waits_and_nothing_else_does() {
        let inner = carry(of(1), async {
            tokio::task::yield_now().await;
            let nested = carry(of(2), async { current() }).await;
            tokio::task::yield_now().await;
            (nested, doing())
        });
        let (inside, outside) = tokio::join!(inner, async {
            tokio::task::yield_now().await;
            doing()
        });
        assert_eq!(inside, (of(2).trace, of(1)));
        assert_eq!(outside, Doing::default());
        assert_eq!(doing(), Doing::default());
    }

    #[test]
    fn guards_end_in_order() {
        let outer = During::new(of(1));
        drop(During::new(of(2)));
        assert_eq!(doing(), of(1));
        drop(outer);
        assert_eq!(current(), None);
    }
}
