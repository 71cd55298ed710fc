//! What stands behind the place up to which a file is whole.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crate::aof::command::{RESYNC_BYTES_MAX, whole_commands};

/// Looked at in one piece. A command that is longer is not counted.
const WINDOW_BYTES: usize = RESYNC_BYTES_MAX as usize;

/// What nobody will execute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub bytes: u64,
    /// Commands that can be recognised in them. There may be more.
    pub commands: u64,
    /// All of the bytes are zero, as a file system leaves them after a power cut.
    pub zeros: bool,
}

impl Lost {
    pub(super) fn behind(mut file: File, whole: u64, size: u64) -> io::Result<Lost> {
        file.seek(SeekFrom::Start(whole))?;
        let bytes = size - whole;
        let (mut file, mut window) = (file.take(bytes), Vec::new());
        let mut lost = Lost { bytes, commands: 0, zeros: bytes > 0 };
        loop {
            let room = (WINDOW_BYTES - window.len()) as u64;
            let before = window.len();
            let got = file.by_ref().take(room).read_to_end(&mut window)?;
            lost.zeros &= window[before..].iter().all(|byte| *byte == 0);
            let mut done = 0;
            for command in whole_commands(&window) {
                lost.commands += 1;
                done = command.end;
            }
            if got as u64 != room {
                return Ok(lost);
            }
            // A command that the window cuts off begins behind the last whole one; half of the window is room for it.
            window.drain(..done.max(WINDOW_BYTES / 2));
        }
    }
}
