//! The thread `recorder-file`, which writes frames to files.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_history::{Files, Frame, Schema};

use evenkeel_runtime::{clock, threads};

/// Seconds that may wait for the disk. Later seconds are left out of the file.
const QUEUE_MAX: usize = 600;

pub(super) struct Store {
    queue: SyncSender<Vec<Frame>>,
    files: Arc<Mutex<Files>>,
    is_late: AtomicBool,
}

impl Store {
    /// Prepares the directory and starts the thread, which ends with this value.
    pub(super) fn start(directory: &Path, schema: Schema, bytes_max: u64) -> io::Result<Store> {
        let files = Arc::new(Mutex::new(Files::open(directory, schema, bytes_max)?));
        let (queue, frames) = sync_channel(QUEUE_MAX);
        let of_thread = files.clone();
        threads::named("recorder-file").spawn(move || write(&of_thread, &frames))?;
        Ok(Store { queue, files, is_late: AtomicBool::new(false) })
    }

    /// Calls `each` for the frames of former runs.
    pub(super) fn load(&self, each: impl FnMut(Frame)) {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = files.load(each) {
            log::warn!("Recorder: the past cannot be read: {error}");
        }
    }

    /// Hands frames to the thread, unless its disk is too slow.
    pub(super) fn append(&self, frames: Vec<Frame>) {
        let is_late = self.queue.try_send(frames).is_err();
        if is_late && !self.is_late.swap(is_late, Relaxed) {
            log::warn!(
                "Recorder: the disk of 'recorder-dir' is too slow, and some seconds are not recorded there."
            );
        }
        if !is_late {
            self.is_late.store(false, Relaxed);
        }
    }
}

fn write(files: &Mutex<Files>, frames: &Receiver<Vec<Frame>>) {
    let mut has_failed = false;
    for frames in frames {
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        match files.append(&frames, clock::unix_ms()) {
            Ok(()) => has_failed = false,
            Err(error) if !has_failed => {
                has_failed = true;
                log::warn!("Recorder: writing a file failed: {error}");
            }
            Err(_) => {}
        }
    }
}
