//! Small pictures in SVG, drawn as text. Colours come from the style sheet by class, so that they follow light and dark.

pub mod picture;
pub mod timeline;

use std::fmt::Write as _;

use maud::{Markup, PreEscaped};

/// The size of a sparkline, in pixels of the page.
const SPARK_WIDTH: usize = 118;
const SPARK_HEIGHT: usize = 18;

/// Figures of the last seconds as a line over its area. The highest is the top; nothing at all is a flat line.
pub fn sparkline(figures: &[u32], what: &str) -> Markup {
    let most = figures.iter().copied().max().unwrap_or(0);
    let last = figures.len().saturating_sub(1).max(1);
    let (width, height) = (SPARK_WIDTH as f64, SPARK_HEIGHT as f64);
    let mut line = String::new();
    for (at, figure) in figures.iter().enumerate() {
        let x = at as f64 * width / last as f64;
        let y = height - 1.0 - f64::from(*figure) * (height - 2.5) / f64::from(most.max(1));
        // Writing into a string does not fail.
        let _ = write!(line, "{}{x:.0},{y:.1}", if at == 0 { "M" } else { "L" });
    }
    let quiet = if most == 0 { " quiet" } else { "" };
    PreEscaped(format!(
        "<svg class=\"spark{quiet}\" viewBox=\"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}\" width=\"{SPARK_WIDTH}\" \
         height=\"{SPARK_HEIGHT}\" role=\"img\" aria-label=\"{what}: at most {most} a second in the last minute\">\
         <path class=\"area\" d=\"{line}L{SPARK_WIDTH},{SPARK_HEIGHT}L0,{SPARK_HEIGHT}Z\"/><path class=\"line\" d=\"{line}\"/></svg>"
    ))
}

/// A share from 0 to 1 as a bar.
pub fn bar(share: f64, class: &str) -> Markup {
    let width = (share.clamp(0.0, 1.0) * 48.0).max(if share > 0.0 { 1.0 } else { 0.0 });
    PreEscaped(format!(
        "<svg class=\"bar {class}\" viewBox=\"0 0 48 6\" width=\"48\" height=\"6\" aria-hidden=\"true\">\
         <rect class=\"rail\" width=\"48\" height=\"6\" rx=\"1.5\"/><rect class=\"fill\" width=\"{width:.1}\" height=\"6\" rx=\"1.5\"/></svg>"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_within_its_picture() {
        let text = sparkline(&[0, 5, 10, 0], "turns").into_string();
        assert!(text.contains("M0,17.0L39,9.2L79,1.5L118,17.0"), "{text}");
        assert!(sparkline(&[0; 59], "turns").into_string().contains("spark quiet"));
        assert!(sparkline(&[], "turns").into_string().contains("<svg"));
        assert!(bar(7.0, "").into_string().contains("width=\"48.0\""));
        assert!(bar(0.0, "").into_string().contains("width=\"0.0\""));
    }
}
