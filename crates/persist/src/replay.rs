//! Loads append-only files by running their commands in order.
//!
//! Nothing expires meanwhile: the commands happened at their own times, and the file has a command for each
//! key that expired.

use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use evenkeel_rdb::aof::tail::{self, CutOff, Tail};
use evenkeel_rdb::aof::{
    Command, Commands, Directory, Part, Record, StoredData, holds_snapshot, is_snapshot_by_name, truncate,
};

use super::Persist;
use super::load::{self, Ended, How, in_file};
use super::{aof, rewrite};
use crate::position::Position;
use evenkeel_acl::Access;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::runner::{CommandRunner, Outcome};
use evenkeel_client::session::Session;
use evenkeel_command::LockScope;
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_runtime::clock;

/// Bytes of the longest command: arguments have 32-bit offsets.
const COMMAND_MAX: usize = u32::MAX as usize;

/// Commands between two checks whether the server is to stop.
const STOP_CHECK_COMMANDS: u64 = 1024;

/// Failed scripts that the server log lists individually.
const FAILED_MAX: u64 = 10;

/// The content of an append-only directory, once loaded.
pub struct Replayed {
    pub directory: Directory,
    /// Whether the directory had any files.
    pub found: bool,
    /// The replication position of the data, if the last line has it.
    pub position: Option<Position>,
}

/// Loads the files of the append-only directory.
pub fn directory(persist: &Arc<Persist>) -> Result<Replayed, Ended> {
    let directory = rewrite::open(&persist.core.settings());
    play_directory(persist, directory.map_err(|error| Ended::Failed(error.to_string()))?, true)
}

/// Loads the files of another directory, whose manifest has this path and must exist. They are only read:
/// a torn end is left out, and stays in the file.
pub fn preload(persist: &Arc<Persist>, manifest: &Path) -> Result<(), Ended> {
    let failed = |reason: &dyn std::fmt::Display| Ended::Failed(format!("{}: {reason}", manifest.display()));
    let directory = Directory::of_manifest(manifest).map_err(|error| failed(&error))?;
    let directory = directory.ok_or_else(|| failed(&"there is no such manifest"))?;
    let Replayed { found, .. } = play_directory(persist, directory, false)?;
    if found { Ok(()) } else { Err(failed(&"the manifest lists no files")) }
}

/// Loads the files of a directory. `is_own`: this server appends to them afterwards, so a torn end is cut
/// off.
fn play_directory(persist: &Arc<Persist>, directory: Directory, is_own: bool) -> Result<Replayed, Ended> {
    let failed = |error: &dyn std::fmt::Display| Ended::Failed(error.to_string());
    if directory.stored_data() == StoredData::Nothing {
        return Ok(Replayed { directory, found: false, position: None });
    }
    let parts = directory.parts().map_err(|error| failed(&error))?;
    persist.loading.begin(parts.iter().map(|part| part.size).sum());
    let began = Instant::now();
    let mut player = Player::new(persist, is_own);
    let play = |part: &Part| player.play(part).map_err(|ended| in_file(ended, &part.path));
    let played = parts.iter().try_for_each(play);
    let Player { runner, commands, position, .. } = player;
    *persist.player.lock() = Some(runner.into_ctx());
    played?;
    log::info!(
        "DB loaded from append only file: {} files, {} commands, {:.3} seconds",
        parts.len(),
        commands,
        began.elapsed().as_secs_f64()
    );
    Ok(Replayed { directory, found: true, position })
}

/// Completes the last file after a crash of the machine, by the bytes of its tail. Called before the load at
/// the start, with the name locked, since a running server has a tail of its own.
pub fn put_tail_back(persist: &Persist) -> Result<(), Ended> {
    let failed = |error: evenkeel_rdb::aof::Error| Ended::Failed(error.to_string());
    let directory = rewrite::open(&persist.core.settings()).map_err(failed)?;
    let restored = tail::restore_to_load(&directory, aof::boot()).map_err(failed)?;
    let aside = restored.aside.unwrap_or_default();
    if let Some(CutOff { path, from, len, kept }) = restored.cut {
        let kept = kept
            .map(|kept| format!(". The removed bytes are kept as {}", kept.display()))
            .unwrap_or_default();
        log::warn!(
            "{}: {len} bytes were removed from byte {from} on: the machine failed while they were being \
             appended, and some were never written to disk{kept}",
            path.display()
        );
    }
    match restored.tail {
        Tail::Nothing | Tail::Whole { .. } => {}
        Tail::Lacks { path, from, len } => {
            log::info!("{}: restored {len} synced bytes from the tail, from byte {from} on", path.display())
        }
        Tail::Changed { path } => log::warn!(
            "{} was truncated or changed after its tail was written, or its file system was remounted after \
             a failure. The file is loaded without the tail, which was renamed to {}",
            path.display(),
            aside.display()
        ),
        Tail::Foreign => log::warn!(
            "The tail does not belong to any of the append-only files, which may have been copied. It was \
             renamed to {}",
            aside.display()
        ),
    }
    Ok(())
}

/// Runs commands as a hidden client would send them.
struct Player<'a> {
    persist: &'a Arc<Persist>,
    /// Whether the files are this server's own.
    is_own: bool,
    runner: Box<dyn CommandRunner>,
    session: Session,
    reply: Reply,
    commands: u64,
    /// Scripts that have failed.
    failed: u64,
    /// Bytes of the previous parts.
    loaded: u64,
    /// The replication position, if the last line has it.
    position: Option<Position>,
}

impl Player<'_> {
    fn new(persist: &Arc<Persist>, is_own: bool) -> Player<'_> {
        let nobody = ClientInfo::new(0, "aof".into(), String::new(), -1, true, 0);
        // Threads that are not workers share the last set of counters.
        let ctx = persist.player.lock().take().unwrap_or_else(|| persist.core.keyspace.thread_context());
        let mut runner = persist.host().runner(ctx);
        // Replicas have the commands already. Blocked clients are not served either, since the data are
        // incomplete meanwhile.
        runner.ctx().is_mute = true;
        runner.ctx().suppresses_events = true;
        let session = Session { replays: true, ..Session::new(Arc::new(nobody), Access::of_server()) };
        let reply = Reply::default();
        Player { persist, is_own, runner, session, reply, commands: 0, failed: 0, loaded: 0, position: None }
    }

    fn play(&mut self, part: &Part) -> Result<(), Ended> {
        let io = |error: std::io::Error| Ended::Failed(error.to_string());
        let mut file = File::open(&part.path).map_err(io)?;
        let mut at = 0;
        if part.size == 0 && is_snapshot_by_name(&part.path) {
            return Err(Ended::Failed("at byte 0: the file is empty, a snapshot is expected".into()));
        }
        if holds_snapshot(&mut file).map_err(io)? {
            let mut contexts = self.persist.loaders.lock();
            let (_, mut reader) =
                load::rdb(self.persist, &mut contexts, &mut file, Some(part.size), How::default())?;
            at = reader.position();
            drop(reader);
            file.seek(SeekFrom::Start(at)).map_err(io)?;
        }
        self.session.select(0);
        let mut commands = Commands::new(BufReader::new(file), at, Some(part.size));
        loop {
            match commands.next() {
                Ok(None) => break,
                Ok(Some(Record::Command(command))) => {
                    self.position = None;
                    self.run(&command)?;
                }
                Ok(Some(Record::Comment { text, .. })) => {
                    self.position = Position::from_note(text).or(self.position.take());
                }
                Ok(Some(Record::Timestamp { .. })) => {}
                Err(fault) => {
                    self.forgive(part, fault.is_torn(), fault.whole, &fault)?;
                    break;
                }
            }
        }
        self.loaded += part.size;
        Ok(())
    }

    /// Cuts off a torn end, which a crash may leave, or a damaged end if the settings allow its size. Any
    /// other fault is an error.
    fn forgive(
        &mut self,
        part: &Part,
        is_torn: bool,
        whole: u64,
        fault: &dyn std::fmt::Display,
    ) -> Result<(), Ended> {
        let (settings, lost) = (self.persist.core.settings(), part.size - whole);
        let by = match is_torn {
            true => settings.aof_load_truncated.then_some("aof-load-truncated"),
            false => {
                let is_short = lost <= settings.aof_load_corrupt_tail_max_size;
                is_short.then_some("aof-load-corrupt-tail-max-size")
            }
        };
        let Some(by) = by.filter(|_| part.last) else {
            let what = if is_torn { "Unexpected end of file" } else { "Bad file format" };
            let hint = "'evenkeel check DIR' reports the damage, and --fix truncates it";
            return Err(Ended::Failed(format!("{what} reading the append only file: {fault}. {hint}")));
        };
        // Bytes behind the last complete command or transaction did not take effect.
        self.session.discard();
        let path = part.path.display();
        if !self.is_own {
            log::warn!("{path}: {fault}. The last {lost} bytes are left out ({by}); the file is not changed");
            return Ok(());
        }
        log::warn!("{path}: {fault}. The last {lost} bytes are truncated ({by})");
        truncate(&part.path, whole).map_err(|error| Ended::Failed(error.to_string()))
    }

    fn run(&mut self, command: &Command<'_>) -> Result<(), Ended> {
        if self.commands.is_multiple_of(STOP_CHECK_COMMANDS) {
            self.runner.ctx().played_ms = clock::unix_ms();
            self.persist.loading.loaded_bytes.store(self.loaded + command.at(), Relaxed);
            if self.persist.core.stopping.load(Acquire) {
                return Err(Ended::Stopped);
            }
        }
        self.commands += 1;
        if command.bytes().len() > COMMAND_MAX {
            let text =
                format!("A command of more than 4 GiB reading the append only file at byte {}", command.at());
            return Err(Ended::Failed(text));
        }
        let args = OwnedArgs::new(command.args());
        self.runner.ctx().now_ms = 0;
        let keyspace = &self.persist.core.keyspace;
        keyspace.enter(self.runner.ctx());
        let request = self.runner.resolve_logged(args.as_args(), self.session.db);
        let (errors, session) = (self.reply.errors, &mut self.session);
        let ran = self.runner.run(session, request, &mut self.reply);
        keyspace.leave(self.runner.ctx());
        let failed = ran != Some(Outcome::Replied) || self.reply.errors != errors;
        if failed {
            let name = String::from_utf8_lossy(command.name()).into_owned();
            let said = String::from_utf8_lossy(self.reply.plain().unwrap_or_default()).trim_end().to_owned();
            let at = command.at();
            let Some(id) = table().find(command.name()) else {
                let text =
                    format!("Unknown command '{name}' reading the append only file at byte {at}: {said}");
                return Err(Ended::Failed(text));
            };
            // Older servers log scripts verbatim, including scripts that failed in the end: their earlier
            // writes stay.
            let is_script = matches!(table().row(id).lock_scope, LockScope::Script { .. });
            if !is_script || said.starts_with("-NOSCRIPT") {
                return Err(Ended::Failed(format!("at byte {at}: {name} cannot be run: {said}")));
            }
            self.failed += 1;
            if self.failed <= FAILED_MAX {
                let text = format!(
                    "A script at byte {at} of the append only file failed, possibly as it did when it was \
                     logged: {said}"
                );
                log::warn!("{}", text);
            }
        }
        self.reply.clear();
        Ok(())
    }
}
