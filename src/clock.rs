//! The real clock: `CLOCK_BOOTTIME`, and one timerfd on it that wakes every sleeper in order, also after a suspend.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use postroad_cluster::time::{Clock, Moment, Timer, WallTime};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::{io::unix::AsyncFd, task::JoinHandle};

/// The clock of this host. It goes on while the host is suspended, which `std::time::Instant` and tokio's timers do
/// not: leases are measured with it.
#[derive(Clone)]
pub struct BootClock(Arc<Driven>);

/// The sleepers and the task that wakes them; the task ends with the last clock and the last timer.
struct Driven {
    sleepers: Arc<Sleepers>,
    driver: JoinHandle<()>,
}

struct Sleepers {
    timer: AsyncFd<OwnedFd>,
    queue: Mutex<Queue>,
}

struct Queue {
    /// By deadline, then by arrival.
    waiting: BTreeMap<(Moment, u64), Waker>,
    /// The number of the next sleeper.
    next: u64,
    /// What the timerfd is set to; never later than the first of `waiting`.
    armed: Moment,
}

impl BootClock {
    /// Starts the clock. It must be called within a tokio runtime whose I/O is enabled.
    ///
    /// # Errors
    /// When the system has no timerfd to give.
    pub fn start() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let queue = Queue { waiting: BTreeMap::new(), next: 0, armed: Moment::NEVER };
        // Its replacement is unsafe, for types that give their descriptor away; an `OwnedFd` never does.
        #[allow(deprecated, reason = "safe for an OwnedFd, while the replacement needs an unsafe block")]
        let timer = AsyncFd::new(timer)?;
        let sleepers = Arc::new(Sleepers { timer, queue: Mutex::new(queue) });
        let driver = tokio::spawn(drive(Arc::clone(&sleepers)));
        Ok(Self(Arc::new(Driven { sleepers, driver })))
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        boot_now()
    }

    fn wall(&self) -> WallTime {
        let time = clock_gettime(ClockId::Realtime);
        WallTime((time.tv_sec.max(0) as u64).saturating_mul(1_000).saturating_add(time.tv_nsec as u64 / 1_000_000))
    }

    fn sleep_until(&self, deadline: Moment) -> Timer {
        Box::pin(Sleep { clock: Arc::clone(&self.0), deadline, number: None })
    }
}

impl fmt::Debug for BootClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootClock").field("sleepers", &self.0.sleepers.lock().waiting.len()).finish()
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The present moment, for those who have no clock at hand.
fn boot_now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    Moment((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// Reads the timerfd each time that it fires and wakes who is due.
async fn drive(sleepers: Arc<Sleepers>) {
    loop {
        let Ok(mut ready) = sleepers.timer.readable().await else { return };
        let fired = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0; 8])?));
        if fired.is_ok() {
            sleepers.wake_due();
        }
    }
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_due(&self) {
        let due = {
            let mut queue = self.lock();
            let later = queue.waiting.split_off(&(Moment(boot_now().0.saturating_add(1)), 0));
            let due = std::mem::replace(&mut queue.waiting, later);
            let first = queue.waiting.keys().next().map_or(Moment::NEVER, |(deadline, _)| *deadline);
            self.arm(&mut queue, first);
            due
        };
        due.into_values().for_each(Waker::wake);
    }

    /// Sets the timerfd; a deadline in the past fires at once.
    fn arm(&self, queue: &mut Queue, deadline: Moment) {
        queue.armed = deadline;
        if deadline == Moment::NEVER {
            return;
        }
        let at = Timespec {
            tv_sec: (deadline.0 / 1_000_000_000).cast_signed(),
            tv_nsec: (deadline.0 % 1_000_000_000).cast_signed(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once)
            .expect("a timerfd of ours takes every absolute time");
    }
}

/// One timer. It is in the queue from its first poll until it completes or is dropped.
struct Sleep {
    clock: Arc<Driven>,
    deadline: Moment,
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if boot_now() >= self.deadline {
            return Poll::Ready(());
        }
        let sleepers = Arc::clone(&self.clock.sleepers);
        let mut queue = sleepers.lock();
        let number = *self.number.get_or_insert_with(|| {
            queue.next += 1;
            queue.next
        });
        let replaced = queue.waiting.insert((self.deadline, number), context.waker().clone());
        if self.deadline < queue.armed {
            sleepers.arm(&mut queue, self.deadline);
        }
        drop(queue);
        // A waker may own the last of a task that holds timers itself, so it must not go while the queue is locked.
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut queue = self.clock.sleepers.lock();
            let removed = queue.waiting.remove(&(self.deadline, number));
            drop(queue);
            drop(removed);
        }
    }
}
