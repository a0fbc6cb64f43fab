//! The threads of a process: a node's for its actors and for its packets, and a balancer's.

use tokio::runtime::{Builder, Handle, Runtime};

use crate::errors::Failure;

/// Threads for actors, API and console: two, so that a long turn does not hold up the others.
const ACTORS_THREADS: usize = 2;

/// What a node runs on: threads for its actors and its people, and threads that carry packets and flows.
pub(crate) struct Runtimes {
    actors: Runtime,
    carriage: Runtime,
}

impl Runtimes {
    /// Packets get a thread for every other core, since the other half is the kernel's and the applications'.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn start() -> Result<Self, Failure> {
        Ok(Self { actors: runtime("actors", ACTORS_THREADS)?, carriage: runtime("packets", cores().div_ceil(2))? })
    }

    /// Runs a node's whole life, which is told where packets are carried.
    pub(crate) fn run<T, F: Future<Output = T>>(self, life: impl FnOnce(Handle) -> F) -> T {
        let lived = self.actors.block_on(life(self.carriage.handle().clone()));
        // What still runs is a resolver's lookup at most; nobody waits for its answer.
        self.carriage.shutdown_background();
        self.actors.shutdown_background();
        lived
    }
}

/// What a balancer by itself runs on: a thread for each core, as the proxies have that it stands in for; at least two, so
/// that a probe does not wait for a busy path.
///
/// # Errors
/// When the system gives no threads.
pub(crate) fn of_balancer() -> Result<Runtime, Failure> {
    runtime("balancer", cores().max(2))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn runtime(name: &str, threads: usize) -> Result<Runtime, Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build();
    runtime.map_err(|error| Failure::failed("NO_RUNTIME", format!("the system gives no threads for {name}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// No assertion on time: only the end of a wait for what must come.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn packets_go_on_while_every_thread_of_actors_is_in_a_long_turn() {
        let turns = Runtimes::start().unwrap().run(|carriage| async move {
            let (begin, begun) = mpsc::channel();
            let turns: Vec<_> = (0..ACTORS_THREADS)
                .map(|_| {
                    let (begin, (end, ended)) = (begin.clone(), mpsc::channel::<()>());
                    tokio::spawn(async move {
                        begin.send(end).unwrap();
                        ended.recv_timeout(PATIENCE).is_ok()
                    })
                })
                .collect();
            let packets = carriage.spawn(async move {
                let all = (0..ACTORS_THREADS).map(|_| begun.recv_timeout(PATIENCE));
                for end in all.collect::<Result<Vec<_>, _>>().expect("every thread is in a turn") {
                    end.send(()).unwrap();
                }
            });
            packets.await.unwrap();
            let mut ended = Vec::new();
            for turn in turns {
                ended.push(turn.await.unwrap());
            }
            ended
        });
        assert_eq!(turns, [true; ACTORS_THREADS]);
    }
}
