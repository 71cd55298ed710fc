//! Whether commands that another node sends with its slots may run here.

use evenkeel_client::lane_ticket::LaneTicket;
use evenkeel_core::blockers::Blockers;
use evenkeel_replication::moves::Admission;
use evenkeel_runtime::clock;

use crate::server::Server;

impl Server {
    /// Called inside the gate: the map under which the commands would run is in force until the caller
    /// leaves.
    pub(crate) fn admit_import(&self, ticket: &LaneTicket) -> Admission {
        let Some(cluster) = &self.cluster else { return Admission::Never("cluster mode is off".into()) };
        let id = ticket.id.parse().ok();
        let view = cluster.view();
        if id.and_then(|id| view.imports(id, ticket.source_epoch, ticket.target_epoch)).is_none() {
            return Admission::Over;
        }
        if self.is_fenced() {
            return Admission::Later; // the lease is renewed, or another node becomes the primary
        }
        let blockers = self.core.blockers.any();
        if blockers.contains(Blockers::READ_ONLY) || blockers.contains(Blockers::LOADING) {
            return Admission::Later;
        }
        if blockers.contains(Blockers::NO_LOG) {
            let cause = self.persist.aof.metrics.failure.lock();
            return Admission::Never(format!("errors writing to the AOF file: {cause}"));
        }
        if blockers.contains(Blockers::CROWDED) || self.core.pause.is_active(clock::unix_ms()) {
            return Admission::Later;
        }
        Admission::Yes
    }
}
