//! Events and effects of a pair, as tables.

use super::*;
use crate::{id::ChannelToken, limits::CHANNELS_OF_A_CIRCUIT_MAX};

const RELAY: NodeId = NodeId(9);
const OTHER: NodeId = NodeId(8);
const TOKENS: Tokens = Tokens { outgoing: ChannelToken(1), incoming: ChannelToken(2) };

fn on(peer: &mut Peer, event: Event) -> Vec<Effect> {
    chanced(peer, 77, event)
}

fn chanced(peer: &mut Peer, chance: u64, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    peer.on(Turn { chance, ..Turn::default() }, event, &mut effects);
    effects
}

fn opened(relay: NodeId, circuit: CircuitId) -> Event {
    Event::ChannelOpened { relay, circuit, tokens: TOKENS }
}

fn connected() -> (Peer, CircuitId) {
    let mut peer = Peer::new(NodeId(1), NodeId(2));
    let effects = on(&mut peer, Event::RelayUp { relay: RELAY });
    let [Effect::CircuitAdd { circuit, .. }, Effect::ChannelOpen { relay: RELAY, .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    let effects = on(&mut peer, opened(RELAY, circuit));
    assert_eq!(effects, [Effect::ChannelAdd { relay: RELAY, circuit, tokens: TOKENS }, Effect::Dial { circuit }]);
    let effects = on(&mut peer, Event::Connected { circuit, connection: 5 });
    assert_eq!(effects, [Effect::Up { circuit, connection: 5 }]);
    (peer, circuit)
}

fn spread(takers: &[NodeId], lies: &[(CircuitId, NodeId, bool)]) -> Event {
    let lie =
        |&(circuit, relay, busy): &(CircuitId, NodeId, bool)| (circuit, Lie { relay: Some(relay), busy, fits: true });
    Event::Spread { takers: takers.to_vec(), lies: lies.iter().map(lie).collect(), large: false }
}

/// The same for circuits of which some have another size than new ones, at one relay, each with whether it fits.
fn sized(large: bool, lies: &[(CircuitId, bool, bool)]) -> Event {
    let lie = |&(circuit, busy, fits): &(CircuitId, bool, bool)| (circuit, Lie { relay: Some(RELAY), busy, fits });
    Event::Spread { takers: vec![RELAY], lies: lies.iter().map(lie).collect(), large }
}

/// A pair with a circuit at each of two relays, both of which take new connections.
fn two() -> (Peer, CircuitId, CircuitId) {
    let (mut peer, first) = connected();
    on(&mut peer, Event::RelayUp { relay: OTHER });
    on(&mut peer, opened(OTHER, first));
    let effects = chanced(&mut peer, 78, spread(&[OTHER, RELAY], &[(first, RELAY, true)]));
    let [Effect::CircuitAdd { circuit: second, .. }, Effect::ChannelOpen { relay: OTHER, .. }] = effects[..] else {
        panic!("it begins where it is wanted: {effects:?}")
    };
    assert_eq!(life_of(first), life_of(second));
    let [Effect::ChannelAdd { relay: OTHER, .. }, Effect::Dial { .. }, Effect::ChannelOpen { relay: RELAY, .. }] =
        on(&mut peer, opened(OTHER, second))[..]
    else {
        panic!("the others are asked when it has begun there")
    };
    on(&mut peer, opened(RELAY, second));
    let up = [Effect::Up { circuit: second, connection: 6 }];
    assert_eq!(on(&mut peer, Event::Connected { circuit: second, connection: 6 }), up, "nothing ends");
    let both = spread(&[OTHER, RELAY], &[(first, RELAY, true), (second, OTHER, false)]);
    assert_eq!(on(&mut peer, both), []);
    (peer, first, second)
}

#[test]
fn the_lower_node_opens_channels_and_dials_once() {
    let (mut peer, circuit) = connected();
    // RP-2: a second relay becomes a second channel of the same circuit.
    let effects = on(&mut peer, Event::RelayUp { relay: OTHER });
    assert_eq!(effects, [Effect::ChannelOpen { relay: OTHER, circuit }]);
    let effects = on(&mut peer, opened(OTHER, circuit));
    assert_eq!(effects, [Effect::ChannelAdd { relay: OTHER, circuit, tokens: TOKENS }]);
}

// RP-1: losing a relay leaves the circuit as it is.
#[test]
fn a_lost_relay_takes_its_channel_and_nothing_else() {
    let (mut peer, circuit) = connected();
    let effects = on(&mut peer, Event::RelayDown { relay: RELAY });
    assert_eq!(effects, [Effect::ChannelRemove { relay: RELAY, circuit }]);
    assert!(peer.circuits[&circuit].serves());
    let effects = on(&mut peer, Event::RelayUp { relay: RELAY });
    assert_eq!(effects, [Effect::ChannelOpen { relay: RELAY, circuit }]);
}

#[test]
fn a_closed_circuit_is_opened_anew_under_another_number() {
    let (mut peer, circuit) = connected();
    let closed = Event::Closed { circuit, connection: 5, reason: "timed out".into() };
    let effects = chanced(&mut peer, 78, closed);
    assert!(matches!(effects[0], Effect::ChannelClose { .. }), "{effects:?}");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Down { .. })));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::CircuitAdd { circuit: new, .. } if *new != circuit)));
    assert_eq!(on(&mut peer, opened(RELAY, circuit)), [Effect::ChannelClose { relay: RELAY, circuit }]);
}

// A pair has a circuit for each relay that takes its new connections; a restarted dialler's take the place of all.
#[test]
fn the_higher_node_takes_offers_of_one_life_of_the_dialler() {
    let mut peer = Peer::new(NodeId(2), NodeId(1));
    assert_eq!(on(&mut peer, Event::RelayUp { relay: RELAY }), []);
    let number = |life: u64, number: u64| CircuitId(life << 32 | number);
    let offer = |circuit| Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS };
    let [first, second, newer] = [number(1, 1), number(1, 2), number(2, 1)];
    assert!(matches!(on(&mut peer, offer(first))[..], [Effect::CircuitAdd { .. }, Effect::ChannelAdd { .. }]));
    on(&mut peer, Event::Connected { circuit: first, connection: 5 });
    on(&mut peer, offer(second));
    let effects = on(&mut peer, Event::Connected { circuit: second, connection: 6 });
    assert_eq!(effects, [Effect::Up { circuit: second, connection: 6 }], "both serve");
    on(&mut peer, offer(newer));
    assert!(peer.circuits[&first].serves(), "the old ones serve until the new one stands");
    let effects = on(&mut peer, Event::Connected { circuit: newer, connection: 7 });
    let removed = |effect: &Effect| matches!(effect, Effect::CircuitRemove { .. });
    assert_eq!(effects.iter().filter(|effect| removed(effect)).count(), 2, "{effects:?}");
    assert_eq!(peer.circuits.keys().copied().collect::<Vec<_>>(), [newer]);
    for more in 3..60 {
        on(&mut peer, offer(number(3, more)));
        assert!(peer.circuits.len() <= CIRCUITS_TAKEN_MAX);
        assert!(peer.circuits[&newer].serves());
    }
}

#[test]
fn offers_beyond_what_a_pair_may_have_are_closed_again() {
    let mut peer = Peer::new(NodeId(2), NodeId(1));
    for number in 1..=CIRCUITS_TAKEN_MAX as u64 {
        let circuit = CircuitId(number);
        on(&mut peer, Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS });
        on(&mut peer, Event::Connected { circuit, connection: number });
    }
    let circuit = CircuitId(99);
    let effects = on(&mut peer, Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS });
    assert_eq!(effects, [Effect::ChannelClose { relay: RELAY, circuit }]);
}

// RP-1: with no relay to be reached, flows wait, then they end.
#[test]
fn a_circuit_without_a_relay_ends_after_the_wait_and_not_if_one_came_back() {
    let (mut peer, circuit) = connected();
    let wait = [Effect::Start { timer: Timer::Stranded(circuit), after_ms: 60_000 }];
    assert_eq!(on(&mut peer, Event::Stranded { circuit, wait_ms: 60_000 }), wait);
    assert_eq!(on(&mut peer, Event::Stranded { circuit, wait_ms: 60_000 }), [], "the first wait counts");
    on(&mut peer, Event::Carried { circuit });
    assert_eq!(on(&mut peer, Event::Timer(Timer::Stranded(circuit))), []);
    assert_eq!(on(&mut peer, Event::Stranded { circuit, wait_ms: 60_000 }), wait, "and starts anew");
    let effects = on(&mut peer, Event::Timer(Timer::Stranded(circuit)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::CircuitRemove { .. })), "{effects:?}");
}

// A dial that was given up at its beginning leaves a connection here that is reset later.
#[test]
fn the_higher_node_tells_relays_of_a_circuit_that_ended_here_alone() {
    let mut peer = Peer::new(NodeId(2), NodeId(1));
    on(&mut peer, Event::RelayUp { relay: RELAY });
    let circuit = CircuitId(1);
    on(&mut peer, Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS });
    on(&mut peer, Event::Connected { circuit, connection: 5 });
    let effects = on(&mut peer, Event::Closed { circuit, connection: 5, reason: "reset".into() });
    assert_eq!(effects[0], Effect::ChannelClose { relay: RELAY, circuit });
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Down { .. })));
    let offer = Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS };
    assert!(matches!(on(&mut peer, offer)[..], [Effect::CircuitAdd { .. }, Effect::ChannelAdd { .. }]));
}

#[test]
fn an_offer_that_is_ahead_of_its_session_is_taken() {
    let mut peer = Peer::new(NodeId(2), NodeId(1));
    let offer = Event::ChannelOffered { relay: RELAY, circuit: CircuitId(1), tokens: TOKENS };
    assert!(matches!(on(&mut peer, offer)[..], [Effect::CircuitAdd { .. }, Effect::ChannelAdd { .. }]));
    assert_eq!(on(&mut peer, Event::RelayUp { relay: RELAY }), []);
    let (circuit, timer) = (CircuitId(1), Timer::Surplus(CircuitId(1)));
    let removed = [Effect::ChannelRemove { relay: RELAY, circuit }, Effect::Start { timer, after_ms: 60_000 }];
    assert_eq!(on(&mut peer, Event::RelayDown { relay: RELAY }), removed);
    let effects = on(&mut peer, Event::Timer(timer));
    assert!(matches!(effects[..], [Effect::CircuitRemove { .. }]), "what never stood leaves nothing: {effects:?}");
}

#[test]
fn a_refused_channel_is_asked_for_again() {
    let mut peer = Peer::new(NodeId(1), NodeId(2));
    on(&mut peer, Event::RelayUp { relay: RELAY });
    let circuit = *peer.circuits.keys().next().unwrap();
    let effects = on(&mut peer, Event::ChannelRefused { relay: RELAY, circuit, reason: "not connected".into() });
    let timer = Timer::Channel(RELAY, circuit);
    assert!(matches!(effects[..], [Effect::Start { timer: started, .. }] if started == timer));
    assert_eq!(on(&mut peer, Event::Timer(timer)), [Effect::ChannelOpen { relay: RELAY, circuit }]);
    assert_eq!(on(&mut peer, Event::Timer(timer)), [], "it is under way");
}

// RP-10: each relay that takes new connections has a circuit, which begins there.
#[test]
fn each_taker_gets_a_circuit_of_its_own() {
    let (mut peer, first, second) = two();
    // What carries flows stays where it is; what is empty and not needed moves as a whole.
    let third = NodeId(7);
    on(&mut peer, Event::RelayUp { relay: third });
    let lies = [(first, RELAY, true), (second, RELAY, false)];
    let moved = [Effect::Move { circuit: second, relay: third }];
    assert_eq!(on(&mut peer, spread(&[RELAY, third], &lies)), moved);
    let busy = [(first, RELAY, true), (second, RELAY, true)];
    let effects = chanced(&mut peer, 79, spread(&[RELAY, third], &busy));
    assert!(matches!(effects[..], [Effect::CircuitAdd { .. }, Effect::ChannelOpen { .. }]), "{effects:?}");
    assert_eq!(on(&mut peer, spread(&[RELAY, third], &busy)), [], "it is under way");
}

// RP-2: a relay that was away for a moment gets its circuit again, though nothing else has changed.
#[test]
fn a_taker_that_returns_gets_a_circuit_again() {
    let (mut peer, first, second) = two();
    on(&mut peer, Event::RelayDown { relay: OTHER });
    let lies = [(first, RELAY, true), (second, RELAY, false)];
    let surplus = [Effect::Start { timer: Timer::Surplus(second), after_ms: 60_000 }];
    assert_eq!(on(&mut peer, spread(&[OTHER, RELAY], &lies)), surplus, "there is no session");
    let effects = on(&mut peer, Event::RelayUp { relay: OTHER });
    assert_eq!(effects.last(), Some(&Effect::Move { circuit: second, relay: OTHER }));
}

#[test]
fn a_relay_that_opens_no_channel_is_asked_again_later_and_nothing_ends() {
    let (mut peer, first) = connected();
    on(&mut peer, Event::RelayUp { relay: OTHER });
    on(&mut peer, opened(OTHER, first));
    on(&mut peer, spread(&[OTHER, RELAY], &[(first, RELAY, true)]));
    let circuit = *peer.circuits.keys().find(|circuit| **circuit != first).unwrap();
    let effects = on(&mut peer, Event::ChannelRefused { relay: OTHER, circuit, reason: "full".into() });
    let [Effect::CircuitRemove { .. }, Effect::Start { timer: Timer::Spread, .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    let effects = chanced(&mut peer, 80, Event::Timer(Timer::Spread));
    assert!(matches!(effects[..], [Effect::CircuitAdd { .. }, Effect::ChannelOpen { relay: OTHER, .. }]));
    assert!(peer.circuits[&first].serves());
}

// A surplus circuit closes after 60 s without a flow; the last one never does.
#[test]
fn an_empty_surplus_circuit_closes_after_a_minute() {
    let (mut peer, first, second) = two();
    let alone = |busy| spread(&[RELAY], &[(first, RELAY, true), (second, OTHER, busy)]);
    let timer = Timer::Surplus(second);
    assert_eq!(on(&mut peer, alone(true)), [], "it carries flows");
    assert_eq!(on(&mut peer, alone(false)), [Effect::Start { timer, after_ms: 60_000 }]);
    assert_eq!(on(&mut peer, alone(true)), []);
    assert_eq!(on(&mut peer, Event::Timer(timer)), [], "a flow came meanwhile");
    assert_eq!(on(&mut peer, alone(false)), [Effect::Start { timer, after_ms: 60_000 }]);
    assert_eq!(on(&mut peer, Event::Timer(timer)), [Effect::Retire { circuit: second }]);
    assert!(!peer.circuits[&second].serves() && peer.serves());
    on(&mut peer, Event::Kept { circuit: second });
    assert!(peer.circuits[&second].serves());
    assert_eq!(on(&mut peer, alone(false)), [Effect::Start { timer, after_ms: 60_000 }]);
    on(&mut peer, Event::Timer(timer));
    let effects = on(&mut peer, Event::Retired { circuit: second });
    assert!(effects.contains(&Effect::ChannelClose { relay: OTHER, circuit: second }), "{effects:?}");
    assert!(matches!(effects.last(), Some(Effect::Down { circuit, .. }) if *circuit == second));
    for lies in [[(first, OTHER, false)], [(first, RELAY, false)]] {
        on(&mut peer, spread(&[], &lies));
        on(&mut peer, Event::Timer(Timer::Surplus(first)));
        assert!(peer.serves(), "one stays open");
    }
}

// Large packets come with further circuits. Those of another size take flows until such a one stands, then none, and close
// once they are empty; and back.
#[test]
fn circuits_of_another_size_are_replaced_and_close_when_they_are_empty() {
    let (mut peer, first) = connected();
    on(&mut peer, sized(false, &[(first, false, true)]));
    let effects = chanced(&mut peer, 78, sized(true, &[(first, false, false)]));
    let [Effect::CircuitAdd { circuit: second, large: true }, Effect::ChannelOpen { .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(on(&mut peer, sized(true, &[(first, false, false)])), [], "it is under way, and the old one needed");
    on(&mut peer, opened(RELAY, second));
    on(&mut peer, Event::Connected { circuit: second, connection: 6 });
    assert_eq!(on(&mut peer, sized(true, &[(first, true, false), (second, false, true)])), [], "one carries flows");
    let timer = Timer::Surplus(first);
    let idle = on(&mut peer, sized(true, &[(first, false, false), (second, false, true)]));
    assert_eq!(idle, [Effect::Start { timer, after_ms: 60_000 }]);
    assert_eq!(on(&mut peer, Event::Timer(timer)), [Effect::Retire { circuit: first }]);
    on(&mut peer, Event::Retired { circuit: first });

    // A relay has begun to lose large packets.
    let effects = chanced(&mut peer, 79, sized(false, &[(second, true, false)]));
    let [Effect::CircuitAdd { circuit: third, large: false }, Effect::ChannelOpen { .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    on(&mut peer, opened(RELAY, third));
    on(&mut peer, Event::Connected { circuit: third, connection: 7 });
    assert!(peer.circuits[&second].serves(), "its flows live on");
    let idle = on(&mut peer, sized(false, &[(second, false, false), (third, false, true)]));
    assert_eq!(idle, [Effect::Start { timer: Timer::Surplus(second), after_ms: 60_000 }]);
}

#[test]
fn a_circuit_with_large_packets_that_cannot_be_dialled_is_given_up_and_the_one_for_everything_is_small() {
    let (mut peer, first) = connected();
    chanced(&mut peer, 78, sized(true, &[(first, false, false)]));
    let second = *peer.circuits.keys().find(|circuit| **circuit != first).unwrap();
    on(&mut peer, opened(RELAY, second));
    let effects = on(&mut peer, Event::DialFailed { circuit: second, reason: "no answer".into() });
    assert!(effects.iter().any(|it| matches!(it, Effect::CircuitRemove { circuit, .. } if *circuit == second)));
    assert!(matches!(effects.last(), Some(Effect::Start { timer: Timer::Spread, .. })), "{effects:?}");
    assert!(peer.circuits[&first].serves());
    let effects = chanced(&mut peer, 80, Event::Closed { circuit: first, connection: 5, reason: "reset".into() });
    assert!(effects.iter().any(|it| matches!(it, Effect::CircuitAdd { large: false, .. })), "{effects:?}");
}

// With 8 circuits of 8 channels a pair has the 64 that it may have.
#[test]
fn circuits_and_channels_of_a_pair_are_bounded() {
    let (mut peer, first) = connected();
    let relays: Vec<NodeId> = (20..40).map(NodeId).collect();
    for relay in &relays {
        on(&mut peer, Event::RelayUp { relay: *relay });
    }
    assert_eq!(peer.circuits[&first].channels.len(), CHANNELS_OF_A_CIRCUIT_MAX);
    let mut lies = vec![(first, RELAY, true)];
    for round in 0..40 {
        chanced(&mut peer, 1_000 + round, spread(&relays, &lies));
        let open: Vec<(CircuitId, NodeId)> =
            peer.circuits.iter().filter_map(|(circuit, known)| Some((*circuit, known.home?))).collect();
        for (circuit, home) in open {
            on(&mut peer, opened(home, circuit));
            on(&mut peer, Event::Connected { circuit, connection: circuit.0 });
            if lies.iter().all(|(known, ..)| *known != circuit) {
                lies.push((circuit, home, true));
            }
        }
    }
    assert_eq!(peer.circuits.len(), CIRCUITS_OF_A_PAIR_MAX);
    let channels: usize = peer.circuits.values().map(|known| known.channels.len()).sum();
    assert_eq!(channels, 64);
    let spare = peer.circuits[&first].channels.keys().copied().find(|relay| *relay != RELAY).unwrap();
    on(&mut peer, Event::RelayDown { relay: spare });
    assert_eq!(peer.circuits[&first].channels.len(), CHANNELS_OF_A_CIRCUIT_MAX, "another takes its place");
}
