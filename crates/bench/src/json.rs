//! Metrics as JSON: written by a run, and read to compare two runs or to draw a page.

pub(crate) use serde_json::Value as Json;

/// Returns an object of these members.
pub(crate) fn object(members: Vec<(&'static str, Json)>) -> Json {
    Json::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
