//! The diagnosis as JSON: the contents of the terminal report, with the same names, for scripts and other
//! tools.

use anyhow::Result;
use serde::Serialize;

use crate::analyse::Diagnosis;
use crate::recording::{Health, Host, Recording, Target, Tier};

#[derive(Serialize)]
struct Report<'a> {
    made_by: &'a str,
    taken_unix_s: u64,
    tier: Tier,
    window_seconds: f64,
    target: &'a Target,
    host: &'a Host,
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
    health: &'a Health,
}

pub(crate) fn json(recording: &Recording, diagnosis: &Diagnosis) -> Result<String> {
    let report = Report {
        made_by: &recording.made_by,
        taken_unix_s: recording.taken_unix_s,
        tier: recording.tier,
        window_seconds: recording.window_ns as f64 / 1e9,
        target: &recording.target,
        host: &recording.host,
        diagnosis,
        health: &recording.health,
    };
    Ok(serde_json::to_string_pretty(&report)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;

    #[test]
    fn scripts_find_verdict_and_findings_at_the_top() {
        let recording = golden::everything_is_wrong();
        let text = json(&recording, &diagnose(&recording)).expect("JSON");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["verdict"], "found");
        assert_eq!(value["tier"], "T0");
        assert!(value["findings"][0]["title"].is_string() && value["findings"][0]["rule"].is_string());
    }
}
