//! The primary of this server: REPLICAOF and its old name.

use super::{Command, Flags, Group, LockScope, ServerCall, ServerHandler, exactly, session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_replication::link::{self, Target};

const fn replication(name: &'static str) -> Command<ServerHandler> {
    let command = session(name, exactly(3), Group::Server, replicaof);
    let command = command.without(Flags::LOADING.with(Flags::NO_DATA));
    let command = command.flag(Flags::ADMIN.with(Flags::NO_ASYNC_LOADING));
    command.lock_scope(LockScope::Whole)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    replication("REPLICAOF"),
    replication("SLAVEOF"),
];

/// REPLICAOF host port | NO ONE
///
/// It locks all slots: from its reply on, every client finds a replica, or a primary.
fn replicaof(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server;
    if server.cluster.is_some() {
        return Err(Error::text("ERR REPLICAOF not allowed in cluster mode."));
    }
    if server.replication.failover.is_under_way() {
        return Err(Error::text("ERR REPLICAOF not allowed while failing over."));
    }
    if call.base.args.is(1, "NO") && call.base.args.is(2, "ONE") {
        if server.replication.is_replica() {
            link::change(&server.replication, call.base.guard, None);
            link::remember(&server.replication, None);
            log::info!("PRIMARY MODE enabled (user request from '{}')", call.session.client.address);
        }
        call.base.reply.ok();
        return Ok(Flow::Replied);
    }
    let port = call.base.args.int(2).ok().and_then(|port| u16::try_from(port).ok());
    let port = port.ok_or(Error::text("ERR Invalid master port"))?;
    let target = Target { host: call.base.args.text(1), port };
    let is_followed = server.replication.link.target().is_some_and(|present| {
        present.port == target.port && present.host.eq_ignore_ascii_case(&target.host)
    });
    if is_followed {
        log::info!(
            "REPLICAOF would result into synchronization with the master we are already connected with. No \
             operation performed."
        );
        call.base.reply.simple("OK Already connected to specified master");
        return Ok(Flow::Replied);
    }
    log::info!(
        "REPLICAOF {}:{} enabled (user request from '{}')",
        target.host,
        target.port,
        call.session.client.address
    );
    link::change(&server.replication, call.base.guard, Some(target.clone()));
    link::remember(&server.replication, Some(target));
    // Also the waits of a replica's clients: their keys may be in the new primary's data, which no write
    // announces.
    link::end_waits(&server.replication);
    link::begin(&server.replication);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn replicaof_checks_its_arguments() {
        check(
            "
            > REPLICAOF a                         < -ERR wrong number of arguments for 'replicaof' command
            > SLAVEOF no one x                    < -ERR wrong number of arguments for 'slaveof' command
            > REPLICAOF 127.0.0.1 99999           < -ERR Invalid master port
            > REPLICAOF 127.0.0.1 -1              < -ERR Invalid master port
            > REPLICAOF 127.0.0.1 abc             < -ERR Invalid master port
            > REPLICAOF no one                    < OK
            > ROLE                                < [\"master\", :0, []]
            > CONFIG GET replicaof                < [\"replicaof\", \"\"]
            > SET k v                             < OK
            > SLAVEOF 127.0.0.1 1                 < OK
            > REPLICAOF 127.0.0.1 1               < OK Already connected to specified master
            > CONFIG GET slaveof                  < [\"slaveof\", \"127.0.0.1 1\"]
            > SET k w                             < -READONLY You can't write against a read only replica.
            > MULTI
            > GET k                               < QUEUED
            > SET k w                             < -READONLY You can't write against a read only replica.
            > EXEC
            < -EXECABORT Transaction discarded because of previous errors.
            > GET k                               < \"v\"
            > CONFIG SET replica-read-only no     < OK
            > SET k w                             < OK
            > MULTI
            > GET k                               < QUEUED
            a> MULTI
            a< OK
            a> PING
            a< QUEUED
            b> MULTI
            b< OK
            b> INFO replication
            b< QUEUED
            c> CONFIG SET replica-serve-stale-data no replica-read-only yes
            c< OK
            > EXEC
            < -EXECABORT Transaction discarded because of: MASTERDOWN Link with MASTER is down and \
                replica-serve-stale-data is set to 'no'.
            a> EXEC
            a< -EXECABORT Transaction discarded because of: MASTERDOWN *
            b> EXEC
            b< [\"*role:slave*\"]
            > GET k
            < -MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.
            > SET k v                             < -READONLY You can't write against a read only replica.
            > CONFIG SET replica-serve-stale-data yes < OK
            > INFO replication
            < \"*role:slave*master_host:127.0.0.1*master_port:1*master_link_status:down*\"
            > REPLICAOF NO ONE                    < OK
            > INFO replication                    < \"*role:master*\"
            > SET k v                             < OK
        ",
        );
    }

    /// It is for its primary to evict a replica's keys.
    #[test]
    fn replicas_ignore_maxmemory() {
        check(
            "
            > SET k v                             < OK
            > CONFIG SET maxmemory 1              < OK
            > SET k w                             < -OOM *
            > REPLICAOF 127.0.0.1 1               < OK
            > MULTI                               < OK
            > GET k                               < QUEUED
            > EXEC                                < [\"v\"]
            > CONFIG SET replica-read-only no     < OK
            > SET k w                             < OK
            > CONFIG SET replica-ignore-maxmemory no < OK
            > SET k v                             < -OOM *
            > REPLICAOF NO ONE                    < OK
            > SET k v                             < -OOM *
            > CONFIG SET maxmemory 0              < OK
        ",
        );
    }

    #[test]
    fn scripts_on_a_replica() {
        check(
            "
            > SET x 1                             < OK
            > REPLICAOF 127.0.0.1 1               < OK
            > EVAL \"return redis.call('get', 'x')\" 1 x < \"1\"
            > EVAL \"return redis.call('set', 'x', 2)\" 1 x
            < -READONLY You can't write against a read only replica.*
            > EVAL \"#!lua\\nreturn 1\" 0          < -READONLY You can't write against a read only replica.
            > EVAL \"#!lua flags=no-writes\\nreturn redis.call('get', 'x')\" 1 x < \"1\"
            > EVAL \"#!lua flags=allow-stale\\nreturn 1\" 0
            < -READONLY You can't write against a read only replica.
            > FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() return 1 end)\"
            < -READONLY You can't write against a read only replica.
            > MULTI                               < OK
            > EVAL \"#!lua\\nreturn 1\" 0          < -READONLY You can't write against a read only replica.
            > EVAL_RO \"#!lua\\nreturn 1\" 0       < -READONLY You can't write against a read only replica.
            > GET x                               < QUEUED
            > EXEC
            < -EXECABORT Transaction discarded because of previous errors.
            > MULTI                               < OK
            > EVAL \"#!lua flags=no-writes\\nreturn 1\" 0 < QUEUED
            > EVAL \"return redis.call('set', 'x', 2)\" 1 x < QUEUED
            > EVALSHA 0123456789012345678901234567890123456789 0 < QUEUED
            > EXEC
            < [:1, -READONLY You can't write against a read only replica.*, -NOSCRIPT *]
            > REPLICAOF NO ONE                    < OK
            > MULTI                               < OK
            > EVAL \"#!lua\\nreturn 1\" 0          < QUEUED
            b> REPLICAOF 127.0.0.1 1              < OK
            > EXEC                                < -EXECABORT Transaction discarded because of: READONLY *
            > CONFIG SET replica-serve-stale-data no < OK
            > MULTI                               < OK
            > EVAL \"#!lua flags=no-writes\\nreturn 1\" 0 < -MASTERDOWN *
            > EVAL \"#!lua flags=allow-stale,no-writes\\nreturn 1\" 0 < QUEUED
            > DISCARD                             < OK
            > EVAL \"return 1\" 0
            < -MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.
            > EVAL \"#!lua flags=no-writes\\nreturn 1\" 0
            < -MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.
            > EVAL \"#!lua flags=allow-stale,no-writes\\nreturn 1\" 0 < :1
            > EVAL \"#!lua flags=allow-stale,no-writes\\nreturn redis.call('echo', 'a')\" 0 < \"a\"
            > EVAL \"#!lua flags=allow-stale,no-writes\\nreturn redis.call('get', 'x')\" 1 x
            < -ERR Can not execute the command on a stale replica*
            > EVAL \"#!lua flags=allow-stale\\nreturn 1\" 0
            < -READONLY You can't write against a read only replica.
            > CONFIG SET replica-read-only no     < OK
            > EVAL \"#!lua flags=allow-stale\\nreturn 1\" 0 < :1
            > EVAL \"#!lua flags=allow-stale\\nreturn redis.call('set', 'x', 2)\" 1 x
            < -ERR Can not execute the command on a stale replica*
            > CONFIG SET replica-serve-stale-data yes < OK
            > EVAL \"#!lua\\nreturn redis.call('set', 'x', 2)\" 1 x < OK
            > CONFIG SET replica-read-only yes    < OK
            > REPLICAOF NO ONE                    < OK
        ",
        );
    }
}
