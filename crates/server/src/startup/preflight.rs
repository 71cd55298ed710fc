//! Preflight: tries to open everything that a start opens, without keeping or changing anything. For
//! `--check-config`, and for the warnings of a start.
//!
//! A server with the same configuration may be running. So an address in use and a locked file are remarks,
//! not errors, and no port is opened. No file is left behind: the checking operator may be another user than
//! the server, which could not write such a file.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use evenkeel_rdb::aof::StoredData;

use super::raise_file_limit;
use crate::cluster;
use crate::observe::process;
use evenkeel_acl::Acl;
use evenkeel_config::{DisklessLoad, Preload, Settings, cause};
use evenkeel_net::listener;
use evenkeel_net::tls;
use evenkeel_persist::lock::{self, What};
use evenkeel_persist::rewrite;
use evenkeel_runtime::server_log::try_file;
use evenkeel_runtime::temp_file;

/// The results of the checks.
#[derive(Default)]
pub(crate) struct Findings {
    /// For each of these, a start would fail or warn.
    pub(crate) mistakes: Vec<String>,
    /// Present obstacles to a start, or to parts of its configuration.
    pub(crate) remarks: Vec<String>,
}

impl Findings {
    /// Records an error. Returns whether there was none.
    fn note(&mut self, result: Result<(), String>) -> bool {
        let is_well = result.is_ok();
        self.mistakes.extend(result.err());
        is_well
    }
}

/// Checks everything that a start opens. Without `has_dir`, relative paths have no base and are skipped.
pub(crate) fn check(settings: &Settings, has_dir: bool) -> Findings {
    let mut found = Findings::default();
    let has_dir = has_dir && found.note(enter_dir(settings));
    let leads_somewhere = |path: &Path| has_dir || path.is_absolute();
    for path in settings.logfile.iter().filter(|path| leads_somewhere(path)) {
        found.note(can_write(path).map_err(|error| no_log_file(path, &error)));
    }
    for path in settings.pidfile.iter().filter(|path| leads_somewhere(path)) {
        found.note(can_write(path).map_err(|error| no_pidfile(path, &error)));
    }
    if settings.aclfile.as_deref().is_none_or(leads_somewhere) {
        found.note(Acl::new(settings).load_at_start(settings));
    }
    if tls::paths(settings).all(leads_somewhere) {
        found.mistakes.extend(tls::faults(settings).into_iter().map(no_tls));
    }
    let sockets = listener::rehearse(settings, leads_somewhere);
    found.mistakes.extend(sockets.mistakes);
    found.remarks.extend(sockets.in_use);
    if has_dir {
        found.mistakes.extend(unwritable(settings));
        found.note(data(settings));
        found.note(cluster::check(settings));
        found.remarks.extend(holder(settings));
    }
    found.mistakes.extend(beyond_machine(settings));
    match raise_file_limit(settings) {
        Ok(()) => {}
        Err(0) => found.mistakes.push("the limit of open files is too low to serve a client".into()),
        Err(clients) => found.remarks.push(format!(
            "the limit of open files allows only {clients} clients, fewer than maxclients {}",
            settings.maxclients
        )),
    }
    found
}

/// Makes `dir` the working directory, the base of relative paths.
pub(super) fn enter_dir(settings: &Settings) -> Result<(), String> {
    let gone = |error| format!("Can't chdir to '{}': {}", settings.dir.display(), cause(&error));
    std::env::set_current_dir(&settings.dir).map_err(gone)
}

pub(super) fn no_log_file(path: &Path, error: &io::Error) -> String {
    format!("Can't open the log file {}: {}", path.display(), cause(error))
}

pub(super) fn no_pidfile(path: &Path, error: &io::Error) -> String {
    format!("Cannot write the pidfile {}: {}", path.display(), cause(error))
}

pub(super) fn no_tls(reason: String) -> String {
    format!("Failed to configure TLS: {reason}")
}

/// Checks that a file can be written, or created if it is absent; does neither.
fn can_write(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            temp_file::nameless(folder.unwrap_or(Path::new(".")), "check").map(drop)
        }
        Err(error) => Err(error),
        Ok(_) => try_file(path),
    }
}

/// Returns why the data cannot be stored in their directory, and the consequences, if so.
pub(super) fn unwritable(settings: &Settings) -> Option<String> {
    let loads_by_file = settings.repl_diskless_load == DisklessLoad::Disabled;
    let is_needed = [
        (settings.appendonly, "the append-only file cannot be created or rewritten"),
        (
            !settings.save.is_empty(),
            "snapshots fail, so writes are refused after a save point, and SIGTERM and SHUTDOWN do not stop \
             the server (SHUTDOWN NOSAVE does)",
        ),
        (settings.replicaof.is_some() && loads_by_file, "a full sync with the primary fails"),
    ];
    let follows: Vec<&str> =
        is_needed.into_iter().filter_map(|(is_needed, what)| is_needed.then_some(what)).collect();
    let reason = (!follows.is_empty()).then(|| why_unwritable(settings))??;
    Some(format!("{reason}. With this configuration, {}.", follows.join("; ")))
}

fn why_unwritable(settings: &Settings) -> Option<String> {
    let log = settings.dir.join(&settings.appenddirname);
    let has_log = settings.appendonly && log.is_dir();
    for folder in [Some(&settings.dir), has_log.then_some(&log)].into_iter().flatten() {
        if let Err(error) = temp_file::nameless(folder, "check") {
            return Some(format!("Cannot write files in {}: {}", folder.display(), cause(&error)));
        }
    }
    let snapshot = settings.dir.join(&settings.dbfilename);
    snapshot.is_dir().then(|| format!("Cannot write the snapshot {}: it is a directory", snapshot.display()))
}

/// Opens the files that are loaded. `evenkeel check` checks their content.
fn data(settings: &Settings) -> Result<(), String> {
    let open = |path: &Path| match File::open(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("Can't open {}: {}", path.display(), cause(&error)))
        }
        _ => Ok(()),
    };
    match &settings.preload_file {
        Some(Preload::Snapshot(path) | Preload::Manifest(path)) => {
            return File::open(settings.dir.join(path)).map(drop).map_err(|error| {
                format!("Can't open the preload-file {}: {}", path.display(), cause(&error))
            });
        }
        None => {}
    }
    if settings.appendonly {
        let directory = rewrite::open(settings).map_err(|error| error.to_string())?;
        if directory.stored_data() != StoredData::Nothing {
            let parts = directory.parts().map_err(|error| error.to_string())?;
            return parts.iter().try_for_each(|part| open(&part.path));
        }
    }
    open(&settings.dir.join(&settings.dbfilename))
}

/// Returns the server that has locked these files, if any.
fn holder(settings: &Settings) -> Option<String> {
    let log = settings.appenddirname.join(&settings.appendfilename);
    let name = match settings.appendonly {
        true => (What::Log, log.as_path()),
        false if !settings.save.is_empty() => (What::Snapshot, settings.dbfilename.as_path()),
        false => return None,
    };
    lock::keep_servers_off(&settings.dir, Some(name)).err().map(|error| error.to_string())
}

/// The memory that the process may use, and how much of it the data may take.
pub(super) fn memory_line(maxmemory: u64, limit: u64, machine: u64) -> String {
    let mb = |bytes: u64| bytes >> 20;
    let whose = if limit < machine { "the control group of this process" } else { "this machine" };
    match maxmemory {
        0 => format!(
            "Memory: {} MB, by {whose}; 'maxmemory' is not set, and with {} MB the process stays below that",
            mb(limit),
            mb(proposed(limit))
        ),
        _ => format!("Memory: {} MB, by {whose}; 'maxmemory' is {} MB", mb(limit), mb(maxmemory)),
    }
}

/// A `maxmemory` with which the process stays below `limit`: see "Memory" in docs/operations.md.
fn proposed(limit: u64) -> u64 {
    const BESIDE: u64 = 64 << 20;
    limit.saturating_sub(BESIDE).max(limit / 2) / 5 * 4
}

/// Warns about more data than memory: the kernel ends the server before any key is evicted or any write
/// refused.
pub(super) fn beyond_machine(settings: &Settings) -> Option<String> {
    let (wanted, there) = (settings.maxmemory, process::memory_limit());
    let mb = |bytes: u64| bytes >> 20;
    (there > 0 && wanted > there).then(|| {
        format!(
            "maxmemory is {} MB, but this machine or the control group of this process has only {} MB: the \
             kernel kills the server before maxmemory is reached",
            mb(wanted),
            mb(there)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_memory_that_there_is() {
        const GB: u64 = 1 << 30;
        assert_eq!(
            memory_line(0, GB, 4 * GB),
            "Memory: 1024 MB, by the control group of this process; 'maxmemory' is not set, and with 768 MB \
             the process stays below that"
        );
        assert_eq!(
            memory_line(GB, 4 * GB, 4 * GB),
            "Memory: 4096 MB, by this machine; 'maxmemory' is 1024 MB"
        );
        // Where the memory beside the data is most of it, half of it is for the data.
        assert_eq!(proposed(100 << 20) >> 20, 40);
    }
}
