//! Reads the JSON of an earlier run, and its parts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::json::Json;

pub(crate) fn read(path: &Path) -> Result<Json> {
    let shown = path.display();
    let bytes = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    let run: Json = serde_json::from_slice(&bytes).with_context(|| format!("{shown} is no JSON"))?;
    run.get("experiments").with_context(|| {
        format!("{shown} has no experiments: was it written by --json of an experiment, and not of load?")
    })?;
    Ok(run)
}

pub(crate) fn list<'a>(of: &'a Json, name: &str) -> impl Iterator<Item = &'a Json> + use<'a> {
    of.get(name).and_then(Json::as_array).into_iter().flatten()
}

pub(crate) fn text<'a>(of: &'a Json, name: &str) -> &'a str {
    of.get(name).and_then(Json::as_str).unwrap_or("")
}

/// Returns the samples of a metric; `None` for other values.
pub(crate) fn samples(value: &Json) -> Option<Vec<f64>> {
    match value {
        Json::Array(values) => values.iter().map(Json::as_f64).collect(),
        value => value.as_f64().map(|number| vec![number]),
    }
}
