//! The content of a page: head, items, offsets and tags.

use super::{HEADER, Page};

impl Page {
    /// The bytes before the first item.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        let len = if self.len() == 0 { self.used() } else { self.start(0) };
        debug_assert!(len <= self.used(), "offsets rise");
        // SAFETY: this many bytes were written before the first item.
        unsafe { std::slice::from_raw_parts(self.base().add(HEADER), len) }
    }

    /// The item at a position. Panics if there is none.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &[u8] {
        let (start, end) = self.bounds(at);
        debug_assert!(start <= end && end <= self.used(), "offsets rise");
        // SAFETY: offsets rise and end at `used`, which lies inside the block; so do multiples of an even
        // page's length.
        unsafe { std::slice::from_raw_parts(self.base().add(HEADER + start), end - start) }
    }

    /// Start and end of an item.
    #[inline]
    pub(super) fn bounds(&self, at: usize) -> (usize, usize) {
        assert!(at < self.len(), "a position inside");
        if self.is_even() {
            let len = self.even_len();
            return (at * len, (at + 1) * len);
        }
        (self.start(at), if at + 1 == self.len() { self.used() } else { self.start(at + 1) })
    }

    #[inline]
    pub(super) fn start(&self, at: usize) -> usize {
        assert!(at < self.len(), "a position inside");
        if self.is_even() {
            return at * self.even_len();
        }
        // SAFETY: `count` offsets lie before the tags, the first offset last; offsets of two bytes are
        // aligned, since tags are as wide.
        unsafe {
            let end = self.tail().sub(self.len() * self.tag_width());
            if self.is_narrow() { *end.sub(at + 1) as usize } else { *end.cast::<u16>().sub(at + 1) as usize }
        }
    }

    /// The length of each item of an even page that is not empty.
    #[inline]
    pub(super) fn even_len(&self) -> usize {
        (self.header().used / u32::from(self.header().count)) as usize
    }

    #[inline]
    pub(crate) fn tag(&self, at: usize) -> u16 {
        self.tags()[self.len() - 1 - at]
    }

    /// The tags, last item first; empty if there are none.
    #[inline]
    pub(crate) fn tags(&self) -> &[u16] {
        if !self.is_tagged() {
            return &[];
        }
        // SAFETY: `count` tags end the block, whose end is aligned.
        unsafe { std::slice::from_raw_parts(self.tail().cast::<u16>().sub(self.len()), self.len()) }
    }

    /// The offsets and the tags, at the end of the block.
    #[inline]
    pub(crate) fn index(&self) -> &[u8] {
        let len = self.len() * self.stride();
        // SAFETY: this many bytes of offsets and tags end the block.
        unsafe { std::slice::from_raw_parts(self.tail().sub(len), len) }
    }

    /// The first position from `from` on whose tag is `tag`.
    #[inline]
    pub(crate) fn find_tag(&self, tag: u16, from: usize) -> Option<usize> {
        const LANES: usize = 16;
        let tags = self.tags();
        let mut rest = &tags[..tags.len() - from];
        // From the back, where the first positions are, many at a time.
        while let Some((head, lanes)) = rest.split_last_chunk::<LANES>() {
            let hit = lanes.iter().fold(false, |hit, one| hit | (*one == tag));
            if hit {
                break;
            }
            rest = head;
        }
        rest.iter().rposition(|one| *one == tag).map(|index| tags.len() - 1 - index)
    }

    pub(super) fn numbered(&self, at: usize) -> (&[u8], u16) {
        (self.get(at), if self.is_tagged() { self.tag(at) } else { 0 })
    }
}
