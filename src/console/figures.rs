//! Figures as every page and the terminal write them: short, aligned by their units, silent when they are nothing.

use std::time::Duration;

use crate::cli::relative;

/// Nanoseconds as people read them; what is too short to matter is said so.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0..1_000 => "<1 µs".to_owned(),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}.{} ms", ns / 1_000_000, ns % 1_000_000 / 100_000),
        _ => relative::span(Duration::from_nanos(ns)),
    }
}

/// Microseconds that are a bound.
pub fn under(us: u64) -> String {
    if us == 0 { "<1 µs".to_owned() } else { nanoseconds(us.saturating_mul(1_000)) }
}

/// A rate.
pub fn rate(rate: f64) -> String {
    match rate {
        _ if rate <= 0.0 => "·".to_owned(),
        _ if rate < 9.95 => format!("{rate:.1}"),
        _ => relative::count(rate.round() as u64),
    }
}

/// A share as per cent, without the sign.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        share if share <= 0.0 => "·".to_owned(),
        share if share < 0.1 => "<0.1".to_owned(),
        share if share < 9.95 => format!("{share:.1}"),
        share => format!("{share:.0}"),
    }
}

/// A figure that is silent when it is nothing.
pub fn figure(number: u64) -> String {
    if number == 0 { "·".to_owned() } else { relative::count(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_silent_when_they_are_nothing() {
        assert_eq!([999, 84_500, 1_250_000, 3_000_000_000].map(nanoseconds), ["<1 µs", "84 µs", "1.2 ms", "3 s"]);
        assert_eq!([0, 128, 8_192].map(under), ["<1 µs", "128 µs", "8.1 ms"]);
        assert_eq!([0.0, 2.04, 1_234.4].map(rate), ["·", "2.0", "1,234"]);
        assert_eq!([0.0, 0.000_2, 0.025, 0.8].map(percent), ["·", "<0.1", "2.5", "80"]);
        assert_eq!([0, 12_345].map(figure), ["·", "12,345"]);
    }
}
