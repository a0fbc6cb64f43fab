//! What a run came to, for people.

use std::{fmt, time::Duration};

use crate::{checks::Finding, scenario::Scenario, trace::Traced};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was run.
    pub scenario: Scenario,
    /// How long the world lasted.
    pub lasted: Duration,
    /// How much of a processor that took.
    pub took: Duration,
    /// What happened.
    pub traced: Traced,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Flows opened.
    pub flows: usize,
    /// Bytes that applications read.
    pub bytes: u64,
    /// The longest that a flow's bytes were late.
    pub longest_stall: Duration,
    /// Commands that the control group acknowledged.
    pub commands: usize,
    /// How long the world needed to be well again after the last fault.
    pub converged_after: Option<Duration>,
    /// What must not have happened.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The report of a run that did not come to an end.
    #[must_use]
    pub fn broken(scenario: Scenario, what: String) -> Self {
        Self {
            scenario,
            lasted: Duration::ZERO,
            took: Duration::ZERO,
            traced: Traced::default(),
            datagrams: 0,
            flows: 0,
            bytes: 0,
            longest_stall: Duration::ZERO,
            commands: 0,
            converged_after: None,
            findings: vec![Finding { check: "world", at: Duration::ZERO, what }],
        }
    }

    /// Whether everything held.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.findings.is_empty()
    }

    /// Virtual seconds a second of processor.
    #[must_use]
    pub fn speed(&self) -> f64 {
        self.lasted.as_secs_f64() / self.took.as_secs_f64().max(1e-9)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.scenario.seed;
        let word = if self.is_good() { "good" } else { "BAD " };
        write!(
            f,
            "seed {seed:>4} {word} {:>6.1} s at {:>5.1} s/s, {} faults, {} datagrams, {} flows, {} bytes, longest stall {:.2} s, {} commands, well after {}, trace {:016x}",
            self.lasted.as_secs_f64(),
            self.speed(),
            self.scenario.faults.len(),
            self.datagrams,
            self.flows,
            self.bytes,
            self.longest_stall.as_secs_f64(),
            self.commands,
            self.converged_after.map_or_else(|| "never".to_owned(), |after| format!("{:.1} s", after.as_secs_f64())),
            self.traced.hash,
        )?;
        for finding in self.findings.iter().take(5) {
            write!(f, "\n     {finding}")?;
        }
        if !self.is_good() {
            write!(f, "\n     {}", replay(&self.scenario))?;
        }
        Ok(())
    }
}

/// The one line that runs a seed again.
#[must_use]
pub fn replay(scenario: &Scenario) -> String {
    let (features, planted) = match scenario.planted {
        Some(planted) => {
            let name =
                clap::ValueEnum::to_possible_value(&planted).map_or_else(String::new, |it| it.get_name().to_owned());
            (" --features planted", format!(" --planted {name}"))
        }
        None => ("", String::new()),
    };
    format!("cargo run --release -p postroad-simulations{features} -- replay {}{planted}", scenario.seed)
}
