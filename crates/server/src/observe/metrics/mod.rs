//! Metrics for Prometheus, from the counters of the threads.
//!
//! Names and labels that begin with `redis_` are those of redis_exporter, so that its dashboards and alerts
//! show this server as well; figures that Redis does not have begin with `evenkeel_`. Numbers that INFO shows
//! come from INFO's sections ([`names`] has their names); this module writes the metrics with labels.

mod labelled;
mod names;

use std::sync::Arc;

use evenkeel_http::{Exposition, Number};
use evenkeel_store::SlotGuard;

use crate::observe::info::{self, Facts};
use crate::server::Server;

/// Writes all metrics. Outside the gate, the counts of the databases are those of the last second.
pub(crate) fn write(server: &Arc<Server>, guard: &SlotGuard<'_>, exposition: &mut Exposition) {
    let facts = Facts::gather(server, guard);
    info::measure(&facts, exposition);
    labelled::write(&facts, exposition);
}

/// Writes a number of INFO, if it is a metric.
pub(crate) fn write_field(exposition: &mut Exposition, field: &str, value: impl Number) {
    let Some(metric) = names::of_field(field) else { return };
    if metric.is_in_us {
        exposition.single(metric.name, metric.kind, metric.help, value.to_f64() / 1e6);
    } else {
        exposition.single(metric.name, metric.kind, metric.help, value);
    }
}
