//! Reports: a diagnosis for people at a terminal, and for scripts.

mod json;
pub(crate) mod tables;
mod terminal;

pub(crate) use json::json;
pub(crate) use terminal::{comparison, terminal};
