//! What the server knows about itself.

pub(crate) mod census;
pub(crate) mod info;
pub(crate) mod latency;
pub(crate) mod process;
pub(crate) mod rates;
pub(crate) mod slowlog;
pub(crate) mod stats;
