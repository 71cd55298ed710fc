//! The store with a real etcd. Without etcd, a test prints `SKIPPED` and passes; on CI it fails
//! (`scripts/setup etcd`).

mod etcd;
mod faults;
mod nodes;
mod security;
mod store;
