//! What quinn runs on: tokio, with drivers that let everybody who is ready write before they send, and whose sends to one
//! place leave together.
//!
//! The first of many flows that have something to say wakes its circuit's driver. tokio would run that next, so that
//! every flow's few bytes would travel in a packet of their own; a packet costs more than what it carries.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use postroad_cluster::limits::DRIVER_TURNS;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::{runtime::Handle, task::yield_now};

use crate::node_socket::held;

/// tokio for quinn, whose drivers give way once each time that they are woken. They stay where their endpoint was made,
/// whoever dials: a driver on another runtime than its socket would be woken across threads for each packet.
#[derive(Clone, Debug)]
pub(crate) struct DriverRuntime(Handle);

impl DriverRuntime {
    /// On the present runtime.
    pub(crate) fn here() -> Self {
        Self(Handle::current())
    }
}

impl Runtime for DriverRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _there = self.0.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, driver: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(Driver { future: driver, gave_way: false, alarm: Arc::default(), waker: None });
    }

    #[allow(clippy::disallowed_types, reason = "quinn's trait names it; this node's sockets are ports and come ready")]
    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// The driver sleeps: a wake goes to its task.
const ASLEEP: u8 = 0;
/// The driver runs.
const RUNS: u8 = 1;
/// The driver runs and was woken meanwhile, mostly by itself since it has more to send.
const RUNS_AGAIN: u8 = 2;

/// Who is told that a driver has something to do.
#[derive(Debug, Default)]
struct Alarm {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl Alarm {
    /// The driver begins to run, in a task with this waker.
    fn begin(&self, task: &Waker) {
        let mut known = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *known {
            Some(known) => known.clone_from(task),
            none => *none = Some(task.clone()),
        }
        drop(known);
        self.state.store(RUNS, Ordering::Release);
    }

    /// The driver has run; whether it was woken meanwhile. It goes on running.
    fn woken(&self) -> bool {
        self.state.swap(RUNS, Ordering::AcqRel) == RUNS_AGAIN
    }

    /// The driver sleeps from now on; whether it was woken before that.
    fn end(&self) -> bool {
        self.state.swap(ASLEEP, Ordering::AcqRel) == RUNS_AGAIN
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let again = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state != ASLEEP).then_some(RUNS_AGAIN));
        if again.is_err() {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

/// A driver that runs once all tasks have run that were ready when it was woken.
struct Driver {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    gave_way: bool,
    alarm: Arc<Alarm>,
    waker: Option<Waker>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.gave_way = !self.gave_way;
        if self.gave_way {
            // A future that yields has told the runtime by its first poll to come back when nobody else is ready.
            return pin!(yield_now()).poll(context);
        }
        self.alarm.begin(context.waker());
        let alarm = Arc::clone(&self.alarm);
        let waker = self.waker.get_or_insert_with(|| Waker::from(alarm)).clone();
        let ended = held::together(|| self.run(&mut Context::from_waker(&waker)));
        if self.alarm.end() {
            context.waker().wake_by_ref();
        }
        ended
    }
}

impl Driver {
    /// Runs the driver until it has nothing to do, a few times at most. A wake after the last time is left for later.
    fn run(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for turn in 1.. {
            if self.future.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            if turn == DRIVER_TURNS || !self.alarm.woken() {
                break;
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::atomic::AtomicUsize, time::Duration};

    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    /// A driver that counts its turns in `turns`, wakes itself after each and ends after so many.
    fn restless(
        turns: &Arc<AtomicUsize>,
        last: usize,
        done: oneshot::Sender<()>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let turns = Arc::clone(turns);
        Box::pin(async move {
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if turns.fetch_add(1, Ordering::Relaxed) + 1 == last { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let _ = done.send(());
        })
    }

    #[tokio::test]
    async fn a_driver_that_has_more_to_do_goes_on() {
        for last in 1..=4 * DRIVER_TURNS {
            let (turns, (done, ended)) = (Arc::default(), oneshot::channel());
            DriverRuntime::here().spawn(restless(&turns, last, done));
            timeout(Duration::from_secs(5), ended).await.expect("no wake is lost").unwrap();
            assert_eq!(turns.load(Ordering::Relaxed), last);
        }
    }

    #[tokio::test]
    async fn whoever_is_ready_runs_before_the_driver() {
        let (turns, (done, ended)) = (Arc::new(AtomicUsize::new(0)), oneshot::channel());
        DriverRuntime::here().spawn(restless(&turns, 1, done));
        let seen: Vec<_> = (0..10)
            .map(|_| Arc::clone(&turns))
            .map(|turns| tokio::spawn(async move { turns.load(Ordering::Relaxed) }))
            .collect();
        for seen in seen {
            assert_eq!(seen.await.unwrap(), 0, "the driver ran before a task that was ready");
        }
        ended.await.unwrap();
    }

    // A node's actors dial, and what they have dialled is driven where packets are.
    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "of the two runtimes that this is about, one needs a thread")]
    async fn a_driver_stays_where_its_endpoint_was_made_whoever_dials() {
        let (answer, answered) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let carriage = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                answer.send((DriverRuntime::here(), Handle::current().id())).expect("the test waits");
                ended.await.unwrap();
            });
        });
        let (drivers, there) = answered.await.unwrap();
        let (done, told) = oneshot::channel();
        let mut timer = drivers.new_timer(drivers.now() + Duration::from_millis(1));
        drivers.spawn(Box::pin(async move {
            poll_fn(|context| timer.as_mut().poll(context)).await;
            let _ = done.send(Handle::current().id());
        }));
        let ran = timeout(Duration::from_secs(5), told).await.expect("its timer fires").unwrap();
        assert_eq!(ran, there);
        assert_ne!(ran, Handle::current().id());
        end.send(()).unwrap();
        carriage.await.unwrap();
    }

    #[tokio::test]
    async fn a_wake_from_elsewhere_reaches_a_driver_that_sleeps() {
        let (tell, told) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        DriverRuntime::here().spawn(Box::pin(async move {
            let _ = told.await;
            let _ = done.send(());
        }));
        tokio::time::sleep(Duration::from_millis(5)).await;
        tell.send(()).unwrap();
        timeout(Duration::from_secs(5), ended).await.expect("the wake arrives").unwrap();
    }
}
