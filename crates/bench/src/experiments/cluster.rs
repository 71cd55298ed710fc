//! `cluster`: what cluster mode costs a command, beside the same server without it.
//!
//! Each server runs without cluster mode, twice as a control, and as a node that owns all slots: Evenkeel
//! alone and with a map in etcd, Valkey alone. All are measured by turns, on one CPU each, and the ratios are
//! those of CPU time per command within a round.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Session;
use super::lanes::{self, Lane, Traffic};
use super::series::{self, Series};
use crate::interrupt;
use crate::json::Json;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::servers::{Etcd, Launch, ServerKind, ask};
use crate::stats::Goal;
use crate::table::Table;

const KEYS: u64 = 50_000;
const VALUE_SIZE: usize = 500;
const TRAFFIC: [(Command, usize); 4] =
    [(Command::Set, 16), (Command::Get, 16), (Command::Set, 1), (Command::Get, 1)];
/// CPU in cluster mode, relative to without.
const GOAL: Goal = Goal::AtMost(1.01);

/// A node owns its slots by then.
const READY_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

const ALONE: &[&str] = &["--cluster-enabled", "yes"];

pub(super) fn estimate(session: &Session) -> Duration {
    session.time_for(7 * TRAFFIC.len() * session.rounds)
}

pub(crate) fn cluster(session: &mut Session) -> Result<()> {
    let etcd = Etcd::start()?;
    let store = format!("etcd://{}", etcd.address());
    // A launch lives as long as the program.
    let with_store: &[&str] = vec!["--cluster-enabled", "yes", "--cluster-store", &*store.leak()].leak();
    let ways = [
        (ServerKind::Evenkeel, "evenkeel", &[][..]),
        (ServerKind::Evenkeel, "evenkeel again", &[]),
        (ServerKind::Evenkeel, "evenkeel, cluster mode", ALONE),
        (ServerKind::Evenkeel, "evenkeel, with etcd", with_store),
        (ServerKind::Valkey, "valkey", &[]),
        (ServerKind::Valkey, "valkey again", &[]),
        (ServerKind::Valkey, "valkey, cluster mode", ALONE),
    ];
    let mut lanes = Vec::new();
    for (kind, name, more) in ways {
        let Some(program) = session.program(kind) else { continue };
        let mut lane =
            Lane::start(program, name, &Launch { cpus: session.server_cpus.clone(), threads: 1, more })?;
        lane.is_control = name.ends_with("again");
        if !more.is_empty() {
            own_all_slots(&lane)?;
        }
        lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
        lanes.push(lane);
    }
    for (command, pipeline) in TRAFFIC {
        let traffic = Traffic {
            command: command.clone(),
            pipeline,
            keys: KEYS,
            value_size: VALUE_SIZE,
            ..Traffic::pinned(session)
        };
        let all = lanes::rounds(session, &lanes, &traffic)?;
        let mut table = Table::new(&["", "requests/s", "CPU us/command", "to without", "goal", ""]);
        let noise = series::noise(&all, |sample| sample.cpu_us); // of the first control, which is Evenkeel's
        for series in &all {
            let plain = all.iter().find(|one| one.kind == series.kind).expect("it is one of them");
            let is_plain = std::ptr::eq(plain, series);
            let ratio = if is_plain { None } else { series.ratio_to(plain, |sample| sample.cpu_us) };
            let is_judged = series.kind == ServerKind::Evenkeel && series.name.contains(',');
            let verdict = match &ratio {
                Some(ratio) if is_judged => {
                    let what = format!("CPU of {} to without, {command}, pipeline {pipeline}", series.name);
                    let mut verdict = session.judge(what, GOAL, ratio.median);
                    if ratio.median > 1.0 && ratio.median - 1.0 <= noise {
                        verdict += ", within the noise";
                    }
                    verdict
                }
                _ => String::new(),
            };
            table.row(vec![
                series.name.clone(),
                series.rate_cell(),
                series.cpu_cell(),
                ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
                if is_judged { GOAL.to_string() } else { String::new() },
                verdict,
            ]);
        }
        let title = format!("cluster: {command}, pipeline {pipeline}, {VALUE_SIZE} B values, 50 clients");
        let figures = vec![
            ("command", command.to_string().into()),
            ("pipeline", pipeline.into()),
            ("servers", Json::Array(all.iter().map(Series::to_json).collect())),
        ];
        session.report("cluster", &title, &table, figures);
    }
    Ok(())
}

/// Waits until the node of a lane owns all slots. Slots without an owner are added to the node.
fn own_all_slots(lane: &Lane) -> Result<()> {
    let until = Instant::now() + READY_MAX;
    loop {
        let info = ask(lane.server.address, &["CLUSTER", "INFO"])?;
        if info.contains("cluster_state:ok") {
            return Ok(());
        }
        if info.contains("cluster_slots_assigned:0") {
            ask(lane.server.address, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        }
        if Instant::now() > until {
            bail!("{} does not serve its slots: {info}", lane.name);
        }
        interrupt::sleep(POLL_INTERVAL)?;
    }
}
