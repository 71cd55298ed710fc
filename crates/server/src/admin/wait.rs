//! WAIT and WAITAOF: wait until the client's writes are safe.
//!
//! A client knows the number of its last journal record, and the append-only file the number of the last
//! record that is durable ([`evenkeel_persist::aof::Aof::keeps`]). So a wait is an entry in the worker's list
//! of waits for the journal (`worker/durable.rs`), which is checked whenever more was synced. Otherwise
//! such a wait is like BLPOP's on no key: it has a timeout, is counted, and CLIENT UNBLOCK ends it.
//!
//! The thread that feeds replicas knows the records that they have from their acknowledgements
//! ([`evenkeel_replication::replicas`]). At the beginning of a wait, that thread asks the replicas. Whenever
//! more is acknowledged, the workers with waiting clients check again.

use std::sync::Arc;

use super::{Command, Flags, Group, ServerCall, ServerHandler, exactly, session};
use crate::executor::blocking::begin_wait_for_safety;
use crate::server::Server;
use evenkeel_client::waiting::Condition;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::flow::{Mode, Timeout};
use evenkeel_command::reply::Reply;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("WAIT",    exactly(3), Group::Connection, wait    ).flags(Flags::BLOCKING.with(Flags::NO_DATA)),
    session("WAITAOF", exactly(4), Group::Connection, wait_aof).flags(Flags::BLOCKING.with(Flags::NO_DATA)),
];

/// The condition of a client that waits until its writes are safe.
pub(crate) struct Safety {
    server: Arc<Server>,
    /// The client's last journal record.
    record: u64,
    /// WAITAOF, whose reply has two numbers.
    of_files: bool,
    /// The record has to be on this server's disk.
    local: bool,
    /// How many replicas have to have the record.
    replicas: i64,
}

impl Condition for Safety {
    fn is_reached(&self) -> bool {
        let is_kept = !self.local || self.server.persist.aof.keeps(self.record);
        self.is_in_vain() || is_kept && self.at_replicas() >= self.replicas
    }

    fn reply(&self, reply: &mut Reply) -> Result<(), Error> {
        if self.is_in_vain() {
            return Err(Error::text(
                "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
            ));
        }
        if self.of_files {
            reply.array(2);
            reply.int(i64::from(self.server.persist.aof.keeps(self.record)));
        }
        reply.int(self.at_replicas());
        Ok(())
    }
}

impl Safety {
    /// Returns how many replicas have the record.
    fn at_replicas(&self) -> i64 {
        let replicas = &self.server.replication.replicas;
        let count = if self.of_files {
            replicas.count_synced(self.record)
        } else {
            replicas.count_acked(self.record)
        };
        count as i64
    }

    /// Whether the record has to be on a disk to which nothing is written.
    fn is_in_vain(&self) -> bool {
        self.local && !self.server.core.settings().appendonly
    }
}

/// WAIT numreplicas timeout
fn wait(call: &mut ServerCall<'_, '_>) -> Done {
    if call.server.replication.is_replica() {
        return Err(Error::text(
            "ERR WAIT cannot be used with replica instances. Please also note that if a replica is \
             configured to be writable (which is not the default) writes to replicas are just local and are \
             not propagated.",
        ));
    }
    let replicas = call.base.args.int(1)?;
    let timeout = call.timeout_ms(2)?;
    wait_for(call, timeout, false, false, replicas)
}

/// WAITAOF numlocal numreplicas timeout
fn wait_aof(call: &mut ServerCall<'_, '_>) -> Done {
    let local = match call.base.args.int(1)? {
        local @ 0..=1 => local == 1,
        _ => return Err(Error::text("ERR value is out of range, value must between 0 and 1")),
    };
    let replicas = call.base.args.int(2).ok().filter(|replicas| *replicas >= 0);
    let replicas = replicas.ok_or(Error::text("ERR value is out of range, must be positive"))?;
    let timeout = call.timeout_ms(3)?;
    if call.server.replication.is_replica() {
        return Err(Error::text(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are \
             just local and are not propagated.",
        ));
    }
    wait_for(call, timeout, true, local, replicas)
}

fn wait_for(
    call: &mut ServerCall<'_, '_>,
    timeout: Timeout,
    of_files: bool,
    local: bool,
    replicas: i64,
) -> Done {
    // As in Redis, all writes until now count, whichever client made them: a pool may have used another
    // connection.
    let own = call.base.guard.ctx.buffer.last_of_batch().unwrap_or(call.session.last_record);
    let (server, record) = (call.server.clone(), own.max(call.server.core.keyspace.journal.last()));
    let safety = Safety { server, record, of_files, local, replicas };
    if call.base.mode != Mode::Direct || safety.is_reached() {
        return safety.reply(call.base.reply).map(|()| Flow::Replied);
    }
    if replicas > 0 {
        call.server.replication.ask_for_acks(record);
    }
    let command = (call.base.id, call.base.args.to_owned(), call.base.reply.resp3);
    begin_wait_for_safety(call.server, call.session, command, Box::new(safety), timeout);
    Ok(Flow::Suspended)
}

#[cfg(test)]
mod tests;
