//! Times and figures as people say them: `3 min ago`, `71 h 58 min`, `48,212`, `256 MiB`.

use std::time::Duration;

use postroad_cluster::time::WallTime;

/// A span in its two largest sensible units.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..345_600 => match seconds % 3_600 / 60 {
            0 => format!("{} h", seconds / 3_600),
            minutes => format!("{} h {minutes} min", seconds / 3_600),
        },
        _ => format!("{} d", seconds / 86_400),
    }
}

/// How long before or after `now` a wall time is.
pub fn moment(time: WallTime, now: WallTime) -> String {
    match (now.since(time), time.since(now)) {
        (past, future) if past < Duration::from_secs(1) && future < Duration::from_secs(1) => "now".to_owned(),
        (past, future) if past > future => format!("{} ago", span(past)),
        (_, future) => format!("in {}", span(future)),
    }
}

/// A whole number with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

/// Bytes in binary units.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1_024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1_024.0;
    let mut unit = 0;
    while value >= 1_024.0 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    if value < 10.0 && value.fract() >= 0.05 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_like_speech() {
        let cases = [
            (0, "0 ms"),
            (58, "58 ms"),
            (1_500, "1 s"),
            (240_000, "4 min"),
            (3_600_000, "1 h"),
            (71 * 3_600_000 + 58 * 60_000, "71 h 58 min"),
            (12 * 86_400_000, "12 d"),
        ];
        for (ms, expected) in cases {
            assert_eq!(span(Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn moments_look_both_ways() {
        let now = WallTime(1_000_000_000);
        assert_eq!(moment(now.before(Duration::from_mins(3)), now), "3 min ago");
        assert_eq!(moment(now.after(Duration::from_secs(30)), now), "in 30 s");
        assert_eq!(moment(now, now), "now");
    }

    #[test]
    fn figures_are_grouped_and_bytes_are_binary() {
        assert_eq!([0, 999, 1_000, 48_212, 1_234_567].map(count), ["0", "999", "1,000", "48,212", "1,234,567"]);
        assert_eq!(
            [1_023, 1_024, 1_536, 256 << 20, 5 << 30].map(bytes),
            ["1023 B", "1 KiB", "1.5 KiB", "256 MiB", "5 GiB"]
        );
    }
}
