//! Whole worlds: without faults nothing is found, with them nothing is found either, and one seed is one world.

use postroad_simulations::{
    faults::{Fault, Timed},
    run::run,
    scenario::Scenario,
    trace::difference,
};

fn timed(at_ms: u64, fault: Fault) -> Timed {
    Timed { at_ms, fault }
}

#[test]
fn a_calm_world_is_well_and_its_trace_repeats() {
    let scenario = Scenario { flows: 5, ..Scenario::calm(1, 5) };
    let (one, other) = (run(&scenario, true), run(&scenario, true));
    assert!(one.is_good(), "{one}");
    assert!(one.bytes > 100_000 && one.flows >= 5, "{one}");
    if let Some((line, here, there)) = difference(&one.traced.text, &other.traced.text) {
        panic!("line {line} differs:\n{here:?}\n{there:?}");
    }
    assert_eq!(one.traced.hash, other.traced.hash);
    let next = run(&Scenario { seed: 2, ..scenario }, false);
    assert_ne!(next.traced.hash, one.traced.hash);
}

#[test]
fn flows_outlive_their_relay_and_the_leader_comes_back() {
    let faults = vec![
        timed(1_000, Fault::Crash { host: 3, for_ms: 2_000 }),
        timed(4_000, Fault::Election { for_ms: 1_500, voter_for_ms: 500 }),
    ];
    let report = run(&Scenario { flows: 5, faults, ..Scenario::calm(3, 8) }, false);
    assert!(report.is_good(), "{report}");
}

#[test]
fn a_partition_and_a_pause_are_survived() {
    let faults = vec![
        timed(1_000, Fault::Partition { hosts: vec![0, 4], for_ms: 2_000 }),
        timed(4_000, Fault::Pause { host: 1, for_ms: 1_500 }),
    ];
    let report = run(&Scenario { flows: 5, faults, ..Scenario::calm(4, 8) }, false);
    assert!(report.is_good(), "{report}");
}

// R15, RP-40: three of four relays are drained and resumed, two of them at a time: nothing is lost, and no flow stands
// still for 200 ms.
#[test]
fn drains_are_hardly_felt() {
    let faults = vec![
        timed(1_000, Fault::Drain { host: 3, for_ms: 3_000 }),
        timed(2_500, Fault::Drain { host: 0, for_ms: 3_000 }),
        timed(4_500, Fault::Drain { host: 1, for_ms: 3_000 }),
    ];
    let report = run(&Scenario { flows: 10, faults, ..Scenario::calm(5, 9) }, false);
    assert!(report.is_good(), "{report}");
    assert!(report.longest_stall < std::time::Duration::from_millis(200), "{report}");
}
