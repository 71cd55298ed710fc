//! Loads the data on disk at the start: a reader thread splits the file, and decoder threads decode and
//! store.
//!
//! The reader scans records without decoding them, and deals them out in batches of about a megabyte. A
//! decoder thread decodes each batch and writes it to the keyspace like any other write. The reader decodes a
//! record that is too large for a batch while it reads it. Data that cannot be understood are not skipped:
//! the server does not start, reports the error and its place, and leaves the file as it is.

use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use evenkeel_rdb::file::{Access, Batch, Checksum, Failure, FilePart, FileReader, ReadLimits, Record};
use evenkeel_rdb::{Error, Reason, Source};
use evenkeel_store::evict::{lfu_new, lru_clock};
use evenkeel_store::{Keyspace, Millis, ThreadContext};
use parking_lot::Mutex;

use super::Blockers;
use super::Persist;
use super::pace::key_delay;
use super::position::Position;
use evenkeel_client::pubsub::push_queue;
use evenkeel_command::effect::log_each;
use evenkeel_command::value_codec::{self, Origin, Value};
use evenkeel_config::{Policy, Settings};
use evenkeel_runtime::clock;
use evenkeel_scripting::functions::{Libraries, Library};
use evenkeel_scripting::machine;

/// Batches that wait for a decoder: enough to keep the threads busy, at 2 MB each.
const BATCHES_WAITING: usize = 4;

/// Stands in the reason of a load that a damaged value has ended.
pub const INTEGRITY: &str = "integrity check failed";

/// Longest part of a key in the server log, in bytes.
const NAME_SHOWN_MAX: usize = 100;

/// Skipped keys of a kind that the server log names; more are only counted.
const SHOWN: u64 = 10;

/// The progress of a load.
#[derive(Default)]
pub struct Loading {
    pub since_s: AtomicU64,
    pub total_bytes: AtomicU64,
    pub loaded_bytes: AtomicU64,
    /// The memory use of the server that wrote the snapshot, as the file states it; zero: unknown.
    pub used_mem: AtomicU64,
    pub keys: AtomicU64,
    /// Keys that had expired, and were left out.
    pub expired: AtomicU64,
    /// Empty collections, written by old servers. They are not keys.
    empty: AtomicU64,
    /// Streams whose counters were corrected.
    corrected: AtomicU64,
}

/// The result of a load.
#[derive(Clone, Default)]
pub struct Loaded {
    pub keys: u64,
    pub bytes: u64,
    /// The replication position of the data, if the file has it.
    pub position: Option<Position>,
    /// Function libraries that are to replace all present libraries, when the caller installs them together
    /// with the data.
    pub libraries: Libraries,
}

/// The databases that the keys of a file go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The databases with the file's own numbers.
    Visible,
    /// The hidden databases beside them.
    Hidden,
}

impl Loading {
    /// Begins a load of so many bytes.
    pub fn begin(&self, bytes: u64) {
        self.since_s.store(clock::unix_ms() / 1000, Relaxed);
        self.total_bytes.store(bytes, Relaxed);
        let Loading { loaded_bytes, used_mem, keys, expired, empty, corrected, .. } = self;
        for counter in [loaded_bytes, used_mem, keys, expired, empty, corrected] {
            counter.store(0, Relaxed);
        }
    }
}

/// The reason why a load ended early.
#[derive(Debug)]
pub enum Ended {
    /// The file cannot be read or understood; the text says where and why.
    Failed(String),
    /// The server is to stop.
    Stopped,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        let mark = match failure.error.reason {
            Reason::Checksum => "RDB CRC error: ",
            Reason::UnknownOpcode(_) | Reason::UnknownType(_) => {
                "Unknown type or opcode when loading DB. Unrecoverable error, aborting now. "
            }
            _ if failure.place.is_some() => "Value integrity check failed: ",
            _ => "",
        };
        Ended::Failed(format!("{mark}{failure}"))
    }
}

/// A context for loading. Listeners are not notified, since a key that returns from disk has not changed.
pub fn loader_context(keyspace: &Keyspace) -> ThreadContext {
    let mut ctx = keyspace.thread_context();
    ctx.suppresses_events = true;
    ctx
}

/// Loads the snapshot that the settings name, if it exists. No other thread changes the keyspace meanwhile.
pub fn snapshot(persist: &Arc<Persist>) -> Result<Option<Loaded>, Ended> {
    let how = How { expired_by: expired_by(persist), ..How::default() };
    snapshot_how(persist, how)
}

/// Loads it at the start of the server. A primary continues the stream at the position in the file.
pub fn snapshot_at_start(persist: &Arc<Persist>) -> Result<Option<Loaded>, Ended> {
    let expired_by = expired_by(persist);
    let continues_stream = expired_by.is_some();
    snapshot_how(persist, How { expired_by, fields_by: expired_by, continues_stream, ..How::default() })
}

/// The same for another file, which must exist.
pub fn preload(persist: &Arc<Persist>, path: &Path) -> Result<Loaded, Ended> {
    let expired_by = expired_by(persist);
    let how = How { expired_by, fields_by: expired_by, ..How::default() };
    let loaded = snapshot_from(persist, path, how)?;
    loaded.ok_or_else(|| in_file(Ended::Failed("there is no such file".into()), path))
}

/// Loads it while the append-only file and replicas go on. They have the expired keys until a removal reaches
/// them, so these keys are loaded too. Of hashes, expired fields are removed at once. `merges`: a present key
/// is replaced.
pub fn snapshot_again(persist: &Arc<Persist>, merges: bool) -> Result<Option<Loaded>, Ended> {
    let fields_by = expired_by(persist).filter(|_| !merges);
    snapshot_how(persist, How { fields_by, merges, ..How::default() })
}

/// A replica keeps expired keys until its primary deletes them.
fn expired_by(persist: &Persist) -> Option<Millis> {
    persist.core.settings().replicaof.is_none().then(clock::unix_ms)
}

fn snapshot_how(persist: &Arc<Persist>, how: How) -> Result<Option<Loaded>, Ended> {
    let settings = persist.core.settings();
    snapshot_from(persist, &settings.dir.join(&settings.dbfilename), how)
}

fn snapshot_from(persist: &Arc<Persist>, path: &Path, how: How) -> Result<Option<Loaded>, Ended> {
    let mut contexts = persist.loaders.lock();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Ended::Failed(format!("{}: {error}", path.display()))),
    };
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    persist.loading.begin(len);
    let began = Instant::now();
    let whole = rdb(persist, &mut contexts, file, Some(len), how).and_then(|(loaded, mut reader)| {
        reader.expect_no_more()?;
        Ok(loaded)
    });
    let loaded = whole.map_err(|ended| in_file(ended, path))?;
    let loading = &persist.loading;
    log::info!(
        "Done loading RDB, keys loaded: {}, keys expired: {}, empty keys skipped: {}.",
        loaded.keys,
        loading.expired.load(Relaxed),
        loading.empty.load(Relaxed)
    );
    log::info!(
        "DB loaded from {}: {} keys, {} bytes, {:.3} seconds",
        path.display(),
        loaded.keys,
        loaded.bytes,
        began.elapsed().as_secs_f64()
    );
    Ok(Some(loaded))
}

/// Loads the snapshot that the primary sends, of `len` bytes if known. Expired keys are loaded too.
pub fn from_primary(
    persist: &Arc<Persist>,
    input: &mut impl Read,
    len: Option<u64>,
    target: Target,
) -> Result<Loaded, Ended> {
    let mut contexts = persist.loaders.lock();
    let now = clock::unix_ms();
    contexts.iter_mut().for_each(|ctx| ctx.now_ms = now);
    persist.loading.begin(len.unwrap_or(0));
    let how = How { target, from_primary: true, ..How::default() };
    let (loaded, mut reader) = rdb(persist, &mut contexts, input, len, how)?;
    reader.expect_no_more()?;
    Ok(loaded)
}

/// Adds the name of the file to an error.
pub(super) fn in_file(ended: Ended, path: &Path) -> Ended {
    match ended {
        Ended::Failed(reason) => Ended::Failed(format!("{}: {reason}", path.display())),
        Ended::Stopped => Ended::Stopped,
    }
}

/// The variants of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Keys that have expired by this time are left out.
    pub(super) expired_by: Option<Millis>,
    /// Fields that have expired by this time are left out, and the journal gets their removal. If this is
    /// `None`, fields that have expired by `expired_by` are left out, of which no replica or file knows.
    pub(super) fields_by: Option<Millis>,
    pub(super) target: Target,
    /// Whether the data come from the primary, whose stream follows. Function libraries are returned to the
    /// caller, and not added to the present libraries.
    pub(super) from_primary: bool,
    /// Whether the server is a primary that continues the stream of the data. Replicas of that stream get a
    /// removal of each key that has expired meanwhile.
    pub(super) continues_stream: bool,
    /// Whether a present key or library is replaced, instead of being an error.
    pub(super) merges: bool,
}

impl Default for How {
    fn default() -> How {
        How {
            expired_by: None,
            fields_by: None,
            target: Target::Visible,
            from_primary: false,
            continues_stream: false,
            merges: false,
        }
    }
}

/// Loads an RDB file, or the RDB part at the beginning of a longer file of `len` bytes. Returns the result,
/// and the reader, which stands behind the RDB part.
pub(super) fn rdb<R: Read>(
    persist: &Arc<Persist>,
    contexts: &mut [ThreadContext],
    input: R,
    len: Option<u64>,
    how: How,
) -> Result<(Loaded, FileReader<R>), Ended> {
    let settings = persist.core.settings();
    for ctx in contexts.iter_mut() {
        (ctx.now_ms, ctx.played_ms) = (how.expired_by.unwrap_or(0), clock::unix_ms());
    }
    let mut reader = open(&settings, input, len)?;
    if !settings.rdbchecksum {
        reader = reader.without_checksum();
    }
    let (reading, others) = contexts.split_first_mut().expect("there is a seat for the reader");
    let (failed, libraries) = (AtomicBool::new(false), Mutex::default());
    let work = Work { persist, settings: &settings, how, failed, libraries };
    let failure: Mutex<Option<Ended>> = Mutex::new(None);
    let (sender, receiver) = sync_channel::<Batch>(BATCHES_WAITING);
    let (back, used) = channel::<Batch>();
    let receiver = Mutex::new(receiver);
    let read = std::thread::scope(|scope| {
        for ctx in others {
            let (work, receiver, failure, back) = (&work, &receiver, &failure, back.clone());
            scope.spawn(move || {
                evenkeel_store::memory::register_thread();
                let _teller = push_queue::Teller(&persist.hub);
                let decoded = shielded(persist, ctx, |ctx| Ok(work.decode_all(ctx, receiver, &back)?));
                if let Err(ended) = decoded {
                    work.failed.store(true, Release);
                    failure.lock().get_or_insert(ended);
                    // The reader must not block on a full queue.
                    while receiver.lock().recv().is_ok() {}
                }
            });
        }
        shielded(persist, reading, |ctx| work.read(&mut reader, ctx, sender, &used))
    });
    if let Some(ended) = failure.into_inner() {
        return Err(ended);
    }
    let facts = read?;
    let loading = &persist.loading;
    let (keys, bytes) = (loading.keys.load(Relaxed), reader.position());
    let loaded = Loaded { keys, bytes, position: facts.position(), libraries: work.libraries.into_inner() };
    Ok((loaded, reader))
}

/// Reads the header; an unknown version is reported in the server log too.
fn open<R: Read>(settings: &Settings, input: R, len: Option<u64>) -> Result<FileReader<R>, Failure> {
    let opened = FileReader::of_versions(input, len, ReadLimits::default(), settings.rdb_versions());
    opened.inspect_err(|failure| {
        if let Reason::UnknownVersion(version) = failure.error.reason {
            log::warn!("Can't handle RDB format version {version}");
        }
    })
}

/// Fails if the snapshot's header says that it cannot be loaded.
pub fn check_header(persist: &Persist) -> Result<(), String> {
    let settings = persist.core.settings();
    match File::open(settings.dir.join(&settings.dbfilename)) {
        Ok(file) => open(&settings, file, None).map(|_| ()).map_err(|failure| failure.to_string()),
        Err(_) => Ok(()), // the load reports it
    }
}

/// Turns a panic into a failure: the reader does not wait for the decoder, and the context is released.
fn shielded<T>(
    persist: &Persist,
    ctx: &mut ThreadContext,
    load: impl FnOnce(&mut ThreadContext) -> Result<T, Ended>,
) -> Result<T, Ended> {
    catch_unwind(AssertUnwindSafe(|| load(ctx))).unwrap_or_else(|_| {
        persist.core.keyspace.leave_after_panic(ctx);
        Err(Ended::Failed("a panic, see the server log".into()))
    })
}

/// The state that all loading threads share.
struct Work<'a> {
    persist: &'a Arc<Persist>,
    settings: &'a Settings,
    how: How,
    failed: AtomicBool,
    /// Libraries that are returned to the caller.
    libraries: Mutex<Libraries>,
}

/// The position in a replication stream, as far as the fields of a file state it.
#[derive(Clone, Default)]
struct Facts {
    id: Option<String>,
    offset: Option<u64>,
    db: Option<u32>,
}

impl Facts {
    fn note(&mut self, name: &[u8], value: &[u8]) {
        let text = std::str::from_utf8(value).unwrap_or("");
        match name {
            b"repl-id" if text.len() == 40 => self.id = Some(text.to_owned()),
            b"repl-offset" => self.offset = text.parse().ok(),
            b"repl-stream-db" => self.db = text.parse().ok(), // no database is selected: below zero
            _ => {}
        }
    }

    /// The database may be given without the other fields, by a primary that has sent these in its reply to
    /// PSYNC.
    fn position(self) -> Option<Position> {
        let id = self.id.filter(|_| self.offset.is_some());
        let is_any = id.is_some() || self.db.is_some();
        is_any.then(|| Position {
            id: id.unwrap_or_default(),
            offset: self.offset.unwrap_or(0),
            db: self.db.unwrap_or(0),
        })
    }
}

/// The reason why a part of a file cannot be accepted, if any. For libraries, see [`library_of`].
pub fn refusal(persist: &Persist, part: &FilePart) -> Option<String> {
    let databases = persist.core.keyspace.databases() as u64;
    match part {
        FilePart::Database(number) if *number >= databases => {
            Some(format!("database {number} is out of range, only {databases} are configured (databases)"))
        }
        FilePart::ModuleAux { module } => {
            Some(format!("found data of the module '{module}', but modules are not supported"))
        }
        _ => None,
    }
}

/// The reason, in this part of a primary's snapshot, why the stream behind it cannot be run, if any.
pub fn stream_refusal(persist: &Persist, part: &FilePart) -> Option<String> {
    let FilePart::Aux { name, value } = part else { return None };
    if name != b"repl-stream-db" {
        return None;
    }
    let number: u64 = std::str::from_utf8(value).ok()?.parse().ok()?; // no database is selected: below zero
    let databases = persist.core.keyspace.databases() as u64;
    (number >= databases).then(|| {
        format!(
            "the replication stream continues in database {number}, only {databases} are configured \
             (databases)"
        )
    })
}

/// Compiles a function library, or returns the error text.
pub fn library_of(persist: &Persist, code: &[u8]) -> Result<Library, String> {
    let made = machine::with(&persist.scripts, |machine| machine.library(&persist.scripts, code, true));
    made.and_then(|made| made).map_err(|error| String::from_utf8_lossy(&error.line()).into_owned())
}

pub fn no_library(reason: &str) -> String {
    format!("cannot load a function library: {reason}")
}

impl Work<'_> {
    fn read<R: Read>(
        &self,
        reader: &mut FileReader<R>,
        ctx: &mut ThreadContext,
        sender: SyncSender<Batch>,
        used: &Receiver<Batch>,
    ) -> Result<Facts, Ended> {
        let (mut facts, mut has_begun) = (Facts::default(), !self.how.continues_stream);
        loop {
            if self.persist.core.stopping.load(Acquire) {
                return Err(Ended::Stopped);
            }
            let at = reader.position();
            self.persist.loading.loaded_bytes.store(at, Relaxed);
            used.try_iter().for_each(|batch| reader.reuse(batch));
            let part = reader.next()?;
            // All fields of the file have been read.
            if !has_begun && !matches!(part, Some(FilePart::Aux { .. })) {
                has_begun = true;
                self.persist.host().continue_stream(facts.clone().position());
            }
            if let Some(reason) = part.as_ref().and_then(|part| self.refusal(part)) {
                return Err(Ended::Failed(format!("at byte {at}: {reason}")));
            }
            match part {
                None => return Ok(facts),
                Some(FilePart::Aux { name, value }) if name == b"used-mem" => {
                    let bytes = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                    self.persist.loading.used_mem.store(bytes.unwrap_or(0), Relaxed);
                }
                Some(FilePart::Aux { name, value }) => facts.note(&name, &value),
                Some(FilePart::Keys(batch)) if self.failed.load(Acquire) => drop(batch),
                Some(FilePart::Keys(batch)) => {
                    // The receiver lives as long as this runs.
                    let _ = sender.send(batch);
                }
                Some(FilePart::Large) => self.store_large(reader, ctx)?,
                Some(FilePart::Function(code)) => self
                    .add_library(&code)
                    .map_err(|reason| Ended::Failed(format!("at byte {at}: {}", no_library(&reason))))?,
                Some(FilePart::End(Checksum::Absent)) => {
                    log::info!("RDB file was saved with checksum disabled: no check performed.");
                }
                Some(
                    FilePart::End(_)
                    | FilePart::Database(_)
                    | FilePart::ModuleAux { .. }
                    | FilePart::Sizes { .. }
                    | FilePart::SlotSizes { .. }
                    | FilePart::SlotImport { .. },
                ) => {}
            }
        }
    }

    fn refusal(&self, part: &FilePart) -> Option<String> {
        let of_stream = || stream_refusal(self.persist, part).filter(|_| self.how.from_primary);
        refusal(self.persist, part).or_else(of_stream)
    }

    fn add_library(&self, code: &[u8]) -> Result<(), String> {
        let text =
            |error: evenkeel_command::error::Error| String::from_utf8_lossy(&error.line()).into_owned();
        let library = library_of(self.persist, code)?;
        if self.how.from_primary {
            return self.libraries.lock().add(Arc::new(library), false).map_err(text);
        }
        let library = Arc::new(library);
        let add = |libraries: &mut Libraries| libraries.add(library, self.how.merges);
        self.persist.scripts.change_libraries(add).map_err(text)
    }

    fn store_large<R: Read>(&self, reader: &mut FileReader<R>, ctx: &mut ThreadContext) -> Result<(), Ended> {
        let db = reader.database();
        reader.leave_duplicates(); // building the value finds them
        let Some(record) = reader.large()? else { return Ok(()) };
        let stored = self.store(ctx, db, record);
        stored.map_err(|error| reader.failure(error).into())
    }

    fn decode_all(
        &self,
        ctx: &mut ThreadContext,
        batches: &Mutex<Receiver<Batch>>,
        back: &Sender<Batch>,
    ) -> Result<(), Failure> {
        loop {
            let batch = batches.lock().recv();
            let Ok(batch) = batch else { return Ok(()) };
            self.decode(ctx, &batch)?;
            let _ = back.send(batch); // the reader may have ended
        }
    }

    fn decode(&self, ctx: &mut ThreadContext, batch: &Batch) -> Result<(), Failure> {
        let mut records = batch.records();
        records.leave_duplicates();
        loop {
            let stored = match records.next()? {
                None => return Ok(()),
                Some(record) => self.store(ctx, batch.database, record),
            };
            stored.map_err(|error| records.failure(error))?;
            if self.failed.load(Relaxed) {
                return Ok(()); // another thread reports the failure
            }
        }
    }

    fn store<S: Source>(&self, ctx: &mut ThreadContext, db: u64, record: Record<'_, S>) -> Result<(), Error> {
        let (loading, keyspace) = (&self.persist.loading, &self.persist.core.keyspace);
        let (metadata, at, kind) = (record.metadata, record.at, record.kind);
        if metadata.expires.zip(self.how.expired_by).is_some_and(|(deadline, now)| deadline < now) {
            loading.expired.fetch_add(1, Relaxed);
            if self.how.continues_stream {
                self.log_removed(ctx, db, record.key);
            }
            return record.pass();
        }
        let name = record.key.to_vec();
        let fields_by = self.how.expired_by.filter(|_| self.how.fields_by.is_none()).unwrap_or(0);
        let formed = record.object().and_then(|object| {
            value_codec::build(object, self.settings, &keyspace.hasher, (fields_by, Origin::Trusted))
        });
        if let Err(Error { reason: Reason::Empty, .. }) = formed {
            self.pass_empty(&name);
            return Ok(());
        }
        let mut formed = formed.inspect_err(|error| {
            let form = value_codec::name_of_form(kind);
            log::warn!("RDB: {form} {INTEGRITY}: {error}, in key \"{}\"", shown(&name));
        })?;
        self.drop_expired_fields(ctx, db, &name, &mut formed.value);
        if formed.is_nothing() {
            return Ok(());
        }
        if formed.is_corrected {
            self.warn_of_corrected(&name, at);
        }
        let db = match self.how.target {
            Target::Visible => db as usize,
            Target::Hidden => {
                keyspace.hidden(db as usize).expect("whoever asks for it has seen that there are some")
            }
        };
        let key = keyspace.key(db as u32, &name);
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_one(ctx, key.place);
        let gives_way = self.how.merges && guard.peek(&key).is_some();
        let is_free = gives_way || guard.peek(&key).is_none();
        if is_free {
            guard.unasked(|guard| {
                if gives_way {
                    guard.remove(&key);
                }
                formed.store(guard, &key, metadata.expires);
            });
            if let Some(access) = self.access(metadata.access) {
                guard.set_access(&key, access);
            }
        }
        drop(guard);
        keyspace.leave(ctx);
        loading.keys.fetch_add(1, Relaxed);
        if self.settings.key_load_delay != 0 {
            self.delay();
        }
        if is_free { Ok(()) } else { Err(Error { at, inside: None, reason: Reason::Duplicate }) }
    }

    /// Removes expired fields from a hash that replicas or the append-only file have, and logs that.
    fn drop_expired_fields(&self, ctx: &mut ThreadContext, db: u64, name: &[u8], value: &mut Value) {
        let (Some(now), Value::Hash(hash)) = (self.how.fields_by, value) else { return };
        if hash.expired(now) == 0 {
            return;
        }
        let (keyspace, mut fields) = (&self.persist.core.keyspace, Vec::new());
        let (_, cut) = hash.purge(&keyspace.hasher, now, usize::MAX, |field| fields.push(field.to_vec()));
        drop(cut);
        let key = keyspace.key(db as u32, name);
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_one(ctx, key.place);
        log_each(&mut guard, db as u32, &[b"HDEL", name], 1, fields);
        drop(guard);
        keyspace.leave(ctx);
        if hash.size() == 0 {
            self.log_removed(ctx, db, name);
        }
    }

    /// Sends a removal to the replicas, which may have the key.
    fn log_removed(&self, ctx: &mut ThreadContext, db: u64, name: &[u8]) {
        let keyspace = &self.persist.core.keyspace;
        let key = keyspace.key(db as u32, name);
        keyspace.enter(ctx);
        let command = if self.settings.lazyfree_lazy_expire { &b"UNLINK"[..] } else { b"DEL" };
        keyspace.hold_one(ctx, key.place).log(db as u32, [command, name].into_iter());
        keyspace.leave(ctx);
    }

    /// Sleeps for the delay that a test has set, and may have reset meanwhile.
    #[cold]
    fn delay(&self) {
        let delay = key_delay(self.persist.core.settings().key_load_delay);
        if !self.persist.core.stopping.load(Acquire) {
            std::thread::sleep(Duration::from_secs_f64(delay));
        }
    }

    /// Returns the name of a key for the server log, unless it is to be kept out of it.
    fn shown(&self, name: &[u8]) -> String {
        let hides = self.settings.hide_user_data_from_log;
        if hides { "*redacted*".into() } else { name.escape_ascii().to_string() }
    }

    fn pass_empty(&self, name: &[u8]) {
        if self.persist.loading.empty.fetch_add(1, Relaxed) < SHOWN {
            log::info!("skipping empty key: {}", self.shown(name));
        }
    }

    #[cold]
    fn warn_of_corrected(&self, name: &[u8], at: u64) {
        if self.persist.loading.corrected.fetch_add(1, Relaxed) < SHOWN {
            let name = self.shown(name);
            log::warn!(
                "at byte {at}: the counters of stream {name} (length, last ID, entries added or those of a \
                 node) did not match its entries and were corrected"
            );
        }
    }

    /// The access bits of an entry for the access data of a file.
    fn access(&self, access: Access) -> Option<u32> {
        let now = clock::unix_ms();
        let is_lfu = matches!(self.settings.maxmemory_policy, Policy::AllkeysLfu | Policy::VolatileLfu);
        match access {
            Access::Idle(seconds) if !is_lfu => {
                Some(lru_clock(now.saturating_sub(seconds.saturating_mul(1000))))
            }
            Access::Frequency(frequency) if is_lfu => Some(lfu_new(now) & !0xff | u32::from(frequency)),
            _ => None,
        }
    }
}

fn shown(name: &[u8]) -> String {
    name[..name.len().min(NAME_SHOWN_MAX)].escape_ascii().to_string()
}

/// Sets or clears the state of loading.
pub fn set_loading(persist: &Persist, is_loading: bool) {
    persist.core.blockers.set(Blockers::LOADING, is_loading);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_a_load_and_leaves_the_gate_free() {
        let disk = crate::testing::Disk::new(&[]);
        let keyspace = &disk.core.keyspace;
        let mut ctx = keyspace.thread_context();
        let ended = shielded::<()>(&disk, &mut ctx, |ctx| {
            keyspace.enter(ctx);
            panic!("as a value might have it that nobody has thought of");
        });
        assert!(matches!(ended, Err(Ended::Failed(reason)) if reason.contains("a panic")));
        keyspace.enter(&mut ctx);
        drop(keyspace.hold_all(&mut ctx)); // the gate is free
        keyspace.leave(&mut ctx);
    }
}
