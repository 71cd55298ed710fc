//! Commands as they were sent, and the memory that they may be kept in.
//!
//! A thread lends the journal the region that it has read requests into, and passes it with each request:
//! [`RequestBytes`] stands in the arguments of a command. A command that is logged as it was sent is a range
//! of these bytes ([`SentCommand`]). The journal keeps that range of the region instead of a copy, if its
//! page refers to no other region. A copy would cost the serving thread more than the rest of its journal
//! work, since the memory for the copy comes from another core's cache.

use std::ops::Range;
use std::sync::Arc;

/// Memory that requests were read into. It does not change while the journal refers to it. The owner takes it
/// back when it holds the only reference.
pub type LentRegion = Arc<Box<[u8]>>;

/// The bytes that requests are parsed from. They know whether they are lent, so that a range of them cannot
/// be taken for a range of another region.
#[derive(Clone, Copy)]
pub struct RequestBytes<'a> {
    /// If the bytes are lent, the first bytes of `region`.
    bytes: &'a [u8],
    region: Option<&'a LentRegion>,
}

impl<'a> RequestBytes<'a> {
    /// Returns bytes that the journal has to copy.
    #[inline]
    pub fn unlent(bytes: &'a [u8]) -> RequestBytes<'a> {
        RequestBytes { bytes, region: None }
    }

    /// Returns the first `len` bytes of a region, which the journal may keep. Panics if the region is
    /// shorter.
    #[inline]
    pub fn lent(region: &'a LentRegion, len: usize) -> RequestBytes<'a> {
        RequestBytes { bytes: &region[..len], region: Some(region) }
    }

    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// A command that its client sent as an array of bulk strings.
#[derive(Clone)]
pub struct SentCommand<'a> {
    source: RequestBytes<'a>,
    range: Range<usize>,
}

impl<'a> SentCommand<'a> {
    /// Returns the command at this range of the bytes. The range must lie within them.
    #[inline]
    pub fn new(source: RequestBytes<'a>, range: Range<usize>) -> SentCommand<'a> {
        SentCommand { source, range }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.source.bytes[self.range.clone()]
    }

    /// Returns the region that the command lies in, with the range there; `None` if it has to be copied.
    #[inline]
    pub(super) fn in_region(&self) -> Option<(&'a LentRegion, &Range<usize>)> {
        Some((self.source.region?, &self.range))
    }
}
