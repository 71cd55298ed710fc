//! FAILOVER: a replica becomes the primary, and this server its replica ([`evenkeel_replication::failover`]).

use std::time::{Duration, Instant};

use super::{Command, Flags, Group, LockScope, ServerCall, ServerHandler, at_least, session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_replication::failover::{self, Plan};
use evenkeel_replication::link::Target;

const fn whole(command: Command<ServerHandler>) -> Command<ServerHandler> {
    let command = command.without(Flags::LOADING.with(Flags::NO_DATA)).flag(Flags::ADMIN);
    command.lock_scope(LockScope::Whole)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    whole(session("FAILOVER", at_least(1), Group::Server, failover)).flag(Flags::NOSCRIPT),
];

/// FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]
///
/// It locks all slots: a write that is admitted after its reply waits.
fn failover(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server;
    if call.base.args.len() == 2 && call.base.args.is(1, "ABORT") {
        if !failover::abort(&server.replication, call.base.guard, "Failover manually aborted") {
            return Err(Error::text("ERR No failover in progress."));
        }
        call.base.reply.ok();
        return Ok(Flow::Replied);
    }
    let plan = plan(call)?;
    may_begin(call, &plan)?;
    failover::begin(&server.replication, call.base.guard, plan);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

fn plan(call: &ServerCall<'_, '_>) -> Result<Plan, Error> {
    let args = call.base.args;
    let (mut target, mut timeout, mut force, mut index) = (None, None, false, 1);
    while index < args.len() {
        let left = args.len() - index - 1;
        match args.word(index).as_bytes() {
            b"TIMEOUT" if left >= 1 && timeout.is_none() => {
                let ms = args.int(index + 1)?;
                let ms = u64::try_from(ms).ok().filter(|ms| *ms > 0);
                timeout = Some(ms.ok_or(Error::text("ERR FAILOVER timeout must be greater than 0"))?);
                index += 2;
            }
            b"TO" if left >= 2 && target.is_none() => {
                // An invalid port is no replica's.
                let port = u16::try_from(args.int(index + 2)?).unwrap_or(0);
                target = Some(Target { host: args.text(index + 1), port });
                index += 3;
            }
            b"FORCE" if !force => {
                force = true;
                index += 1;
            }
            _ => return Err(Error::Syntax),
        }
    }
    // A timeout beyond the clock's range means none.
    let until = timeout.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    Ok(Plan { target, until, force })
}

fn may_begin(call: &ServerCall<'_, '_>, plan: &Plan) -> Result<(), Error> {
    let state = &call.server.replication;
    let refused = |text| Err(Error::text(text));
    if state.failover.is_under_way() {
        return refused("ERR FAILOVER already in progress.");
    }
    if state.is_replica() {
        return refused("ERR FAILOVER is not valid when server is a replica.");
    }
    let replicas = state.replicas.list();
    if replicas.is_empty() {
        return refused("ERR FAILOVER requires connected replicas.");
    }
    if plan.force && (plan.until.is_none() || plan.target.is_none()) {
        return refused("ERR FAILOVER with force option requires both a timeout and target HOST and IP.");
    }
    let Some(target) = &plan.target else { return Ok(()) };
    match replicas.iter().find(|replica| replica.is(target)) {
        None => refused("ERR FAILOVER target HOST and PORT is not a replica."),
        Some(replica) if !replica.is_online() => refused("ERR FAILOVER target replica is not online."),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn failover_without_replicas_is_refused() {
        check(
            "
            > FAILOVER ABORT                      < -ERR No failover in progress.
            > FAILOVER                            < -ERR FAILOVER requires connected replicas.
            > FAILOVER TO 127.0.0.1 1             < -ERR FAILOVER requires connected replicas.
            > FAILOVER TO 127.0.0.1 x             < -ERR value is not an integer or out of range
            > FAILOVER TO 127.0.0.1               < -ERR syntax error
            > FAILOVER TO a 1 TO a 1              < -ERR syntax error
            > FAILOVER TIMEOUT 0                  < -ERR FAILOVER timeout must be greater than 0
            > FAILOVER TIMEOUT -1                 < -ERR FAILOVER timeout must be greater than 0
            > FAILOVER TIMEOUT                    < -ERR syntax error
            > FAILOVER TIMEOUT 1 TIMEOUT 1        < -ERR syntax error
            > FAILOVER FORCE FORCE                < -ERR syntax error
            > FAILOVER FORCE TIMEOUT 100          < -ERR FAILOVER requires connected replicas.
            > FAILOVER ABORT TIMEOUT 100          < -ERR syntax error
            > FAILOVER perhaps                    < -ERR syntax error
            > INFO replication                    < \"*master_failover_state:no-failover*\"
            > REPLICAOF 127.0.0.1 1               < OK
            > FAILOVER                            < -ERR FAILOVER is not valid when server is a replica.
            > PSYNC 0000000000000000000000000000000000000000 1 FAILOVER
            < -ERR PSYNC FAILOVER replid must match my replid.
            > REPLICAOF NO ONE                    < OK
            > PSYNC 0000000000000000000000000000000000000000 1 FAILOVER
            < -ERR PSYNC FAILOVER can't be sent to a master.
        ",
        );
    }
}
