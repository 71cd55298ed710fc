//! Metrics, logs and probes of the server.

pub(crate) mod capture;
pub(crate) mod commandlog;
pub(crate) mod hotkeys;
pub(crate) mod info;
pub(crate) mod key_sizes;
pub(crate) mod memory;
pub(crate) mod metrics;
mod probe;
pub(crate) mod process;
pub(crate) mod rates;
pub(crate) mod recorder;
pub(crate) mod sampler;
mod sketch;
pub(crate) mod slot_stats;
pub(crate) mod stats;

use std::sync::atomic::Ordering::Relaxed;

use crate::server::Server;
use commandlog::Spent;
use evenkeel_client::clients::ClientInfo;
use evenkeel_command::{Args, Spec};
use evenkeel_config::Settings;

/// Passes a command that has ended to the command logs and the counts of hot keys and slots.
#[inline]
pub(crate) fn ended(
    server: &Server,
    settings: &Settings,
    worker: usize,
    client: &ClientInfo,
    command: (&Spec, Args<'_>, &Spent),
) {
    if server.commandlog.wants(command.2) {
        commandlog::note(server, settings, worker, client, command);
    }
    if settings.cluster_slot_stats_enabled
        && let Some(cluster) = &server.cluster
    {
        cluster.slot_stats.note(worker, command, client.is_primary.load(Relaxed));
    }
    if server.hotkeys.is_on() {
        server.hotkeys.note(&server.core.keyspace, worker, command);
    }
}
