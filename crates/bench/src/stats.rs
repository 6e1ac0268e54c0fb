//! What several runs come to.

/// The middle of the values, or the mean of the two in the middle; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match (sorted.get(low), sorted.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => 0.0,
    }
}

/// The distance of the extremes, as a share of the median; 0 of none.
pub(crate) fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    if values.is_empty() || middle == 0.0 { 0.0 } else { (high - low) / middle.abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn median_is_the_middle_whatever_the_order() {
        assert!(equal(median(&[3.0, 1.0, 2.0]), 2.0));
        assert!(equal(median(&[4.0, 1.0, 3.0, 2.0]), 2.5));
        assert!(equal(median(&[7.0]), 7.0));
        assert!(equal(median(&[]), 0.0));
    }

    #[test]
    fn spread_is_relative_to_the_median() {
        assert!(equal(spread(&[90.0, 100.0, 120.0]), 0.3));
        assert!(equal(spread(&[5.0]), 0.0));
        assert!(equal(spread(&[]), 0.0));
        assert!(equal(spread(&[0.0, 0.0]), 0.0));
    }
}
