//! A call: a command being run, with all that its handler may use.

pub mod effect;
pub mod events;
pub mod flow;
pub mod offloading;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use evenkeel_store::{Key, SlotGuard};

use crate::events::announced;
use crate::flow::{Done, Mode};
use crate::reply::Reply;
use crate::{Args, Flags, Id, Spec};
use evenkeel_config::Settings;
use evenkeel_runtime::clock;

/// Bytes of a string that are accepted from a journal, whatever `proto-max-bulk-len` is: 4 GiB. A longer
/// string means a broken file.
const LOGGED_LEN_MAX: usize = 4 << 30;

/// The questions of commands on data about the client and the server that they run for.
pub trait CallHost {
    /// The client's number, for listeners that skip the client's own changes.
    fn client_id(&self) -> u64;

    /// Whether the client receives messages of channels in the same connection.
    fn is_subscriber(&self) -> bool;

    /// Whether the client is notified of changes to keys that it has read (CLIENT TRACKING).
    fn is_tracking(&self) -> bool;

    /// Whether another thread may take work of this command.
    fn may_offload(&self) -> bool;

    /// The same for work that waits for another server or for the disk.
    fn may_offload_io(&self) -> bool;

    /// Whether the client's permissions for this call include reading any key.
    fn may_read_all_keys(&self, id: Id, args: &Args<'_>) -> bool;

    /// Checks again whether the command may run after the thread has left the gate in order to hold all
    /// slots. Returns a flow other than [`Flow::Replied`] if the command must not go on.
    ///
    /// # Errors
    /// The refusal.
    fn look_again(&self, spec: &Spec, args: &Args<'_>, now_ms: u64) -> Done;

    /// Serves the clients that wait for keys written under this guard, before it is unlocked. For a handler
    /// that locks by itself.
    fn serve(&self, guard: SlotGuard<'_>);
}

/// See the module's text. The fields are separate, so that a value borrowed from `guard` can be written to
/// `reply`.
pub struct Call<'a, 'h> {
    pub id: Id,
    pub spec: &'static Spec,
    pub args: Args<'a>,
    /// The keys that the row declares, in order.
    pub keys: &'a [Key<'a>],
    /// Holds the row's lock scope: the keys' slots, no slot, or all slots.
    pub guard: &'a mut SlotGuard<'h>,
    pub reply: &'a mut Reply,
    /// The selected database.
    pub db: u32,
    /// The command comes from a journal or a primary: it was executed before, and must be executed.
    pub replays: bool,
    pub settings: &'a Arc<Settings>,
    pub mode: Mode,
    pub host: &'a dyn CallHost,
}

/// A [`Call`], or a value of a layer above around one.
pub trait HasCall<'a, 'h> {
    fn call(&mut self) -> &mut Call<'a, 'h>;
}

impl<'a, 'h> HasCall<'a, 'h> for Call<'a, 'h> {
    #[inline]
    fn call(&mut self) -> &mut Call<'a, 'h> {
        self
    }
}

/// Runs `f`, which does the command's work. If that changed anything, and `f` logged nothing itself
/// ([`Call::log`]), the command is logged as it came.
///
/// A handler that panics may have changed something, and its own journal entries are missing. Then the
/// journal gets the current state of the declared keys, so that it leads to the state that clients see
/// from now on. For a command without declared keys (FLUSHALL), only its earlier entries are logged.
#[inline]
pub fn logged<'a, 'h: 'a, C: HasCall<'a, 'h>>(call: &mut C, f: impl FnOnce(&mut C) -> Done) -> Done {
    if call.call().guard.is_listened_to() {
        return announced(call, |call| logged_only(call, f));
    }
    logged_only(call, f)
}

#[inline]
fn logged_only<'a, 'h: 'a, C: HasCall<'a, 'h>>(call: &mut C, f: impl FnOnce(&mut C) -> Done) -> Done {
    let base = call.call();
    if !base.guard.is_logged() || !base.spec.flags.has(Flags::WRITE) {
        return f(call);
    }
    let before = (base.guard.changes(), base.guard.log_overrides());
    let done = catch_unwind(AssertUnwindSafe(|| f(call))).unwrap_or_else(|panic| {
        call.call().log_wreck();
        resume_unwind(panic)
    });
    let base = call.call();
    if base.guard.changes() != before.0 && base.guard.log_overrides() == before.1 {
        base.log_as_it_came();
    }
    done
}

impl Call<'_, '_> {
    /// Whether a handler must log its effect itself if the call as it came would not repeat that effect at
    /// another time or place: if it has times relative to the present, or uses chance.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.guard.is_logged()
    }

    /// Logs a command with the same effect as this call, in its database. Several commands make a single
    /// transaction.
    pub fn log(&mut self, args: &[&[u8]]) {
        self.guard.log(self.db, args.iter().copied());
    }

    /// Whether the command comes from a journal. Its reader's clock stands at zero, so that nothing expires
    /// meanwhile. Then a time that was the present for the writer must not count as the future.
    pub fn is_replay(&self) -> bool {
        self.now_ms() == 0
    }

    /// Maximum bytes of a string. A journal's commands were admitted where `proto-max-bulk-len` may have been
    /// larger.
    pub fn string_len_max(&self) -> usize {
        let own = self.settings.proto_max_bulk_len;
        if self.is_replay() { own.max(LOGGED_LEN_MAX) } else { own }
    }

    /// Returns `client-output-buffer-limit` in bytes. A longer reply closes its connection without being
    /// sent, so the rest need not be written ([`Reply::cut_beyond`]). Returns the largest possible length
    /// without such a limit, or if the reply does not go to a client as it is.
    pub fn reply_len_max(&self) -> usize {
        if self.mode == Mode::Script || self.replays {
            return usize::MAX;
        }
        let is_subscriber = self.host.is_subscriber();
        match self.settings.client_output_buffer_limit.of_client(is_subscriber).hard_bytes {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// The current time of this command, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.guard.ctx.now_ms
    }

    /// Returns whether a given deadline has passed, so that the key or field is removed at once. During an
    /// import the source removes it, and a replay has a command for its removal.
    pub fn passes(&self) -> impl Fn(u64) -> bool + Copy + use<> {
        let (now, keeps) = (self.now_ms(), self.settings.import_mode || self.replays);
        move |deadline| deadline <= now && !keeps
    }

    /// Returns the origin of relative times. A replay has no clock and gets absolute times. But a primary
    /// older than Redis 7 sends relative times, which then count from their arrival. The time at which a
    /// stream's consumer was last seen, which journals omit, also counts from arrival.
    pub fn counts_from_ms(&self) -> u64 {
        match self.now_ms() {
            0 => clock::unix_ms(),
            now => now,
        }
    }

    /// The row's name in lower case, for error texts.
    pub fn name(&self) -> &'static str {
        self.spec.name
    }
}
