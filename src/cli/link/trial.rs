//! `postroad link test`: how long a link's way takes, what it carries, and how a flow bears its relay's death, in figures and
//! a picture.

use std::time::{Duration, Instant};

use axum::http::Method;
use clap::Args;
use postroad_actors::flow::trial::{Death, Latency, Throughput};
use serde_json::{Map, Value, json};

use super::super::{Context, confirm, milliseconds, output::Output, read, relative, segment};
use crate::{api::view, demo::story::Story, errors::Failure};

/// The time between two steps of the progress bar.
const STEP_EVERY: Duration = Duration::from_millis(100);
/// How much of the time around a death the picture shows, before and after it.
const PICTURE_BEFORE_US: u64 = 200_000;
const PICTURE_AFTER_US: u64 = 600_000;
/// Columns of the picture.
const COLUMNS: usize = 80;
/// What round trips look like, each twice as long as the one before.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The command.
#[derive(Debug, Args)]
pub(super) struct Trial {
    /// Its name
    name: String,
    /// How long each part is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=30))]
    seconds: u32,
    /// Drop this node's packets to and from the relay in use for 2.5 s, as if it had died
    #[arg(long)]
    kill_relay: bool,
    /// Do not ask before that
    #[arg(long)]
    yes: bool,
}

impl Trial {
    pub(super) fn run(&self, context: &Context) -> Result<Output, Failure> {
        let name = segment(&self.name)?;
        if self.kill_relay {
            let what = "every link of this node that its relay in use carries stands still for a moment";
            confirm(self.yes, what)?;
        }
        let story = Story::new(context.style, context.global.json);
        let mut data = Map::new();
        let mut lines = vec![format!("{} from this node, {} s each", context.style.heading(name), self.seconds)];
        let mut part = |kind: &str, words: &str, seconds: u32| {
            let answer = self.part(context, &story, kind, words, seconds)?;
            data.insert(kind.to_owned(), answer.data.clone());
            Ok::<Output, Failure>(answer)
        };
        let latency: Latency = read(&part("latency", "latency", self.seconds)?)?;
        lines.push(latency_words(&latency));
        let throughput: Throughput = read(&part("throughput", "throughput", self.seconds)?)?;
        lines.push(throughput_words(&throughput));
        if self.kill_relay {
            let death: Death = read(&part("death", "the relay dies", 5)?)?;
            lines.push(death_words(&death));
            lines.extend(picture(&death).into_iter().map(|line| format!("               {line}")));
        }
        Ok(Output::new(Value::Object(data), lines.join("\n")))
    }

    /// One part, with a bar that says how long yet.
    fn part(&self, context: &Context, story: &Story, kind: &str, words: &str, seconds: u32) -> Result<Output, Failure> {
        let wanted = view::Trial { kind: kind.to_owned(), seconds };
        let path = format!("/api/links/{}/trial", segment(&self.name)?);
        let client = context.client()?;
        let body = json!(wanted);
        context.block_on(async {
            let asking = client.ask(Method::POST, &path, Some(&body));
            tokio::pin!(asking);
            let (began, whole) = (Instant::now(), f64::from(seconds));
            loop {
                tokio::select! {
                    biased;
                    answer = &mut asking => {
                        story.end_progress();
                        return answer;
                    }
                    () = tokio::time::sleep(STEP_EVERY) => {
                        let gone = began.elapsed().as_secs_f64();
                        let left = (whole - gone).max(0.0).ceil();
                        story.progress(gone / whole, &format!("{words}, {left} s yet"));
                    }
                }
            }
        })
    }
}

fn by(relay: Option<&str>) -> String {
    relay.map_or_else(String::new, |relay| format!(" by {relay}"))
}

fn latency_words(it: &Latency) -> String {
    format!(
        "  latency      p50 {}, p99 {}, slowest {}: {} messages of 100 bytes, there and back{}",
        milliseconds(it.p50_us),
        milliseconds(it.p99_us),
        milliseconds(it.max_us),
        relative::count(it.exchanges),
        by(it.relay.as_deref())
    )
}

fn throughput_words(it: &Throughput) -> String {
    let seconds = it.took_us.max(1) as f64 / 1e6;
    format!(
        "  throughput   {:.1} MB/s over one flow: {} in {seconds:.1} s{}",
        it.bytes as f64 / 1e6 / seconds,
        relative::bytes(it.bytes),
        by(it.relay.as_deref())
    )
}

fn death_words(it: &Death) -> String {
    let went_on = it.to.as_ref().map_or_else(
        || "no other relay took over, so it waited for this one".to_owned(),
        |to| format!("then it went on by {to}"),
    );
    format!(
        "  {} died{}longest wait {}, {went_on}; {} messages, none lost",
        it.relay,
        " ".repeat(8_usize.saturating_sub(it.relay.len()).max(2)),
        milliseconds(it.stall_us),
        relative::count(it.messages)
    )
}

/// The round trips around the death as bars: from the least of them on, each step is twice as long.
fn picture(it: &Death) -> Vec<String> {
    let beat = it.beat_us.max(1);
    let from = it.death_at.saturating_sub(PICTURE_BEFORE_US / beat) as usize;
    let end = (it.death_at + PICTURE_AFTER_US / beat) as usize;
    let shown = it.round_trips_us.get(from..end.min(it.round_trips_us.len())).unwrap_or_default();
    if shown.is_empty() {
        return Vec::new();
    }
    let least = shown.iter().copied().min().unwrap_or(1).max(1);
    let each = shown.len().div_ceil(COLUMNS);
    let bar = |slowest: u64| BARS[((slowest / least).max(1).ilog2() as usize).min(BARS.len() - 1)];
    let bars: String = shown.chunks(each).map(|chunk| bar(chunk.iter().copied().max().unwrap_or(0))).collect();
    let place = (it.death_at as usize - from) / each;
    let span = |messages: usize| messages as u64 * beat / 1_000;
    let after = span(shown.len()).saturating_sub(span(it.death_at as usize - from));
    let mark = format!("{}^ it died; the picture ends {after} ms later", " ".repeat(place));
    vec![bars, mark]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(round_trips_us: Vec<u64>) -> Death {
        Death {
            relay: "fra".to_owned(),
            to: Some("ams".to_owned()),
            stall_us: 61_000,
            messages: round_trips_us.len() as u64,
            beat_us: 5_000,
            death_at: 200,
            round_trips_us,
        }
    }

    #[test]
    fn the_picture_shows_the_stall_where_it_was() {
        let mut round_trips = vec![1_000; 1_000];
        for (place, slow) in round_trips[200..212].iter_mut().enumerate() {
            *slow = 60_000 - place as u64 * 5_000;
        }
        let lines = picture(&death(round_trips));
        let bars: Vec<char> = lines[0].chars().collect();
        assert_eq!(bars.len(), 80);
        assert!(bars[..20].iter().all(|bar| *bar == '▁'), "{}", lines[0]);
        assert_eq!(bars[20], '▆', "60 times as long is five doublings");
        assert_eq!(lines[1].find('^'), Some(20));
        assert!(bars[30..].iter().all(|bar| *bar == '▁'));
        assert!(picture(&death(Vec::new())).is_empty());
    }

    #[test]
    fn words_have_figures_and_names() {
        let words = death_words(&death(vec![1_000; 1_000]));
        assert!(words.starts_with("  fra died     longest wait 61.0 ms, then it went on by ams"), "{words}");
        let throughput = Throughput { bytes: 1_000_000_000, took_us: 4_000_000, relay: Some("fra".to_owned()) };
        assert!(throughput_words(&throughput).contains("250.0 MB/s over one flow"));
    }
}
