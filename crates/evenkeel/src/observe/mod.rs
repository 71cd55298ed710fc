//! What the server knows about itself.

pub mod census;
pub mod info;
pub mod latency;
pub mod process;
pub mod rates;
pub mod slowlog;
pub mod stats;
