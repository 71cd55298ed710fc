//! What a handler returns: its reply is written, or the command is not over yet.
//!
//! | flow | the command |
//! |---|---|
//! | [`Flow::Replied`] | is over |
//! | [`Flow::Block`] | waits for a write to its keys; its handler runs again then |
//! | [`Flow::Offload`] | runs on another thread without locks; checks its shared sources before it stores |
//! | [`Flow::OffloadScript`] | runs anew on the thread for slow scripts |
//! | [`Flow::Suspended`] | has arranged for its own reply (SHUTDOWN, WAIT) |
//! | [`Flow::HandOff`] | turns its connection into the connection of a replica (PSYNC) |
//! | [`Flow::RetryHoldingAll`], [`Flow::RetryAdmission`] | has done nothing and starts again |
//! | [`Flow::RetryNextTurn`] | the same, in the next turn of its worker |
//!
//! The thread that runs the handler acts on the flow: modules `dispatch`, `blocking` and `offload` of crate
//! `evenkeel`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use evenkeel_store::{Kind, SlotGuard, Wants};

use crate::args::OwnedArgs;
use crate::error::Error;
use crate::reply::Reply;
use crate::{Args, Call, LockScope};

/// The outcome of a handler. With an error, nothing of the reply counts and the error is the reply.
pub type Done = Result<Flow, Error>;

/// See the module's text.
#[must_use = "the command is not over unless its flow is `Replied`"]
pub enum Flow {
    /// The reply is written.
    Replied,
    /// The command waits for its keys.
    Block(Box<Wait>),
    /// The work is done by another thread.
    Offload(Work),
    /// The script takes too long for a worker: it was undone, and runs anew on the thread for slow scripts,
    /// with all slots held.
    OffloadScript,
    /// The reply comes later; the handler has entered the session's wait.
    Suspended,
    /// The connection is a replica's from now on.
    HandOff,
    /// Nothing was done: the command is to be run again with all slots held.
    RetryHoldingAll,
    /// Nothing was done: the command has to be admitted again.
    RetryAdmission,
    /// Nothing was done: the command runs again in the worker's next turn. Not for nested calls.
    RetryNextTurn,
}

/// Elements from which on work counts as large: about a millisecond at 50 ns each.
pub const OFFLOAD_MIN: usize = 20_000;

/// Pages from which on a walk over all of them counts as large: 0.3 ms with no page in a cache.
pub const OFFLOAD_PAGES: usize = 4096;

/// Attempts without locks before the work is done under them.
pub const ATTEMPTS: u8 = 2;

/// How a call came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A client sent it.
    Direct,
    /// EXEC runs it, so it must not wait.
    Nested,
    /// EXEC collects the work of each command of its queue; a thread without locks does these works in order.
    Collected,
    /// A script runs it, so it must not wait either.
    Script,
    /// It waited, and the key at this index was written to since.
    Serving(usize),
    /// It was offloaded so many times, each time with sources that had changed by the end.
    Again(u8),
}

impl Mode {
    /// Whether the call is part of a larger unit that has to end here and now.
    pub fn is_nested(self) -> bool {
        matches!(self, Mode::Nested | Mode::Script)
    }
}

/// How long a command waits, in milliseconds; `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<u64>);

/// The condition that a command waits for.
pub struct Wait {
    /// Indices of the call's keys that it waits for.
    pub keys: Range<usize>,
    pub wants: Wants,
    /// Indices of the keys that serving touches as well.
    pub beyond: Range<usize>,
    pub timeout: Timeout,
    /// Milliseconds after which the command is run again, even if no key was written.
    pub retry_ms: Option<u64>,
    null_in_multi: fn(&mut Reply),
    /// Other arguments to serve the command with.
    pub args: Option<OwnedArgs>,
}

impl Wait {
    /// Waits until a key at these indices of the call's keys holds a value of this kind.
    pub fn on(keys: Range<usize>, kind: Kind, timeout: Timeout) -> Wait {
        let null_in_multi = |reply: &mut Reply| reply.null_array();
        Wait {
            keys,
            wants: Wants::kind(kind),
            beyond: 0..0,
            timeout,
            retry_ms: None,
            null_in_multi,
            args: None,
        }
    }

    /// Waits for deletions and changes of type as well; the handler replies to them.
    pub fn or_any_change(self) -> Wait {
        Wait { wants: Wants::any_change(), ..self }
    }

    /// Runs the command again after so many milliseconds: time alone may serve it.
    pub fn retried_after(self, retry_ms: Option<u64>) -> Wait {
        Wait { retry_ms, ..self }
    }

    /// Declares that serving touches these keys as well.
    pub fn with(self, keys: Range<usize>) -> Wait {
        Wait { beyond: keys, ..self }
    }

    /// Makes the reply inside MULTI a null, not a null array.
    pub fn null_in_multi(self) -> Wait {
        Wait { null_in_multi: |reply| reply.null(), ..self }
    }

    /// Serves the command with other arguments than it came with; the keys are the same.
    pub fn rerun(self, args: OwnedArgs) -> Wait {
        Wait { args: Some(args), ..self }
    }
}

impl Call<'_, '_> {
    /// Returns which of the keys at these indices to look at: all of them or, for a waiter, the written key.
    /// If that key stands at several indices, the handler runs for each in turn, until a run serves.
    pub fn tries(&self, keys: Range<usize>) -> Range<usize> {
        match self.mode {
            Mode::Serving(index) => index..index + 1,
            Mode::Direct | Mode::Nested | Mode::Collected | Mode::Script | Mode::Again(_) => keys,
        }
    }

    /// Whether the command waited and is run again.
    pub fn is_serving(&self) -> bool {
        matches!(self.mode, Mode::Serving(_))
    }

    /// Blocks a handler that found nothing. On behalf of a waiter ([`Call::is_serving`]) such a handler must
    /// have changed nothing, or serving would not end. In its first run it may have recorded the consumer, as
    /// XREADGROUP does, which no waiter listens for. Inside MULTI, where no command waits, the reply is a
    /// null.
    pub fn block(&mut self, wait: Wait) -> Done {
        match self.mode {
            Mode::Nested | Mode::Collected | Mode::Script | Mode::Again(_) => {
                (wait.null_in_multi)(self.reply);
                Ok(Flow::Replied)
            }
            Mode::Serving(_) | Mode::Direct => Ok(Flow::Block(Box::new(wait))),
        }
    }

    /// Parses the timeout at an argument, in seconds with fractions.
    pub fn timeout_s(&self, index: usize) -> Result<Timeout, Error> {
        let number = crate::x87_float::Extended::parse(self.args.at(index));
        let number = number.ok_or(Error::text("ERR timeout is not a float or out of range"))?;
        let out_of_range = if number.is_negative() { TIMEOUT_NEGATIVE } else { TIMEOUT_RANGE };
        self.timeout(number.thousandfold_up().ok_or(out_of_range)?)
    }

    /// Parses the timeout at an argument, in milliseconds.
    pub fn timeout_ms(&self, index: usize) -> Result<Timeout, Error> {
        let not_integer = |_| Error::text("ERR timeout is not an integer or out of range");
        self.timeout(self.args.int(index).map_err(not_integer)?)
    }

    fn timeout(&self, ms: i64) -> Result<Timeout, Error> {
        let ms = u64::try_from(ms).map_err(|_| TIMEOUT_NEGATIVE)?;
        let fits = self.now_ms().checked_add(ms).is_some_and(|until| i64::try_from(until).is_ok());
        if fits { Ok(Timeout((ms > 0).then_some(ms))) } else { Err(TIMEOUT_RANGE) }
    }
}

const TIMEOUT_NEGATIVE: Error = Error::Text(std::borrow::Cow::Borrowed("ERR timeout is negative"));
const TIMEOUT_RANGE: Error = Error::Text(std::borrow::Cow::Borrowed("ERR timeout is out of range"));

/// The part of [`Work`] that is done without locks.
pub enum Run {
    /// Reads only its own data and its command's arguments.
    Apart(Box<Apart>),
    /// Visits the slots of keys. The guard that it gets holds no slot, or every slot that it visits.
    Visiting(Box<Visiting>),
    /// Waits for the disk, or for another server until the client has gone. If there is no result to store,
    /// the reply is OK.
    BlockingIo(Box<BlockingIo>),
}

pub type Apart = dyn FnOnce(Args<'_>, &mut Reply) -> Ran + Send;

pub type Visiting = dyn FnOnce(&mut SlotGuard<'_>, &mut Reply) -> Ran + Send;

pub type BlockingIo = dyn FnOnce(&Arc<AtomicBool>) -> Ran + Send;

/// The result to store, if there is one.
pub type Ran = Result<Option<Commit>, Error>;

/// Work to be done without locks. It owns all that it needs.
pub struct Work {
    pub run: Run,
    /// The work ends in a result to store.
    pub writes: bool,
}

/// How to store the result, under the locks of the command's keys.
pub struct Commit {
    pub is_current: Box<dyn FnMut(&mut Call<'_, '_>) -> bool + Send>,
    pub store: Box<dyn FnOnce(&mut Call<'_, '_>) -> Done + Send>,
}

impl Work {
    /// Returns work that ends in a reply.
    pub fn reads(run: impl FnOnce(&mut Reply) -> Result<(), Error> + Send + 'static) -> Work {
        let run = Run::Apart(Box::new(|_, reply: &mut Reply| run(reply).map(|()| None)));
        Work { run, writes: false }
    }

    /// [`Work::reads`] for work that visits the slots of keys.
    pub fn visits(
        run: impl FnOnce(&mut SlotGuard<'_>, &mut Reply) -> Result<(), Error> + Send + 'static,
    ) -> Work {
        let run = Run::Visiting(Box::new(|guard, reply| run(guard, reply).map(|()| None)));
        Work { run, writes: false }
    }

    /// Returns work that ends in a result to store. `is_current` returns whether the sources are still the
    /// values that `compute` has. It must compare identity, since an equal value need not be the same value.
    /// `store` stores and replies.
    pub fn writes<T: Send + 'static>(
        compute: impl FnOnce() -> Result<T, Error> + Send + 'static,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        Work::writes_arguments(move |_| compute(), is_current, store)
    }

    /// [`Work::writes`] for work on an argument of its command. The job keeps the arguments in any case, so
    /// they are not copied for the work while the command's locks are held.
    pub fn writes_arguments<T: Send + 'static>(
        compute: impl FnOnce(Args<'_>) -> Result<T, Error> + Send + 'static,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        let run = |args: Args<'_>, _: &mut Reply| Ok(Some(Commit::of(compute(args)?, is_current, store)));
        Work { run: Run::Apart(Box::new(run)), writes: true }
    }

    /// [`Work::writes`] for work that visits the slots of keys. The values it finds there need not be current
    /// at the end.
    pub fn visits_and_writes<T: Send + 'static>(
        compute: impl FnOnce(&mut SlotGuard<'_>) -> Result<T, Error> + Send + 'static,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        let run = |guard: &mut SlotGuard<'_>, _: &mut Reply| {
            Ok(Some(Commit::of(compute(guard)?, is_current, store)))
        };
        Work { run: Run::Visiting(Box::new(run)), writes: true }
    }

    /// [`Work::writes`] for work that waits for another server. `compute` should poll its flag, which is set
    /// when the client has gone. The result is stored in any case.
    pub fn blocking_io<T: Send + 'static>(
        compute: impl FnOnce(&Arc<AtomicBool>) -> Result<T, Error> + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        let run =
            |nobody_waits: &Arc<AtomicBool>| Ok(Some(Commit::of(compute(nobody_waits)?, |_| true, store)));
        Work { run: Run::BlockingIo(Box::new(run)), writes: true }
    }

    /// Returns the works of several commands, done in order; the reply is an array of their replies. Only
    /// work that waits for the disk or for another server can be part of it.
    pub fn in_order(works: Vec<Result<Work, Error>>) -> Work {
        let run = |work: Result<Work, Error>, nobody_waits: &Arc<AtomicBool>| match work?.run {
            Run::BlockingIo(run) => run(nobody_waits),
            Run::Apart(_) | Run::Visiting(_) => Err(Error::text("ERR the command cannot be one of several")),
        };
        let compute = move |nobody_waits: &Arc<AtomicBool>| -> Result<Vec<Ran>, Error> {
            Ok(works.into_iter().map(|work| run(work, nobody_waits)).collect())
        };
        Work::blocking_io(compute, |call, done| {
            call.reply.array(done.len());
            let errors = call.reply.errors;
            for ran in done {
                match ran.and_then(|commit| commit.map_or(Ok(None), |commit| (commit.store)(call).map(Some)))
                {
                    Ok(None) => call.reply.ok(),
                    Ok(Some(_)) => {}
                    Err(error) => call.reply.fail(&error),
                }
            }
            call.reply.errors = errors; // the transaction itself has not failed
            Ok(Flow::Replied)
        })
    }

    /// Returns work that waits for the disk; the reply is OK.
    pub fn waits_for_disk(run: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Work {
        Work { run: Run::BlockingIo(Box::new(|_| run().map(|()| None))), writes: false }
    }

    /// Placeholder for work that was taken out.
    pub fn nothing() -> Work {
        Work::reads(|_| Ok(()))
    }
}

impl Commit {
    fn of<T: Send + 'static>(
        result: T,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Commit {
        Commit { is_current: Box::new(is_current), store: Box::new(|call| store(call, result)) }
    }
}

impl Mode {
    /// Whether the work has to be done under locks, since all attempts without them failed.
    pub fn must_end(self) -> bool {
        matches!(self, Mode::Again(attempts) if attempts >= ATTEMPTS)
    }
}

impl Call<'_, '_> {
    /// Whether work on so many elements is worth offloading, and may be offloaded.
    #[inline]
    pub fn is_worth_offloading(&self, elements: usize) -> bool {
        elements >= OFFLOAD_MIN && self.may_offload()
    }

    /// Only a command with keys declares what to lock in the end.
    fn may_offload(&self) -> bool {
        if !matches!(self.spec.lock_scope, LockScope::Keys | LockScope::KeysUnless(_)) {
            return false;
        }
        match self.mode {
            // A tracking client would be notified of a change before the reply that the change concerns.
            Mode::Direct => !self.replays && !self.host.is_tracking() && self.host.may_offload(),
            Mode::Again(_) => !self.mode.must_end(),
            Mode::Nested | Mode::Collected | Mode::Script | Mode::Serving(_) => false,
        }
    }

    /// Offloads the work of a handler without keys. Inside a transaction it is done at once.
    pub fn offload_read(
        &mut self,
        work: impl FnOnce(&mut Reply) -> Result<(), Error> + Send + 'static,
    ) -> Done {
        if self.mode != Mode::Direct {
            return work(self.reply).map(|()| Flow::Replied);
        }
        Ok(Flow::Offload(Work::reads(work)))
    }

    /// [`Call::offload_read`] for work that needs the keyspace at rest. A call that is part of a larger unit
    /// cannot have that and fails.
    pub fn offload_alone(
        &mut self,
        work: impl FnOnce(&mut Reply) -> Result<(), Error> + Send + 'static,
    ) -> Done {
        self.must_be_alone()?;
        self.offload_read(work)
    }

    fn must_be_alone(&self) -> Result<(), Error> {
        if self.mode.is_nested() {
            return Err(Error::text("ERR This command is not allowed in transactions and scripts"));
        }
        if self.replays {
            return Err(Error::text(
                "ERR This command is not allowed in a replication stream or an append-only file",
            ));
        }
        Ok(())
    }

    /// Offloads work that needs the keyspace at rest and waits for the disk. The reply is OK.
    pub fn offload_disk(&mut self, work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Done {
        self.must_be_alone()?;
        self.offload_io(Work::waits_for_disk(work))
    }

    /// Offloads work that waits for another server. A tracking client may be notified of a change before the
    /// reply, which holds nothing to cache. Where offloading is not allowed, the work is done at once. With
    /// too many such commands under way, it is refused.
    pub fn offload_io(&mut self, work: Work) -> Done {
        match self.mode {
            Mode::Collected => return Ok(Flow::Offload(work)),
            Mode::Direct if !self.replays => {}
            _ => return self.offload(work),
        }
        if !self.host.may_offload_io() {
            return Err(Error::text(
                "ERR Too many commands are waiting for other servers or the disk, try again later",
            ));
        }
        Ok(Flow::Offload(work))
    }

    /// Offloads large work. Where offloading is not allowed, the work is done at once.
    pub fn offload(&mut self, work: Work) -> Done {
        if self.may_offload() {
            return Ok(Flow::Offload(work));
        }
        let ran = match work.run {
            Run::Apart(run) => run(self.args, self.reply),
            Run::Visiting(run) => run(self.guard, self.reply),
            Run::BlockingIo(run) => ok_for_nothing(run(&Arc::default()), self.reply),
        };
        match ran? {
            Some(commit) => (commit.store)(self),
            None => Ok(Flow::Replied),
        }
    }
}

/// Replies OK if there is nothing to store.
pub fn ok_for_nothing(ran: Ran, reply: &mut Reply) -> Ran {
    if let Ok(None) = ran {
        reply.ok();
    }
    ran
}
