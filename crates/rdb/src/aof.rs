//! Append-only files: the directory that Redis 7 keeps them in, and the commands inside, both ways.
//!
//! What is absent: executing commands, clocks, threads, settings. The directory is plain `std::fs`; times and names are
//! arguments; a snapshot at the start of a file is recognised here and read by whoever reads RDB files.
//!
//! ```text
//! appendonlydir/
//!   appendonly.aof.manifest       file appendonly.aof.2.base.rdb seq 2 type b      <- Manifest
//!   appendonly.aof.2.base.rdb     a snapshot, or commands (.base.aof)              <- holds_snapshot, Commands
//!   appendonly.aof.4.incr.aof     commands since then; appended to by Directory's caller
//!   appendonly.aof.tail           what of it is not synced yet, with `appendfsync always`            <- tail
//! ```
//!
//! To start: [`Directory::open`] reads and changes nothing. Its [`parts`](Directory::parts) are loaded in order, each
//! through [`Commands`]. Then [`adopt`](Directory::adopt) what an older server left, cut off a torn tail
//! ([`truncate`]), [`resume`](Directory::resume) and remove what is history. `docs/aof.md` says what is refused, what
//! is forgiven, and why.

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
pub use directory::{Directory, Found, Part, Since};
pub use durable::truncate;
pub use error::{Error, Problem};
pub use fault::{Fault, Reason};
pub use manifest::{Entry, Flaw, Kind, LineError, Manifest};

/// How snapshots begin: Redis' and Valkey's word for it.
const MAGICS: [&[u8]; 2] = [b"REDIS", b"VALKEY"];

/// Whether a file is a snapshot by its name. A file of commands may be empty, but even a snapshot of nothing is not: an empty
/// file of such a name is what is left of a lost one.
pub fn is_snapshot_by_name(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "rdb")
}

/// Whether a file begins with a snapshot in RDB's format; it stands at its beginning again afterwards.
///
/// Such a file is read by an RDB reader first. Where that ends, [`Commands`] goes on.
pub fn holds_snapshot(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut head = Vec::with_capacity(8);
    file.by_ref().take(6).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(MAGICS.iter().any(|magic| head.starts_with(magic)))
}
