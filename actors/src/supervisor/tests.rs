//! Trees of actors: their order, restarts, giving up, crashes, and two runs of one seed.

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use postroad_cluster::{
    limits::{SUPERVISION_BACKOFF_MAX, SUPERVISION_RESTARTS_MAX, SUPERVISOR_STOP_WITHIN},
    supervision::{Exit, Restart},
    time::Span,
};

use crate::{
    directory::{Context, lock},
    handle::Handle,
    inspect::Status,
    supervisor::{AddError, ChildSpec, Root, SupervisorHandle},
    testing::probe::{Doer, Effect, Probe, Told, alive_tasks, context, pass_ms, probe, rest},
};

type Notes = Arc<Mutex<Vec<String>>>;

/// A probe that notes when an incarnation of it is made and dropped.
fn noted(id: &'static str, restart: Restart, notes: &Notes) -> ChildSpec {
    let notes = notes.clone();
    ChildSpec::actor(id, restart, move |_| {
        lock(&notes).push(format!("+{id}"));
        Ok((Probe::default(), NotedDoer { id, notes: notes.clone(), doer: Doer::default() }))
    })
}

struct NotedDoer {
    id: &'static str,
    notes: Notes,
    doer: Doer,
}

impl crate::shell::Performer<Probe> for NotedDoer {
    type Reply = u64;

    fn perform(&mut self, effect: Effect, me: &Handle<Probe, u64>) {
        self.doer.perform(effect, me);
    }
}

impl Drop for NotedDoer {
    fn drop(&mut self) {
        lock(&self.notes).push(format!("-{}", self.id));
    }
}

fn take(notes: &Notes) -> String {
    std::mem::take(&mut *lock(notes)).join(" ")
}

async fn tree(context: Context, children: Vec<ChildSpec>) -> (Root, Arc<Mutex<Option<String>>>) {
    let failure = Arc::new(Mutex::new(None));
    let told = failure.clone();
    let root = Root::start(context, "node", |_| children, move |reason| *lock(&told) = Some(reason)).await.unwrap();
    rest().await;
    (root, failure)
}

fn find(root: &Root, path: &str) -> Handle<Probe, u64> {
    root.directory().find(path).unwrap()
}

fn paths(root: &Root) -> Vec<String> {
    root.directory().inspect().into_iter().map(|actor| actor.path).collect()
}

#[tokio::test(start_paused = true)]
async fn a_tree_starts_in_order_and_stops_in_reverse() {
    let notes = Notes::default();
    let inner = notes.clone();
    let middle = ChildSpec::supervisor("middle", Restart::Permanent, move |_| {
        vec![noted("y", Restart::Permanent, &inner), noted("x", Restart::Permanent, &inner)]
    });
    let children = vec![noted("z", Restart::Permanent, &notes), middle, noted("a", Restart::Permanent, &notes)];
    let (mut root, failure) = tree(context(1), children).await;
    assert_eq!(paths(&root), ["node", "node/a", "node/middle", "node/middle/x", "node/middle/y", "node/z"]);
    assert_eq!(root.directory().view("node").unwrap().children, ["node/z", "node/middle", "node/a"]);
    assert_eq!(take(&notes), "+z +y +x +a");
    assert_eq!(root.stop().await, Exit::Normal);
    assert_eq!(take(&notes), "-a -x -y -z");
    rest().await;
    assert_eq!((alive_tasks(), paths(&root).len()), (0, 0));
    assert_eq!(*lock(&failure), None);
}

#[tokio::test(start_paused = true)]
async fn children_come_and_go_at_run_time() {
    let (root, _) = tree(context(1), vec![probe("a", Restart::Permanent)]).await;
    let supervisor = SupervisorHandle::find(root.directory(), "node").unwrap();
    let handle = supervisor.add_actor("b", Restart::Transient, |_| Ok((Probe::default(), Doer::default()))).unwrap();
    // A state that is sent before the actor runs waits for it.
    handle.send(Told::Load { key: 1, value: 5 }).unwrap();
    assert_eq!(supervisor.add(probe("b", Restart::Permanent)), Err(AddError::Taken { path: "node/b".into() }));
    assert_eq!(supervisor.add(probe("b/c", Restart::Permanent)).unwrap_err().code(), "CHILD_BAD_ID");
    assert_eq!(supervisor.add(probe("", Restart::Permanent)).unwrap_err().code(), "CHILD_BAD_ID");
    rest().await;
    assert_eq!(handle.ask(Span::from_secs(1), Told::Ask).await, Ok(5));
    assert_eq!(supervisor.children(), ["a", "b"]);

    supervisor.remove("b").unwrap();
    supervisor.remove("nobody").unwrap();
    rest().await;
    assert_eq!((supervisor.children(), paths(&root)), (vec!["a".to_owned()], vec!["node".into(), "node/a".into()]));
    assert!(!handle.is_up());
    supervisor.add(probe("b", Restart::Temporary)).unwrap();
    rest().await;
    // One that ends by itself leaves without a trace, one that failed stays readable for a while.
    find(&root, "node/b").send(Told::Do(vec![Effect::Stop])).unwrap();
    rest().await;
    assert_eq!(paths(&root), ["node", "node/a"]);
    supervisor.add(probe("c", Restart::Temporary)).unwrap();
    rest().await;
    find(&root, "node/c").send(Told::Boom).unwrap();
    rest().await;
    assert_eq!(supervisor.children(), ["a"]);
    let view = root.directory().view("node/c").unwrap();
    assert_eq!((view.status, view.error.as_deref()), (Status::Failed, Some("on boom: boom at 2")));
    assert_eq!(root.directory().view("node").unwrap().children, ["node/a"]);
}

#[tokio::test(start_paused = true)]
async fn children_added_at_run_time_survive_their_supervisors_restart() {
    let middle = || ChildSpec::supervisor("middle", Restart::Permanent, |_| vec![probe("first", Restart::Permanent)]);
    let (root, failure) = tree(context(1), vec![middle()]).await;
    let supervisor = SupervisorHandle::find(root.directory(), "node/middle").unwrap();
    supervisor.add(probe("added", Restart::Permanent)).unwrap();
    rest().await;
    let added = find(&root, "node/middle/added");
    // Over the intensity, the supervisor fails, and the one above starts it again.
    for _ in 0..=SUPERVISION_RESTARTS_MAX {
        while added.send(Told::Boom).is_err() {
            pass_ms(10).await;
        }
        rest().await;
    }
    pass_ms(1_000).await;
    let view = root.directory().view("node/middle").unwrap();
    assert_eq!((view.status, view.restarts), (Status::Alive, 1));
    assert!(view.history[0].error.contains("gave up after 5 restarts in 60 s: added failed again"));
    assert_eq!(supervisor.children(), ["first", "added"]);
    assert_eq!(added.ask(Span::from_secs(1), Told::Ask).await, Ok(0));
    assert_eq!(find(&root, "node/middle/first").ask(Span::from_secs(1), Told::Ask).await, Ok(0));
    assert_eq!(*lock(&failure), None);
}

#[tokio::test(start_paused = true)]
async fn the_root_reports_that_it_gave_up() {
    let notes = Notes::default();
    let children = vec![noted("a", Restart::Permanent, &notes), noted("b", Restart::Permanent, &notes)];
    let (mut root, failure) = tree(context(1), children).await;
    let mut backoffs = Vec::new();
    for _ in 0..=SUPERVISION_RESTARTS_MAX {
        let b = find(&root, "node/b");
        while b.send(Told::Boom).is_err() {
            pass_ms(10).await;
        }
        rest().await;
        backoffs.extend(root.directory().view("node/b").unwrap().restart_in_ms);
    }
    rest().await;
    let reason = lock(&failure).clone().unwrap();
    assert_eq!(reason, "gave up after 5 restarts in 60 s: b failed again: on boom: boom at 1");
    assert_eq!(root.ended().await, Exit::Failed(reason));
    assert_eq!(alive_tasks(), 0);
    assert!(take(&notes).ends_with("+b -b -a"));
    // Each wait is longer than the half of the last, and none is longer than the longest.
    assert!(backoffs.windows(2).all(|pair| pair[1] >= pair[0] / 2) && backoffs.last() > backoffs.first());
    assert!(backoffs.iter().all(|ms| u128::from(*ms) <= SUPERVISION_BACKOFF_MAX.as_millis()));
    // What happened can still be read.
    assert_eq!(root.directory().view("node/b").unwrap().history.len(), SUPERVISION_RESTARTS_MAX);
}

#[tokio::test(start_paused = true)]
async fn rest_for_one_takes_along_what_was_started_after() {
    let notes = Notes::default();
    let child = |id| noted(id, Restart::Permanent, &notes);
    let (root, _) = tree(context(1), vec![child("a"), child("b").rest_for_one(), child("c"), child("d")]).await;
    take(&notes);
    find(&root, "node/b").send(Told::Boom).unwrap();
    pass_ms(1_000).await;
    assert_eq!(take(&notes), "-b -d -c +b +c +d");
    find(&root, "node/c").send(Told::Boom).unwrap();
    pass_ms(1_000).await;
    assert_eq!(take(&notes), "-c +c");
}

#[tokio::test(start_paused = true)]
async fn a_child_that_cannot_be_made_is_a_failed_child() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let flaky = ChildSpec::actor("flaky", Restart::Permanent, move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err("no port".to_owned()),
        1 => panic!("no luck"),
        _ => Ok((Probe::default(), Doer::default())),
    });
    let (root, _) = tree(context(1), vec![flaky, probe("after", Restart::Permanent)]).await;
    // The one that cannot start holds nobody up.
    assert_eq!(root.directory().view("node/after").unwrap().status, Status::Alive);
    pass_ms(2_000).await;
    let view = root.directory().view("node/flaky").unwrap();
    assert_eq!((view.status, view.restarts), (Status::Alive, 2));
    let errors: Vec<&str> = view.history.iter().map(|restart| restart.error.as_str()).collect();
    assert_eq!(errors, ["no port", "making it: no luck"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_does_not_stop_is_killed() {
    let life = Arc::new(());
    let held = life.clone();
    let stubborn = ChildSpec::actor("stubborn", Restart::Permanent, move |_| {
        Ok((Probe::default(), Doer { stubborn: true, life: Some(held.clone()), ..Doer::default() }))
    })
    .stop_within(Span::from_secs(2));
    let (mut root, _) = tree(context(1), vec![stubborn]).await;
    assert_eq!(Arc::strong_count(&life), 3);
    let (handle, asked) = (find(&root, "node/stubborn"), tokio::time::Instant::now());
    let exit = root.stop().await;
    assert_eq!(exit, Exit::Normal);
    assert!((Span::from_secs(2)..SUPERVISOR_STOP_WITHIN).contains(&asked.elapsed()));
    // It was told, and did nothing.
    assert_eq!(handle.replay(handle.last_event()).unwrap().log, ["First", "Bye"]);
    rest().await;
    assert_eq!((alive_tasks(), Arc::strong_count(&life)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_crash_ends_everybody_at_once() {
    let (mut root, failure) =
        tree(context(1), vec![probe("a", Restart::Permanent), probe("b", Restart::Permanent)]).await;
    let (a, b) = (find(&root, "node/a"), find(&root, "node/b"));
    b.send(Told::Do(vec![Effect::WorkForever, Effect::After { ms: 10, key: 1, value: 1 }])).unwrap();
    rest().await;
    // The crash comes in the midst of an actor's effects: not even the rest of them is performed.
    let crash = vec![Effect::Tell { path: "node/b".into(), value: 1 }, Effect::Crash, Effect::Panic];
    a.send(Told::Do(crash)).unwrap();
    a.send(Told::Add(1)).unwrap();
    let asking = {
        let b = b.clone();
        tokio::spawn(async move { b.ask(Span::from_secs(9), Told::AskNever).await })
    };
    pass_ms(1_000).await;
    assert_eq!(asking.await.unwrap().unwrap_err().code(), "ACTOR_DOWN");
    assert_eq!((a.last_event(), b.last_event()), (2, 2));
    assert_eq!(root.ended().await, Exit::Killed);
    assert_eq!((alive_tasks(), lock(&failure).clone()), (0, None));
    assert_eq!(b.send(Told::Load { key: 1, value: 1 }).unwrap_err().code(), "ACTOR_DOWN");
    assert_eq!(b.attend(async {}).unwrap_err().code(), "ACTOR_DOWN");
    assert!(SupervisorHandle::find(root.directory(), "node").unwrap().add(probe("c", Restart::Permanent)).is_err());
    let statuses: Vec<Status> = root.directory().inspect().into_iter().map(|actor| actor.status).collect();
    assert_eq!(statuses, [Status::Killed; 3]);
    assert!(root.directory().state("node/a").is_some());
    // Nothing of the node can start any more.
    assert!(Root::start(root.context().clone(), "again", |_| Vec::new(), |_| {}).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_leaves_no_memory() {
    for crash in [false, true] {
        let life = Arc::new(());
        let (held, context) = (life.clone(), context(1));
        // A factory that owns the context would keep the directory alive through itself.
        let owned = context.clone();
        let child = ChildSpec::actor("a", Restart::Permanent, move |_| {
            let _ = &owned;
            Ok((Probe::default(), Doer { life: Some(held.clone()), ..Doer::default() }))
        });
        let (mut root, _) = tree(context, vec![child]).await;
        if crash {
            root.kill();
        } else {
            root.stop().await;
        }
        rest().await;
        drop(root);
        assert_eq!(Arc::strong_count(&life), 1, "crash: {crash}");
    }
}

/// A seeded day in the life of a node, and everything that could be seen of it.
fn scenario(seed: u64) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let context = context(seed);
        let entropy = context.entropy.clone();
        let workers = ChildSpec::supervisor("workers", Restart::Permanent, |_| {
            (0..8).map(|number| probe(&format!("w{number}"), Restart::Permanent)).collect()
        });
        let (root, failure) = tree(context, vec![probe("a", Restart::Permanent).rest_for_one(), workers]).await;
        let mut trace = String::new();
        for step in 0..400 {
            let chance = entropy.next_u64();
            let path = if chance % 9 == 8 { "node/a".to_owned() } else { format!("node/workers/w{}", chance % 9) };
            let other = format!("node/workers/w{}", (chance >> 16) % 8);
            let event = match (chance >> 8) % 90 {
                0 => Told::Boom,
                1 => Told::Do(vec![Effect::WorkThatPanics]),
                2..=9 | 50..=80 => {
                    Told::Do(vec![Effect::Draw, Effect::After { ms: chance % 50, key: chance % 3, value: step }])
                }
                10..=14 => Told::Do(vec![Effect::Work { ms: chance % 70, value: step, within_ms: 40 }]),
                15..=19 => Told::Load { key: chance % 4, value: step },
                20..=24 if find(&root, &other).is_up() => Told::Do(vec![Effect::Tell { path: other, value: step }]),
                _ => Told::Add(step),
            };
            let sent = find(&root, &path).send(event);
            writeln!(trace, "{path} {sent:?}").unwrap();
            pass_ms(chance >> 40 & 63).await;
        }
        for actor in root.directory().inspect() {
            let journal = root.directory().journal(&actor.path, usize::MAX);
            let state = root.directory().state(&actor.path);
            trace.push_str(&serde_json::to_string(&(actor, journal, state)).unwrap());
        }
        write!(trace, "{:?}", lock(&failure)).unwrap();
        trace
    })
}

#[test]
fn one_seed_is_one_run() {
    for seed in 1..=5 {
        let first = scenario(seed);
        assert!(first.contains("boom") && first.contains("\"restarts\":1"), "nothing happened");
        assert_eq!(first, scenario(seed), "seed {seed}");
    }
    assert_ne!(scenario(1), scenario(2));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_actors_start_and_stop() {
    const MANY: usize = 10_000;
    let children = (0..MANY).map(|number| probe(&format!("p{number}"), Restart::Permanent)).collect();
    let (mut root, _) = tree(context(1), children).await;
    pass_ms(1_000).await;
    let alive = root.directory().inspect().iter().filter(|actor| actor.status == Status::Alive).count();
    assert_eq!(alive, MANY + 1);
    for number in 0..MANY {
        find(&root, &format!("node/p{number}")).send(Told::Add(1)).unwrap();
    }
    pass_ms(1_000).await;
    let handled: u64 = root.directory().inspect().iter().filter(|actor| actor.kind == "probe").map(|a| a.handled).sum();
    assert_eq!(handled, 2 * MANY as u64);
    assert_eq!(root.stop().await, Exit::Normal);
    rest().await;
    assert_eq!((alive_tasks(), paths(&root).len()), (0, 0));
}
