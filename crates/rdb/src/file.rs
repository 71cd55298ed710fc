//! RDB files: what stands before, between and behind the keys and their values.
//!
//! ```text
//! "REDIS0010" | (name, text) .. | function .. | database, sizes, (expiry? access? type key value) .. | end | checksum
//!  VALKEY080    auxiliary                        once per database: the records of its keys
//! ```
//!
//! **Writing** is cut in two, so that keys can be encoded by many threads: an [`Encoder`](crate::Encoder) turns records
//! into bytes wherever it runs, and one [`FileWriter`] puts these behind each other and sums them up.
//!
//! **Reading** likewise: a [`FileReader`] walks over the records without looking into them, and cuts the file into
//! [`Batch`]es of whole records, which other threads decode. The walk takes a few nanoseconds per key. Only a value that
//! is larger than what is to be held in memory is decoded by the reading thread, while it is being read.
//!
//! Sources: the documentation page "RDB dump format", and the files of redis-server 7.0 and Valkey 9.1.

mod batch;
mod check;
mod header;
mod opcode;
mod reader;
mod record;
mod writer;

pub(crate) use opcode::FUNCTION_2;

pub use batch::{Batch, Records};
pub use check::{Database, Report, Tally, Type, check};
pub use header::Header;
pub use reader::{Checksum, FileReader, Part, ReadLimits, Slots};
pub use record::{About, Access, Failure, Place, Record};
pub use writer::{FileWriter, Finished, Origin, Replication};
