//! Collections: lists, sets, hashes, sorted sets, streams, arrays, on trees of shared pages.
//!
//! ```text
//! Entry ── 8 bytes ──> Root ─┬─ Tree: one Page, or Inner nodes over Pages
//!                            └─ Twin: two Trees that belong together
//! ```
//!
//! A clone of any of them is O(1) and never changes: a later write copies the pages that it changes. Items
//! are byte strings; each collection's own file defines their content. See docs/values.md.

pub mod array;
mod hash;
mod hashed;
mod ints;
mod list;
mod named;
mod ordered;
mod page;
mod root;
pub mod sample;
pub mod set;
mod share;
pub mod stream;
mod tree;
mod varint;
mod zset;

pub use array::Array;
pub use hash::{Field, Hash};
pub use list::List;
pub use set::Set;
pub use share::Share;
pub use stream::Stream;
pub use tree::MEMBERS_MAX;
pub use zset::{Gather, Gathered, Lex, ZSet};

use std::ptr::NonNull;

use crate::Millis;
use crate::memory::mover::Mover;
use crate::value::Kind;
use root::{Root, View};
use tree::Tree;

/// Maximum bytes of an element, of a member, and of a field with its value: with the data stored beside it,
/// each is an item of a page.
pub const ELEMENT_MAX: usize = page::ITEM_MAX - 64;

/// Values of a key other than strings.
pub trait Collection: Sized + Send + Sync + Clone + raw::Raw + 'static {
    const KIND: Kind;

    fn new() -> Self;

    fn is_empty(&self) -> bool;

    /// Returns true if both share the whole value, so neither was written to since it was cloned.
    fn is_same(&self, other: &Self) -> bool;

    /// Number of items whose deadline has passed and that are not removed yet.
    fn overdue(&self, _now: Millis) -> u64 {
        0
    }
}

/// Conversion of collections to and from the address in an entry; only for this crate.
pub(crate) mod raw {
    use super::*;

    pub trait Raw {
        fn into_raw(self) -> NonNull<u8>;

        /// # Safety
        /// `raw` comes from `into_raw` of the same type, and stands for a reference.
        unsafe fn from_raw(raw: NonNull<u8>) -> Self;
    }
}

/// Makes a collection of a type with a single field, which has `into_raw` and `from_raw`.
macro_rules! collection {
    ($type:ident, $kind:expr, $inner:ty, $new:expr, $len:ident $(, $overdue:ident)?) => {
        impl Collection for $type {
            const KIND: Kind = $kind;

            fn new() -> $type {
                $type($new)
            }

            fn is_empty(&self) -> bool {
                self.$len() == 0
            }

            fn is_same(&self, other: &$type) -> bool {
                self.0.is_same(&other.0)
            }

            $(fn overdue(&self, now: Millis) -> u64 {
                self.$overdue(now)
            })?
        }

        impl $type {
            /// Returns true if no other owner shares the whole value.
            pub(crate) fn is_own(&self) -> bool {
                self.0.is_own()
            }

            /// See [`Tree::relocate`].
            pub(crate) fn relocate(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
                self.0.relocate(from, mover)
            }

            /// Bytes of memory of pages that other collections refer to as well: all of them if there are
            /// more than `owners` references to this collection. Takes time in proportion to the pages.
            pub fn shared_memory(&self, owners: u32) -> usize {
                self.0.shared_memory(owners)
            }

            /// Approximate number of pages, counted up to `max`.
            pub fn pages_up_to(&self, max: usize) -> usize {
                self.0.pages_up_to(max)
            }
        }

        impl raw::Raw for $type {
            fn into_raw(self) -> NonNull<u8> {
                self.0.into_raw()
            }

            unsafe fn from_raw(raw: NonNull<u8>) -> $type {
                // SAFETY: by the caller's promise.
                $type(unsafe { <$inner>::from_raw(raw) })
            }
        }
    };
}

collection!(List, Kind::List, Tree, Tree::new(), len);
collection!(Set, Kind::Set, Tree, Tree::new(), len);
collection!(Hash, Kind::Hash, Root, Tree::new().into(), size, expired);
collection!(ZSet, Kind::ZSet, Root, Tree::new().into(), len);

/// The address of the page, if a list, set, hash or sorted set that an entry has as `raw` is a single page.
pub(crate) fn single_page(raw: *const u8) -> Option<usize> {
    (raw.addr() & (root::TWIN | tree::INNER) == 0).then(|| raw.addr())
}

/// A part cut off a collection, which may be large: to be dropped where time does not matter.
#[derive(Default)]
pub struct Cut(Vec<Tree>);

impl Cut {
    fn of(root: Root) -> Cut {
        match root.view() {
            View::One(tree) => Cut(vec![tree.clone()]),
            View::Two(twin) => Cut(vec![twin.main.clone(), twin.side.clone()]),
        }
    }

    /// Approximate maximum number of nodes that dropping it visits.
    pub(crate) fn weight(&self) -> usize {
        self.0.iter().map(Tree::weight).fold(0, usize::saturating_add)
    }

    /// Approximate bytes that dropping it frees; trees that another owner shares do not count.
    pub(crate) fn memory(&self) -> usize {
        self.0.iter().filter(|tree| tree.is_own()).map(Tree::memory).sum()
    }
}
