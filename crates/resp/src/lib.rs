//! RESP2 and RESP3: bytes to requests and values, and back.
//!
//! No I/O, no clock, and no allocation that a client or server can inflate: an announced length is believed
//! only when the bytes have arrived. The server reads with [`request`] and answers with [`reply`]; bench,
//! tests and doctor read the answers with [`value`].

pub mod float;
pub mod inline;
pub mod number;
pub mod reply;
pub mod request;
pub mod value;
