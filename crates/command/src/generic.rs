//! Commands on keys of any type: existence, names, deadlines, walks, and values as bytes.

pub mod dump;
pub mod expire;
pub mod keyspace;
pub mod object;
pub mod scan;
