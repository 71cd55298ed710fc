//! Append-only files: the directory that Redis 7 keeps them in, and the commands inside, read and written.
//!
//! This module executes no command and has no clock, thread or setting. The directory is plain `std::fs`;
//! times and names are arguments. A snapshot at the start of a file is recognised here and read by the RDB
//! reader of the caller.
//!
//! ```text
//! appendonlydir/
//!   appendonly.aof.manifest       file appendonly.aof.2.base.rdb seq 2 type b      <- Manifest
//!   appendonly.aof.2.base.rdb     a snapshot, or commands (.base.aof)              <- holds_snapshot,
//!                                                                                    Commands
//!   appendonly.aof.4.incr.aof     commands since then; appended to by Directory's caller
//!   appendonly.aof.tail           unsynced bytes, with `appendfsync always`        <- tail
//! ```
//!
//! To start: [`Directory::open`] reads and changes nothing. Its [`parts`](Directory::parts) are loaded in
//! order, each through [`Commands`]. Then the caller adopts an older server's file
//! ([`adopt`](Directory::adopt)), cuts off a torn tail ([`truncate`]), calls [`resume`](Directory::resume)
//! and removes the history. `docs/aof.md` lists the refused and the forgiven states, with reasons.

pub mod check;
mod command;
mod directory;
mod durable;
mod error;
mod fault;
mod line;
mod manifest;
#[cfg(test)]
mod scratch;
pub mod tail;

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

pub use command::{Command, Commands, Record, push_command, push_comment, push_timestamp};
pub use directory::{Directory, Part, Since, StoredData};
pub use durable::truncate;
pub use error::{Error, Problem};
pub use fault::{Fault, Reason};
pub use manifest::{Entry, Flaw, LineError, Manifest, PartKind};

/// The first bytes of snapshots by Redis and by Valkey.
const MAGICS: [&[u8]; 2] = [b"REDIS", b"VALKEY"];

/// Whether a file is a snapshot by its name. A file of commands may be empty, a snapshot cannot: an empty
/// file with a snapshot's name is the rest of a lost snapshot.
pub fn is_snapshot_by_name(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "rdb")
}

/// Whether a file begins with a snapshot in RDB's format. Rewinds the file.
///
/// An RDB reader reads such a file first; [`Commands`] goes on behind the snapshot.
pub fn holds_snapshot(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut head = Vec::with_capacity(8);
    file.by_ref().take(6).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(MAGICS.iter().any(|magic| head.starts_with(magic)))
}
