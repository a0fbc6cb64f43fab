//! Medians and quantiles of what was measured.

/// The value below which `share` of all lie, from 0 to 1; 0 if there are none.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    // Rounded up: a p99 of few values is their largest and not flattered.
    let place = (last as f64 * share.clamp(0.0, 1.0)).ceil() as usize;
    sorted.get(place).copied().unwrap_or(0.0)
}

/// The middle value; 0 if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}
