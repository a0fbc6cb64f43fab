//! A scenario: everything that a world is made from, as a value. A seed draws one; a file holds one.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use crate::{
    faults::{Fault, Timed},
    planted::Planted,
};

/// How long faults happen, in virtual seconds.
pub const SECONDS: u64 = 60;

/// The hosts of every world: three control nodes, which are relays too, a relay, and a node that is nothing else.
pub const HOSTS: usize = 5;

/// The control nodes among the hosts.
pub const CONTROLS: usize = 3;

/// The hosts with relays, which come first.
pub const RELAYS: usize = 4;

/// Flows that are open at any time.
pub const FLOWS: usize = 20;

/// Faults of one seed: enough that some fall together, few enough that a person follows them.
const FAULTS_MAX: usize = 10;

/// Drains of one seed: fewer than relays, so that one that takes new flows is always left.
const DRAINS_MAX: usize = 2;

/// Ways of one seed that become narrow, where they are wide.
const NARROW_MAX: usize = 2;

/// Whether the network of a seed carries frames of 9,000 bytes.
#[must_use]
pub const fn has_large_frames(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// A world's beginning and everything that will happen to it from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The seed of all chance.
    pub seed: u64,
    /// How long faults happen, in virtual seconds.
    pub seconds: u64,
    /// How many flows are open at any time.
    pub flows: usize,
    /// The faults in order of time.
    pub faults: Vec<Timed>,
    /// A fault in the code, in a build that can plant one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<Planted>,
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn draw(seed: u64, planted: Option<Planted>) -> Self {
        // Another stream than the world's, so that leaving a fault out changes nothing else.
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5363_656E_6172_696F);
        let count = rng.random_range(3..=FAULTS_MAX);
        let mut faults: Vec<Timed> = (0..count)
            .map(|_| Timed { at_ms: rng.random_range(1_000..SECONDS * 1_000 - 5_000), fault: Fault::draw(&mut rng) })
            .collect();
        // A stream of its own too, so that the other faults of a seed stay what they are.
        let mut drains = StdRng::seed_from_u64(seed ^ 0x6472_6169_6E73);
        for _ in 0..drains.random_range(0..=DRAINS_MAX) {
            let at_ms = drains.random_range(1_000..SECONDS * 1_000 - 5_000);
            faults.push(Timed { at_ms, fault: Fault::draw_drain(&mut drains) });
        }
        let mut narrow = StdRng::seed_from_u64(seed ^ 0x6E61_7272_6F77);
        for _ in 0..narrow.random_range(0..=if has_large_frames(seed) { NARROW_MAX } else { 0 }) {
            let at_ms = narrow.random_range(1_000..SECONDS * 1_000 - 5_000);
            faults.push(Timed { at_ms, fault: Fault::draw_narrow(&mut narrow) });
        }
        faults.sort_by_key(|timed| timed.at_ms);
        Self { seed, seconds: SECONDS, flows: FLOWS, faults, planted }
    }

    /// The scenario without faults.
    #[must_use]
    pub const fn calm(seed: u64, seconds: u64) -> Self {
        Self { seed, seconds, flows: FLOWS, faults: Vec::new(), planted: None }
    }

    /// As a file for [`Scenario::read`].
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| error.to_string())
    }

    /// Reads a file that [`Scenario::text`] wrote.
    ///
    /// # Errors
    /// What is wrong with it, with line and column.
    pub fn read(text: &str) -> Result<Self, String> {
        let scenario: Self =
            serde_json::from_str(text).map_err(|error| format!("the scenario cannot be read: {error}"))?;
        if scenario.seconds > 3_600 || scenario.flows > 1_000 || scenario.faults.len() > 1_000 {
            return Err("a scenario has at most 3600 seconds, 1000 flows and 1000 faults".to_owned());
        }
        match scenario.faults.iter().find(|timed| !timed.fault.is_sound()) {
            Some(timed) => Err(format!("the fault at {} ms names a host beyond {}", timed.at_ms, HOSTS - 1)),
            None => Ok(scenario),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_survives_its_file_and_a_bad_file_is_refused() {
        for seed in 0..50 {
            let scenario = Scenario::draw(seed, None);
            assert_eq!(Scenario::read(&scenario.text()), Ok(scenario.clone()));
            assert_eq!(Scenario::draw(seed, None), scenario);
            assert!(scenario.faults.is_sorted_by_key(|timed| timed.at_ms));
        }
        assert!(Scenario::read("{").unwrap_err().contains("line 1"));
        let stranger =
            r#"{"seed":1,"seconds":60,"flows":1,"faults":[{"at_ms":1,"fault":{"pause":{"host":9,"for_ms":1}}}]}"#;
        assert!(Scenario::read(stranger).unwrap_err().contains("host beyond 4"));
    }
}
