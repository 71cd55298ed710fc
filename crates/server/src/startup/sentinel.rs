//! Detects a start as Sentinel, which Evenkeel does not have.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Message for a start as Sentinel.
pub(super) const NO_SENTINEL: &str = "\
Evenkeel has no Sentinel mode. The Sentinel of Redis or Valkey can monitor Evenkeel servers and fail over to a
replica when a primary is lost. Install it (Debian and Ubuntu: package redis-sentinel or valkey-sentinel) and
start it with the usual configuration, in which 'sentinel monitor NAME HOST PORT QUORUM' names an Evenkeel
server:
       redis-sentinel /etc/redis/sentinel.conf";

/// Whether the program was called as redis-server is called for Sentinel mode.
pub(super) fn is_asked_for(program: &OsStr, args: &[OsString]) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    name == "redis-sentinel" || name == "valkey-sentinel" || args.iter().any(|arg| arg == "--sentinel")
}
