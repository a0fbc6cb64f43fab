//! The pages of a node's actors as grids.

use std::time::Duration;

use postroad_actors::inspect::Status;
use postroad_cluster::time::WallTime;

use super::{Grid, Row, Target, Tone, blocks};
use crate::{
    cli::relative,
    console::{
        figures::{figure, nanoseconds, percent, rate, under},
        model::{
            actor::{Actor, Shown, name},
            actors::{self, Actors},
            state::{Change, Lines},
            tree::{Branch, Look, Tree},
            vitals::STUCK_MS,
        },
    },
};

const fn status(status: Status) -> (&'static str, Tone) {
    match status {
        Status::Starting => ("starting", Tone::Dim),
        Status::Alive => ("alive", Tone::Plain),
        Status::Busy => ("busy", Tone::Plain),
        Status::Restarting => ("restarting", Tone::Warn),
        Status::Stopped => ("stopped", Tone::Dim),
        Status::Killed => ("killed", Tone::Bad),
        Status::Failed => ("failed", Tone::Bad),
    }
}

/// The list of actors.
pub fn actors(page: &Actors) -> Grid {
    let title =
        format!("{}: {} of {} actors, by {}, over {} s", page.node, page.found, page.total, page.sort, page.window);
    let columns =
        ["actor", "behavior", "state", ">waiting", ">wait p99", ">turns/s", "last minute", ">busy %", ">restarts"];
    Grid::new(title, columns).rows(page.rows.iter().map(|actors::Row { actor: row, seconds }| {
        let (word, tone) = status(row.status);
        let stuck = row.busy_for_ms.filter(|ms| *ms >= STUCK_MS);
        let word =
            stuck.map_or_else(|| word.to_owned(), |ms| format!("stuck {}", relative::span(Duration::from_millis(ms))));
        Row::new([
            row.path.to_string(),
            row.kind.to_string(),
            word,
            figure(row.depth as u64),
            if row.rate > 0.0 { under(row.wait_p99_us) } else { "·".to_owned() },
            rate(row.rate),
            blocks(seconds),
            percent(row.busy_share),
            figure(row.restarts),
        ])
        .tone(if stuck.is_some() { Tone::Bad } else { tone })
        .to(Target::Actor(row.path.to_string()))
    }))
}

const fn look(look: Look) -> (&'static str, Tone) {
    match look {
        Look::Well => ("", Tone::Plain),
        Look::Restarted => ("restarted", Tone::Warn),
        Look::Deep => ("deep mailbox", Tone::Warn),
        Look::Stuck => ("stuck", Tone::Bad),
        Look::Restarting => ("restarting", Tone::Warn),
        Look::Failed => ("failed", Tone::Bad),
    }
}

/// The tree.
pub fn tree(page: &Tree) -> Grid {
    let columns = ["actor", "behavior", "state", "below it", ">waiting", ">turns/s", ">restarts"];
    Grid::new(format!("{}: {} actors", page.node, page.total), columns).rows(page.branches.iter().map(
        |branch: &Branch| {
            let mark = match (branch.children, branch.open) {
                (0, _) => "  ",
                (_, true) => "▾ ",
                (_, false) => "▸ ",
            };
            let (seen, tone) = look(branch.look);
            let (word, own) = status(branch.status);
            let worst = branch.worst.as_ref().map_or_else(String::new, |(worst, path)| {
                format!(" {} {}", look(*worst).0, path.rsplit('/').next().unwrap_or_default())
            });
            let below = if branch.below == 0 { String::new() } else { format!("{}{worst}", branch.below) };
            Row::new([
                format!("{}{mark}{}", "  ".repeat(branch.level), branch.name),
                branch.kind.clone(),
                if seen.is_empty() { word.to_owned() } else { seen.to_owned() },
                below,
                figure(branch.depth as u64),
                rate(branch.rate),
                figure(branch.restarts),
            ])
            .tone(if tone == Tone::Plain { own } else { tone })
            .to(Target::Actor(branch.path.clone()))
        },
    ))
}

/// What others named may not steer the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect()
}

fn state(lines: &Lines, title: String) -> Grid {
    let mut grid = Grid { title, ..Grid::default() };
    for line in &lines.lines {
        let (mark, tone) = match line.change {
            Change::Same => (' ', Tone::Plain),
            Change::Added => ('+', Tone::Good),
            Change::Removed => ('-', Tone::Bad),
            Change::Changed => ('~', Tone::Warn),
        };
        let before = line.before.as_ref().map(|before| format!("{before} → ")).unwrap_or_default();
        let key = format!("{}{}", "  ".repeat(line.depth.saturating_sub(1)), line.key);
        let text = clean(&format!("{mark} {key:<28} {before}{}", line.value));
        grid = grid.line(text.trim_end().to_owned(), tone);
    }
    if lines.left_out > 0 {
        grid = grid.line(format!("  {} more lines, with --json", lines.left_out), Tone::Dim);
    }
    grid
}

/// One actor.
pub fn actor(page: &Actor) -> Vec<Grid> {
    let view = &page.actor;
    let (word, tone) = status(view.status);
    let now = match (&view.busy_kind, view.busy_for_ms) {
        (Some(kind), Some(ms)) => {
            let from = view.busy_from.as_deref().unwrap_or("outside");
            format!("{word} with {kind} from {from} for {}", relative::span(Duration::from_millis(ms)))
        }
        _ => format!("{word}, last {}", view.last_kind.as_deref().unwrap_or("nothing")),
    };
    let mut head =
        Grid { title: format!("{} ({} on {})", view.path, view.kind, page.node), ..Grid::default() }.line(now, tone);
    if let Some(error) = &view.error {
        head = head.line(error.clone(), Tone::Bad);
    }
    head = head.line(
        format!(
            "{} waiting (most {}), wait p50 {} p99 {}, {} turns/s, busy {} %, {} handled, {} refused, {} restarts",
            view.depth,
            view.depth_max,
            under(view.wait_p50_us),
            under(view.wait_p99_us),
            rate(view.events_per_second),
            percent(view.busy_share),
            relative::count(view.handled),
            view.refused,
            view.restarts
        ),
        Tone::Dim,
    );
    let age = page.age_ms.map_or_else(String::new, |ms| relative::span(Duration::from_millis(ms)));
    let title = match (page.shown, &page.past) {
        (Shown::Past, Some(past)) => format!("State after event {}", past.number),
        (Shown::PostMortem, _) => format!("State before its end, {age} ago"),
        (Shown::Nothing, _) => "State: not published yet".to_owned(),
        _ => format!("State, published {age} ago"),
    };
    let mut grids = vec![head, state(&page.state, title), messages(page)];
    if !view.history.is_empty() {
        let rows = view.history.iter().rev().map(|restart| {
            let when = relative::moment(WallTime(restart.wall_ms), page.now);
            let kind = restart.kind.clone().unwrap_or_default();
            Row::new([when, kind, format!("{} ms", restart.backoff_ms), restart.error.clone()]).tone(Tone::Warn)
        });
        let mut restarts = Grid::new("Restarts", ["when", "on", ">backoff", "error"]).rows(rows);
        if let Some(state) = view.history.last().and_then(|last| last.state_before.as_deref()) {
            restarts = restarts.line(format!("state before the last: {}", clean(state)), Tone::Dim);
        }
        grids.push(restarts);
    }
    grids
}

/// The last messages of an actor, newest first.
pub fn messages(page: &Actor) -> Grid {
    let at = page.past.as_ref().map(|past| past.number);
    Grid::new("Messages", [">event", "kind", "from", ">waited", ">took", "effects", ">age", "trace"]).rows(
        page.messages.iter().map(|message| {
            let effects: Vec<String> = message.effects.iter().map(name).collect();
            let effects = match &message.failure {
                Some(failure) => failure.clone(),
                None => effects.join(", "),
            };
            let tone = match &message.failure {
                Some(_) => Tone::Bad,
                None if at == Some(message.number) => Tone::Good,
                None => Tone::Plain,
            };
            Row::new([
                message.number.to_string(),
                message.kind.clone(),
                message.sender.clone(),
                nanoseconds(message.waited_ns),
                message.took_ns.map_or_else(String::new, nanoseconds),
                effects,
                relative::moment(WallTime(message.wall_ms), page.now).trim_end_matches(" ago").to_owned(),
                message.trace.to_string(),
            ])
            .tone(tone)
            .to(Target::Event(message.number))
        }),
    )
}
