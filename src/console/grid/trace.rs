//! One request across nodes as a grid: each step indented under what led to it.

use super::{Grid, Row, Target, Tone};
use crate::console::{
    figures::nanoseconds,
    model::trace::{Step, Trace},
};

/// How far steps are indented at most.
const DEPTH_MAX: usize = 8;

/// How many steps lead to each.
fn depths(steps: &[Step]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        // What led to a step stands before it, unless clocks differ.
        let depth = step.cause.filter(|cause| *cause < at).map_or(0, |cause| depths[cause] + 1);
        depths.push(depth);
    }
    depths
}

/// The steps in the order of time.
pub fn trace(page: &Trace) -> Grid {
    let mut grid =
        Grid::new(format!("Trace {}", page.id), [">after", "node", "who and what", ">waited", ">took", "led to"])
            .line(page.words(), Tone::Dim);
    if page.steps.is_empty() {
        grid = grid.line("no node remembers a message of it: journals keep an actor's last messages", Tone::Warn);
    }
    for silent in &page.silent {
        grid = grid
            .line(format!("{} does not answer, so its steps are not here: {}", silent.node, silent.reason), Tone::Warn);
    }
    for node in &page.cut {
        grid = grid.line(format!("{node} knows more steps than it tells"), Tone::Warn);
    }
    grid.rows(page.steps.iter().zip(depths(&page.steps)).map(|(step, depth)| row(step, depth)))
}

fn row(step: &Step, depth: usize) -> Row {
    let place = step.place.strip_prefix("node/").unwrap_or(&step.place);
    let (led_to, tone) = match &step.failure {
        Some(failure) => (failure.clone(), Tone::Bad),
        None => (step.effects.join(", "), Tone::Plain),
    };
    let row = Row::new([
        nanoseconds(step.after_us * 1_000),
        step.node.clone(),
        format!("{}{place} {}", " ".repeat(depth.min(DEPTH_MAX)), step.kind),
        if step.event.is_some() { nanoseconds(step.waited_us * 1_000) } else { String::new() },
        step.took_us.map_or_else(|| "goes on".to_owned(), |us| nanoseconds(us * 1_000)),
        led_to,
    ])
    .tone(tone);
    match step.event {
        Some(event) => row.to(Target::Turn { node: step.node.clone(), path: step.place.clone(), event }),
        None => row,
    }
}
