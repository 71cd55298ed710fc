//! Tests of the commands on data, run by a server in the same process: transcripts of sessions.

mod array;
mod bitfield;
mod bitmap;
mod dump;
mod effect;
mod events;
mod expire;
mod geo;
mod hash;
mod hash_times;
mod hyperloglog;
mod keyspace;
mod list;
mod object;
mod offloading;
mod scan;
mod set;
mod sort;
mod stream;
mod stream_newer;
mod string;
mod zset;
