//! The lines of a scale, and their labels.

use crate::table::thousands;

/// Larger numbers are not plausible metrics, and lengths made of them would have no end.
pub(super) const NUMBER_MAX: f64 = 1e15;
/// Anything smaller is drawn as nothing.
const LEAST: f64 = 1e-9;

/// Returns the largest of 1, 2 and 5 times a power of ten that divides `span` into at least `parts` parts.
pub(super) fn step(span: f64, parts: f64) -> f64 {
    let rough = span.clamp(LEAST, NUMBER_MAX) / parts;
    let power = 10f64.powf(rough.log10().floor());
    // In binary, 5 times a power is not exact.
    let times = |times: f64| times * power <= rough * (1.0 + 1e-9);
    power * [5.0, 2.0].into_iter().find(|size| times(*size)).unwrap_or(1.0)
}

/// Returns the multiples of a step in a range.
pub(super) fn ticks(step: f64, from: f64, to: f64) -> impl Iterator<Item = f64> {
    let (first, last) = ((from / step).ceil() as i64, (to / step + 1e-6).floor() as i64);
    (first..=last).map(move |index| index as f64 * step)
}

/// Formats a number as short as possible: `1,500`, `2`, `0.25`.
pub(super) fn label(number: f64) -> String {
    if number.abs() >= 1e3 {
        return thousands(number);
    }
    let digits = if number.abs() < 0.1 { 6 } else { 2 };
    let text = format!("{number:.digits$}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (span, expected) in
            [(1.0, 0.2), (2.5, 0.5), (30.0, 5.0), (999.0, 100.0), (1e6, 2e5), (0.0, 2e-10)]
        {
            let found = step(span, 5.0);
            assert!((found / expected - 1.0).abs() < 1e-9, "{span}: {found}");
        }
        for odd in [f64::MAX, f64::MIN_POSITIVE, -1.0] {
            assert!(step(odd, 5.0).is_normal(), "{odd}");
        }
    }

    #[test]
    fn ticks_are_whole_steps() {
        assert_eq!(ticks(0.5, 0.0, 1.6).collect::<Vec<f64>>(), [0.0, 0.5, 1.0, 1.5]);
        assert_eq!(ticks(10.0, -20.0, 10.0).collect::<Vec<f64>>(), [-20.0, -10.0, 0.0, 10.0]);
        assert_eq!(ticks(0.1, 0.0, 0.3).count(), 4);
    }

    #[test]
    fn labels_are_short() {
        for (number, text) in
            [(0.0, "0"), (-0.0, "0"), (0.25, "0.25"), (1500.0, "1,500"), (100.0, "100"), (0.0002, "0.0002")]
        {
            assert_eq!(label(number), text);
        }
    }
}
