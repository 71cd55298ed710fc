//! The reply of LATENCY HISTOGRAM: the times of each command's calls, in buckets by powers of two.

use std::collections::BTreeMap;

use evenkeel_resp::value::Value;

use crate::text::escaped;

/// Calls by bucket: the bucket's upper bound in microseconds, and its number of calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    calls: u64,
    buckets: BTreeMap<u64, u64>,
}

/// Histograms by the command's name.
pub(crate) type Histograms = BTreeMap<String, Histogram>;

/// Parses the reply; the parts of another form are skipped.
pub(crate) fn parse(reply: &Value) -> Histograms {
    let named = |(name, value): (&Value, &Value)| Some((escaped(name.as_bytes()?), Histogram::parse(value)));
    pairs(reply).into_iter().filter_map(named).collect()
}

/// Returns the pairs of a map, or of an array of names and values as in RESP2.
pub(crate) fn pairs(value: &Value) -> Vec<(&Value, &Value)> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        Value::Array(items) => items.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        _ => Vec::new(),
    }
}

impl Histogram {
    fn parse(value: &Value) -> Histogram {
        let mut histogram = Histogram::default();
        for (name, value) in pairs(value) {
            match name.as_bytes() {
                Some(b"calls") => histogram.calls = unsigned(value),
                Some(b"histogram_usec") => histogram.add_cumulative(value),
                _ => {}
            }
        }
        histogram
    }

    fn add_cumulative(&mut self, value: &Value) {
        let mut below = 0;
        for (bound, count) in pairs(value) {
            let (bound, count) = (unsigned(bound), unsigned(count));
            let bucket = self.buckets.entry(bound).or_default();
            *bucket = bucket.saturating_add(count.saturating_sub(below));
            below = below.max(count);
        }
    }

    /// Returns the calls since an earlier state. If the counters fell, they were reset: then all calls are
    /// later.
    pub(crate) fn since(&self, before: &Histogram) -> Histogram {
        if self.calls < before.calls {
            return self.clone();
        }
        let earlier = |bound: &u64| before.buckets.get(bound).copied().unwrap_or(0);
        let counts = self.buckets.iter().map(|(bound, count)| (*bound, count.saturating_sub(earlier(bound))));
        let buckets = counts.filter(|(_, count)| *count > 0).collect();
        Histogram { calls: self.calls - before.calls, buckets }
    }

    pub(crate) fn add(&mut self, other: &Histogram) {
        self.calls = self.calls.saturating_add(other.calls);
        for (bound, count) in &other.buckets {
            let bucket = self.buckets.entry(*bound).or_default();
            *bucket = bucket.saturating_add(*count);
        }
    }

    /// Returns an estimate of a quantile in microseconds: calls are taken as spread evenly over a bucket,
    /// which reaches from half its bound to its bound.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        let total: f64 = self.buckets.values().map(|count| *count as f64).sum();
        let mut below = 0.0;
        for (bound, count) in self.buckets.iter().filter(|(_, count)| **count > 0) {
            let (bound, count) = (*bound as f64, *count as f64);
            if below + count >= quantile * total {
                let part = ((quantile * total - below) / count).clamp(0.0, 1.0);
                return Some(bound / 2.0 + bound / 2.0 * part);
            }
            below += count;
        }
        None
    }

    /// Returns the bound of the highest bucket with calls.
    pub(crate) fn max(&self) -> Option<f64> {
        self.buckets.iter().rev().find(|(_, count)| **count > 0).map(|(bound, _)| *bound as f64)
    }
}

fn unsigned(value: &Value) -> u64 {
    value.as_int().and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds a reply for a command, in RESP2's form.
    pub(crate) fn reply(name: &str, calls: i64, cumulative: &[(i64, i64)]) -> Value {
        let buckets = cumulative.iter().flat_map(|(bound, count)| [Value::Int(*bound), Value::Int(*count)]);
        let fields = vec![
            Value::bulk("calls"),
            Value::Int(calls),
            Value::bulk("histogram_usec"),
            Value::Array(buckets.collect()),
        ];
        Value::Array(vec![Value::bulk(name), Value::Array(fields)])
    }

    fn histogram(calls: i64, cumulative: &[(i64, i64)]) -> Histogram {
        parse(&reply("get", calls, cumulative)).remove("get").expect("the command")
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let times = histogram(100, &[(8, 50), (16, 98), (1024, 100)]);
        assert_eq!(times.quantile(0.5), Some(8.0));
        assert_eq!(times.quantile(0.99), Some(768.0));
        assert_eq!(times.max(), Some(1024.0));
        assert_eq!((Histogram::default().quantile(0.5), Histogram::default().max()), (None, None));
    }

    #[test]
    fn the_difference_has_the_later_calls_alone() {
        let before = histogram(100, &[(8, 50), (1024, 100)]);
        let now = histogram(160, &[(8, 50), (32, 110), (1024, 160)]);
        assert_eq!(now.since(&before), histogram(60, &[(32, 60)]));
        // After a reset, the calls since then.
        assert_eq!(before.since(&now), before);
    }

    #[test]
    fn both_protocols_give_the_same() {
        let Value::Array(items) = reply("a", 3, &[(2, 1), (4, 3)]) else { unreachable!("an array") };
        let map = Value::Map(items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect());
        assert_eq!(parse(&map), parse(&Value::Array(items)));
    }

    proptest! {
        #[test]
        fn odd_counts_do_no_harm(cumulative in prop::collection::vec((any::<i64>(), any::<i64>()), 0..20)) {
            let times = histogram(7, &cumulative);
            let mut sum = times.since(&Histogram::default());
            sum.add(&times);
            for quantile in [0.0, 0.5, 0.99, 1.0] {
                prop_assert!(sum.quantile(quantile).is_none_or(|us| us.is_finite() && us >= 0.0));
            }
        }
    }
}
