//! A call: a command being run, with all that its handler may use.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use evenkeel_store::{Key, SlotGuard};

use super::{Args, Command, Flags, Id};
use crate::blocking::Mode;
use crate::error::Done;
use crate::reply::Reply;
use crate::server::Server;
use crate::session::Session;
use evenkeel_config::Settings;
use evenkeel_runtime::clock;

/// Bytes of a string that are accepted from a journal, whatever `proto-max-bulk-len` is: 4 GiB. A longer
/// string means a broken file.
const LOGGED_LEN_MAX: usize = 4 << 30;

/// See the module's text. The fields are separate, so that a value borrowed from `guard` can be written to
/// `reply`.
pub(crate) struct Call<'a, 'h> {
    pub(crate) id: Id,
    pub(crate) args: Args<'a>,
    /// The keys that the row declares, in order.
    pub(crate) keys: &'a [Key<'a>],
    /// Holds the row's lock scope: the keys' slots, no slot, or all slots.
    pub(crate) guard: &'a mut SlotGuard<'h>,
    pub(crate) reply: &'a mut Reply,
    pub(crate) session: &'a mut Session,
    pub(crate) server: &'a Arc<Server>,
    pub(crate) settings: &'a Arc<Settings>,
    /// The worker that runs this.
    pub(crate) worker: usize,
    pub(crate) mode: Mode,
}

impl Call<'_, '_> {
    /// Runs the row's handler.
    #[inline]
    pub(crate) fn run(&mut self, row: &Command) -> Done {
        if self.session.tracks {
            self.remember_keys(row);
        }
        self.logged(row, |call| (row.handler)(call))
    }

    /// Runs `f`, which does this command's work. If that changed anything, and `f` logged nothing itself
    /// ([`Call::log`]), the command is logged as it came.
    ///
    /// A handler that panics may have changed something, and its own journal entries are missing. Then the
    /// journal gets the current state of the declared keys, so that it leads to the state that clients see
    /// from now on. For a command without declared keys (FLUSHALL), only its earlier entries are logged.
    #[inline]
    pub(crate) fn logged(&mut self, row: &Command, f: impl FnOnce(&mut Self) -> Done) -> Done {
        if self.guard.is_listened_to() {
            return self.announced(row, |call| call.logged_only(row, f));
        }
        self.logged_only(row, f)
    }

    #[inline]
    fn logged_only(&mut self, row: &Command, f: impl FnOnce(&mut Self) -> Done) -> Done {
        if !self.guard.is_logged() || !row.flags.has(Flags::WRITE) {
            return f(self);
        }
        let before = (self.guard.changes(), self.guard.log_overrides());
        let done = catch_unwind(AssertUnwindSafe(|| f(self))).unwrap_or_else(|panic| {
            self.log_wreck();
            resume_unwind(panic)
        });
        if self.guard.changes() != before.0 && self.guard.log_overrides() == before.1 {
            self.log_as_it_came(row);
        }
        done
    }

    /// Whether a handler must log its effect itself if the call as it came would not repeat that effect at
    /// another time or place: if it has times relative to the present, or uses chance.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.guard.is_logged()
    }

    /// Logs a command with the same effect as this call, in its database. Several commands make a single
    /// transaction.
    pub(crate) fn log(&mut self, args: &[&[u8]]) {
        self.guard.log(self.session.db, args.iter().copied());
    }

    /// Whether the command comes from a journal. Its reader's clock stands at zero, so that nothing expires
    /// meanwhile. Then a time that was the present for the writer must not count as the future.
    pub(crate) fn is_replay(&self) -> bool {
        self.now_ms() == 0
    }

    /// Maximum bytes of a string. A journal's commands were admitted where `proto-max-bulk-len` may have been
    /// larger.
    pub(crate) fn string_len_max(&self) -> usize {
        let own = self.settings.proto_max_bulk_len;
        if self.is_replay() { own.max(LOGGED_LEN_MAX) } else { own }
    }

    /// Returns `client-output-buffer-limit` in bytes. A longer reply closes its connection without being
    /// sent, so the rest need not be written ([`Reply::cut_beyond`]). Returns the largest possible length
    /// without such a limit, or if the reply does not go to a client as it is.
    pub(crate) fn reply_len_max(&self) -> usize {
        if self.mode == Mode::Script || self.session.replays {
            return usize::MAX;
        }
        let is_subscriber = self.session.subscriptions.is_some();
        match self.settings.client_output_buffer_limit.of_client(is_subscriber).hard_bytes {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// The current time of this command, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.guard.ctx.now_ms
    }

    /// Returns the origin of relative times. A replay has no clock and gets absolute times. But a primary
    /// older than Redis 7 sends relative times, which then count from their arrival. The time at which a
    /// stream's consumer was last seen, which journals omit, also counts from arrival.
    pub(crate) fn counts_from_ms(&self) -> u64 {
        match self.now_ms() {
            0 => clock::unix_ms(),
            now => now,
        }
    }

    /// The row's name in lower case, for error texts.
    pub(crate) fn name(&self) -> &'static str {
        super::table::table().row(self.id).name
    }
}
