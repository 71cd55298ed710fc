//! RDB files: the items before, between and behind the keys and their values.
//!
//! ```text
//! "REDIS0010" | (name, text) .. | function .. | database, sizes, record .. | end | checksum
//!  VALKEY080    auxiliary                        once per database
//!
//! record: expiry? access? type key value
//! ```
//!
//! **Writing** has two steps, so that many threads can encode keys: on any thread an
//! [`Encoder`](crate::Encoder) turns records into bytes, and a single [`FileWriter`] concatenates them and
//! computes the checksum.
//!
//! **Reading** as well: a [`FileReader`] walks over the records without decoding them, and cuts the file into
//! [`Batch`]es of whole records, which other threads decode. The walk takes a few nanoseconds per key. Only a
//! value too large for a batch is decoded by the reading thread, while it is being read.
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
pub use check::{Database, FileReport, Kind, Tally, Type, check};
pub use header::Header;
pub use reader::{Checksum, FilePart, FileReader, ReadLimits, Slots};
pub use record::{Access, Failure, KeyMetadata, KeyPosition, Record};
pub use writer::{FileWriter, Finished, Origin, Replication};
