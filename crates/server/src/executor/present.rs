//! The time under which a command runs.

use evenkeel_config::Settings;
use evenkeel_runtime::clock::{self, Ticks};
use evenkeel_store::ThreadContext;

use crate::server::Server;

/// Advances the time of a context by the whole milliseconds since `present`, and updates whether a pause
/// holds. A thread that replays has no time.
#[cold]
pub(super) fn keep_time(
    ctx: &mut ThreadContext,
    (server, settings): (&Server, &Settings),
    present: &mut Ticks,
    now: Ticks,
) {
    let ms = now.saturating_sub(*present) / (1000 * clock::ticks_per_us());
    *present += ms * 1000 * clock::ticks_per_us();
    if ctx.now_ms > 0 {
        ctx.now_ms += ms;
    }
    ctx.keep_expired = keeps_expired(server, settings, ctx.now_ms);
}

/// [`keep_time`] after a transaction or a script that took long: a key that it has written may have expired
/// by now, and then serves no waiter.
#[cold]
pub(super) fn keep_time_to_serve(ctx: &mut ThreadContext, owners: (&Server, &Settings), present: &mut Ticks) {
    const LONG_US: u64 = 50_000;
    let now = clock::ticks();
    if now.saturating_sub(*present) >= LONG_US * clock::ticks_per_us() {
        keep_time(ctx, owners, present, now);
    }
}

/// Whether expired keys are hidden instead of removed: in a pause, and while data are imported, since the
/// source of the import removes them.
pub(crate) fn keeps_expired(server: &Server, settings: &Settings, now_ms: u64) -> bool {
    server.core.pause.is_active(now_ms) || settings.import_mode && !server.replication.is_replica()
}
