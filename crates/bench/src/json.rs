//! Figures as JSON: what a run writes, and what is read to compare two of them or to draw a page.

pub(crate) use serde_json::Value as Json;

/// An object of these members.
pub(crate) fn object(members: Vec<(&'static str, Json)>) -> Json {
    Json::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
