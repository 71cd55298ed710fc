//! MONITOR: see [`evenkeel_client::monitor`].

use super::{Command, Flags, Group, ServerCall, ServerHandler, exactly, session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::Mode;
use evenkeel_command::flow::{Done, Flow};

pub(crate) const COMMANDS: &[Command<ServerHandler>] =
    &[session("MONITOR", exactly(1), Group::Server, monitor).flag(Flags::ADMIN)];

/// MONITOR
fn monitor(call: &mut ServerCall<'_, '_>) -> Done {
    if matches!(call.base.mode, Mode::Nested) {
        return Err(Error::text("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    if call.session.monitors {
        return Ok(Flow::Replied); // replied once
    }
    call.session.monitors = true;
    call.session.receives_push = true;
    call.server.hub.monitors.add(&call.session.client);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::Client;

    use crate::testing::live::Live;
    use crate::testing::{World, check};

    #[test]
    fn commands_are_shown_when_they_have_been_run() {
        check(
            r#"
            m> MONITOR < OK
            > SET k "a \"b\"\r\n\x00\a"       < OK
            > GET                             < -ERR wrong number of arguments for 'get' command
            > NOSUCH                          < -ERR *
            > LPUSH k x                       < -WRONGTYPE *
            > SELECT 2                        < OK
            > MULTI                           < OK
            > GET k                           < QUEUED
            > EXEC                            < [(nil)]
            > CONFIG GET port                 < [*]
            > AUTH secret                     < -ERR *
            > HELLO 2 AUTH x secret           < -WRONGPASS *
            m< *[0 *SET*k*a *b*r*n*x00*a*
            m< *[0 *LPUSH*k*x*
            m< *[2 *SELECT*2*
            m< *[2 *MULTI*
            m< *[2 *GET*k*
            m< *[2 *EXEC*
            m< *[2 *AUTH*(redacted)*
            m< *[2 *HELLO*2*AUTH*(redacted)*(redacted)*
        "#,
        );
    }

    #[test]
    fn monitoring_clients_may_not_use_the_keyspace() {
        check(
            r#"
            > MULTI                           < OK
            > MONITOR                         < QUEUED
            > EXEC                            < [-ERR MONITOR isn't allowed for DENY BLOCKING client]
            > MONITOR                         < OK
            > GET k                           < -ERR Replica can't interact with the keyspace
            > PUBLISH x y                     < -ERR Replica can't interact with the keyspace
            > PING                            < PONG
            < *PING*
            other> CLIENT LIST < "*flags=O*"
            > RESET                           < RESET
            > GET k                           < (nil)
            > PING                            < PONG
        "#,
        );
    }

    #[test]
    fn disconnected_monitors_are_removed() {
        let mut world = World::new();
        world.check("m> MONITOR < OK");
        assert!(world.server.hub.monitors.is_any());
        world.hang_up("m");
        assert!(!world.server.hub.monitors.is_any());
    }

    #[test]
    fn calls_of_scripts_are_shown_after_the_script() {
        check(
            r##"
            m> MONITOR < OK
            > EVAL "return redis.call('SeT', KEYS[1], 1.5)" 1 k                        < OK
            m< *[0 *EVAL*SeT*
            m< *[0 lua] *SeT*k*1.5*
            # What fails is shown, what is refused is not.
            > EVAL "redis.pcall('lpush', KEYS[1], 'x') return redis.call('get', KEYS[1])" 1 k < "1.5"
            m< *[0 *EVAL*
            m< *[0 lua] *lpush*k*x*
            m< *[0 lua] *get*k*
            > EVAL "return redis.pcall('get')" 0                                      < -ERR Wrong number *
            > EVAL "return redis.pcall('nosuch', 'k')" 0                              < -ERR Unknown *
            > EVAL "return redis.pcall('config', 'get', 'port')" 0                    < -ERR * not allowed *
            > EVAL_RO "return redis.pcall('set', KEYS[1], 'x')" 1 k                   < -ERR Write commands *
            m< *[0 *EVAL*
            m< *[0 *EVAL*
            m< *[0 *EVAL*
            m< *[0 *EVAL_RO*
            # What operators do is not shown.
            > EVAL "return redis.pcall('slowlog', 'reset')" 0                         < OK
            m< *[0 *EVAL*
            > EVALSHA 0123456789012345678901234567890123456789 0                      < -NOSCRIPT *
            m< *[0 *EVALSHA*
            # The database of the call.
            > EVAL "redis.call('select', 3) return redis.call('get', 'k')" 0          < (nil)
            m< *[0 *EVAL*
            m< *[3 lua] *select*3*
            m< *[3 lua] *get*k*
            > MULTI                                                                   < OK
            > SET a 1                                                                 < QUEUED
            > EVAL "return redis.call('incr', KEYS[1])" 1 a                           < QUEUED
            > GET a                                                                   < QUEUED
            > EXEC                                                                    < [OK, :2, "2"]
            m< *[0 *MULTI*
            m< *[0 *SET*
            m< *[0 *EVAL*
            m< *[0 lua] *incr*a*
            m< *[0 *GET*
            m< *[0 *EXEC*
            > FUNCTION LOAD "#!lua name=l\nredis.register_function('f', function(k, \
                a) return redis.call('set', k[1], a[1]) end)"
            < "l"
            > FCALL f 1 kk vv                                                         < OK
            > FCALL nosuch 0
            < -ERR Function not found
            m< *FUNCTION*LOAD*
            m< *[0 *FCALL*
            m< *[0 lua] *set*kk*vv*
            m< *[0 *FCALL*nosuch*
            > PING < PONG
            m< *PING*
        "##,
        );
    }

    /// Returns the lines shown until a client sends PING, without the time.
    fn shown(watcher: &mut Client) -> Vec<String> {
        let line = || {
            let line = watcher.read().to_string().replace('\\', "");
            line.split_once(' ').expect("a time before it").1.to_owned()
        };
        std::iter::repeat_with(line).take_while(|line| !line.contains("\"PING\"")).collect()
    }

    #[test]
    fn undone_script_runs_are_not_shown() {
        let live = Live::start(2, &[]);
        let (mut watcher, mut client) = (live.connect(), live.connect());
        assert_eq!(watcher.run("MONITOR").to_string(), "OK");
        // The first script uses a key that it does not declare, the second takes long.
        let outside = "redis.call('set', KEYS[1], 'v') return redis.call('get', 'other')";
        let slow =
            "redis.call('set', KEYS[1], 'w') for i = 1, 3000000 do end return redis.call('get', KEYS[1])";
        for (script, value, last) in [(outside, "v", "other"), (slow, "w", "k")] {
            for round in 1..=2 {
                client.call(&["EVAL", script, "1", "k"]);
                client.run("PING");
                let [run, set, get] = &shown(&mut watcher)[..] else { panic!("not three lines") };
                assert!(run.contains("\"EVAL\""), "round {round}: {run}");
                assert_eq!(*set, format!("[0 lua] \"set\" \"k\" \"{value}\""), "round {round}");
                assert_eq!(*get, format!("[0 lua] \"get\" \"{last}\""), "round {round}");
            }
        }
        live.stop();
    }

    #[test]
    fn monitor_lines_are_batched_without_loss() {
        let live = Live::start(1, &[]);
        let (mut watcher, mut client) = (live.connect(), live.connect());
        assert_eq!(watcher.run("MONITOR").to_string(), "OK");
        let script = "for i = 1, 100 do redis.call('echo', string.rep('x', 60000)) end";
        client.send(&["EVAL", script, "1", "k"]).expect("sent");
        client.send(&["PING"]).expect("sent");
        let lines = shown(&mut watcher);
        assert_eq!(lines.iter().filter(|line| line.starts_with("[0 lua] \"echo\" \"xxx")).count(), 100);
        assert_eq!(lines.len(), 101);
        // A client that no longer watches is sent nothing, and nothing is kept for it.
        drop(watcher);
        live.wait_until("it is forgotten", || !live.server.hub.monitors.is_any());
        client.read();
        client.read();
        client.call(&["EVAL", script, "1", "k"]);
        live.stop();
    }
}
