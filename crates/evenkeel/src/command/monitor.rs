//! MONITOR: see [`crate::monitor`].

use super::{Call, Command, Flags, Group, exactly, session};
use crate::blocking::Mode;
use crate::error::{Done, Error};

pub(crate) const COMMANDS: &[Command] =
    &[session("MONITOR", exactly(1), Group::Server, monitor).flag(Flags::ADMIN)];

/// MONITOR
fn monitor(call: &mut Call<'_, '_>) -> Done {
    if matches!(call.mode, Mode::Nested) {
        return Err(Error::text("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    if call.session.monitors {
        return Ok(()); // said once
    }
    call.session.monitors = true;
    call.session.hears = true;
    call.server.monitors.add(&call.session.client);
    call.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
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
    fn who_watches_does_not_touch_data() {
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
    fn a_watcher_that_goes_is_forgotten() {
        let mut world = World::new();
        world.check("m> MONITOR < OK");
        assert!(world.server.monitors.is_any());
        world.hang_up("m");
        assert!(!world.server.monitors.is_any());
    }
}
