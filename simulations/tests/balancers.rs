//! Worlds of database balancers: two of them, five nodes, failovers and isolated old primaries, seed by seed.

use postroad_cluster::balancer::database::settings::Settings;
use postroad_simulations::balancers::{Outcomes, run};

/// Runs a world; `RUST_LOG` shows what happens in it.
fn world(seed: u64, settings: Settings) -> Outcomes {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    // Another test of this process may have been first.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    run(seed, settings)
}

/// Seeds of one sweep: each is 75 virtual seconds.
const SEEDS: u64 = 40;

// DB-2, DB-20, DB-22, DB-43
#[test]
fn no_connection_is_bound_to_an_older_epoch_once_a_newer_one_was_seen() {
    let mut failovers = 0;
    let mut ended = 0;
    for seed in 0..SEEDS {
        let outcomes = world(seed, Settings::default());
        assert_eq!(outcomes.findings, Vec::<String>::new(), "seed {seed}: {outcomes:?}");
        failovers += outcomes.failovers;
        ended += outcomes.ended;
        assert!(outcomes.reached > 100, "seed {seed} did nothing: {outcomes:?}");
    }
    assert!(failovers > 5 * SEEDS && ended > SEEDS, "{failovers} failovers ended {ended} connections");
}

#[test]
fn one_seed_is_one_world() {
    assert_eq!(world(7, Settings::default()), world(7, Settings::default()));
}

// The check sees what it is for.
#[test]
fn a_balancer_that_closes_nothing_is_found_out() {
    let settings = Settings { close_rw_on_primary_change: false, ..Settings::default() };
    let found = (0..5).any(|seed| {
        world(seed, settings.clone()).findings.iter().any(|finding| finding.contains("holds a write connection"))
    });
    assert!(found, "no seed left a write connection at an old primary");
}
