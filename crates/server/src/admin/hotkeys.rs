//! HOTKEYS.

use super::{Args, Command, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session};
use crate::observe::hotkeys::{Metric, Wanted};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_runtime::clock;

const GROUP: Group = Group::Server;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("HOTKEYS", GROUP, &[
        session("HOTKEYS|GET",   exactly(2),  GROUP, get  ).admin(),
        session("HOTKEYS|HELP",  exactly(2),  GROUP, help ),
        session("HOTKEYS|RESET", exactly(2),  GROUP, reset).admin(),
        session("HOTKEYS|START", at_least(2), GROUP, start).admin(),
        session("HOTKEYS|STOP",  exactly(2),  GROUP, stop ).admin(),
    ]),
];

/// HOTKEYS HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "HOTKEYS");
    Ok(Flow::Replied)
}

/// HOTKEYS START METRICS count [CPU] [NET] [REQUESTS] [COUNT k] [DURATION seconds] [SAMPLE ratio]
fn start(call: &mut ServerCall<'_, '_>) -> Done {
    let wanted = wanted(&call.base.args)?;
    if !call.server.hotkeys.start(call.server, wanted, clock::unix_ms()) {
        return Err(Error::text("ERR hotkey tracking session already in progress"));
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

fn wanted(args: &Args<'_>) -> Result<Wanted, Error> {
    const USUAL_KEYS: usize = 10;
    if !args.is(2, "METRICS") || args.len() < 4 {
        return Err(Error::text("ERR METRICS parameter is required"));
    }
    let count = args.int(3).ok().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    let count = count.ok_or(Error::text("ERR METRICS count must be positive"))?;
    let mut wanted =
        Wanted { metrics: metrics(args, count)?, keys: USUAL_KEYS, duration_ms: None, ratio: None };
    let mut at = 4 + count;
    while at < args.len() {
        let word = args.word(at);
        let number = (at + 1 < args.len()).then(|| args.int(at + 1).ok());
        match (word.as_bytes(), number) {
            (b"SLOTS", _) => {
                return Err(Error::text("ERR SLOTS parameter cannot be used in non-cluster mode"));
            }
            (b"COUNT", Some(number)) => {
                let keys = number.filter(|keys| (1..=64).contains(keys));
                wanted.keys = keys.ok_or(Error::text("ERR COUNT must be between 1 and 64"))? as usize;
            }
            (b"DURATION", Some(number)) => {
                let seconds = number.filter(|seconds| (1..=1_000_000).contains(seconds));
                let seconds =
                    seconds.ok_or(Error::text("ERR DURATION must be between 1 and 1000000 seconds"))?;
                wanted.duration_ms = Some(seconds as u64 * 1000);
            }
            (b"SAMPLE", Some(number)) => {
                let ratio = number.filter(|ratio| *ratio > 0);
                let ratio = ratio.ok_or(Error::text("ERR SAMPLE ratio must be positive"))?;
                let ratio = u32::try_from(ratio).ok().filter(|ratio| *ratio <= 1_000_000);
                wanted.ratio = Some(ratio.ok_or(Error::text("ERR SAMPLE ratio must be at most 1000000"))?);
            }
            _ => return Err(Error::Syntax),
        }
        at += 2;
    }
    Ok(wanted)
}

/// Parses the `count` words behind the count. Unknown words may have a meaning for other servers, and are
/// skipped.
fn metrics(args: &Args<'_>, count: usize) -> Result<Vec<Metric>, Error> {
    if count > args.len() - 4 {
        return Err(Error::text("ERR METRICS count does not match number of metric types provided"));
    }
    let mut metrics = Vec::new();
    for at in 4..4 + count {
        let Some(metric) = Metric::ALL.into_iter().find(|metric| args.is(at, metric.word())) else {
            continue;
        };
        if metrics.contains(&metric) {
            return Err(Error::text(format!("ERR METRICS {} defined more than once", metric.word())));
        }
        metrics.push(metric);
    }
    if metrics.is_empty() {
        return Err(Error::text("ERR METRICS no valid metrics passed"));
    }
    Ok(metrics)
}

/// HOTKEYS STOP
fn stop(call: &mut ServerCall<'_, '_>) -> Done {
    if !call.server.hotkeys.stop(call.server, clock::unix_ms()) {
        return Err(Error::text("ERR no hotkey tracking session in progress"));
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// HOTKEYS RESET
fn reset(call: &mut ServerCall<'_, '_>) -> Done {
    if !call.server.hotkeys.reset() {
        return Err(Error::text("ERR hotkey tracking session in progress, stop tracking first"));
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// HOTKEYS GET: an array with a single map.
fn get(call: &mut ServerCall<'_, '_>) -> Done {
    let Some(report) = call.server.hotkeys.report(call.server, clock::unix_ms()) else {
        call.base.reply.null();
        return Ok(Flow::Replied);
    };
    let has = |metric| usize::from(report.wanted.metrics.contains(&metric));
    let reply = &mut *call.base.reply;
    let number = |reply: &mut evenkeel_command::reply::Reply, name: &str, number: u64| {
        reply.bulk(name.as_bytes());
        reply.int(number as i64);
    };
    reply.array(1);
    reply.map(7 + 2 * has(Metric::Cpu) + has(Metric::Net) + report.hottest.len());
    number(reply, "tracking-active", report.is_on.into());
    number(reply, "sample-ratio", report.wanted.ratio.unwrap_or(1).into());
    reply.bulk(b"selected-slots");
    reply.array(0);
    number(reply, "all-commands-all-slots-us", report.commands_us);
    number(reply, "net-bytes-all-commands-all-slots", report.net_bytes);
    number(reply, "collection-start-time-unix-ms", report.started_ms);
    number(reply, "collection-duration-ms", report.elapsed_ms);
    if has(Metric::Cpu) > 0 {
        number(reply, "total-cpu-time-user-ms", report.cpu.user.as_millis() as u64);
        number(reply, "total-cpu-time-sys-ms", report.cpu.system.as_millis() as u64);
    }
    if has(Metric::Net) > 0 {
        number(reply, "total-net-bytes", report.net_bytes);
    }
    for (metric, keys) in report.hottest {
        reply.bulk(metric.field().as_bytes());
        reply.array(2 * keys.len());
        for (key, weight) in keys {
            reply.bulk(&key);
            reply.int(weight as i64);
        }
    }
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use crate::testing::World;

    #[test]
    fn arguments_of_hotkeys_are_checked() {
        World::new().check(
            "
            > HOTKEYS START                              < -ERR METRICS parameter is required
            > HOTKEYS START METRICS                      < -ERR METRICS parameter is required
            > HOTKEYS START METRICS 0                    < -ERR METRICS count must be positive
            > HOTKEYS START METRICS -1 CPU               < -ERR METRICS count must be positive
            > HOTKEYS START METRICS x CPU                < -ERR METRICS count must be positive
            > HOTKEYS START METRICS 2 CPU
            < -ERR METRICS count does not match number of metric types provided
            > HOTKEYS START METRICS 9223372036854775807 CPU
            < -ERR METRICS count does not match number of metric types provided
            > HOTKEYS START METRICS 1 CPU NET            < -ERR syntax error
            > HOTKEYS START METRICS 1 GPU                < -ERR METRICS no valid metrics passed
            > HOTKEYS START METRICS 2 CPU cpu            < -ERR METRICS CPU defined more than once
            > HOTKEYS START METRICS 1 CPU COUNT          < -ERR syntax error
            > HOTKEYS START METRICS 1 CPU COUNT 0        < -ERR COUNT must be between 1 and 64
            > HOTKEYS START METRICS 1 CPU COUNT 65       < -ERR COUNT must be between 1 and 64
            > HOTKEYS START METRICS 1 CPU DURATION 0     < -ERR DURATION must be between 1 and 1000000 seconds
            > HOTKEYS START METRICS 1 CPU SAMPLE 0       < -ERR SAMPLE ratio must be positive
            > HOTKEYS START METRICS 1 CPU SAMPLE 1000001 < -ERR SAMPLE ratio must be at most 1000000
            > HOTKEYS START METRICS 1 CPU SLOTS 1 0
            < -ERR SLOTS parameter cannot be used in non-cluster mode
            > HOTKEYS GET                                < (nil)
            > HOTKEYS STOP                               < -ERR no hotkey tracking session in progress
            > HOTKEYS RESET                              < OK
            > HOTKEYS START METRICS 2 GPU CPU            < OK
            > HOTKEYS START METRICS 1 NET                < -ERR hotkey tracking session already in progress
            > HOTKEYS RESET
            < -ERR hotkey tracking session in progress, stop tracking first
            > HOTKEYS STOP                               < OK
            > HOTKEYS RESET                              < OK
            > HOTKEYS GET                                < (nil)
        ",
        );
    }

    #[test]
    fn hot_keys_are_counted_by_requests_and_bytes() {
        let server = "\"selected-slots\", [], \"all-commands-all-slots-us\", *, \
                      \"net-bytes-all-commands-all-slots\", *, \"collection-start-time-unix-ms\", *, \
                      \"collection-duration-ms\", *, \"total-net-bytes\", *";
        World::new().check(&format!(
            "
            > SET before v
            > HOTKEYS START METRICS 2 NET REQUESTS SAMPLE 1 COUNT 2
            > SET a v                                    < OK
            > GET a                                      < \"v\"
            > MGET a b                                   < [\"v\", (nil)]
            > MULTI
            > INCR n
            > INCR n
            > INCR n
            > EXEC                                       < [:1, :2, :3]
            > EVAL \"return redis.call('SET', KEYS[1], 'x')\" 1 s < OK
            > PING
            > HOTKEYS GET
            < [[\"tracking-active\", :1, \"sample-ratio\", :1, {server}, \"by-net-bytes\", [\"a\", :81, \
                \"s\", :78], \"by-requests\", [\"a\", :3, \"n\", :3]]]
            > HOTKEYS STOP                               < OK
            > SET a v
            > HOTKEYS GET
            < [[\"tracking-active\", :0, \"sample-ratio\", :1, {server}, \"by-net-bytes\", [\"a\", :81, \
                \"s\", :78], \"by-requests\", [\"a\", :3, \"n\", :3]]]
            > HOTKEYS START METRICS 1 CPU
            > HOTKEYS GET
            < [[\"tracking-active\", :1, \"sample-ratio\", :1, *, \"total-cpu-time-user-ms\", *, \
                \"total-cpu-time-sys-ms\", *, \"by-cpu-time-us\", []]]
        "
        ));
    }

    #[test]
    fn sessions_end_after_their_duration() {
        let mut world = World::new();
        world.check(
            "
            > HOTKEYS START METRICS 1 REQUESTS DURATION 1
            > SET k v
        ",
        );
        let server = world.server.clone();
        server.hotkeys.end_if_due(&server, evenkeel_runtime::clock::unix_ms() + 500);
        assert!(server.hotkeys.is_on());
        server.hotkeys.end_if_due(&server, evenkeel_runtime::clock::unix_ms() + 1000);
        assert!(!server.hotkeys.is_on());
        world.check("> HOTKEYS GET  < [[\"tracking-active\", :0, *, \"by-requests\", [\"k\", :1]]]");
    }
}
