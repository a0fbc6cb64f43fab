//! The checks see what they are for: each planted fault is found within 200 seeds. Unoptimized that takes minutes, so only an
//! optimized build has it; the gate does the same by the program.
#![cfg(not(debug_assertions))]

use postroad_simulations::{planted::Planted, sweep::sweep};

/// Which of the first 200 seeds finds a planted fault, and by which checks.
fn found(planted: Planted) -> Option<(u64, Vec<&'static str>)> {
    let mut found = None;
    sweep(1, 200, Some(planted), |report| {
        if !report.is_good() {
            found = Some((report.scenario.seed, report.findings.iter().map(|finding| finding.check).collect()));
        }
        report.is_good()
    });
    found
}

#[test]
fn an_unguarded_goodbye_is_found() {
    let (_, checks) = found(Planted::OldGoodbye).expect("200 seeds did not find it");
    assert!(checks.contains(&"sessions") || checks.contains(&"convergence"), "{checks:?}");
}

#[test]
fn an_unsynced_vote_is_found() {
    let (_, checks) = found(Planted::UnsyncedVote).expect("200 seeds did not find it");
    assert!(checks.contains(&"raft"), "{checks:?}");
}

#[test]
fn a_ring_that_goes_last_is_found() {
    let (_, checks) = found(Planted::RingLast).expect("200 seeds did not find it");
    assert!(checks.contains(&"circuits"), "{checks:?}");
}
