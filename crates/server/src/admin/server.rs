//! Commands about the whole server: INFO and TIME.

use super::{Command, Flags, Group, ServerCall, ServerHandler, at_least, exactly, session};
use crate::observe::info;
use evenkeel_command::flow::{Done, Flow, Mode};
use evenkeel_runtime::clock;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("INFO",     at_least(1), Group::Server, info     ).scriptable().flag(Flags::OPERATOR),
    session("TIME",     exactly(1),  Group::Server, time     ).fast().scriptable(),
];

/// INFO [section [section ...]]
fn info(call: &mut ServerCall<'_, '_>) -> Done {
    let wanted: Vec<Vec<u8>> = call.base.args.from(1).map(<[u8]>::to_ascii_lowercase).collect();
    let text = info::text(call.server, call.base.guard, &wanted);
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}

/// TIME
fn time(call: &mut ServerCall<'_, '_>) -> Done {
    let now = clock::unix_us();
    let us = match call.base.mode {
        // As in Valkey, the time moves on for a script that takes so long that other clients are notified.
        Mode::Script => {
            let busy_us = call.base.settings.busy_reply_threshold.saturating_mul(1000);
            let replied =
                call.base.guard.ctx.script_us.filter(|replied| now.saturating_sub(*replied) <= busy_us);
            *call.base.guard.ctx.script_us.insert(replied.unwrap_or(now))
        }
        _ => now,
    };
    call.base.reply.array(2);
    call.base.reply.bulk_int((us / 1_000_000) as i64);
    call.base.reply.bulk_int((us % 1_000_000) as i64);
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use crate::testing::{World, check};

    #[test]
    fn time_and_server_basics() {
        check(
            "
            > TIME                     < [\"*\", \"*\"]
            > TIME x                   < -ERR wrong number of arguments for 'time' command
            > EVAL \"local a, b = redis.call('time'), 0 for i = 1, 50000 do b = b + i end \
                return table.concat(a, '.') == table.concat(redis.call('time'), '.')\" 0   < :1
        ",
        );
    }

    #[test]
    fn info_sections_are_selected_by_name() {
        World::new().check(
            "
            > INFO cluster             < \"# Cluster\\r\\ncluster_enabled:0\\r\\n\"
            > INFO CLUSTER nosuch      < \"# Cluster\\r\\ncluster_enabled:0\\r\\n\"
            > INFO nosuch              < \"\"
            > INFO cpu modules         < \"# CPU\\r\\n*\\r\\n\\r\\n# Modules\\r\\n\"
            > SET k v EX 100
            > INFO keyspace            < \"# Keyspace\\r\\ndb0:keys=1,expires=1,avg_ttl=*\"
        ",
        );
    }

    /// Each field occurs once, and every field of a reference server for an existing feature is present.
    #[test]
    fn info_fields_are_complete_and_unique() {
        let mut world = World::new();
        let text = world.run("INFO everything");
        let fields: Vec<&str> =
            text.split("\\r\\n").filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
        for name in [
            "redis_version",
            "process_id",
            "connected_clients",
            "blocked_clients",
            "used_memory",
            "used_memory_peak",
            "mem_allocator",
            "rdb_changes_since_last_save",
            "expired_keys",
            "evicted_keys",
            "evicted_clients",
            "total_error_replies",
            "redis_build_id",
            "dump_payload_sanitizations",
            "master_repl_offset",
            "used_cpu_user_children",
            "stage_execute_usec",
            "worker0",
            "worker1",
            "used_cpu_user_main_thread",
            "used_cpu_sys_main_thread",
            "rss_overhead_ratio",
            "rss_overhead_bytes",
            "evicted_scripts",
            "reply_buffer_shrinks",
            "reply_buffer_expands",
            "gcc_version",
            "atomicvar_api",
        ] {
            assert_eq!(fields.iter().filter(|field| **field == name).count(), 1, "{name}: {text}");
        }
        let mut once = fields.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), fields.len());
    }
}
