//! `postroad demo`.

use std::time::Duration;

use clap::Args;

use super::{Context, output::Output};
use crate::{
    demo::{self, Options, story::Story},
    errors::Failure,
};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad demo --once\n\n\
    Starts three control nodes with their local relays, three remote relays and two workload nodes as processes on \
    127.0.0.1, carries a transfer and 50 chatty flows through them, and twice kills the relay that carries them; then \
    one is drained and resumed. All of it lives in postroad-demo-PROCESS in the system's temporary directory, which is removed at the end unless something \
    failed. The processes end with this one, even if it is killed.\n\n\
    With --once the exit status is 0 only if every byte and every ending was right and no flow stood still for more \
    than 5 s.")]
pub struct Command {
    /// End after the story instead of staying up until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Leave the directory with its logs
    #[arg(long)]
    keep: bool,
    /// Let the consoles act too: drain, rebalance, restart; they say how to get a token
    #[arg(long)]
    act: bool,
    /// The size of the transfer each way, in MiB
    #[arg(long, hide = true, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    transfer_mib: u64,
    /// How many chatty flows there are
    #[arg(long, hide = true, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=500))]
    flows: u64,
    /// How many times the relay in use is killed
    #[arg(long, hide = true, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    deaths: u32,
    /// How many times the relay in use is drained and resumed
    #[arg(long, hide = true, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    drains: u32,
    /// How long a packet takes from one node to another and back, at least, in milliseconds
    #[arg(long, hide = true, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    round_trip_ms: u64,
}

impl Command {
    /// Runs the demonstration.
    ///
    /// # Errors
    /// What was not as it must be.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let options = Options {
            once: self.once,
            keep: self.keep,
            act: self.act,
            transfer_bytes: self.transfer_mib << 20,
            flows: self.flows,
            deaths: self.deaths,
            drains: self.drains,
            round_trip: Duration::from_millis(self.round_trip_ms),
        };
        demo::run(&options, &Story::new(context.style, context.global.json))
    }
}
