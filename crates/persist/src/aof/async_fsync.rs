//! Syncs on a thread of its own, so the journal is still written to the file while a disk takes long for a
//! sync. Bytes in the file are safe from a crash of the process; bytes that wait in memory are not.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::Persist;
use evenkeel_runtime::threads;

/// The thread, which ends after its last sync once this value is dropped.
pub(super) struct Syncer {
    files: Sender<File>,
    results: Receiver<io::Result<()>>,
}

impl Syncer {
    /// Starts the thread. Returns `None` if no thread can be started.
    pub(super) fn start(persist: &Arc<Persist>) -> Option<Syncer> {
        let (files, to_sync) = channel::<File>();
        let (synced, results) = channel();
        let persist = persist.clone();
        let work = move || {
            for file in to_sync {
                super::sleep_us(&persist.aof.metrics.sync_sleep_us);
                if synced.send(file.sync_data()).is_err() {
                    return; // the writer is gone
                }
            }
        };
        threads::named("aof-sync").spawn(work).ok()?;
        Some(Syncer { files, results })
    }

    /// Begins a sync of a file, while none is running. Returns false if that fails.
    pub(super) fn begin(&self, file: &File) -> bool {
        file.try_clone().is_ok_and(|file| self.files.send(file).is_ok())
    }

    /// The result of the running sync, if it ends within `timeout`.
    pub(super) fn end_within(&self, timeout: Duration) -> Option<io::Result<()>> {
        match self.results.recv_timeout(timeout) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("the fsync thread failed"))),
        }
    }

    /// Waits for the running sync and returns its result.
    pub(super) fn end(&self) -> io::Result<()> {
        self.results.recv().unwrap_or_else(|_| Err(io::Error::other("the fsync thread failed")))
    }
}
