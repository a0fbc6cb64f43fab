//! What a mailbox takes, replaces and refuses.

use proptest::{collection::vec, proptest};
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Mail {
    Load(u64, u32),
    Ask(u32),
    Timer(u32),
}

impl Event for Mail {
    fn kind(&self) -> &'static str {
        match self {
            Self::Load(..) => "load",
            Self::Ask(_) => "ask",
            Self::Timer(_) => "timer",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Load(key, _) => Class::State { key: *key },
            Self::Ask(_) => Class::Request,
            Self::Timer(_) => Class::Reserved,
        }
    }
}

fn put(mailbox: &mut Mailbox<Mail>, event: Mail, now_ms: u64) -> Result<(), Refusal> {
    let since = Moment(now_ms * 1_000_000);
    let envelope = Some(Envelope { sender: "test".into(), trace: None });
    mailbox.put(Letter { event, envelope, since, sent: since, fired: None })
}

fn drain(mailbox: &mut Mailbox<Mail>) -> Vec<Mail> {
    std::iter::from_fn(|| mailbox.take(|sent| sent).map(|taken| taken.letter.event)).collect()
}

fn small() -> Mailbox<Mail> {
    Mailbox::new(Bounds { requests: 2, states: 2, reserved: 2 })
}

#[test]
fn a_newer_state_takes_the_place_of_the_older() {
    let mut mailbox = small();
    for event in [Mail::Load(1, 10), Mail::Ask(0), Mail::Load(2, 20), Mail::Load(1, 11), Mail::Load(2, 21)] {
        put(&mut mailbox, event, 0).unwrap();
    }
    assert_eq!(mailbox.figures(Moment::ZERO, 20).replaced, 2);
    assert_eq!(put(&mut mailbox, Mail::Load(3, 30), 0), Err(Refusal::Busy(2)));
    assert_eq!(drain(&mut mailbox), [Mail::Load(1, 11), Mail::Ask(0), Mail::Load(2, 21)]);
    put(&mut mailbox, Mail::Load(3, 30), 0).unwrap();
    put(&mut mailbox, Mail::Load(1, 12), 0).unwrap();
    put(&mut mailbox, Mail::Load(3, 31), 0).unwrap();
    assert_eq!(drain(&mut mailbox), [Mail::Load(3, 31), Mail::Load(1, 12)]);
}

#[test]
fn a_state_waits_as_long_as_the_first_of_its_key_and_is_as_new_as_the_last() {
    let mut mailbox = small();
    put(&mut mailbox, Mail::Load(1, 10), 5).unwrap();
    put(&mut mailbox, Mail::Load(1, 11), 9).unwrap();
    let taken = mailbox.take(|sent| sent.max(Moment(7_000_000))).unwrap();
    assert_eq!((taken.letter.since, taken.at), (Moment(5_000_000), Some(Moment(9_000_000))));
    let mut silent = small().counting(false);
    put(&mut silent, Mail::Ask(1), 5).unwrap();
    let taken = silent.take(|_| unreachable!("nobody reads a clock where nobody counts")).unwrap();
    assert_eq!((taken.at, silent.figures(Moment::ZERO, 20).busy), (None, None));
}

#[test]
fn each_class_has_its_own_room() {
    let mut mailbox = small();
    for number in 0..2 {
        put(&mut mailbox, Mail::Ask(number), 0).unwrap();
    }
    assert_eq!(put(&mut mailbox, Mail::Ask(2), 0), Err(Refusal::Busy(2)));
    put(&mut mailbox, Mail::Timer(0), 0).unwrap();
    put(&mut mailbox, Mail::Timer(1), 0).unwrap();
    assert_eq!(put(&mut mailbox, Mail::Timer(2), 0), Err(Refusal::Overflow(2)));
    assert_eq!(mailbox.figures(Moment::ZERO, 20).refused, 2);
    assert_eq!(drain(&mut mailbox), [Mail::Ask(0), Mail::Ask(1), Mail::Timer(0), Mail::Timer(1)]);
    put(&mut mailbox, Mail::Ask(3), 0).unwrap();
}

#[test]
fn a_new_incarnation_finds_the_states() {
    let mut mailbox = small();
    for event in [Mail::Ask(0), Mail::Load(7, 1), Mail::Timer(0), Mail::Load(8, 1)] {
        put(&mut mailbox, event, 0).unwrap();
    }
    mailbox.keep_states();
    put(&mut mailbox, Mail::Load(8, 2), 0).unwrap();
    put(&mut mailbox, Mail::Ask(1), 0).unwrap();
    assert_eq!(drain(&mut mailbox), [Mail::Load(7, 1), Mail::Load(8, 2), Mail::Ask(1)]);
}

#[test]
fn waits_are_those_of_the_window_that_is_asked_for() {
    let mut mailbox = Mailbox::new(Bounds::default());
    for number in 0..100 {
        put(&mut mailbox, Mail::Ask(number), 1_000).unwrap();
    }
    assert_eq!(mailbox.figures(Moment::ZERO, 20).depth_max, 100);
    for number in 0..100 {
        // One of a hundred waits for 3 s.
        let wait_ms = if number == 99 { 3_000 } else { 1 };
        let now = Moment((1_000 + wait_ms) * 1_000_000);
        mailbox.take(|_| now).unwrap();
        let busy = Busy { kind: "ask", sender: "test".into(), since: now };
        assert_eq!(mailbox.figures(now, 20).busy, Some(busy));
        mailbox.done(Over { number, at: now, took: Span::ZERO });
    }
    let second = |second: u64| Moment(second * 1_000_000_000);
    let figures = mailbox.figures(second(5), 20);
    assert_eq!((figures.wait_p50_us, figures.wait_p99_us), (1_024, 1_024));
    assert_eq!((figures.handled, figures.last_kind, figures.busy), (100, Some("ask"), None));
    // Later ones wait for longer.
    for _ in 0..10 {
        put(&mut mailbox, Mail::Ask(7), 40_000).unwrap();
        mailbox.take(|_| second(42)).unwrap();
    }
    let p50 = |now, seconds| mailbox.figures(second(now), seconds).wait_p50_us;
    assert_eq!((p50(42, 5), p50(42, 20), p50(42, 59)), (2_097_152, 2_097_152, 1_024));
    assert_eq!((p50(49, 5), p50(51, 5), p50(99, 59), p50(200, 59)), (2_097_152, 0, 2_097_152, 0));
}

proptest! {
    /// Whatever comes and goes, a mailbox gives events in the order of arrival and keeps its bounds.
    #[test]
    fn order_and_bounds_hold(steps in vec((0_u8..4, 0_u64..4), 0..200)) {
        let mut mailbox = Mailbox::new(Bounds { requests: 3, states: 3, reserved: 3 });
        let mut model: Vec<Mail> = Vec::new();
        for (number, (action, key)) in steps.into_iter().enumerate() {
            let number = number as u32;
            let event = match action {
                0 => Mail::Load(key, number),
                1 => Mail::Ask(number),
                2 => Mail::Timer(number),
                _ => {
                    let expected = if model.is_empty() { None } else { Some(model.remove(0)) };
                    assert_eq!(mailbox.take(|sent| sent).map(|taken| taken.letter.event), expected);
                    continue;
                }
            };
            let same_class = model.iter().filter(|other| other.kind() == event.kind()).count();
            let older = model.iter_mut().find(|other| matches!(other, Mail::Load(old, _) if action == 0 && *old == key));
            let taken = put(&mut mailbox, event.clone(), 0);
            if let Some(older) = older {
                assert_eq!(taken, Ok(()));
                *older = event;
            } else if same_class < 3 {
                assert_eq!(taken, Ok(()));
                model.push(event);
            } else {
                assert!(taken.is_err());
            }
        }
    }
}
