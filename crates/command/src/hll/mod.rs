//! HyperLogLogs: the number of different elements seen, within 0.81%, in at most 12 KiB.
//!
//! An element's hash chooses a register out of 16,384, which keeps the maximum of the number of zeros at the
//! end of the rest of the hash (Flajolet et al., 2007). The value is an ordinary string in Redis' own bytes,
//! so both servers read each other's values:
//!
//! ```text
//!  0      4          5      8                        16
//!  | HYLL | encoding | 0 0 0 | count, little endian   | registers ...
//!           0 dense: 6 bits each, 12,288 bytes ([`dense`])
//!           1 sparse: runs of equal registers, while they take at most hll-sparse-max-bytes ([`sparse`])
//! ```
//!
//! The count is kept from the last request for it; its highest bit marks it as out of date. A client may
//! write anything into such a string. As in Redis, a string that is not even a HyperLogLog at first sight
//! gets another error than a HyperLogLog with broken registers. Absent here: keys, replies and the store's
//! entries; bytes come in, bytes go out.

pub mod hyperloglog;

mod dense;
mod estimate;
mod hash;
mod self_test;
mod sparse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use evenkeel_store::{Edited, Str};

use crate::error::Error;
pub use dense::Registers;
use hash::Place;
pub use self_test::self_test;

/// Bits of the hash that choose the register.
const INDEX_BITS: u32 = 14;
pub const REGISTERS: usize = 1 << INDEX_BITS;

const MAGIC: &[u8] = b"HYLL";
const ENCODING_AT: usize = 4;
pub const COUNT_AT: usize = 8;
const HEADER: usize = 16;

/// Set in the highest byte of the count when that is out of date.
const STALE_BIT: u8 = 0x80;

const DENSE_LEN: usize = HEADER + dense::BYTES;

/// No sparse HyperLogLog is longer: each register a run of its own, in the longer of the two codes.
const SPARSE_LEN_MAX: usize = HEADER + 2 * REGISTERS;

/// Why a string cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no HyperLogLog at first sight.
    Foreign,
    /// It looks like a HyperLogLog, but its registers do not add up.
    Corrupt,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::text(match fault {
            Fault::Foreign => "WRONGTYPE Key is not a valid HyperLogLog string value.",
            Fault::Corrupt => "INVALIDOBJ Corrupted HLL object detected",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Dense = 0,
    Sparse = 1,
}

impl Encoding {
    /// Returns the encoding that a string has by its first bytes and its length.
    fn of(head: &[u8], len: usize) -> Result<Encoding, Fault> {
        if head.len() < HEADER || !head.starts_with(MAGIC) {
            return Err(Fault::Foreign);
        }
        match head[ENCODING_AT] {
            0 if len == DENSE_LEN => Ok(Encoding::Dense),
            1 if len <= SPARSE_LEN_MAX => Ok(Encoding::Sparse),
            1 => Err(Fault::Corrupt),
            _ => Err(Fault::Foreign),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Encoding::Dense => "dense",
            Encoding::Sparse => "sparse",
        }
    }
}

/// Returns the bytes of a string that looks like a HyperLogLog; at most `SPARSE_LEN_MAX` are copied.
pub fn bytes_of(value: Str<'_>) -> Result<Cow<'_, [u8]>, Fault> {
    if let Str::Rope(_) = value {
        let head: Vec<u8> = (0..HEADER).map(|at| value.byte(at)).collect();
        Encoding::of(&head, value.len())?;
    }
    let bytes = value.bytes();
    encoding(&bytes)?;
    Ok(bytes)
}

pub fn encoding(bytes: &[u8]) -> Result<Encoding, Fault> {
    Encoding::of(bytes, bytes.len())
}

/// Returns a HyperLogLog without elements.
pub fn empty() -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[ENCODING_AT] = Encoding::Sparse as u8;
    sparse::push_zeros(&mut bytes, REGISTERS);
    bytes
}

/// Returns the cached count, unless it is out of date.
pub fn cached_count(bytes: &[u8]) -> Option<u64> {
    let count = bytes[COUNT_AT..HEADER].try_into().expect("eight bytes");
    (bytes[HEADER - 1] & STALE_BIT == 0).then(|| u64::from_le_bytes(count))
}

fn set_stale(bytes: &mut [u8]) {
    bytes[HEADER - 1] |= STALE_BIT;
}

/// Computes the number of different elements from the registers.
pub fn count(bytes: &[u8]) -> Result<u64, Fault> {
    let histogram = match encoding(bytes)? {
        Encoding::Dense => dense::histogram(&bytes[HEADER..]),
        Encoding::Sparse => sparse::histogram(&bytes[HEADER..])?,
    };
    Ok(estimate::count(&histogram))
}

/// Computes the number of different elements from merged registers.
pub fn count_registers(registers: &Registers) -> u64 {
    estimate::count(&registers.histogram())
}

/// Raises `max` to the registers of `bytes` where these are higher.
pub fn merge_into(max: &mut Registers, bytes: &[u8]) -> Result<(), Fault> {
    match encoding(bytes)? {
        Encoding::Dense => dense::merge_into(max, &bytes[HEADER..]),
        Encoding::Sparse => sparse::merge_into(max, &bytes[HEADER..])?,
    }
    Ok(())
}

/// Adds elements. Each element that changes a register is a change; on an error there is none.
pub fn add<'e>(
    bytes: &mut [u8],
    elements: impl Iterator<Item = &'e [u8]>,
    sparse_max: usize,
) -> Result<Edited, Fault> {
    let mut places = elements.map(hash::place);
    if encoding(bytes)? == Encoding::Dense {
        let registers = &mut bytes[HEADER..];
        let changes = places.filter(|place| dense::raise(registers, *place)).count() as u64;
        if changes > 0 {
            set_stale(bytes);
        }
        return Ok(Edited { changes, instead: None });
    }
    // Nothing is copied before something changes.
    let first = loop {
        let Some(place) = places.next() else { return Ok(Edited { changes: 0, instead: None }) };
        if sparse::find(bytes, place.index, sparse::START)?.value() < place.rank {
            break place;
        }
    };
    let mut copy = bytes.to_vec();
    let changes = raise_all(&mut copy, std::iter::once(first).chain(places), sparse_max)?;
    if copy.len() != bytes.len() {
        return Ok(Edited { changes, instead: Some(copy) });
    }
    bytes.copy_from_slice(&copy);
    Ok(Edited { changes, instead: None })
}

/// Returns a new HyperLogLog with these elements, and how many changed a register.
pub fn made_of<'e>(elements: impl Iterator<Item = &'e [u8]>, sparse_max: usize) -> (Vec<u8>, u64) {
    let mut bytes = empty();
    let changes = raise_all(&mut bytes, elements.map(hash::place), sparse_max).expect("empty is not corrupt");
    set_stale(&mut bytes);
    (bytes, changes)
}

/// Raises registers in either encoding; a sparse value becomes dense when it has to. Returns how many were
/// raised.
fn raise_all(
    bytes: &mut Vec<u8>,
    places: impl Iterator<Item = Place>,
    sparse_max: usize,
) -> Result<u64, Fault> {
    let mut raised = 0;
    for place in places {
        if encoding(bytes)? == Encoding::Sparse {
            match sparse::raise(bytes, place, sparse::START, sparse_max)?.0 {
                sparse::Outcome::Same => continue,
                sparse::Outcome::Raised => {
                    raised += 1;
                    continue;
                }
                sparse::Outcome::NoRoom => *bytes = to_dense(bytes)?,
            }
        }
        raised += u64::from(dense::raise(&mut bytes[HEADER..], place));
    }
    if raised > 0 {
        set_stale(bytes);
    }
    Ok(raised)
}

/// Converts to the dense encoding; the header is kept, including the count.
pub fn to_dense(bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut registers = Registers::zeros();
    merge_into(&mut registers, bytes)?;
    Ok(dense_of(bytes, &registers))
}

fn dense_of(header: &[u8], registers: &Registers) -> Vec<u8> {
    let mut dense = vec![0; DENSE_LEN];
    dense[..HEADER].copy_from_slice(&header[..HEADER]);
    dense[ENCODING_AT] = Encoding::Dense as u8;
    dense::pack(registers, &mut dense[HEADER..]);
    dense
}

/// Puts merged registers into the target of the merge, which they include.
pub fn store(
    target: &mut [u8],
    registers: &Registers,
    dense: bool,
    sparse_max: usize,
) -> Result<Edited, Fault> {
    if encoding(target)? == Encoding::Dense {
        dense::pack(registers, &mut target[HEADER..]);
        set_stale(target);
        return Ok(Edited { changes: 1, instead: None });
    }
    let sparse = if dense { None } else { raised_to(target, registers, sparse_max)? };
    let mut bytes = sparse.unwrap_or_else(|| dense_of(target, registers));
    set_stale(&mut bytes);
    Ok(Edited { changes: 1, instead: Some(bytes) })
}

/// Returns a new HyperLogLog with merged registers.
pub fn merged(registers: &Registers, dense: bool, sparse_max: usize) -> Vec<u8> {
    let mut bytes = empty();
    let edited = store(&mut bytes, registers, dense, sparse_max).expect("empty is not corrupt");
    edited.instead.unwrap_or(bytes)
}

/// Raises the registers of a sparse value in turn, since the bytes depend on the order; `None` when they do
/// not fit.
fn raised_to(sparse: &[u8], registers: &Registers, sparse_max: usize) -> Result<Option<Vec<u8>>, Fault> {
    let (mut bytes, mut from) = (sparse.to_vec(), sparse::START);
    for (index, rank) in registers.iter().enumerate().filter(|(_, rank)| *rank > 0) {
        let (outcome, next) = sparse::raise(&mut bytes, Place { index, rank }, from, sparse_max)?;
        if outcome == sparse::Outcome::NoRoom {
            return Ok(None);
        }
        from = next;
    }
    Ok(Some(bytes))
}

/// Returns the runs of a sparse value, as PFDEBUG DECODE prints them; `None` for a dense value.
pub fn decode(bytes: &[u8]) -> Result<Option<String>, Fault> {
    let is_sparse = encoding(bytes)? == Encoding::Sparse;
    Ok(is_sparse
        .then(|| sparse::runs(&bytes[HEADER..]).map(|run| run.to_string()).collect::<Vec<_>>().join(" ")))
}
