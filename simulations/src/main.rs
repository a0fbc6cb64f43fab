//! The deterministic simulation on the command line: one seed, many seeds, a seed replayed, a seed compared with itself.

use std::{
    fmt, fs,
    io::{self, Write as _},
    process::{Command, ExitCode},
};

use clap::{Parser, Subcommand};
use postroad_cluster::recording::RecordingFile;
use postroad_simulations::{
    planted::Planted,
    recording,
    report::{Report, replay},
    run::{age, run},
    scenario::Scenario,
    shrink::shrink,
    sweep::sweep,
    trace::difference,
};
use tracing_subscriber::fmt::{format::Writer, time::FormatTime};

/// Whole clusters in one deterministic world: one seed is one world.
#[derive(Parser)]
#[command(name = "simulations", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs one seed and says what it came to. Example: `simulations run 17`
    Run {
        /// The seed.
        seed: u64,
        #[command(flatten)]
        options: Options,
    },
    /// Runs a seed, or a scenario from a file, and prints what happens line by line. Example: `simulations replay 17`
    Replay {
        /// The seed, or a file with a scenario as `sweep` prints it, or with a recording as the console saves it.
        what: String,
        #[command(flatten)]
        options: Options,
    },
    /// Runs many seeds; the first that fails is made as small as it gets. Example: `simulations sweep 200`
    Sweep {
        /// How many seeds.
        count: u64,
        /// The first of them.
        #[arg(long, default_value_t = 1)]
        first: u64,
        #[command(flatten)]
        options: Options,
    },
    /// Runs one seed in two processes and compares what happened, line by line. Example: `simulations meta 17`
    Meta {
        /// The seed.
        #[arg(default_value_t = 1)]
        seed: u64,
    },
}

#[derive(clap::Args, Clone, Copy)]
struct Options {
    /// Plants a fault in the code, which the checks must find (a build with the feature `planted`).
    #[arg(long, value_enum)]
    planted: Option<Planted>,
    /// Leaves every fault out.
    #[arg(long)]
    calm: bool,
}

/// Logs show the time of the world that they come from.
struct VirtualTime;

impl FormatTime for VirtualTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:>10.3}", age().as_secs_f64() * 1e3)
    }
}

fn main() -> ExitCode {
    // Nodes that crash complain of their disks; what matters is in the reports.
    let logs = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into());
    tracing_subscriber::fmt().with_env_filter(logs).with_writer(io::stderr).with_timer(VirtualTime).init();
    let done = match Arguments::parse().verb {
        Verb::Run { seed, options } => scenario(seed, options).map(|it| show(&run(&it, false))),
        Verb::Replay { what, options } => match recording_in(&what) {
            Some(file) => play(&file),
            None => read(&what, options).and_then(|it| replayed(&it)),
        },
        Verb::Sweep { count, first, options } => many(first, count, options),
        Verb::Meta { seed } => compare(seed),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn scenario(seed: u64, options: Options) -> Result<Scenario, String> {
    if options.planted.is_some() && !Planted::POSSIBLE {
        return Err("this build plants no faults; build it with --features planted".to_owned());
    }
    let mut scenario = Scenario::draw(seed, options.planted);
    if options.calm {
        scenario.faults.clear();
    }
    Ok(scenario)
}

fn read(what: &str, options: Options) -> Result<Scenario, String> {
    if let Ok(seed) = what.parse() {
        return scenario(seed, options);
    }
    let text = fs::read_to_string(what).map_err(|error| format!("{what}: {error}"))?;
    Scenario::read(&text).map_err(|error| format!("{what}: {error}"))
}

/// The recording in a file, if it is one.
fn recording_in(what: &str) -> Option<RecordingFile> {
    recording::read(&fs::read_to_string(what).ok()?)
}

fn play(file: &RecordingFile) -> Result<bool, String> {
    let played = recording::play(file)?;
    for line in &played.lines {
        println!("{line}");
    }
    let RecordingFile { noun, path, node, .. } = file;
    match &played.difference {
        None => eprintln!("{} turns of {noun} {path} on {node}: the same effects as then", played.turns),
        Some(difference) => eprintln!("{noun} {path} on {node}: {difference}"),
    }
    Ok(played.difference.is_none())
}

fn show(report: &Report) -> bool {
    println!("{report}");
    report.is_good()
}

/// The trace goes to the output, everything else to the error stream, so that two traces can be compared.
fn replayed(scenario: &Scenario) -> Result<bool, String> {
    let report = run(scenario, true);
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in &report.traced.text {
        writeln!(out, "{line}").map_err(|error| error.to_string())?;
    }
    out.flush().map_err(|error| error.to_string())?;
    eprintln!("{report}");
    Ok(report.is_good())
}

fn many(first: u64, count: u64, options: Options) -> Result<bool, String> {
    scenario(first, options)?;
    let (mut bad, mut seeds, mut lasted, mut took) = (None, 0_u64, 0.0, 0.0);
    sweep(first, count, options.planted, |report| {
        seeds += 1;
        lasted += report.lasted.as_secs_f64();
        took += report.took.as_secs_f64();
        if !show(report) {
            bad = Some(report.clone());
        }
        report.is_good()
    });
    let speed = lasted / f64::max(took, 1e-9);
    println!("{seeds} seeds, {lasted:.0} virtual seconds, {speed:.1} a second of each processor");
    let Some(report) = bad else { return Ok(true) };
    println!("making seed {} smaller", report.scenario.seed);
    let least = shrink(&report, |scenario| println!("  still fails with {} faults", scenario.faults.len()));
    println!("the least scenario that fails, for `simulations replay FILE`:\n{}", least.text());
    println!("{}", replay(&report.scenario));
    Ok(false)
}

fn compare(seed: u64) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program does not find itself: {error}"))?;
    let trace = || {
        let output = Command::new(&own).args(["replay", &seed.to_string()]).output();
        let output = output.map_err(|error| format!("{} did not run: {error}", own.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok::<_, String>(text.lines().map(str::to_owned).collect::<Vec<_>>())
    };
    let (one, other) = (trace()?, trace()?);
    match difference(&one, &other) {
        None if one.is_empty() => Err(format!("seed {seed} left no trace")),
        None => {
            println!("seed {seed}: {} lines, the same in two processes", one.len());
            Ok(true)
        }
        Some((line, here, there)) => {
            println!("seed {seed} differs from line {line} on:");
            for before in &one[line.saturating_sub(6)..line - 1] {
                println!("    {before}");
            }
            println!("  - {}\n  + {}", here.unwrap_or("(the end)"), there.unwrap_or("(the end)"));
            Ok(false)
        }
    }
}
