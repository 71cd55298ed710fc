//! A running script: its rights, and the ways in which it ends.
//!
//! `redis.call` calls [`call`], from any depth of Lua. The thread's only run stands in a thread-local
//! variable while it lasts, since functions in Lua outlive the locks and the reply that a run has borrowed.
//!
//! A run ends early ([`Ended`]) when it must be run again in another way, or was killed. Nothing in the
//! script can prevent that: from then on every command and every instruction raises an error, and the
//! script's result is ignored. docs/scripting.md has the rule by which keys are locked, and why nothing is
//! lost.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::*;

use evenkeel_lua::call::{Arg, Called, Stack};
use evenkeel_resp::float;
use evenkeel_resp::request::Span;
use evenkeel_store::collection::ELEMENT_MAX;
use evenkeel_store::{Key, Undo};

use super::busy::Running;
use crate::host::ScriptCall;
use evenkeel_acl::log::Refusal;
use evenkeel_client::monitor;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Mode;
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Flags, Id, LockScope, Spec};
use evenkeel_core::blockers::Blockers;
use evenkeel_runtime::clock::{self, Ticks};
use log::Level;

/// Microseconds that a script may occupy a worker before it moves to the thread for slow scripts: ten shares
/// of a connection.
pub(super) const SLOW_US: u64 = 5_000;

/// Microseconds that a script may go on after the server has begun to stop.
const LET_END_US: u64 = 100_000;

/// Microseconds that a script goes on after it was announced, even if it is killed: clients whose commands
/// came before the kill shall read BUSY, instead of running a next script that would have to be killed as
/// well.
const ANSWER_US: u64 = 100_000;

/// Most keys, and bytes, of saved values with which a run can be taken back. Each write searches them
/// linearly.
const UNDO_KEYS_MAX: usize = 256;
const UNDO_BYTES_MAX: usize = 4 << 20;

/// Most bytes of lines for MONITOR that a run with undo keeps, checked before each command.
const SHOWN_BYTES_MAX: usize = 4 << 20;

/// Reasons for an early end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It reached for keys that it does not hold, and later runs will as well.
    UnlockedKey,
    /// This run needs all locks, later runs may not.
    ForOnce,
    /// It takes long.
    Slow,
    /// It is about to make a change that cannot be taken back, on the only worker.
    ForGood,
    Killed,
    /// The server stops.
    Stopped,
    /// A command has panicked.
    Panicked,
}

/// A run of a script; see the module's text.
pub(super) struct Run<'r, 'a, 'h> {
    pub(super) call: ScriptCall<'r, 'a, 'h>,
    pub(super) read_only: bool,
    pub(super) allow_oom: bool,
    /// The slot of its keys so far; only in cluster mode.
    pub(super) slot: Option<u16>,
    /// It may use keys of several slots in cluster mode.
    pub(super) crosses_slots: bool,
    /// Set by `redis.setresp`.
    pub(super) resp3: bool,
    pub(super) wrote: bool,
    /// Keys that it has written to, counted once per write.
    written: usize,
    /// It has made a change that could not have been taken back.
    pub(super) for_good: bool,
    /// Restores the state before the run. `None`: the run cannot be taken back.
    pub(super) undo: Option<Undo>,
    pub(super) ended: Option<Ended>,
    /// Lines for the server log, written once the run is known to count.
    pub(super) lines: Vec<(Level, String)>,
    /// Refusals by its user's permissions, for ACL LOG, kept in the same way.
    pub(super) refusals: Vec<Refusal>,
    /// Its calls, for MONITOR, kept in the same way.
    shown: Vec<u8>,
    pub(super) since: Ticks,
    /// Name that other clients' errors show while it keeps them waiting.
    pub(super) name: &'r [u8],
    pub(super) is_function: bool,
    pub(super) is_announced: bool,
    /// When it was announced.
    announced_at: Ticks,
    pub(super) reply: Reply,
    /// An error, or a reply that was not contiguous.
    bytes: Vec<u8>,
    buf: Vec<u8>,
    spans: Vec<Span>,
}

thread_local! {
    static CURRENT: Cell<Option<NonNull<Run<'static, 'static, 'static>>>> = const { Cell::new(None) };
}

impl<'r, 'a, 'h> Run<'r, 'a, 'h> {
    pub(super) fn new(call: ScriptCall<'r, 'a, 'h>, name: &'r [u8], is_function: bool) -> Run<'r, 'a, 'h> {
        call.base.guard.ctx.script_us = None;
        // A script nested in EXEC cannot be run again and has to come to its end here.
        let undo = (call.base.mode == Mode::Direct && !call.session.replays).then(Undo::default);
        Run {
            call,
            read_only: false,
            allow_oom: false,
            slot: None,
            crosses_slots: true,
            resp3: false,
            wrote: false,
            written: 0,
            for_good: false,
            undo,
            ended: None,
            lines: Vec::new(),
            refusals: Vec::new(),
            shown: Vec::new(),
            since: clock::ticks(),
            name,
            is_function,
            is_announced: false,
            announced_at: 0,
            reply: Reply::default(),
            bytes: Vec::new(),
            buf: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Makes this the thread's run during `f`.
    pub(super) fn enter<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.set(None);
            }
        }
        assert!(CURRENT.get().is_none(), "a script does not run scripts");
        CURRENT.set(Some(NonNull::from(&mut *self).cast()));
        let _leave = Leave;
        f()
    }

    /// Ends the run: nothing that the script does counts any more.
    pub(super) fn end(&mut self, how: Ended) -> Called {
        self.ended.get_or_insert(how);
        Called::Ended
    }

    fn refuse(&mut self, text: &str) -> Called {
        self.refuse_with(&Error::text(text.to_owned()))
    }

    fn refuse_with(&mut self, error: &Error) -> Called {
        self.bytes.clear();
        self.bytes.extend_from_slice(&error.line());
        Called::Refused { bytes: self.bytes.as_ptr(), len: self.bytes.len() }
    }

    /// Like [`Run::refuse_with`], for a known command, which counts as rejected.
    fn reject(&mut self, id: Option<Id>, error: &Error) -> Called {
        self.call.host.record_error(&error.line());
        if let Some(id) = id {
            self.call.host.record_rejected(id);
        }
        match self.refuse_with(error) {
            Called::Refused { bytes, len } => Called::Failed { bytes, len },
            called => called,
        }
    }

    fn command(&mut self, stack: &Stack) -> Called {
        if self.ended.is_some() {
            return Called::Ended;
        }
        let (mut buf, mut spans) = (std::mem::take(&mut self.buf), std::mem::take(&mut self.spans));
        buf.clear();
        spans.clear();
        let called = if stack.is_empty() {
            self.refuse("ERR Please specify at least one argument for this call")
        } else if (0..stack.len()).any(|index| !take(&stack.arg(index), &mut buf, &mut spans)) {
            self.refuse("ERR Command arguments must be strings or integers")
        } else if buf.len() > ELEMENT_MAX {
            // Arguments are addressed by 32-bit offsets, and each may become an element.
            self.refuse("ERR Command arguments are too long")
        } else {
            self.run(Args::new(&buf, &spans))
        };
        (self.buf, self.spans) = (buf, spans);
        called
    }

    fn run(&mut self, args: Args<'_>) -> Called {
        let (id, row) = match self.admit(&args) {
            Ok(found) => found,
            Err((id, error)) => return self.reject(id, &error),
        };
        let keys = row.keys.find(&args, self.call.session.db, &self.call.core.keyspace);
        let holds = match row.lock_scope_in(&args) {
            LockScope::Keys | LockScope::KeysUnless(_) => {
                keys.iter().all(|key| self.call.base.guard.holds(key.place))
            }
            // A command that touches no key and leaves no trace may be done twice.
            LockScope::Walk => row.flags.has(Flags::NO_DATA) && !row.flags.has(Flags::MAY_WRITE),
            LockScope::Whole | LockScope::Queue | LockScope::Script { .. } => false,
        };
        if !holds && !self.call.base.guard.holds_all() {
            return self.end(Ended::UnlockedKey);
        }
        if self.call.base.settings.cluster_enabled
            && !self.call.session.replays
            && let Err(error) = self.check_slots((row, &args), &keys)
        {
            return self.reject(Some(id), &error);
        }
        // While only its slots are held, expired keys are hidden, not removed; but replicas that repeated the
        // write would still have them.
        let is_of_several = keys.len() > 1 && row.flags.has(Flags::WRITE);
        if is_of_several
            && !self.call.base.guard.holds_all()
            && keys.iter().any(|key| self.call.base.guard.has_expired(key))
        {
            return self.end(Ended::ForOnce);
        }
        if self.shown.len() > SHOWN_BYTES_MAX
            && let Err(instead) = self.drop_undo(Ended::ForOnce, true)
        {
            return self.end(instead);
        }
        if row.flags.has(Flags::WRITE.with(Flags::MAY_WRITE)) {
            let may_take_back = matches!(row.lock_scope_in(&args), LockScope::Keys);
            let publishes = !may_take_back && !row.flags.has(Flags::WRITE);
            self.written += keys.len();
            self.for_good |= !publishes && (!may_take_back || self.written > UNDO_KEYS_MAX);
            if let Some(undo) = &mut self.undo {
                if may_take_back && undo.len() + keys.len() <= UNDO_KEYS_MAX && undo.bytes() <= UNDO_BYTES_MAX
                {
                    keys.iter().for_each(|key| self.call.base.guard.keep_for_undo(key, undo));
                } else if let Err(instead) = self.drop_undo(Ended::UnlockedKey, !publishes) {
                    return self.end(instead);
                }
            }
            self.wrote |= row.flags.has(Flags::WRITE);
            if self.is_announced && self.wrote {
                self.call.scripts.busy.record_write();
            }
        }
        self.reply.clear();
        self.reply.resp3 = self.resp3;
        let outer = (&mut *self.call.base, &mut *self.call.session);
        let done = self.call.host.run(outer, (id, args), &keys, &mut self.reply);
        if self.undo.is_none() {
            self.call.base.guard.report_events();
        }
        if self.call.hub.monitors.is_any() {
            self.show(row, &args);
        }
        self.called(done.err())
    }

    /// Checks in cluster mode that a command's keys are on this node, and in the script's slot if it has to
    /// stay there.
    #[cold]
    fn check_slots(&mut self, command: (&Spec, &Args<'_>), keys: &[Key<'_>]) -> Result<(), Error> {
        let call = (&mut *self.call.base, &*self.call.session);
        let Some(slot) = self.call.host.check_slots(call, command, keys)? else { return Ok(()) };
        if *self.slot.get_or_insert(slot) != slot && !self.crosses_slots {
            return Err(Error::text("ERR Script attempted to access keys that do not hash to the same slot"));
        }
        Ok(())
    }

    /// Gives up the undo, so that the run cannot be taken back from now on. Returns the end of the run
    /// instead where it must stay undoable: `outside`, since it does not hold all locks; or, with `may_leave`
    /// on the only worker, `ForGood`, since that worker has to answer other clients in case the script never
    /// ends.
    fn drop_undo(&mut self, outside: Ended, may_leave: bool) -> Result<(), Ended> {
        if may_leave && self.undo.is_some() && self.call.core.workers.count() == 1 {
            return Err(Ended::ForGood);
        }
        if !self.call.base.guard.holds_all() {
            return Err(outside);
        }
        self.undo = None;
        self.call.base.guard.report_events();
        self.send_shown();
        Ok(())
    }

    #[cold]
    fn show(&mut self, row: &Spec, args: &Args<'_>) {
        monitor::write_call(&mut self.shown, self.call.session.db, row, args);
        if self.undo.is_none() {
            self.send_shown();
        }
    }

    /// Sends the calls to MONITOR, since the run counts.
    pub(super) fn send_shown(&mut self) {
        if self.call.hub.monitors.is_any() {
            monitor::show_calls(self.call.base.guard, std::mem::take(&mut self.shown));
        }
    }

    fn called(&mut self, error: Option<Error>) -> Called {
        if let Some(error) = error {
            self.bytes.clear();
            self.bytes.extend_from_slice(&error.line());
            return Called::Failed { bytes: self.bytes.as_ptr(), len: self.bytes.len() };
        }
        if self.reply.plain().is_none() {
            self.bytes.clear();
            self.reply.slices().iter().for_each(|slice| self.bytes.extend_from_slice(slice));
        }
        let bytes = self.reply.plain().unwrap_or(&self.bytes);
        match bytes {
            [b'-', line @ .., b'\r', b'\n'] => Called::Failed { bytes: line.as_ptr(), len: line.len() },
            bytes => Called::Replied { bytes: bytes.as_ptr(), len: bytes.len() },
        }
    }

    /// Checks everything that may keep a script from running a command.
    fn admit(&mut self, args: &Args<'_>) -> Result<(Id, &'static Spec), (Option<Id>, Error)> {
        let (table, host) = (self.call.table, self.call.host);
        let unknown = || (None, Error::text("ERR Unknown command called from script"));
        let mut id = table.find(args.at(0)).ok_or_else(unknown)?;
        let mut row = table.row(id);
        if row.has_subcommands() && args.len() > 1 {
            id = table
                .find_sub(row, args.at(1))
                .ok_or_else(|| (None, Error::unknown_subcommand(row, args)))?;
            row = table.row(id);
        }
        if !row.arity.admits(args.len()) {
            return Err((Some(id), Error::text("ERR Wrong number of args calling command from script")));
        }
        if row.flags.has(Flags::NOSCRIPT) && !self.call.scripts.denies_nothing.load(Relaxed) {
            return Err((Some(id), Error::text("ERR This Valkey command is not allowed from script")));
        }
        let (blockers, now_ms) = (self.call.core.blockers.any(), self.call.base.now_ms());
        if blockers.contains(Blockers::STALE) && !row.flags.has(Flags::STALE) && !self.call.session.replays {
            return Err((Some(id), Error::text("ERR Can not execute the command on a stale replica")));
        }
        if let Err(refused) = host.permit(self.call.session, (id, args), now_ms) {
            let (error, refusal) = *refused;
            if self.refusals.len() < Self::LINES_MAX {
                self.refusals.push(refusal);
            }
            return Err((Some(id), error));
        }
        let writes = row.flags.has(Flags::WRITE);
        if self.read_only && row.flags.has(Flags::WRITE.with(Flags::MAY_WRITE)) {
            let text = "ERR Write commands are not allowed from read-only scripts.";
            return Err((Some(id), Error::text(text)));
        }
        // A script that has written already is not stopped half way by the server's state.
        if self.wrote {
            return Ok((id, row));
        }
        if writes
            && !blockers.is_empty()
            && !self.call.session.replays
            && let Some(error) = host.refusal((row, row.flags), self.call.session)
        {
            return Err((Some(id), error));
        }
        let short =
            row.flags.has(Flags::DENYOOM) && !self.allow_oom && self.call.base.guard.ctx.is_short_of_memory;
        if short { Err((Some(id), Error::OutOfMemory)) } else { Ok((id, row)) }
    }

    /// Looks at the clock and at requests of other threads; called every few thousand instructions. Returns
    /// `false` if the run is over.
    fn look_around(&mut self) -> bool {
        let elapsed = clock::ticks().saturating_sub(self.since) / clock::ticks_per_us();
        if self.ended.is_none() {
            // A short script comes to its end.
            if self.call.host.certainly_stops() && elapsed > LET_END_US {
                self.end(Ended::Stopped);
            } else if self.is_announced && !self.wrote && self.is_killed() {
                self.end(Ended::Killed);
            } else if self.undo.is_some() && elapsed > SLOW_US {
                self.end(Ended::Slow);
            } else if !self.is_announced && self.keeps_waiting(elapsed) {
                self.announce();
            }
        }
        self.ended.is_none()
    }

    /// Whether to announce the script after `elapsed` microseconds. A threshold of zero means never. A script
    /// without all locks can still be taken back, and is about to be.
    fn keeps_waiting(&self, elapsed: u64) -> bool {
        let threshold = self.call.base.settings.busy_reply_threshold;
        threshold > 0 && elapsed / 1000 >= threshold && self.call.base.guard.holds_all()
    }

    fn is_killed(&self) -> bool {
        let since_announced_us = clock::us(clock::ticks().saturating_sub(self.announced_at));
        since_announced_us >= ANSWER_US && self.call.scripts.busy.is_killed()
    }

    /// Announces that the script keeps other clients waiting.
    fn announce(&mut self) {
        let running = Running {
            name: self.name.to_vec(),
            command: self.call.base.args.from(0).map(<[u8]>::to_vec).collect(),
            since: self.since,
            is_function: self.is_function,
            wrote: self.wrote,
            is_replayed: self.call.session.replays,
        };
        self.is_announced = self.call.scripts.busy.begin(running);
        if self.is_announced {
            self.announced_at = clock::ticks();
            self.send_shown();
            let ms = clock::ticks().saturating_sub(self.since) / clock::ticks_per_us() / 1000;
            log::warn!(
                "Slow script detected: still in execution after {ms} milliseconds. You can try killing the \
                 script using the {} KILL command. Script name is: {}.",
                if self.is_function { "FUNCTION" } else { "SCRIPT" },
                String::from_utf8_lossy(self.name)
            );
            self.call.host.refuse_waiting_scripts();
            // Workers have waits to end, and other duties while a script is busy.
            self.call.core.workers.wake_all();
        }
    }
}

/// Appends an argument of `redis.call`. Returns `false` if it is neither a string nor a number.
fn take(arg: &Arg<'_>, buf: &mut Vec<u8>, spans: &mut Vec<Span>) -> bool {
    let start = buf.len();
    match arg {
        Arg::Text(text) => buf.extend_from_slice(text),
        Arg::Number(number) => buf.extend_from_slice(float::Text::new(*number).as_bytes()),
        Arg::Other => return false,
    }
    if buf.len() <= u32::MAX as usize {
        spans.push(Span::new(start, buf.len() - start)); // the caller refuses longer commands
    }
    true
}

/// Calls `f` with the thread's run, which no other code can reach meanwhile; returns `None` without a run.
pub(super) fn with_current<R>(f: impl FnOnce(&mut Run<'_, '_, '_>) -> R) -> Option<R> {
    let mut run = CURRENT.take()?;
    struct PutBack(NonNull<Run<'static, 'static, 'static>>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            CURRENT.set(Some(self.0));
        }
    }
    let _put_back = PutBack(run);
    // SAFETY: `Run::enter` has stored the pointer, borrows the run for as long as it is stored, and does not
    // use it meanwhile. The pointer was taken out of the variable, so this is the only access.
    Some(f(unsafe { run.as_mut() }))
}

/// `redis.call`: runs the command on the stack.
pub(super) fn call(stack: &Stack) -> Called {
    const NO_RUN: &[u8] = b"ERR redis.call/pcall can only be called inside a script invocation";
    let called = with_current(|run| {
        // The script must not catch a panic.
        catch_unwind(AssertUnwindSafe(|| run.command(stack))).unwrap_or_else(|_| {
            run.call.host.record_panic();
            run.end(Ended::Panicked)
        })
    });
    called.unwrap_or(Called::Refused { bytes: NO_RUN.as_ptr(), len: NO_RUN.len() })
}

/// Called every few thousand instructions. Returns `false` if the script is over.
pub(super) fn look_around() -> bool {
    with_current(|run| run.look_around()).unwrap_or(true)
}

impl Run<'_, '_, '_> {
    /// Most lines for the server log kept while the run may be taken back.
    const LINES_MAX: usize = 1_000;

    /// `redis.log`: a run that is begun again must not log its lines twice.
    pub(super) fn log(&mut self, level: Level, line: String) {
        if self.undo.is_none() {
            return log::log!(level, "{line}");
        }
        if self.lines.len() < Self::LINES_MAX {
            self.lines.push((level, line.chars().take(1_024).collect()));
        }
    }
}
