//! Delays between attempts: growing, bounded and jittered, so that a fleet does not knock in step.

use crate::{behavior::Turn, time::Span};

/// The delay before the next attempt after `failures` failures in a row: `least` doubled for each but the first, at
/// most `most`, of which half is drawn by chance ("equal jitter", Brooker 2015).
#[must_use]
pub fn delay(turn: &Turn, failures: u32, least: Span, most: Span) -> Span {
    let doublings = failures.saturating_sub(1).min(20);
    let full = least.saturating_mul(1 << doublings).min(most);
    let half = full / 2;
    half + Span::from_nanos(turn.draw(u64::from(failures), half.as_nanos() as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_within_bounds() {
        let (least, most) = (Span::from_millis(200), Span::from_secs(15));
        for chance in 0..200 {
            let turn = Turn { chance, ..Turn::default() };
            for failures in 0..40_u32 {
                let full = (least * (1 << failures.saturating_sub(1).min(20))).min(most);
                let delay = delay(&turn, failures, least, most);
                assert!(full / 2 <= delay && delay <= full, "{failures}: {delay:?}");
            }
        }
    }
}
