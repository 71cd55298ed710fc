//! Sources of bytes: a slice in memory, or a reader.
//!
//! A source has a *taken* range, which stays readable until the next range is taken. So a decoder lends
//! strings and walks blocks in place, with either source, and without a lifetime that would block a reader.

use std::io::{self, Read};
use std::ops::Range;

use crate::checksum::Sum;
use crate::error::{Error, Reason, Result};

/// Least number of bytes per read.
const READ_MIN: u64 = 64 * 1024;

/// A buffer that a single large string has made larger than this, in bytes, is freed at the next `take`.
const BUFFER_KEPT_MAX: usize = 2 * 1024 * 1024;

/// Extra room for `read_to_end`, which must detect that no byte follows.
const PROBE_ROOM: usize = 64;

pub trait Source {
    /// Makes the next `len` bytes the taken range. Memory grows with the bytes received, not with `len`.
    fn take(&mut self, len: u64) -> Result<()>;

    fn taken(&self) -> &[u8];

    /// Offset of the end of the taken range.
    fn position(&self) -> u64;

    /// Number of bytes behind the taken range, if known.
    fn left(&self) -> Option<u64>;

    /// Skips the next `len` bytes, which need not be in memory at once.
    #[inline]
    fn pass(&mut self, mut len: u64) -> Result<()> {
        while len > READ_MIN {
            self.take(READ_MIN)?;
            len -= READ_MIN;
        }
        self.take(len)
    }
}

/// A source that lies in memory.
#[derive(Clone, Debug)]
pub struct Slice<'a> {
    bytes: &'a [u8],
    /// Offset of the slice in the data that it was cut from; positions include it.
    base: u64,
    /// `taken.start <= taken.end <= bytes.len()`
    taken: Range<usize>,
}

impl<'a> Slice<'a> {
    pub fn new(bytes: &'a [u8]) -> Slice<'a> {
        Slice::at(bytes, 0)
    }

    /// A slice of larger data, at offset `base`.
    pub fn at(bytes: &'a [u8], base: u64) -> Slice<'a> {
        Slice { bytes, base, taken: 0..0 }
    }
}

impl Source for Slice<'_> {
    #[inline]
    fn take(&mut self, len: u64) -> Result<()> {
        let rest = self.bytes.len() - self.taken.end;
        if len > rest as u64 {
            return Err(Error::new(self.position(), Reason::Truncated));
        }
        self.taken = self.taken.end..self.taken.end + len as usize;
        Ok(())
    }

    #[inline]
    fn taken(&self) -> &[u8] {
        &self.bytes[self.taken.clone()]
    }

    #[inline]
    fn position(&self) -> u64 {
        self.base + self.taken.end as u64
    }

    #[inline]
    fn left(&self) -> Option<u64> {
        Some((self.bytes.len() - self.taken.end) as u64)
    }
}

/// A source over a reader, read in pieces of 64 KiB or more. Computes the RDB checksum of the bytes taken.
pub struct Feed<R> {
    inner: R,
    /// Total length, if known: announced lengths beyond it are refused at once.
    len: Option<u64>,
    buffer: Vec<u8>,
    /// Memory for the next buffer after this buffer is handed over.
    spare: Vec<u8>,
    /// `summed <= taken.start <= taken.end <= buffer.len()`
    taken: Range<usize>,
    /// Number of bytes of the buffer that the checksum includes.
    summed: usize,
    /// Number of bytes dropped before the buffer's first byte.
    dropped: u64,
    checksum: Sum,
}

impl<R: Read> Feed<R> {
    /// `len`: the number of bytes to come, if known.
    pub fn new(inner: R, len: Option<u64>) -> Feed<R> {
        let (buffer, spare, taken) = (Vec::new(), Vec::new(), 0..0);
        Feed { inner, len, buffer, spare, taken, summed: 0, dropped: 0, checksum: Sum::new() }
    }

    /// The CRC64 of all bytes taken so far.
    pub fn checksum(&mut self) -> u64 {
        self.sum_up();
        self.checksum.value()
    }

    /// Bytes read but not taken.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.buffer[self.taken.end..]
    }

    /// Reads until `len` bytes are ahead; false if the source ends before.
    pub(crate) fn reach(&mut self, len: usize) -> Result<bool> {
        self.refill(len, len)
    }

    /// If fewer than `least` bytes are ahead, reads until `len` are; false if the source ends before.
    ///
    /// The bytes ahead are then moved to the front, so `least` limits the moves: one per `len - least` bytes.
    pub(crate) fn refill(&mut self, least: usize, len: usize) -> Result<bool> {
        if self.ahead().len() >= least {
            return Ok(true);
        }
        self.drop_taken();
        match self.fill(len as u64) {
            Ok(()) => Ok(true),
            Err(error) if error.reason == Reason::Truncated => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the next `len` bytes, which are ahead, and hands them over in the buffer itself, or as a copy if
    /// they are its smaller part.
    pub(crate) fn detach(&mut self, len: usize) -> Vec<u8> {
        let behind = self.ahead().len() - len;
        if len < behind {
            self.taken = self.taken.end..self.taken.end + len;
            return self.taken().to_vec();
        }
        self.drop_taken();
        self.checksum.add(&self.buffer[..len]);
        self.dropped += len as u64;
        let mut rest = std::mem::take(&mut self.spare);
        rest.clear();
        // Reserves as much as was in use, so that the buffer need not grow again.
        rest.reserve(self.buffer.len().min(BUFFER_KEPT_MAX) + PROBE_ROOM);
        rest.extend_from_slice(&self.buffer[len..]);
        let mut bytes = std::mem::replace(&mut self.buffer, rest);
        bytes.truncate(len);
        bytes
    }

    /// Takes back the memory of detached bytes.
    pub(crate) fn give_back(&mut self, bytes: Vec<u8>) {
        if (self.spare.capacity()..=BUFFER_KEPT_MAX).contains(&bytes.capacity()) {
            self.spare = bytes;
        }
    }

    /// Returns the bytes read but not taken, and the reader behind them.
    pub(crate) fn into_rest(mut self) -> (Vec<u8>, R) {
        self.drop_taken();
        (self.buffer, self.inner)
    }

    fn sum_up(&mut self) {
        self.checksum.add(&self.buffer[self.summed..self.taken.end]);
        self.summed = self.taken.end;
    }

    /// Moves the bytes not taken to the front.
    fn drop_taken(&mut self) {
        self.sum_up();
        self.dropped += self.taken.end as u64;
        self.buffer.drain(..self.taken.end);
        if self.buffer.capacity() > BUFFER_KEPT_MAX {
            self.buffer.shrink_to(READ_MIN as usize);
        }
        (self.taken, self.summed) = (0..0, 0);
    }

    /// Reads until `len` bytes are in the buffer. `read_to_end` allocates in step with the bytes received.
    fn fill(&mut self, len: u64) -> Result<()> {
        while (self.buffer.len() as u64) < len {
            let piece = READ_MIN.max(len - self.buffer.len() as u64);
            match (&mut self.inner).take(piece).read_to_end(&mut self.buffer) {
                Ok(0) => {
                    self.len = Some(self.dropped + self.buffer.len() as u64); // now it is known
                    return Err(Error::new(self.position(), Reason::Truncated));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::new(self.position(), Reason::Io(error.kind()))),
            }
        }
        Ok(())
    }
}

impl<R: Read> Source for Feed<R> {
    #[inline]
    fn take(&mut self, len: u64) -> Result<()> {
        if ((self.buffer.len() - self.taken.end) as u64) < len {
            self.drop_taken();
            self.fill(len)?;
        }
        self.taken = self.taken.end..self.taken.end + len as usize; // `fill` has read that many bytes
        Ok(())
    }

    #[inline]
    fn taken(&self) -> &[u8] {
        &self.buffer[self.taken.clone()]
    }

    #[inline]
    fn position(&self) -> u64 {
        self.dropped + self.taken.end as u64
    }

    #[inline]
    fn left(&self) -> Option<u64> {
        self.len.map(|len| len.saturating_sub(self.position()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::checksum;

    /// Gives at most three bytes at a time, with an interruption before each read.
    struct Drip<'a>(&'a [u8], bool);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let len = self.0.len().min(into.len()).min(3);
            self.0.read(&mut into[..len])
        }
    }

    fn walk(source: &mut impl Source, steps: &[u64]) -> Vec<Vec<u8>> {
        steps
            .iter()
            .map(|step| {
                source.take(*step).expect("there are as many");
                source.taken().to_vec()
            })
            .collect()
    }

    #[test]
    fn a_reader_gives_the_same_pieces_as_a_slice() {
        let bytes: Vec<u8> = (0..400_000u32).map(|n| (n / 7) as u8).collect();
        let steps = [1, 0, 9, 70_000, 1, 200_000, 3, 65_536];
        let (mut slice, mut feed) = (Slice::new(&bytes), Feed::new(Drip(&bytes, false), None));
        assert_eq!(walk(&mut slice, &steps), walk(&mut feed, &steps));
        assert_eq!(slice.position(), feed.position());
        let taken = slice.position() as usize;
        assert_eq!(feed.checksum(), checksum(&bytes[..taken]));
        assert_eq!(feed.checksum(), checksum(&bytes[..taken]), "asked again, it is the same");
        let beyond = bytes.len() as u64 - slice.position() + 1;
        assert_eq!(slice.take(beyond).expect_err("beyond the end").reason, Reason::Truncated);
        assert_eq!(feed.take(beyond).expect_err("beyond the end").reason, Reason::Truncated);
    }

    #[test]
    fn the_buffer_of_a_large_string_is_given_back() {
        let bytes = vec![7; 3 * BUFFER_KEPT_MAX];
        let mut feed = Feed::new(&bytes[..], None);
        feed.take(2 * BUFFER_KEPT_MAX as u64).expect("there are as many");
        feed.take(READ_MIN).expect("there are as many");
        feed.take(READ_MIN).expect("there are as many");
        assert!(feed.buffer.capacity() <= BUFFER_KEPT_MAX);
    }

    #[test]
    fn announced_but_missing_data_allocate_nothing() {
        let mut feed = Feed::new(&[1u8; 100][..], None);
        assert!(feed.take(u64::MAX).is_err());
        assert!(feed.buffer.capacity() < 1_000);
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::TimedOut.into())
            }
        }
        let error = Feed::new(Broken, None).take(1).expect_err("it is broken");
        assert_eq!(error.reason, Reason::Io(io::ErrorKind::TimedOut));
    }
}
