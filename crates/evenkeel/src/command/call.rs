//! A call: one command being run, with all that its handler may use.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use evenkeel_store::{Key, SlotGuard};

use super::{Args, Command, Flags, Id};
use crate::blocking::Mode;
use crate::config::Settings;
use crate::error::Done;
use crate::reply::Reply;
use crate::server::Server;
use crate::session::Session;
use evenkeel_runtime::clock;

/// Bytes of a string that are believed of a log, whatever `proto-max-bulk-len` says: 4 GiB. Beyond it is a broken file.
const LOGGED_LEN_MAX: usize = 4 << 30;

/// See the module's text. The fields are separate, so that a value borrowed from `guard` can be written to `reply`.
pub(crate) struct Call<'a, 'h> {
    pub(crate) id: Id,
    pub(crate) args: Args<'a>,
    /// The keys that the row declares, in order.
    pub(crate) keys: &'a [Key<'a>],
    /// What the row's reach says: the keys' slots, nothing, or everything.
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

    /// Does what this command does. If that has changed anything, and `f` has not said what to log ([`Call::log`]), the
    /// command is logged as it came.
    ///
    /// A handler that panics may have changed something, and nobody can tell what it would have logged. Then the log gets the
    /// present state of the declared keys, so that it leads to what clients see from now on. Of a command without declared
    /// keys (FLUSHALL) nothing is logged but what it has said before.
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

    /// Whether a handler has to say what to log, because the call as it came would not have the same effect at another time
    /// or place: it names times relative to the present, or leaves something to chance.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.guard.is_logged()
    }

    /// Logs a command that has the effect which this call has had, in its database. Several make one transaction.
    pub(crate) fn log(&mut self, args: &[&[u8]]) {
        self.guard.log(self.session.db, args.iter().copied());
    }

    /// Whether the command comes from a log, whose reader's clock stands at zero so that nothing expires meanwhile. What
    /// others took for the present must not be taken for the future then.
    pub(crate) fn is_replay(&self) -> bool {
        self.now_ms() == 0
    }

    /// Bytes that a string may have. What a log tells was admitted where `proto-max-bulk-len` may have been larger.
    pub(crate) fn string_len_max(&self) -> usize {
        let own = self.settings.proto_max_bulk_len;
        if self.is_replay() { own.max(LOGGED_LEN_MAX) } else { own }
    }

    /// Bytes of the reply beyond which its connection is closed with nothing of it sent, so that the rest need not be
    /// written ([`Reply::cut_beyond`]): `client-output-buffer-limit`. The longest there can be where there is no such limit,
    /// or where the reply does not go to a client as it is.
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

    /// The time by which this command goes, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.guard.ctx.now_ms
    }

    /// What a relative time counts from. Whoever replays has no clock, and is sent absolute times; but a primary older than
    /// Redis 7 passes relative ones on, which then count from their arrival. So does when a consumer of a stream was last
    /// seen, of which a log says nothing.
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
