//! Examines the bytes behind the whole part of a file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crate::aof::command::{RESYNC_BYTES_MAX, whole_commands};

/// Size of the search window. A longer command is not counted.
const WINDOW_BYTES: usize = RESYNC_BYTES_MAX as usize;

/// The bytes that no server will execute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub bytes: u64,
    /// Commands recognised in the bytes. There may be more.
    pub commands: u64,
    /// All bytes are zero, as a file system leaves them after a power cut.
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
            // A command cut off by the window begins behind the last whole command; half of the window has
            // room for it.
            window.drain(..done.max(WINDOW_BYTES / 2));
        }
    }
}
