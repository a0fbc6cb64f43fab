//! What every actor can rely on: order, bounds, timers, replies, and failures that stay inside.

use postroad_cluster::{
    limits::{ACTOR_ASKS_MAX, ACTOR_TASKS_MAX, JOURNAL_CHECKPOINT_EVERY, MAILBOX_BATCH},
    time::Span,
};

use crate::{
    handle::{AskError, Handle, SendError},
    inspect::Status,
    mailbox::Bounds,
    testing::probe::{Effect, Probe, Told, alive_tasks, one, pass_ms, rest},
};

const SECOND: Span = Span::from_secs(1);

fn log(handle: &Handle<Probe, u64>) -> Vec<String> {
    handle.replay(handle.last_event()).unwrap().log
}

#[tokio::test(start_paused = true)]
async fn events_are_handled_in_order_and_published() {
    let (root, probe) = one(Bounds::default()).await;
    for number in 1..=3 {
        probe.send(Told::Add(number)).unwrap();
    }
    rest().await;
    assert_eq!(log(&probe), ["First", "Add(1)", "Add(2)", "Add(3)"]);
    // The burst came right after the first publication; it is published within 100 ms without being asked.
    pass_ms(100).await;
    let view = root.directory().state("node/p").unwrap();
    assert_eq!(view.state["total"], 6);
    assert_eq!(view.figures["stubborn"], false);
    let actor = root.directory().view("node/p").unwrap();
    assert_eq!((actor.handled, actor.depth, actor.depth_max), (4, 0, 3));
    assert_eq!((actor.last_kind.as_deref(), actor.status), (Some("add"), Status::Alive));
    assert_eq!((actor.kind.as_str(), actor.supervisor.as_deref()), ("probe", Some("node")));
    assert_eq!(root.directory().view("node").unwrap().children, ["node/p"]);
}

#[tokio::test(start_paused = true)]
async fn a_crowded_mailbox_refuses_requests_and_keeps_room_for_the_rest() {
    let (root, probe) = one(Bounds { requests: 3, states: 2, reserved: 8 }).await;
    for number in 0..3 {
        probe.send(Told::Add(number)).unwrap();
    }
    let error = probe.send(Told::Add(9)).unwrap_err();
    assert_eq!(error.code(), "ACTOR_BUSY");
    assert_eq!(error, SendError::Busy { path: "node/p".into(), depth: 3 });
    // The state of a key is replaced in place, and a result still has room.
    for (key, value) in [(1, 10), (2, 20), (1, 11)] {
        probe.send(Told::Load { key, value }).unwrap();
    }
    probe.send(Told::Result(100)).unwrap();
    rest().await;
    let expected = [
        "First",
        "Add(0)",
        "Add(1)",
        "Add(2)",
        "Load { key: 1, value: 11 }",
        "Load { key: 2, value: 20 }",
        "Result(100)",
    ];
    assert_eq!(log(&probe), expected);
    let view = root.directory().view("node/p").unwrap();
    assert_eq!((view.refused, view.replaced, view.restarts), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn more_results_than_can_be_fail_the_actor_loudly() {
    let (root, probe) = one(Bounds { requests: 3, states: 2, reserved: 8 }).await;
    probe.send(Told::Do(vec![Effect::SendSelf { times: 9 }])).unwrap();
    rest().await;
    let view = root.directory().view("node/p").unwrap();
    assert_eq!(view.restarts, 1);
    assert!(view.history[0].error.contains("8 timers and results"), "{}", view.history[0].error);
}

#[tokio::test(start_paused = true)]
async fn timers_fire_in_time_and_only_as_last_set() {
    let (_root, probe) = one(Bounds::default()).await;
    let after = |ms, key, value| Effect::After { ms, key, value };
    probe.send(Told::Do(vec![after(50, 1, 1), after(20, 2, 2), after(30, 1, 4), after(40, 3, 8)])).unwrap();
    probe.send(Told::Do(vec![Effect::Cancel { key: 3 }])).unwrap();
    pass_ms(100).await;
    let timers: Vec<String> = log(&probe).into_iter().filter(|line| line.starts_with("Timer")).collect();
    assert_eq!(timers, ["Timer(2)", "Timer(4)"]);
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_waits_in_the_mailbox_can_still_be_taken_back() {
    let (_root, probe) = one(Bounds::default()).await;
    let after = |ms, key, value| Effect::After { ms, key, value };
    probe.send(Told::Do(vec![after(0, 1, 1), after(0, 2, 2), after(0, 3, 3)])).unwrap();
    for _ in 0..MAILBOX_BATCH {
        probe.send(Told::Add(0)).unwrap();
    }
    // After a batch others get their turn: the timers have fired and wait behind this event when it is handled.
    probe.send(Told::Do(vec![Effect::Cancel { key: 1 }, after(1_000, 2, 4)])).unwrap();
    pass_ms(10).await;
    let timers = |probe| log(probe).into_iter().filter(|line| line.starts_with("Timer")).collect::<Vec<_>>();
    assert_eq!(timers(&probe), ["Timer(3)"]);
    pass_ms(2_000).await;
    assert_eq!(timers(&probe), ["Timer(3)", "Timer(4)"]);
}

#[tokio::test(start_paused = true)]
async fn tasks_answer_with_events_and_have_a_limit() {
    let (root, probe) = one(Bounds::default()).await;
    let work = |ms, value| Effect::Work { ms, value, within_ms: 100 };
    probe.send(Told::Do(vec![work(50, 1), work(500, 2)])).unwrap();
    rest().await;
    assert_eq!(root.directory().view("node/p").unwrap().tasks, 2);
    pass_ms(1_000).await;
    assert_eq!(log(&probe)[2..], ["Result(1)", "Result(0)"]);
    assert_eq!(root.directory().view("node/p").unwrap().tasks, 0);
    probe.send(Told::Do(vec![Effect::WorkThatPanics])).unwrap();
    rest().await;
    let view = root.directory().view("node/p").unwrap();
    assert_eq!(view.history[0].error, "a task of it failed: in a task");
    assert!(view.history[0].state_before.as_ref().unwrap().contains("Result(1)"), "{:?}", view.history[0]);
}

#[tokio::test(start_paused = true)]
async fn tasks_are_bounded() {
    let (_root, probe) = one(Bounds::default()).await;
    for _ in 0..ACTOR_TASKS_MAX {
        probe.attend(std::future::pending()).unwrap();
    }
    assert_eq!(probe.attend(std::future::pending()).unwrap_err().code(), "ACTOR_TOO_MANY");
}

#[tokio::test(start_paused = true)]
async fn an_asker_gets_a_reply_or_a_reason() {
    let (root, probe) = one(Bounds { requests: 2, states: 2, reserved: 8 }).await;
    probe.send(Told::Add(7)).unwrap();
    assert_eq!(probe.ask(SECOND, Told::Ask).await, Ok(7));

    let expired = probe.ask(SECOND, Told::AskNever).await.unwrap_err();
    assert_eq!(expired, AskError::Expired { path: "node/p".into(), within: SECOND });
    assert_eq!(root.directory().view("node/p").unwrap().askers, 0);

    // A failure of the actor ends the wait at once, and the question of the next incarnation is answered by it.
    let asked = probe.now();
    let (ended, ()) = tokio::join!(probe.ask(SECOND, Told::AskNever), async { probe.send(Told::Boom).unwrap() });
    assert_eq!(ended, Err(AskError::Ended { path: "node/p".into() }));
    assert!(probe.now().since(asked) < SECOND);
    assert_eq!(probe.ask(SECOND, Told::Ask).await.unwrap_err().code(), "ACTOR_DOWN");
    pass_ms(1_000).await;
    assert_eq!(probe.ask(SECOND, Told::Ask).await, Ok(0));

    probe.send(Told::Add(1)).unwrap();
    probe.send(Told::Add(1)).unwrap();
    assert_eq!(probe.ask(SECOND, Told::Ask).await.unwrap_err().code(), "ACTOR_BUSY");
}

#[tokio::test(start_paused = true)]
async fn askers_are_bounded_and_leave_no_trace() {
    let (root, probe) = one(Bounds::default()).await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..ACTOR_ASKS_MAX {
        let probe = probe.clone();
        asking.spawn(async move { probe.ask(SECOND, Told::AskNever).await });
    }
    rest().await;
    assert_eq!(probe.ask(SECOND, Told::Ask).await.unwrap_err().code(), "ACTOR_TOO_MANY");
    // Whoever stops waiting gives the place back.
    asking.shutdown().await;
    assert_eq!(root.directory().view("node/p").unwrap().askers, 0);
    assert_eq!(probe.ask(SECOND, Told::Ask).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_failing_turn_is_contained_and_explained() {
    let (root, probe) = one(Bounds::default()).await;
    probe.send(Told::Add(5)).unwrap();
    probe.send(Told::Boom).unwrap();
    probe.send(Told::Add(1)).unwrap();
    probe.send(Told::Load { key: 1, value: 30 }).unwrap();
    rest().await;

    // Dead, and still readable: the state before the failure, the event, the error and the wait.
    let view = root.directory().view("node/p").unwrap();
    assert_eq!(view.status, Status::Restarting);
    assert!(view.restart_in_ms.is_some_and(|ms| ms <= 100));
    assert_eq!(view.error.as_deref(), Some("on boom: boom at 3"));
    let restart = &view.history[0];
    assert_eq!((restart.event, restart.kind.as_deref()), (Some(3), Some("boom")));
    assert!(restart.state_before.as_ref().unwrap().contains("\"total\":5"));
    assert_eq!(root.directory().state("node/p").unwrap().state["total"], 5);
    let journal = root.directory().journal("node/p", 10).unwrap();
    assert_eq!(journal.last().unwrap().failure.as_deref(), Some("boom at 3"));
    assert_eq!(journal.iter().map(|entry| entry.sender.as_str()).collect::<Vec<_>>(), ["node/p", "outside", "outside"]);
    assert_eq!(probe.send(Told::Add(1)).unwrap_err().code(), "ACTOR_DOWN");
    // A state is news that nobody repeats: it waits for the next incarnation; the request behind the failure is lost.
    probe.send(Told::Load { key: 2, value: 200 }).unwrap();
    pass_ms(500).await;
    assert_eq!(log(&probe), ["First", "Load { key: 1, value: 30 }", "Load { key: 2, value: 200 }"]);
    assert_eq!(root.directory().state_at("node/p", 2).unwrap().unwrap()["total"], 5);
    assert_eq!(root.directory().view("node/p").unwrap().status, Status::Alive);
}

#[tokio::test(start_paused = true)]
async fn a_published_state_says_which_turn_led_to_it_and_turns_how_long_they_took() {
    let (root, probe) = one(Bounds::default()).await;
    for number in 1..=100 {
        probe.send(Told::Add(number)).unwrap();
    }
    pass_ms(500).await;
    let (directory, path) = (root.directory(), "node/p");
    let published = directory.state(path).unwrap();
    // The first event is the actor's own.
    assert_eq!(published.after, Some(101));
    assert_eq!(directory.state_at(path, 101).unwrap().unwrap(), published.state);
    assert_ne!(directory.state_at(path, 100).unwrap().unwrap(), published.state, "the turn before differs");
    let all_took = || directory.journal(path, 256).unwrap().iter().all(|event| event.took_ns.is_some());
    assert!(all_took(), "the last one too, though nothing came after it");
    probe.send(Told::Boom).unwrap();
    rest().await;
    assert_eq!(directory.state(path).unwrap().after, Some(101), "the turn that failed led to nothing");
    pass_ms(500).await;
    assert_eq!(directory.state(path).unwrap().after, Some(103));
    let journal = directory.journal(path, 3).unwrap();
    let took: Vec<bool> = journal.iter().map(|event| event.took_ns.is_some()).collect();
    assert_eq!(took, [true, false, true], "{journal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_effect_is_contained_too() {
    let (root, probe) = one(Bounds::default()).await;
    probe.send(Told::Do(vec![Effect::Panic, Effect::SendSelf { times: 1 }])).unwrap();
    rest().await;
    let view = root.directory().view("node/p").unwrap();
    assert_eq!(view.history[0].error, "performing what do led to: in an effect");
    pass_ms(500).await;
    assert_eq!(log(&probe), ["First"]);
}

#[tokio::test(start_paused = true)]
async fn handles_of_an_old_incarnation_are_good_for_nothing() {
    let (_root, probe) = one(Bounds::default()).await;
    let old = Handle::bound(probe.slot().clone(), 1);
    old.send(Told::Add(1)).unwrap();
    probe.send(Told::Boom).unwrap();
    pass_ms(500).await;
    assert_eq!(old.send(Told::Load { key: 1, value: 1 }).unwrap_err().code(), "ACTOR_STALE");
    assert_eq!(old.after(old.now(), 1, Told::Timer(1)).unwrap_err().code(), "ACTOR_STALE");
    assert!(!old.is_up() && old.address().is_up());
    old.fail("too late".to_owned());
    old.stop();
    rest().await;
    assert_eq!(log(&probe), ["First"]);
}

#[tokio::test(start_paused = true)]
async fn work_ends_with_the_incarnation() {
    let (mut root, probe) = one(Bounds::default()).await;
    pass_ms(200).await;
    let before = alive_tasks();
    let work = vec![
        Effect::WorkForever,
        Effect::Work { ms: 50_000, value: 1, within_ms: 60_000 },
        Effect::After { ms: 50_000, key: 1, value: 1 },
    ];
    probe.send(Told::Do(work.clone())).unwrap();
    pass_ms(200).await;
    assert_eq!(alive_tasks(), before + 3);
    probe.send(Told::Boom).unwrap();
    pass_ms(1_000).await;
    assert_eq!(alive_tasks(), before);
    probe.send(Told::Do(work)).unwrap();
    rest().await;
    root.stop().await;
    rest().await;
    assert_eq!(alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_journal_replays_the_live_state() {
    let (root, probe) = one(Bounds::default()).await;
    for number in 0..1_000 {
        let event = if number % 7 == 0 { Told::Do(vec![Effect::Draw]) } else { Told::Add(number) };
        probe.send(event).unwrap();
    }
    rest().await;
    let total = probe.ask(SECOND, Told::Ask).await.unwrap();
    assert_eq!(probe.replay(probe.last_event()).unwrap().total, total);
    let oldest = root.directory().journal("node/p", usize::MAX).unwrap()[0].number;
    assert!(oldest > 1 && 1_002 - oldest >= 2 * JOURNAL_CHECKPOINT_EVERY as u64);
    for number in oldest..=probe.last_event() {
        assert!(probe.replay(number).is_ok());
    }
    assert!(probe.replay(oldest - 2).is_err());
}
