//! Supervision as tables, and its intensity as a property.

use proptest::{
    prelude::{Just, prop_assert, prop_oneof, proptest},
    strategy::Strategy as Generator,
};

use super::*;

const SECOND: Span = Span::from_secs(1);

fn rule(restart: Restart, strategy: Strategy) -> Rule {
    Rule { restart, strategy, stop_within: Span::from_secs(5) }
}

/// A supervisor and a world around it that does at once what it is asked for.
struct Bench {
    supervision: Supervision,
    now: Moment,
    chance: u64,
    log: Vec<String>,
    timers: Vec<(Moment, Event)>,
    restarts: Vec<(Moment, Span)>,
    failed: Option<String>,
    stubborn: bool,
}

impl Bench {
    fn new(children: &[(&str, Rule)]) -> Self {
        let children = children.iter().map(|(id, rule)| ((*id).to_owned(), *rule));
        let mut bench = Self {
            supervision: Supervision::new(children),
            now: Moment(1),
            chance: 7,
            log: Vec::new(),
            timers: Vec::new(),
            restarts: Vec::new(),
            failed: None,
            stubborn: false,
        };
        bench.give(Event::Begin);
        bench
    }

    fn give(&mut self, event: Event) {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let turn = Turn { now: self.now, chance: self.chance, ..Turn::default() };
        let mut effects = Vec::new();
        self.supervision.on(turn, event, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Start { id, run } => {
                self.log.push(format!("start {id}"));
                self.give(Event::Started { id, run });
            }
            Effect::Stop { id, run } => {
                self.log.push(format!("stop {id}"));
                if !self.stubborn {
                    self.give(Event::Exited { id, run, exit: Exit::Normal });
                }
            }
            Effect::Kill { id, .. } => self.log.push(format!("kill {id}")),
            Effect::Restart { id, run, backoff, at, .. } => {
                self.log.push(format!("wait {id}"));
                assert_eq!(at, self.now.after(backoff));
                self.restarts.push((self.now, backoff));
                self.timers.push((at, Event::Due { id, run }));
            }
            Effect::OverdueAt { id, run, at } => self.timers.push((at, Event::Overdue { id, run })),
            Effect::Forget { id, .. } => self.log.push(format!("forget {id}")),
            Effect::Ready => self.log.push("ready".to_owned()),
            Effect::Finish => self.log.push("finish".to_owned()),
            Effect::FailUpwards { reason } => {
                self.log.push("fail".to_owned());
                self.failed = Some(reason);
            }
        }
    }

    /// Lets `span` pass, with the timers in it.
    fn pass(&mut self, span: Span) {
        let end = self.now.after(span);
        while let Some(index) = (0..self.timers.len()).min_by_key(|index| self.timers[*index].0) {
            if self.timers[index].0 > end {
                break;
            }
            let (at, event) = self.timers.remove(index);
            self.now = self.now.max(at);
            self.give(event);
        }
        self.now = end;
    }

    fn run_of(&self, id: &str) -> u64 {
        self.supervision.children[&self.supervision.places[id]].run
    }

    fn exit(&mut self, id: &str, exit: Exit) {
        let run = self.run_of(id);
        self.give(Event::Exited { id: id.to_owned(), run, exit });
    }

    fn crash(&mut self, id: &str) {
        self.exit(id, Exit::Failed("boom".to_owned()));
    }

    fn take_log(&mut self) -> String {
        std::mem::take(&mut self.log).join(", ")
    }
}

#[test]
fn children_start_in_order_and_stop_in_reverse() {
    let plain = rule(Restart::Permanent, Strategy::OneForOne);
    let mut bench = Bench::new(&[("z", plain), ("a", plain), ("m", plain)]);
    assert_eq!(bench.take_log(), "start z, start a, start m, ready");
    bench.give(Event::Add { id: "b".to_owned(), rule: plain });
    assert_eq!(bench.take_log(), "start b");
    bench.give(Event::Stop);
    assert_eq!(bench.take_log(), "stop b, stop m, stop a, stop z, finish");
    bench.give(Event::Add { id: "c".to_owned(), rule: plain });
    assert_eq!(bench.take_log(), "forget c");
}

#[test]
fn who_is_started_again_after_what() {
    let failed = || Exit::Failed("boom".to_owned());
    for (restart, exit, after) in [
        (Restart::Permanent, Exit::Normal, "wait a, start a"),
        (Restart::Permanent, failed(), "wait a, start a"),
        (Restart::Transient, Exit::Normal, "forget a"),
        (Restart::Transient, Exit::Killed, "wait a, start a"),
        (Restart::Transient, failed(), "wait a, start a"),
        (Restart::Temporary, Exit::Normal, "forget a"),
        (Restart::Temporary, failed(), "forget a"),
    ] {
        let mut bench = Bench::new(&[("a", rule(restart, Strategy::OneForOne))]);
        bench.take_log();
        bench.exit("a", exit.clone());
        bench.pass(SECOND);
        assert_eq!(bench.take_log(), after, "{restart:?} after {exit:?}");
    }
}

#[test]
fn rest_for_one_restarts_what_was_started_after() {
    let alone = rule(Restart::Permanent, Strategy::OneForOne);
    let mut bench =
        Bench::new(&[("a", alone), ("b", rule(Restart::Permanent, Strategy::RestForOne)), ("c", alone), ("d", alone)]);
    bench.take_log();
    bench.crash("b");
    assert_eq!(bench.take_log(), "wait b, stop d, stop c");
    // Nobody that relies on b comes before it, not even a new one.
    bench.give(Event::Add { id: "e".to_owned(), rule: alone });
    assert_eq!(bench.take_log(), "");
    bench.pass(SECOND);
    assert_eq!(bench.take_log(), "start b, start c, start d, start e");
    bench.crash("c");
    bench.pass(SECOND);
    assert_eq!(bench.take_log(), "wait c, start c");
    bench.crash("b");
    bench.give(Event::Remove { id: "b".to_owned() });
    assert_eq!(bench.take_log(), "wait b, stop e, stop d, stop c, forget b, start c, start d, start e");
}

#[test]
fn the_sixth_restart_in_a_minute_fails_upwards() {
    let plain = rule(Restart::Permanent, Strategy::OneForOne);
    let mut bench = Bench::new(&[("a", plain), ("b", plain)]);
    bench.take_log();
    for _ in 0..SUPERVISION_RESTARTS_MAX {
        bench.crash("a");
        bench.pass(Span::from_secs(4));
    }
    assert_eq!(bench.failed, None);
    bench.take_log();
    bench.crash("a");
    assert_eq!(bench.take_log(), "stop b, fail");
    let reason = bench.failed.unwrap();
    assert!(reason.contains("5 restarts in 60 s") && reason.contains("a failed again: boom"), "{reason}");
}

#[test]
fn slow_failures_never_add_up() {
    let mut bench = Bench::new(&[("a", rule(Restart::Permanent, Strategy::OneForOne))]);
    for _ in 0..50 {
        bench.crash("a");
        bench.pass(SUPERVISION_WINDOW + SECOND);
    }
    assert_eq!(bench.failed, None);
    // After a minute without a failure the backoff starts anew.
    assert!(bench.restarts.iter().all(|(_, backoff)| *backoff <= SUPERVISION_BACKOFF_MIN));
}

#[test]
fn a_child_that_does_not_stop_is_killed_and_then_given_up() {
    let plain = rule(Restart::Permanent, Strategy::OneForOne);
    let mut bench = Bench::new(&[("a", plain), ("b", plain)]);
    bench.take_log();
    bench.stubborn = true;
    bench.give(Event::Stop);
    assert_eq!(bench.take_log(), "stop b");
    bench.pass(Span::from_secs(5));
    assert_eq!(bench.take_log(), "kill b");
    bench.exit("b", Exit::Killed);
    assert_eq!(bench.take_log(), "stop a");
    bench.pass(Span::from_secs(7));
    assert_eq!(bench.take_log(), "kill a, finish");
}

#[test]
fn late_messages_of_an_old_run_change_nothing() {
    let mut bench = Bench::new(&[("a", rule(Restart::Permanent, Strategy::OneForOne))]);
    let old = bench.run_of("a");
    bench.crash("a");
    bench.pass(SECOND);
    bench.take_log();
    let before = bench.supervision.clone();
    for event in [
        Event::Exited { id: "a".to_owned(), run: old, exit: Exit::Killed },
        Event::Started { id: "a".to_owned(), run: old },
        Event::Due { id: "a".to_owned(), run: old },
        Event::Overdue { id: "a".to_owned(), run: old },
        Event::Exited { id: "nobody".to_owned(), run: 1, exit: Exit::Killed },
        Event::Remove { id: "nobody".to_owned() },
    ] {
        bench.give(event);
    }
    assert_eq!(bench.supervision, before);
    assert_eq!(bench.take_log(), "");
}

fn rules() -> impl Generator<Value = Rule> {
    let restart = prop_oneof![Just(Restart::Permanent), Just(Restart::Transient), Just(Restart::Temporary)];
    let strategy = prop_oneof![Just(Strategy::OneForOne), Just(Strategy::RestForOne)];
    (restart, strategy).prop_map(|(restart, strategy)| rule(restart, strategy))
}

proptest! {
    /// Never more than five restarts in any minute without failing upwards, and nothing left running after that.
    #[test]
    fn restarts_stay_below_their_intensity(
        children in proptest::collection::vec(rules(), 1..5),
        steps in proptest::collection::vec((0_usize..6, 0_u8..5, 0_u64..40_000), 1..120),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let seats: Vec<(&str, Rule)> = names.iter().copied().zip(children).collect();
        let mut bench = Bench::new(&seats);
        for (index, action, wait_ms) in steps {
            let name = names[index % names.len()];
            if bench.supervision.places.contains_key(name) {
                match action {
                    0 => bench.exit(name, Exit::Normal),
                    1 => bench.give(Event::Remove { id: name.to_owned() }),
                    _ => bench.crash(name),
                }
            } else if action == 4 {
                bench.give(Event::Add { id: name.to_owned(), rule: rule(Restart::Permanent, Strategy::OneForOne) });
            }
            bench.pass(Span::from_millis(wait_ms));
            if bench.failed.is_some() {
                break;
            }
            // Whoever is wanted is up or about to be.
            prop_assert!(bench.supervision.busy.is_none());
        }
        for window in bench.restarts.windows(SUPERVISION_RESTARTS_MAX + 1) {
            let (first, last) = (window[0].0, window[SUPERVISION_RESTARTS_MAX].0);
            prop_assert!(last.since(first) >= SUPERVISION_WINDOW);
        }
        for (_, backoff) in &bench.restarts {
            prop_assert!((SUPERVISION_BACKOFF_MIN / 2..=SUPERVISION_BACKOFF_MAX).contains(backoff));
        }
        if bench.failed.is_none() {
            bench.pass(SUPERVISION_BACKOFF_MAX);
            let all_up = bench.supervision.children().all(|(_, phase)| matches!(phase, Phase::Up { .. }));
            prop_assert!(all_up);
            bench.give(Event::Stop);
        }
        prop_assert!(bench.supervision.children().all(|(_, phase)| phase == Phase::Idle));
        prop_assert!(bench.log.last().is_some_and(|last| last == "finish" || last == "fail"));
    }
}
