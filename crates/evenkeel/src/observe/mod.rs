//! What the server knows about itself.

pub mod rates;
pub mod stats;
