//! Syncs by a thread of their own, so that the log goes on being written while a disk takes long for one: what is in the file is
//! safe from a crash of the process, what waits in memory is not.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::server::Server;

/// The thread, which ends when this goes and its last sync is over.
pub(super) struct Syncer {
    files: Sender<File>,
    results: Receiver<io::Result<()>>,
}

impl Syncer {
    /// `None`: there can be no thread more.
    pub(super) fn start(server: &Arc<Server>) -> Option<Syncer> {
        let (files, to_sync) = channel::<File>();
        let (synced, results) = channel();
        let server = server.clone();
        let work = move || {
            for file in to_sync {
                super::sleep_us(&server.persist.aof.figures.sync_sleep_us);
                if synced.send(file.sync_data()).is_err() {
                    return; // nobody waits for it any more
                }
            }
        };
        std::thread::Builder::new().name("aof-sync".into()).spawn(work).ok()?;
        Some(Syncer { files, results })
    }

    /// Begins a sync of a file; `false`: it cannot be. There is none under way.
    pub(super) fn begin(&self, file: &File) -> bool {
        file.try_clone().is_ok_and(|file| self.files.send(file).is_ok())
    }

    /// How the sync under way has ended, if it does within so long.
    pub(super) fn end_within(&self, patience: Duration) -> Option<io::Result<()>> {
        match self.results.recv_timeout(patience) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("the fsync thread failed"))),
        }
    }

    /// How it ends.
    pub(super) fn end(&self) -> io::Result<()> {
        self.results.recv().unwrap_or_else(|_| Err(io::Error::other("the fsync thread failed")))
    }
}
