//! Replies to commands that revoke something: CLIENT KILL, ACL SETUSER, DELUSER and LOAD, CONFIG SET.
//!
//! A worker admits a command and runs it inside the gate, a batch at a time, and may wait for a slot's lock
//! in between. So when another worker revokes the permission, the command may already be past the check. The
//! revoking command therefore replies when every thread that was inside the gate has left it once
//! ([`evenkeel_store::InFlight`]): a command that runs after the reply was admitted after the change. Closing
//! the gate would do that too, but would keep all clients waiting for the longest command; this way, only the
//! revoking client waits.

use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use evenkeel_store::InFlight;

use super::ServerCall;
use crate::server::Server;
use evenkeel_command::flow::Mode;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::reply::Reply;

/// How long a worker waits in place: four times as long as a batch takes without a long command.
const IN_PLACE: Duration = Duration::from_millis(2);

/// Poll interval for the departure of the other threads from the gate.
const GATE_POLL_INTERVAL: Duration = Duration::from_micros(20);

impl ServerCall<'_, '_> {
    /// Replies once no command runs that was admitted before this call. The caller has made its change.
    pub(crate) fn reply_in_force(&mut self, reply: impl FnOnce(&mut Reply) + Send + 'static) -> Done {
        let alone = self.guard.holds_all() || !self.guard.ctx.is_inside() || self.mode != Mode::Direct;
        if alone {
            reply(self.reply);
            return Ok(Flow::Replied);
        }
        let server = self.server.clone();
        let in_flight = server.core.keyspace.in_flight();
        let until = Instant::now() + IN_PLACE;
        // The thread waits outside the gate: inside, two workers that revoke at the same time would wait for
        // each other.
        if self.guard.outside_gate(|| await_landing(&server, &in_flight, || Instant::now() < until)) {
            reply(self.reply);
            return Ok(Flow::Replied);
        }
        self.offload_read(move |to| {
            await_landing(&server, &in_flight, || !server.core.stopping.load(Acquire));
            reply(to);
            Ok(())
        })
    }
}

/// Waits until the threads have left the gate; false if `keeps_waiting` ends the wait first.
fn await_landing(server: &Server, in_flight: &InFlight, keeps_waiting: impl Fn() -> bool) -> bool {
    while !server.core.keyspace.has_landed(in_flight) {
        if !keeps_waiting() {
            return false;
        }
        std::thread::sleep(GATE_POLL_INTERVAL);
    }
    true
}
