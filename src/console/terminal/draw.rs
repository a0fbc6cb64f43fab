//! A screen as cells of the terminal: the bar, the page's grids one under the other, and the keys.

use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

use super::screen::{PAGES, Page, Screen};
use crate::console::grid::{Grid, Tone};

const ACCENT: Color = Color::Cyan;

const fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Dim => Style::new().fg(Color::DarkGray),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red),
    }
}

/// Draws the screen.
pub(super) fn draw(screen: &mut Screen, frame: &mut Frame<'_>) {
    let areas =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]);
    let [bar, under, page, foot] = areas.areas(frame.area());
    frame.render_widget(top(screen), bar);
    frame.render_widget(Paragraph::new("─".repeat(under.width as usize)).style(style(Tone::Dim)), under);
    body(screen, frame, page);
    frame.render_widget(bottom(screen), foot);
    if screen.help {
        help(frame);
    }
}

fn top(screen: &Screen) -> Paragraph<'static> {
    let mut spans = vec![Span::styled(" postroad  ", Style::new().fg(ACCENT).add_modifier(Modifier::BOLD))];
    for (at, (page, name)) in PAGES.iter().enumerate() {
        let here =
            *page == screen.page || (*page == Page::Actors && matches!(screen.page, Page::Actor(_) | Page::Trace(_)));
        let text = format!(" {} {name} ", at + 1);
        let look = if here { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(text, look));
    }
    let node = screen.query.get("node");
    if !node.is_empty() {
        spans.push(Span::styled(format!("   on {node}"), Style::new().add_modifier(Modifier::BOLD)));
    }
    if screen.held {
        spans.push(Span::styled("   held", style(Tone::Warn)));
    }
    Paragraph::new(Line::from(spans))
}

fn bottom(screen: &Screen) -> Paragraph<'static> {
    if let Some(typed) = &screen.typing {
        return Paragraph::new(format!(" search: {typed}▏  Enter shows, Esc leaves"));
    }
    if let Some(failure) = &screen.failure {
        return Paragraph::new(format!(" {}", failure.replace('\n', " "))).style(style(Tone::Bad));
    }
    if let Some(warning) = screen.warnings.first() {
        return Paragraph::new(format!(" {warning}")).style(style(Tone::Warn));
    }
    let keys = match screen.page {
        Page::Actor(_) => {
            " [ ] through time  Enter to the message  t follow it  Esc back  n p node  Space hold  ? keys  q leave"
        }
        Page::Actors => " Enter open  s sort  / search  n p node  Esc back  Space hold  ? keys  q leave",
        Page::Tree => " → ← open, close  Enter to the actor  / search  n p node  Esc back  Space hold  ? keys  q leave",
        _ => " Enter open  1-6 pages  / search  n p node  Esc back  Space hold  ? keys  q leave",
    };
    Paragraph::new(keys).style(style(Tone::Dim))
}

/// Every line of the page, with the number of its row if it is one.
fn lines(screen: &Screen) -> Vec<(Line<'static>, Option<usize>)> {
    let mut lines = Vec::new();
    let mut row = 0;
    for grid in &screen.grids {
        if !lines.is_empty() {
            lines.push((Line::default(), None));
        }
        if !grid.title.is_empty() {
            let bold = Style::new().add_modifier(Modifier::BOLD).fg(ACCENT);
            lines.push((Line::styled(format!(" {}", grid.title), bold), None));
        }
        for (text, tone) in &grid.lines {
            lines.push((Line::styled(format!(" {text}"), style(*tone)), None));
        }
        if grid.rows.is_empty() {
            continue;
        }
        let widths = widths(grid);
        let heading: Vec<&str> = grid.columns.iter().map(|name| name.trim_start_matches('>')).collect();
        lines.push((Line::styled(cells(grid, &heading, &widths), style(Tone::Dim)), None));
        for it in &grid.rows {
            let texts: Vec<&str> = it.cells.iter().map(String::as_str).collect();
            let mut look = style(it.tone);
            if row == screen.at {
                look = look.add_modifier(Modifier::REVERSED);
            }
            lines.push((Line::styled(cells(grid, &texts, &widths), look), Some(row)));
            row += 1;
        }
    }
    lines
}

/// The widest cell of each column; the very long ones are cut.
fn widths(grid: &Grid) -> Vec<usize> {
    const WIDEST: usize = 48;
    let width = |column: usize| {
        let cells = grid.rows.iter().filter_map(|row| row.cells.get(column)).map(|cell| cell.chars().count());
        cells.chain([grid.columns[column].trim_start_matches('>').chars().count()]).max().unwrap_or(0).min(WIDEST)
    };
    (0..grid.columns.len()).map(width).collect()
}

fn cells(grid: &Grid, texts: &[&str], widths: &[usize]) -> String {
    let mut line = String::from(" ");
    for (at, width) in widths.iter().enumerate() {
        // What others named may not steer the terminal.
        let clean = |sign: char| if sign.is_control() { '·' } else { sign };
        let text: Vec<char> = texts.get(at).copied().unwrap_or_default().chars().map(clean).collect();
        let cut: String = if text.len() > *width {
            text[..width.saturating_sub(1)].iter().chain(['…'].iter()).collect()
        } else {
            text.iter().collect()
        };
        let figures = grid.columns[at].starts_with('>');
        let padded = if figures { format!("{cut:>width$}  ") } else { format!("{cut:<width$}  ") };
        line.push_str(&padded);
    }
    line
}

fn body(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let lines = lines(screen);
    if lines.is_empty() {
        let text = if screen.failure.is_some() { "" } else { "asking the node …" };
        let middle = Paragraph::new(text).alignment(Alignment::Center).style(style(Tone::Dim));
        frame.render_widget(middle, area);
        return;
    }
    // The marked row stays on the screen, and the first row takes what is above it along.
    let at = lines.iter().position(|(_, row)| *row == Some(screen.at)).unwrap_or(0);
    let height = area.height as usize;
    let mut top = screen.scroll.offset();
    if screen.at == 0 && at < height {
        top = 0;
    } else if at < top {
        top = at;
    } else if at >= top + height {
        top = at + 1 - height;
    }
    top = top.min(lines.len().saturating_sub(1));
    *screen.scroll.offset_mut() = top;
    let shown: Vec<Line<'static>> = lines.into_iter().skip(top).take(height).map(|(line, _)| line).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

fn help(frame: &mut Frame<'_>) {
    const KEYS: [(&str, &str); 14] = [
        ("1-6, Tab", "pages"),
        ("j k, arrows", "rows"),
        ("Enter", "open the row"),
        ("→ ←, l h", "open, close a branch of the tree"),
        ("Esc", "the page before"),
        ("n p", "next node, node before"),
        ("/", "search actors"),
        ("s", "sort actors by the next figure"),
        ("[ ]", "an actor's message back, one on"),
        ("t", "follow the message through actors and nodes"),
        ("Space", "hold the page, go on"),
        ("?", "this list"),
        ("q", "leave"),
        ("", "any key closes this"),
    ];
    let width = 64.min(frame.area().width);
    let height = (KEYS.len() as u16 + 2).min(frame.area().height);
    let [area] =
        Layout::horizontal([Constraint::Length(width)]).flex(ratatui::layout::Flex::Center).areas(frame.area());
    let [area] = Layout::vertical([Constraint::Length(height)]).flex(ratatui::layout::Flex::Center).areas(area);
    let lines: Vec<Line<'static>> = KEYS.iter().map(|(key, does)| Line::from(format!(" {key:<14} {does}"))).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" Keys ")), area);
}
