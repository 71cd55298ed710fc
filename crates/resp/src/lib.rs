//! RESP2 and RESP3: bytes to requests and values, and back.
//!
//! No I/O, no clock and no allocation that a peer could inflate: what a length announces is only believed when
//! the bytes are there. The server reads with [`request`] and answers with [`reply`]; bench, tests and doctor read
//! the answers with [`value`].

pub mod float;
pub mod inline;
pub mod number;
pub mod reply;
pub mod request;
pub mod value;
