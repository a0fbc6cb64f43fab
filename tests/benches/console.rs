//! What the console costs: a message with instruments and without, and a real node with 10,000 actors more that is looked
//! at by browsers.
//!
//! `cargo bench --bench console`, some five minutes on a machine that does nothing else. What is to hold: instruments cost
//! less than 100 ns a message; each page of the large node is there within 100 ms; and it handles at most one per cent less
//! while three browsers watch.

#[path = "console/node.rs"]
mod node;
#[path = "console/sum.rs"]
mod sum;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use node::{Browsers, Node};
use postroad::{clock::BootClock, entropy::SystemEntropy};
use postroad_actors::{directory::Context, handle::Handle, supervisor::Root};
use rustix::time::{ClockId, clock_gettime};
use sum::{Add, Sum, children, handles};

/// Actors of the large node, beside its own.
const ACTORS: usize = 10_000;

/// Messages of one measurement with instruments, and without.
const MESSAGES: u64 = 200_000;

/// Measurements with and without, one after the other.
const ROUNDS: usize = 9;

/// Actors that the messages go to, as many as one core keeps at hand, and what waits for each at a time.
const FEW: usize = 4;
const WAITING: u64 = 256;

/// Entries in the map of a large state: what a link or a session of a busy node holds.
const LARGE: u64 = 100;

/// Times that each page is asked for. Rows are shared for 900 ms, so each is asked for anew after that.
const PAGES: usize = 8;
const PAGE_EVERY: Duration = Duration::from_secs(1);

/// Spans in which three browsers watch, each between two in which nobody does, and how long these last.
const WATCHES: usize = 12;
const WATCH: Duration = Duration::from_secs(4);

/// Addresses of the pages that are asked for. The last is one actor's.
const ADDRESSES: [&str; 5] = ["/", "/actors?sort=rate", "/actors?sort=wait&window=59", "/tree", "/actor/load/sum-77"];

/// What the browsers have open.
const WATCHED: [&str; 3] = ["/", "/actors?sort=busy", "/actor/load/sum-77"];

const NANOSECONDS_MAX: f64 = 100.0;
const PAGE_MAX: Duration = Duration::from_millis(100);
const LOSS_MAX: f64 = 0.01;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of this thread, on which everything of the first part runs.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// A few actors with a state of that size, and how many messages they have handled.
async fn few(instruments: bool, size: u64) -> (Root, Vec<Handle<Sum>>, Arc<AtomicU64>) {
    let clock = Arc::new(BootClock::start().expect("the system has a timer"));
    let context = Context::new(clock, Arc::new(SystemEntropy), "bench");
    if !instruments {
        context.directory.leave_instruments_out();
    }
    let handled = Arc::new(AtomicU64::new(0));
    let listed = children(FEW, size, &handled);
    let root = Root::start(context, "load", move |_| listed, |reason| panic!("{reason}")).await;
    let root = root.expect("the tree starts");
    let handles = handles(root.directory(), FEW);
    (root, handles, handled)
}

/// Sends so many messages and lets them be handled, on this thread alone; nanoseconds of it for each.
async fn handle(handles: &[Handle<Sum>], handled: &AtomicU64) -> f64 {
    let (began, done) = (processor_time(), handled.load(Ordering::Relaxed));
    let (mut sent, each) = (0, FEW as u64 * WAITING);
    while sent < MESSAGES {
        for number in 0..WAITING {
            for handle in handles {
                handle.send(Add(number)).expect("there is room");
            }
        }
        sent += each;
        while handled.load(Ordering::Relaxed) < done + sent {
            tokio::task::yield_now().await;
        }
    }
    processor_time().saturating_sub(began).as_nanos() as f64 / sent as f64
}

/// Nanoseconds of a message with instruments and without, for a state of that size.
async fn a_message(size: u64) -> (f64, f64) {
    let (_dear_root, dear_handles, dear_handled) = few(true, size).await;
    let (_cheap_root, cheap_handles, cheap_handled) = few(false, size).await;
    let (mut dear, mut cheap) = (Vec::new(), Vec::new());
    // The first round of each fills what is kept, and counts for nothing.
    for _ in 0..=ROUNDS {
        cheap.push(handle(&cheap_handles, &cheap_handled).await);
        dear.push(handle(&dear_handles, &dear_handled).await);
    }
    (median(dear.split_off(1)), median(cheap.split_off(1)))
}

/// Sends to all of these without end, as fast as they handle it with some waiting for each: one of as many senders as the
/// node has threads.
async fn load(handles: Vec<Handle<Sum>>, handled: Arc<AtomicU64>) {
    let (before, mut sent) = (handled.load(Ordering::Relaxed), 0);
    let waiting = 8 * handles.len() as u64;
    for number in 0.. {
        for part in handles.chunks(64) {
            while sent > (handled.load(Ordering::Relaxed) - before) / node::WORKERS as u64 + waiting {
                tokio::task::yield_now().await;
            }
            for handle in part {
                // There is room, so that an error means that the node is stopped.
                if handle.send(Add(number)).is_err() {
                    return;
                }
            }
            sent += part.len() as u64;
        }
    }
}

/// Messages a second that are handled in such a span.
fn throughput(handled: &AtomicU64) -> f64 {
    let (began, before) = (Instant::now(), handled.load(Ordering::Relaxed));
    std::thread::sleep(WATCH);
    (handled.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
}

/// The slowest answer for each page, while the node does nothing else or is loaded.
fn pages(node: &Node, name: &str) -> Vec<(&'static str, Duration)> {
    let mut slowest = Vec::new();
    for address in ADDRESSES {
        let mut took = Vec::new();
        for _ in 0..PAGES {
            std::thread::sleep(PAGE_EVERY);
            took.push(node.page(address));
        }
        took.sort_unstable();
        let (middle, last) = (took[PAGES / 2], took[PAGES - 1]);
        println!("{name}: {address} in {middle:.1?}, at most {last:.1?}");
        slowest.push((address, last));
    }
    slowest
}

/// The share of its messages that a loaded node does not handle while three browsers watch, and by how much two spans
/// differ in which nobody does.
fn watched(node: &Node, handled: &AtomicU64) -> (f64, f64) {
    let mut alone = vec![throughput(handled)];
    let mut watched = Vec::new();
    let mut seen = 0;
    for _ in 0..WATCHES {
        let browsers = Browsers::open(node, &WATCHED);
        // Until each has its first page.
        std::thread::sleep(PAGE_EVERY);
        watched.push(throughput(handled));
        seen += browsers.close();
        std::thread::sleep(PAGE_EVERY);
        alone.push(throughput(handled));
    }
    let each = seen as f64 / (WATCHES * WATCHED.len()) as f64;
    println!("the browsers got {each:.1} answers each in about {} s", (WATCH + PAGE_EVERY).as_secs());
    assert!(each >= 2.0, "nobody watched");
    let between = |at: usize| f64::midpoint(alone[at], alone[at + 1]);
    let loss = (0..WATCHES).map(|at| 1.0 - watched[at] / between(at)).collect();
    let noise = (0..WATCHES).map(|at| (alone[at] - alone[at + 1]).abs() / between(at)).collect();
    println!("the node handles {:.0} messages a second", median(alone.clone()));
    (median(loss), median(noise))
}

/// The large node: its pages while it is idle and while it is loaded, and what watching takes.
fn large_node() -> (Duration, Duration, f64, f64) {
    let node = Node::start();
    let handled = Arc::new(AtomicU64::new(0));
    let handles = node.add(children(ACTORS, 0, &handled), ACTORS);
    let slowest = |pages: Vec<(&str, Duration)>| pages.into_iter().map(|(_, took)| took).max().unwrap_or_default();
    let idle = slowest(pages(&node, "idle"));
    for part in handles.chunks(handles.len().div_ceil(node::WORKERS)) {
        node.runtime.spawn(load(part.to_vec(), Arc::clone(&handled)));
    }
    // Until journals are full, so that every span sees the same.
    while handled.load(Ordering::Relaxed) < (ACTORS * 400) as u64 {
        std::thread::sleep(PAGE_EVERY);
    }
    let loaded = slowest(pages(&node, "loaded"));
    let (loss, noise) = watched(&node, &handled);
    node.stop();
    (idle, loaded, loss, noise)
}

fn main() -> ExitCode {
    let one_thread = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let one_thread = one_thread.expect("the system gives a thread");
    let (small, large) = one_thread.block_on(async { (a_message(0).await, a_message(LARGE).await) });
    let costs = |(with, without): (f64, f64)| with - without;
    for (name, of) in [("a small state", small), ("a large state", large)] {
        let (with, without) = of;
        println!("{name}: a message takes {with:.0} ns with instruments, {without:.0} without: {:.0} more", costs(of));
    }
    drop(one_thread);
    let (idle, loaded, loss, noise) = large_node();
    println!(
        "three browsers take {:.2} % of the messages; two spans without them differ by {:.2} %",
        loss * 100.0,
        noise * 100.0
    );
    let good = costs(small) < NANOSECONDS_MAX && idle < PAGE_MAX && loss < LOSS_MAX;
    println!(
        "{}",
        serde_json::json!({
            "small_with_ns": small.0, "small_without_ns": small.1, "large_with_ns": large.0, "large_without_ns": large.1,
            "page_idle_ms": idle.as_secs_f64() * 1e3, "page_loaded_ms": loaded.as_secs_f64() * 1e3,
            "watched_loss": loss, "noise": noise, "good": good,
        })
    );
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
