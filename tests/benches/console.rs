//! What the console costs: a message with instruments and without, and a node with 10,000 actors that is looked at.
//!
//! `cargo bench --bench console`. Times are of the process's own processor time where many things run beside it.

use std::{
    hint::black_box,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use postroad::{
    clock::BootClock,
    console::{
        html,
        model::{actors, tree},
        query::Query,
    },
    entropy::SystemEntropy,
};
use postroad_actors::{
    directory::Context,
    handle::Handle,
    shell::Performer,
    supervisor::{ChildSpec, Root},
};
use postroad_cluster::{
    behavior::{Behavior, Class, Event, Turn},
    supervision::Restart,
    time::WallTime,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Actors of the large node.
const ACTORS: usize = 10_000;

/// Messages of one measurement.
const MESSAGES: u64 = 200_000;

/// Measurements with and without, one after the other.
const ROUNDS: usize = 7;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sum {
    total: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Add(u64);

impl Event for Add {
    fn kind(&self) -> &'static str {
        "add"
    }

    fn class(&self) -> Class {
        Class::Request
    }
}

impl Behavior for Sum {
    const NOUN: &'static str = "sum";
    type Event = Add;
    type Effect = u64;

    fn on(&mut self, _: Turn, event: Add, effects: &mut Vec<u64>) {
        self.total = self.total.wrapping_mul(31).wrapping_add(event.0);
        effects.push(self.total);
    }
}

struct Count(Arc<AtomicU64>);

impl Performer<Sum> for Count {
    type Reply = ();

    fn perform(&mut self, _: u64, _: &Handle<Sum>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A tree of so many actors, and how many messages they have handled.
async fn tree_of(count: usize, instruments: bool) -> (Root, Arc<AtomicU64>) {
    let clock = Arc::new(BootClock::start().expect("the system has a timer"));
    let context = Context::new(clock, Arc::new(SystemEntropy), "bench");
    if !instruments {
        context.directory.leave_instruments_out();
    }
    let handled = Arc::new(AtomicU64::new(0));
    let of = Arc::clone(&handled);
    let children = move || {
        let child = |at: usize| {
            let handled = Arc::clone(&of);
            let make =
                move |_: &postroad_actors::supervisor::Seat<Sum>| Ok((Sum::default(), Count(Arc::clone(&handled))));
            ChildSpec::actor(&format!("sum-{at}"), Restart::Permanent, make)
        };
        (0..count).map(child).collect()
    };
    let root = Root::start(context, "node", move |_| children(), |reason| panic!("{reason}")).await;
    (root.expect("the tree starts"), handled)
}

fn handles(root: &Root, count: usize) -> Vec<Handle<Sum>> {
    let find = |at: usize| root.directory().find::<Sum, ()>(&format!("node/sum-{at}"));
    (0..count).map(|at| find(at).expect("it is there")).collect()
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Sends so many messages and waits until they are handled; the processor time of it.
async fn handle(handles: &[Handle<Sum>], handled: &AtomicU64, messages: u64) -> Duration {
    let (began, done) = (processor_time(), handled.load(Ordering::Relaxed) + messages);
    let mut sent = 0;
    while sent < messages {
        for handle in handles {
            // A full mailbox is tried again, once the actors had their turn.
            sent += u64::from(sent < messages && handle.send(Add(sent)).is_ok());
        }
        if sent % 512 < handles.len() as u64 {
            tokio::task::yield_now().await;
        }
    }
    while handled.load(Ordering::Relaxed) < done {
        tokio::task::yield_now().await;
    }
    processor_time().saturating_sub(began)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds of processor time that a message costs with instruments and without.
async fn a_message() -> (f64, f64) {
    let (with, with_handled) = tree_of(4, true).await;
    let (without, without_handled) = tree_of(4, false).await;
    let (with_handles, without_handles) = (handles(&with, 4), handles(&without, 4));
    let (mut dear, mut cheap) = (Vec::new(), Vec::new());
    let each = |time: Duration| time.as_nanos() as f64 / MESSAGES as f64;
    for _ in 0..ROUNDS {
        cheap.push(each(handle(&without_handles, &without_handled, MESSAGES).await));
        dear.push(each(handle(&with_handles, &with_handled, MESSAGES).await));
    }
    (median(dear), median(cheap))
}

/// The page of actors of a large node, as the listener makes it, without the way over the socket.
fn page(root: &Root) -> usize {
    let directory = root.directory();
    let query = Query::parse("sort=rate");
    let rows = directory.rows(20);
    let seconds = |path: &str| directory.view(path).map(|view| view.seconds).unwrap_or_default();
    let page = actors::actors("bench", &rows, &query, seconds);
    html::actors::render(&page, &query).into_string().len()
}

fn tree_page(root: &Root) -> usize {
    let directory = root.directory();
    let query = Query::default();
    let page = tree::tree("bench", &directory.rows(20), &query, |_| Vec::new());
    html::tree::render(&page, &query, WallTime(0)).into_string().len()
}

fn timed(rounds: usize, mut make: impl FnMut() -> usize) -> (Duration, Duration) {
    let (mut times, began) = (Vec::new(), processor_time());
    for _ in 0..rounds {
        let began = Instant::now();
        black_box(make());
        times.push(began.elapsed());
    }
    times.sort();
    (times[times.len() / 2], processor_time().saturating_sub(began) / rounds as u32)
}

async fn measure() -> bool {
    let (with, without) = a_message().await;
    let instruments = with - without;
    println!("a message with instruments {with:.0} ns, without {without:.0} ns: they cost {instruments:.0} ns");
    let (root, handled) = tree_of(ACTORS, true).await;
    let all = handles(&root, ACTORS);
    handle(&all, &handled, MESSAGES).await;
    let (page_took, page_processor) = timed(20, || page(&root));
    let (tree_took, _) = timed(20, || tree_page(&root));
    println!("{ACTORS} actors: the page of actors in {page_took:.1?}, the tree in {tree_took:.1?}");
    // Rows are shared by all who look within a second, so three browsers are at most three pages a second.
    let share = 3.0 * page_processor.as_secs_f64() / std::thread::available_parallelism().map_or(1, usize::from) as f64;
    println!("three browsers take {:.2} % of the processors, at one page a second each", share * 100.0);
    let good = instruments < 100.0 && page_took < Duration::from_millis(100) && share < 0.01;
    println!(
        "{}",
        serde_json::json!({
            "message_with_ns": with, "message_without_ns": without, "page_ms": page_took.as_secs_f64() * 1e3,
            "tree_ms": tree_took.as_secs_f64() * 1e3, "three_browsers_share": share, "good": good,
        })
    );
    good
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    if runtime.expect("the system gives threads").block_on(measure()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
