//! The form of a list (OBJECT ENCODING): that of Valkey after the same history.
//!
//! A list is a `listpack` until it outgrows `list-max-listpack-size`, then a `quicklist` until it has shrunk
//! to half of that size. The form is a name; the actual representation of a list does not follow it.
//!
//! The exact size in bytes takes a walk over the elements, so a push does not always compute it: a list of
//! short elements may outgrow the limit by up to [`SAMPLED`] elements before its form is set. OBJECT ENCODING
//! computes the size of a `listpack` exactly, so the delay shows only if the list shrinks before the next
//! sample. The same holds for a list of several pages that shrinks.

use evenkeel_config::Settings;
use evenkeel_rdb::{Item, LISTPACK_EMPTY, listpack_size};
use evenkeel_store::Edit;
use evenkeel_store::collection::List;

use crate::Call;

const LISTPACK: u8 = 0;
const QUICKLIST: u8 = 1;

/// Pushed elements between two computations of the size of a list.
const SAMPLED: u64 = 64;

/// Elements of a list of several pages whose size each removal computes.
const FEW: u64 = 16;

/// Bytes of pushed elements that make the push compute the size of the list at once.
const LONG: usize = 512;

/// The maximum size of a `listpack`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    bytes: usize,
    elements: u64,
}

impl Limits {
    /// `list-max-listpack-size` is a number of elements or, if negative, one of five sizes from 4 KiB on.
    pub(crate) fn of(settings: &Settings) -> Limits {
        /// Maximum bytes of a `listpack` whose number of elements is the only limit set.
        const SAFE_BYTES: usize = 8192;
        match settings.list_max_listpack_size {
            size @ 0.. => Limits { bytes: SAFE_BYTES, elements: size.max(1) as u64 },
            size => Limits { bytes: 2048 << size.unsigned_abs().min(5), elements: u64::MAX },
        }
    }

    /// Returns OBJECT ENCODING's name of the form of a list.
    pub(crate) fn name(self, form: u8, list: &List) -> &'static str {
        if form == LISTPACK && self.fits(list) { "listpack" } else { "quicklist" }
    }

    /// Returns the form of a list that was read or computed as a whole.
    pub(crate) fn of_whole(self, list: &List) -> u8 {
        if self.fits(list) { LISTPACK } else { QUICKLIST }
    }

    /// Sets the form of a list to which elements are about to be added.
    #[inline]
    pub(super) fn grow<'a>(
        self,
        list: &mut Edit<'_, List>,
        elements: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) {
        if list.form == LISTPACK && self.outgrown(list, elements) {
            list.form = QUICKLIST;
        }
    }

    fn outgrown<'a>(self, list: &List, elements: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> bool {
        let (len, more) = (list.len(), elements.len() as u64);
        if len + more > self.elements {
            return true;
        }
        let bytes: usize = elements.map(<[u8]>::len).sum();
        if list.packed_max().is_some_and(|max| LISTPACK_EMPTY + max + bytes <= self.bytes) {
            return false;
        }
        let is_due = bytes >= LONG || len % SAMPLED < more;
        is_due && self.bytes.checked_sub(bytes).is_none_or(|left| !Limits { bytes: left, ..self }.fits(list))
    }

    /// Sets the form of a list from which elements were removed.
    #[inline]
    pub(super) fn shrink(self, list: &mut Edit<'_, List>) {
        if list.form != LISTPACK && self.has_shrunk(list) {
            list.form = LISTPACK;
        }
    }

    fn has_shrunk(self, list: &List) -> bool {
        if self.elements < u64::MAX {
            return Limits { elements: self.elements / 2, ..self }.fits(list);
        }
        let is_due = list.packed_max().is_some() || list.len() <= FEW || list.len().is_multiple_of(SAMPLED);
        is_due && Limits { bytes: self.bytes / 2, ..self }.fits(list)
    }

    /// Whether the list is a `listpack` by its size; visits elements up to the limit.
    fn fits(self, list: &List) -> bool {
        if list.len() > self.elements {
            return false;
        }
        let mut left = self.bytes.checked_sub(LISTPACK_EMPTY);
        for element in list.range(0..list.len()) {
            left = left.and_then(|left| left.checked_sub(listpack_size(Item::Bytes(element))));
            if left.is_none() {
                break;
            }
        }
        left.is_some()
    }
}

/// Sets the form of the list at the call's key of this index after another thread has removed elements.
pub(super) fn settle(call: &mut Call<'_, '_>, key: usize) {
    let (key, limits) = (&call.keys[key], Limits::of(call.settings));
    let has_shrunk = |list: &List| limits.has_shrunk(list);
    if call.guard.peek_collection::<List>(key).is_ok_and(|list| list.is_some_and(|list| has_shrunk(&list))) {
        call.guard.set_form(key, LISTPACK);
    }
}
