//! INFO: sections of `field:value` lines, in the order and under the names that Redis and Valkey print.
//!
//! The sections give their fields to [`Fields`], which makes lines of INFO or samples of metrics of them:
//! numbers that both show have a single source.
//!
//! A field is present if it has a true value. Fields about features that the server lacks (forks, modules)
//! are zero or `no`; fields about the internals of another program are absent.

mod basics;
mod commands;
mod memory;
mod persistence;
mod stats;
mod workers;

pub(crate) use basics::BUILD_ID;
pub(crate) use commands::{counts_of_all, errors_by_code, latencies_of};

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use evenkeel_http::{Exposition, Number};
use evenkeel_store::SlotGuard;

use crate::observe::metrics;
use crate::server::Server;
use evenkeel_client::clients::Totals;
use evenkeel_config::Settings;
use evenkeel_runtime::clock;

/// A section: its name, its title, and its printer.
struct Section {
    name: &'static str,
    title: &'static str,
    shown: Shown,
    print: fn(&Facts<'_>, &mut Fields<'_>),
}

/// The requests for which a section is printed, beside its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    /// For `all`.
    Extra,
    ByName,
}

const fn section(name: &'static str, title: &'static str, print: fn(&Facts<'_>, &mut Fields<'_>)) -> Section {
    Section { name, title, shown: Shown::Always, print }
}

/// Defines a section that is printed by its name, or by `all`.
const fn extra(name: &'static str, title: &'static str, print: fn(&Facts<'_>, &mut Fields<'_>)) -> Section {
    Section { name, title, shown: Shown::Extra, print }
}

/// Defines a section that is printed by its name alone.
const fn hidden(name: &'static str, title: &'static str, print: fn(&Facts<'_>, &mut Fields<'_>)) -> Section {
    Section { name, title, shown: Shown::ByName, print }
}

#[rustfmt::skip]
const SECTIONS: &[Section] = &[
    section("server",       "Server",       basics::server        ),
    extra  ("tls",          "TLS",          basics::tls           ),
    section("clients",      "Clients",      basics::clients       ),
    section("memory",       "Memory",       memory::memory        ),
    section("persistence",  "Persistence",  persistence::persistence),
    section("stats",        "Stats",        stats::stats          ),
    section("replication",  "Replication",  basics::replication   ),
    section("cpu",          "CPU",          basics::cpu           ),
    section("modules",      "Modules",      |_, _| {}             ),
    extra  ("commandstats", "Commandstats", commands::calls       ),
    section("errorstats",   "Errorstats",   commands::errors      ),
    extra  ("latencystats", "Latencystats", commands::latencies   ),
    hidden ("debug",        "Debug",        stats::debug          ),
    extra  ("stages",       "Stages",       workers::stages       ),
    extra  ("workers",      "Workers",      workers::workers      ),
    section("cluster",      "Cluster",      basics::cluster       ),
    extra  ("scriptingengines", "Scripting Engines", memory::engines),
    section("keyspace",     "Keyspace",     basics::keyspace      ),
    section("keysizes",     "Keysizes",     basics::key_sizes     ),
];

/// The sections whose numbers are metrics. Metrics with labels, such as those of a command, are written by
/// [`crate::observe::metrics`].
const MEASURED: &[&str] =
    &["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "stages"];

/// Input of the sections.
pub(crate) struct Facts<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) guard: &'a SlotGuard<'a>,
    pub(crate) now_ms: u64,
    clients: Totals,
}

impl<'a> Facts<'a> {
    pub(crate) fn gather(server: &'a Arc<Server>, guard: &'a SlotGuard<'a>) -> Facts<'a> {
        Facts {
            server,
            settings: server.core.settings(),
            guard,
            now_ms: clock::unix_ms(),
            clients: server.hub.clients.totals(),
        }
    }
}

/// Writes the numbers of the sections as metrics.
pub(crate) fn measure(facts: &Facts<'_>, exposition: &mut Exposition) {
    let mut fields = Fields::Metrics(exposition);
    for section in SECTIONS.iter().filter(|section| MEASURED.contains(&section.name)) {
        (section.print)(facts, &mut fields);
    }
}

/// Returns the text of the sections `wanted`, given in lower case; of the default sections if it is empty.
pub(crate) fn text(server: &Arc<Server>, guard: &SlotGuard<'_>, wanted: &[Vec<u8>]) -> String {
    let asked = |name: &str| wanted.iter().any(|one| one == name.as_bytes());
    let all = asked("all") || asked("everything");
    let default = wanted.is_empty() || asked("default");
    let facts = Facts::gather(server, guard);
    let mut fields = Fields::Text(String::new());
    for section in SECTIONS {
        let is_shown = match section.shown {
            Shown::Always => all || default,
            Shown::Extra => all,
            Shown::ByName => false,
        };
        if is_shown || asked(section.name) {
            fields.begin(section.title);
            (section.print)(&facts, &mut fields);
        }
    }
    match fields {
        Fields::Text(text) => text,
        Fields::Metrics(_) => String::new(),
    }
}

/// Receives the fields of the sections.
enum Fields<'m> {
    /// Lines of INFO.
    Text(String),
    /// Samples of the numbers that are metrics.
    Metrics(&'m mut Exposition),
}

impl Fields<'_> {
    fn begin(&mut self, title: &str) {
        if let Fields::Text(text) = self {
            let gap = if text.is_empty() { "" } else { "\r\n" };
            let _ = write!(text, "{gap}# {title}\r\n"); // a `String` accepts all text
        }
    }

    /// Prints a field that is no metric.
    fn field(&mut self, name: impl Display, value: impl Display) {
        if let Fields::Text(text) = self {
            let _ = write!(text, "{name}:{value}\r\n");
        }
    }

    fn number(&mut self, name: &str, value: impl Number + Display) {
        match self {
            Fields::Text(_) => self.field(name, value),
            Fields::Metrics(exposition) => metrics::write_field(exposition, name, value),
        }
    }

    /// Prints a number with so many digits behind the point. A metric has all digits.
    fn decimals(&mut self, name: &str, value: f64, digits: usize) {
        match self {
            Fields::Text(_) => self.field(name, format_args!("{value:.digits$}")),
            Fields::Metrics(exposition) => metrics::write_field(exposition, name, value),
        }
    }

    /// Prints `ok` or `err`; the metric is 1 or 0.
    fn status(&mut self, name: &str, is_ok: bool) {
        match self {
            Fields::Text(_) => self.field(name, if is_ok { "ok" } else { "err" }),
            Fields::Metrics(exposition) => metrics::write_field(exposition, name, is_ok),
        }
    }

    /// Prints zero for several fields: features that this server lacks.
    fn zeros(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.number(name, 0_u64));
    }

    /// Prints bytes as a number, and in readable form.
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.number(name, bytes);
        self.field(format_args!("{name}_human"), human(bytes));
    }
}

/// `0B`, `1.50K`, `23.59G`.
fn human(bytes: u64) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.2}{}", UNITS[unit])
}

/// Returns `part / whole`, and zero for a whole of zero.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_readable_bytes() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (990_680, "967.46K"),
            (25_325_268_992, "23.59G"),
            (u64::MAX, "16384.00P"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn sections_have_different_names() {
        let mut names: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SECTIONS.len());
    }
}
