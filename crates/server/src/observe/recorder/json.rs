//! The recorder's data as JSON, for the console.

use evenkeel_history::Row;
use serde_json::{Value, json};

use super::Recorder;
use evenkeel_runtime::clock;

/// Rows of a reply.
const POINTS_MAX: usize = 2_000;

/// A span as a request names it: negative times are relative to now.
fn span(from_ms: i64, to_ms: i64) -> (u64, u64) {
    let now_ms = clock::unix_ms();
    let absolute = |ms: i64| u64::try_from(ms).unwrap_or_else(|_| now_ms.saturating_sub(ms.unsigned_abs()));
    (absolute(from_ms), absolute(to_ms))
}

/// Returns the rows of a span, merged to about this number, with their columns.
pub(crate) fn series_json(recorder: &Recorder, from_ms: i64, to_ms: i64, points: usize) -> Vec<u8> {
    let (from, to) = span(from_ms, to_ms);
    let series = recorder.series(from, to, points.clamp(1, POINTS_MAX));
    let rows: Vec<Vec<u64>> = series.rows.into_iter().map(numbers).collect();
    bytes(&json!({
        "now": clock::unix_ms(),
        "kept_from": recorder.first_ms(),
        "from": from,
        "to": to,
        "step_ms": series.step_ms,
        "columns": recorder.columns().schema.columns(),
        "rows": rows,
    }))
}

fn numbers(row: Row) -> Vec<u64> {
    [row.at_ms, row.covered_ms].into_iter().chain(row.values).collect()
}

/// Returns the events and incidents of a span, the oldest first.
pub(crate) fn events_json(recorder: &Recorder, from_ms: i64, to_ms: i64) -> Vec<u8> {
    let (from, to) = span(from_ms, to_ms);
    let mut all: Vec<(u64, Value)> = recorder.with_log(|log| {
        let events = log.events(from, to).map(|event| {
            let lasted_ms = event.lasted_us.map(|us| us as f64 / 1_000.0);
            let value =
                json!({"at": event.at_ms, "lasted_ms": lasted_ms, "kind": event.kind, "text": event.text});
            (event.at_ms, value)
        });
        let incidents = log.incidents(from, to).map(|incident| {
            let value = json!({
                "at": incident.at_ms,
                "from": incident.start_ms(),
                "lasted_ms": incident.lasted_us as f64 / 1_000.0,
                "sum_ms": incident.sum_us as f64 / 1_000.0,
                "kind": incident.rule.name(),
                "text": incident.title,
                "times": incident.times,
                "workers": incident.workers,
                "evidence": incident.evidence,
            });
            (incident.at_ms, value)
        });
        events.chain(incidents).collect()
    });
    all.sort_by_key(|(at_ms, _)| *at_ms);
    let events: Vec<Value> = all.into_iter().map(|(_, value)| value).collect();
    bytes(&json!({"from": from, "to": to, "events": events}))
}

/// Returns the causes for which clients waited in a span.
pub(crate) fn findings_json(recorder: &Recorder, from_ms: i64, to_ms: i64) -> Vec<u8> {
    let (from, to) = span(from_ms, to_ms);
    bytes(&json!(recorder.findings(from, to)))
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}
