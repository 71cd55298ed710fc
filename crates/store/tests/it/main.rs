//! Tests of the keyspace from outside. A module per subject; `world` has the shared parts.
//!
//! Random tests print their seed; `EVENKEEL_SEED=<seed>` repeats a run.

mod ahead;
mod apart;
mod arrays;
mod clearing;
mod collections;
mod compaction;
mod eviction;
mod fields;

mod gate;
mod hashes;
mod journal;
mod large_slot;
mod lists;
mod memory;
mod model;
mod outside;
mod scanning;
mod sets;
mod shares;
mod strings;
mod sweeping;
mod sync;
mod threads;
mod waiting;
mod watching;
mod world;
