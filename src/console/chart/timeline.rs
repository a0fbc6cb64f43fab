//! A trace as a picture: a lane for each actor under its node, time from left to right. What waits is thin, what is
//! handled is thick, and where nothing happens for long the picture skips.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped};

use super::picture::text;
use crate::console::{
    figures::nanoseconds,
    model::trace::{Step, Trace},
    query::Query,
};

const WIDTH: f64 = 1_080.0;
/// Where lanes begin: left of it stand their names.
const LEFT: f64 = 196.0;
const RIGHT: f64 = WIDTH - 14.0;
const LANE_HEIGHT: f64 = 22.0;
const NODE_HEIGHT: f64 = 24.0;
/// What a skipped gap takes.
const GAP_WIDTH: f64 = 44.0;
/// What a stretch in which something happens takes at least.
const STRETCH_MIN: f64 = 26.0;
/// Stretches in one picture; shorter gaps are drawn as they are.
const STRETCHES_MAX: usize = 9;
/// Lanes in one picture; the table has the rest.
const LANES_MAX: usize = 80;

/// A stretch of time in which something happens: from, to, and where both are in the picture.
struct Stretch {
    from: u64,
    to: u64,
    left: f64,
    right: f64,
}

/// Where moments are in the picture.
struct Scale(Vec<Stretch>);

impl Scale {
    fn of(steps: &[Step]) -> Self {
        let span = |step: &Step| {
            let end = step.after_us + step.took_us.unwrap_or(0);
            (step.after_us.saturating_sub(step.waited_us), end)
        };
        let mut spans: Vec<(u64, u64)> = steps.iter().map(span).collect();
        spans.sort_unstable();
        let last = spans.iter().map(|(_, to)| *to).max().unwrap_or(0);
        // A gap is skipped that is long beside the whole; fewer are, the more there are.
        let mut least = last / 16;
        let mut stretches = merged(&spans, least);
        while stretches.len() > STRETCHES_MAX {
            least = least * 2 + 1;
            stretches = merged(&spans, least);
        }
        let gaps = GAP_WIDTH * stretches.len().saturating_sub(1) as f64;
        let floors = STRETCH_MIN * stretches.len() as f64;
        let room = (RIGHT - LEFT - gaps - floors).max(0.0);
        let active = stretches.iter().map(|(from, to)| to - from).sum::<u64>().max(1) as f64;
        let mut left = LEFT;
        let placed = stretches.into_iter().map(|(from, to)| {
            let right = left + STRETCH_MIN + room * (to - from) as f64 / active;
            let stretch = Stretch { from, to, left, right };
            left = right + GAP_WIDTH;
            stretch
        });
        Self(placed.collect())
    }

    fn x(&self, us: u64) -> f64 {
        let found = self.0.iter().rfind(|stretch| stretch.from <= us);
        let Some(stretch) = found.or(self.0.first()) else { return LEFT };
        let share =
            (us.clamp(stretch.from, stretch.to) - stretch.from) as f64 / (stretch.to - stretch.from).max(1) as f64;
        stretch.left + share * (stretch.right - stretch.left)
    }
}

/// Spans in order, with those joined that are at most `least` apart.
fn merged(spans: &[(u64, u64)], least: u64) -> Vec<(u64, u64)> {
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match stretches.last_mut() {
            Some((_, end)) if *from <= *end + least => *end = (*end).max(*to),
            _ => stretches.push((*from, *to)),
        }
    }
    stretches
}

/// One line of the picture.
struct Lane<'a> {
    node: &'a str,
    place: &'a str,
    y: f64,
}

struct Drawing<'a> {
    page: &'a Trace,
    scale: Scale,
    lanes: Vec<Lane<'a>>,
    ground: String,
    threads: String,
    bars: String,
    height: f64,
}

/// The picture.
pub fn draw(page: &Trace) -> Markup {
    let scale = Scale::of(&page.steps);
    let mut drawing = Drawing {
        page,
        scale,
        lanes: Vec::new(),
        ground: String::new(),
        threads: String::new(),
        bars: String::new(),
        height: 22.0,
    };
    drawing.lay_out();
    drawing.silent();
    drawing.axis();
    for at in 0..page.steps.len() {
        drawing.step(at);
    }
    let Drawing { ground, threads, bars, height, .. } = drawing;
    PreEscaped(format!(
        "<svg class=\"timeline\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"The steps of the trace over time; \
         the table below says the same\">{ground}{threads}{bars}</svg>",
        height + 8.0
    ))
}

impl<'a> Drawing<'a> {
    /// Lanes in the order in which they are first reached, under their nodes.
    fn lay_out(&mut self) {
        let page = self.page;
        for node in &page.nodes {
            self.heading(node, "node");
            for step in page.steps.iter().filter(|step| step.node == *node) {
                let known = self.lanes.iter().any(|lane| lane.node == node && lane.place == step.place);
                if known || self.lanes.len() >= LANES_MAX {
                    continue;
                }
                let y = self.height + LANE_HEIGHT / 2.0;
                let short = step.place.strip_prefix("node/").unwrap_or(&step.place);
                let _ = write!(
                    self.ground,
                    "<line class=\"lane\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.0}\" y2=\"{y:.0}\"/>\
                     <text class=\"place\" x=\"18\" y=\"{:.0}\">{}</text>",
                    y + 4.0,
                    text(&cut(short, 27))
                );
                self.lanes.push(Lane { node, place: &step.place, y });
                self.height += LANE_HEIGHT;
            }
        }
    }

    fn heading(&mut self, name: &str, class: &str) {
        let _ = write!(
            self.ground,
            "<text class=\"{class}\" x=\"4\" y=\"{:.0}\">{}</text>",
            self.height + NODE_HEIGHT - 8.0,
            text(&cut(name, 24))
        );
        self.height += NODE_HEIGHT;
    }

    /// A node that does not answer may have done something at any time.
    fn silent(&mut self) {
        for silent in self.page.silent.iter().take(12) {
            let y = self.height + 5.0;
            let _ = write!(
                self.ground,
                "<rect class=\"unheard\" x=\"{LEFT}\" y=\"{y:.0}\" width=\"{:.0}\" height=\"14\" rx=\"3\"/>\
                 <text class=\"unheard\" x=\"{:.0}\" y=\"{:.0}\">silent: what it did is not known</text>",
                RIGHT - LEFT,
                LEFT + 8.0,
                y + 11.0
            );
            self.heading(&silent.node, "node gone");
        }
    }

    /// Where each stretch begins, and how long is skipped before it.
    fn axis(&mut self) {
        let mut before: Option<&Stretch> = None;
        for stretch in &self.scale.0 {
            let label = nanoseconds(stretch.from * 1_000);
            let label = if stretch.from == 0 { "0" } else { &label };
            let _ = write!(
                self.ground,
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"16\" y2=\"{:.0}\"/>\
                 <text class=\"axis\" x=\"{x:.1}\" y=\"11\">{label}</text>",
                self.height,
                x = stretch.left,
            );
            if let Some(before) = before {
                let (left, middle) = (before.right + 4.0, before.right + GAP_WIDTH / 2.0);
                let _ = write!(
                    self.ground,
                    "<rect class=\"gap\" x=\"{left:.1}\" y=\"18\" width=\"{:.1}\" height=\"{:.0}\"/>\
                     <text class=\"skipped\" x=\"{middle:.1}\" y=\"28\">{}</text>",
                    GAP_WIDTH - 8.0,
                    self.height - 18.0,
                    text(&nanoseconds((stretch.from - before.to) * 1_000))
                );
            }
            before = Some(stretch);
        }
    }

    fn lane(&self, step: &Step) -> Option<&Lane<'a>> {
        self.lanes.iter().find(|lane| lane.node == step.node && lane.place == step.place)
    }

    fn step(&mut self, at: usize) {
        let step = &self.page.steps[at];
        let Some(y) = self.lane(step).map(|lane| lane.y) else { return };
        let sent = self.scale.x(step.after_us.saturating_sub(step.waited_us));
        let left = self.scale.x(step.after_us);
        let right = self.scale.x(step.after_us + step.took_us.unwrap_or(0)).max(left + 3.0);
        if left - sent > 0.5 {
            let _ = write!(
                self.bars,
                "<line class=\"wait\" x1=\"{sent:.1}\" x2=\"{left:.1}\" y1=\"{y:.0}\" y2=\"{y:.0}\"/>"
            );
        }
        if let Some(cause) = step.cause.map(|cause| &self.page.steps[cause])
            && let Some(from) = self.lane(cause).map(|lane| lane.y)
        {
            let x = self.scale.x(cause.after_us).min(sent);
            let _ = write!(
                self.threads,
                "<path class=\"leads\" d=\"M{x:.1},{from:.0}C{:.1},{from:.0} {:.1},{y:.0} {sent:.1},{y:.0}\"/>",
                x.midpoint(sent),
                x.midpoint(sent),
            );
        }
        let class = if step.failure.is_some() { "turn failed" } else { "turn" };
        let took = step.took_us.map_or_else(|| "it goes on".to_owned(), |us| nanoseconds(us * 1_000));
        let title =
            format!("{} from {}, waited {}, {took}", step.kind, step.sender, nanoseconds(step.waited_us * 1_000));
        let bar = format!(
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"12\" rx=\"2\"><title>{}</title></rect>",
            y - 6.0,
            right - left,
            text(&title)
        );
        match step.event {
            Some(event) => {
                let query = Query::default().with("node", &step.node).with("at", &event.to_string());
                let href = text(&query.address(&format!("/actor/{}", step.place)));
                let _ = write!(self.bars, "<a href=\"{href}\">{bar}</a>");
            }
            None => self.bars.push_str(&bar),
        }
        self.label(at, right, y);
    }

    /// The message's kind beside its bar, where the next one on the lane leaves room.
    fn label(&mut self, at: usize, right: f64, y: f64) {
        let step = &self.page.steps[at];
        let words = cut(&step.kind, 26);
        let width = words.chars().count() as f64 * 6.1 + 8.0;
        let same = |other: &&Step| other.node == step.node && other.place == step.place;
        let next = self.page.steps[at + 1..].iter().find(same);
        let until = next.map_or(RIGHT, |next| self.scale.x(next.after_us.saturating_sub(next.waited_us)));
        if right + width <= until {
            let _ = write!(
                self.bars,
                "<text class=\"kind\" x=\"{:.1}\" y=\"{:.0}\">{}</text>",
                right + 4.0,
                y + 4.0,
                text(&words)
            );
        }
    }
}

/// A text of at most so many signs; of a longer one the end tells more than the beginning.
fn cut(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        text.to_owned()
    } else {
        ['…'].into_iter().chain(text.chars().skip(count - most + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use postroad_cluster::{time::WallTime, trace::TraceId};

    use super::*;
    use crate::console::model::trace::{Part, Silent, trace};

    fn step(node: &str, place: &str, began_us: u64, took_us: u64) -> Step {
        Step {
            node: node.into(),
            place: place.into(),
            event: Some(7),
            kind: "a<b".into(),
            sender: "outside".into(),
            began_us,
            after_us: 0,
            waited_us: 0,
            took_us: Some(took_us),
            effects: Vec::new(),
            failure: None,
            cause: None,
        }
    }

    #[test]
    fn long_gaps_are_skipped_and_order_is_kept() {
        let steps: Vec<Step> = [0, 100, 5_000_000, 5_000_400]
            .into_iter()
            .map(|at| Step { after_us: at, ..step("a", "x", 0, 50) })
            .collect();
        let scale = Scale::of(&steps);
        assert_eq!(scale.0.len(), 2, "one gap of five seconds");
        let places: Vec<f64> = steps.iter().map(|step| scale.x(step.after_us)).collect();
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        assert!(places.iter().all(|x| (LEFT..=RIGHT).contains(x)), "{places:?}");
        // However many gaps there are, everything stays inside.
        let many: Vec<Step> =
            (0..200).map(|at| Step { after_us: at * at * 1_000_000, ..step("a", "x", 0, 1) }).collect();
        let scale = Scale::of(&many);
        assert!(scale.0.len() <= STRETCHES_MAX && scale.x(200 * 200 * 1_000_000) <= RIGHT + 0.1);
        assert!((Scale::of(&[]).x(5) - LEFT).abs() < f64::EPSILON);
    }

    #[test]
    fn every_lane_and_every_silent_node_is_drawn() {
        let part = Part { steps: vec![step("ams", "node/self", 1_000, 50), step("ams", "api", 900, 5)], cut: false };
        let silent = vec![Silent { node: "par".into(), reason: "gone".into() }];
        let page = trace(TraceId::drawn(1), WallTime(1), vec![("ams".into(), part)], silent, &BTreeMap::new());
        let text = draw(&page).into_string();
        assert!(
            text.contains(">self</text>") && text.contains(">api</text>") && text.contains(">par</text>"),
            "{text}"
        );
        assert!(text.contains("silent: what it did is not known"), "{text}");
        assert!(text.contains("/actor/node/self?at=7&amp;node=ams") && text.contains("a&lt;b"), "{text}");
        assert_eq!(cut("node/links/link-1", 9), "…s/link-1");
    }
}
