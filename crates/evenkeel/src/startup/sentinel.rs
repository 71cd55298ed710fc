//! Sentinel, which Evenkeel is not.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What an operator is told who starts Evenkeel as a Sentinel.
pub(super) const NO_SENTINEL: &str = "\
Evenkeel has no Sentinel mode. The Sentinel of Redis or Valkey can monitor Evenkeel servers and fail over to a
replica when a primary is lost. Install it (Debian and Ubuntu: package redis-sentinel or valkey-sentinel) and
start it with the usual configuration, in which 'sentinel monitor NAME HOST PORT QUORUM' names an Evenkeel
server:
       redis-sentinel /etc/redis/sentinel.conf";

/// Whether the program was called as redis-server is called to be a Sentinel.
pub(super) fn is_asked_for(program: &OsStr, args: &[OsString]) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    name == "redis-sentinel" || name == "valkey-sentinel" || args.iter().any(|arg| arg == "--sentinel")
}
