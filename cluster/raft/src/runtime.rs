//! Tasks, timers and chance for the library. Production and simulation run the same one; what differs is the
//! generator, which the simulation seeds, and the clock of the tokio runtime beneath, which it pauses.

use std::{
    cell::RefCell,
    future::Future,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioInstant, TokioMpsc, TokioMutex, TokioOneshot};
use postroad_cluster::time::Entropy;
use rand::{SeedableRng, rngs::StdRng};

use crate::watch::Watch;

thread_local! {
    /// The library draws from no instance but by a static function, so this is all that a world can be told apart by.
    static GENERATOR: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

static ENTROPY: OnceLock<Arc<dyn Entropy>> = OnceLock::new();

/// Seeds this thread's generator. A simulation calls it first thing on the thread of its world; a thread that was not
/// seeded draws its seed from the entropy that the first [`crate::Consensus`] of the process was given.
pub fn seed(seed: u64) {
    GENERATOR.with_borrow_mut(|generator| *generator = Some(StdRng::seed_from_u64(seed)));
}

/// Makes sure that every thread has a seed, once it needs one.
pub(crate) fn prepare(entropy: &Arc<dyn Entropy>) {
    let seeded = GENERATOR.with_borrow(Option::is_some);
    if !seeded {
        ENTROPY.get_or_init(|| Arc::clone(entropy));
    }
}

fn from_entropy() -> StdRng {
    let entropy = ENTROPY.get().expect("every start prepares the entropy before the library runs");
    let mut seed = [0; 32];
    entropy.fill(&mut seed);
    StdRng::from_seed(seed)
}

/// Tokio, with a generator and a watch channel of ours.
#[derive(Debug)]
pub(crate) struct Runtime;

impl AsyncRuntime for Runtime {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = tokio::task::JoinHandle<T>;
    type Sleep = tokio::time::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = StdRng;
    type Mpsc = TokioMpsc;
    type Oneshot = TokioOneshot;
    type Watch = Watch;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        tokio::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        tokio::time::sleep(duration)
    }

    fn sleep_until(deadline: TokioInstant) -> Self::Sleep {
        openraft_rt_tokio::TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        tokio::time::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: TokioInstant, future: F) -> Self::Timeout<R, F> {
        openraft_rt_tokio::TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        error.is_panic()
    }

    fn thread_rng() -> StdRng {
        GENERATOR.with_borrow_mut(|generator| StdRng::from_rng(generator.get_or_insert_with(from_entropy)))
    }

    fn new(_threads: usize) -> Self {
        Self
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime with nothing but timers asks nothing of the system")
            .block_on(future)
    }

    /// At once and here: other threads would make order a matter of luck, and nothing of ours blocks for long.
    fn spawn_blocking<F, T>(work: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        std::future::ready(Ok(work()))
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    fn draws() -> Vec<u64> {
        (0..4).map(|_| Runtime::thread_rng().random()).collect()
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        seed(7);
        let first = draws();
        seed(7);
        assert_eq!(draws(), first);
        seed(8);
        assert_ne!(draws(), first);
        assert_ne!(first[0], first[1]);
    }
}
