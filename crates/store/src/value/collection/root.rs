//! The root of a collection: the eight bytes that an entry keeps, and their meaning.
//!
//! A root is either a single tree, which is a page for a small collection, or two trees that belong together:
//! the items in order and the members by hash of a large sorted set, or the fields and the deadlines of a
//! hash whose fields expire.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::tree::Tree;
use crate::memory::mover::Mover;
use crate::value::shared::Shared;

/// The two trees of a collection.
#[derive(Clone)]
pub(crate) struct Twin {
    pub(crate) main: Tree,
    pub(crate) side: Tree,
}

/// See the module's documentation: a `Tree`, or a `Shared<Twin>` if bit 1 is set.
#[repr(transparent)]
pub(crate) struct Root(NonNull<u8>, PhantomData<(Tree, Shared<Twin>)>);

pub(super) const TWIN: usize = 2;

// SAFETY: a root is a `Tree` or a `Shared<Twin>`, which both may be sent and shared.
unsafe impl Send for Root {}
// SAFETY: as above.
unsafe impl Sync for Root {}

pub(crate) enum View<'a> {
    One(&'a Tree),
    Two(&'a Twin),
}

pub(crate) enum ViewMut<'a> {
    One(&'a mut Tree),
    Two(&'a mut Twin),
}

impl From<Tree> for Root {
    fn from(tree: Tree) -> Root {
        Root(tree.into_raw(), PhantomData)
    }
}

impl From<Twin> for Root {
    fn from(twin: Twin) -> Root {
        Root(Shared::new(twin).into_raw().map_addr(|address| address | TWIN), PhantomData)
    }
}

impl Root {
    fn is_twin(&self) -> bool {
        self.0.addr().get() & TWIN != 0
    }

    /// The twin's reference, which is not dropped.
    fn twin(&self) -> ManuallyDrop<Shared<Twin>> {
        debug_assert!(self.is_twin());
        let raw = self.0.as_ptr().map_addr(|address| address & !TWIN);
        let raw = NonNull::new(raw).expect("an address is more than its second bit");
        // SAFETY: with the bit it is the pointer of a twin; the copy is not dropped.
        ManuallyDrop::new(unsafe { Shared::from_raw(raw) })
    }

    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        if self.is_twin() {
            let twin: *const Twin = &**self.twin();
            // SAFETY: the twin lives as long as `self`.
            View::Two(unsafe { &*twin })
        } else {
            // SAFETY: `Root` and `Tree` are both nothing but the pointer.
            View::One(unsafe { &*(&raw const *self).cast::<Tree>() })
        }
    }

    #[inline]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        if !self.is_twin() {
            // SAFETY: as in `view`.
            return ViewMut::One(unsafe { &mut *(&raw mut *self).cast::<Tree>() });
        }
        let mut twin = self.twin();
        let own: *mut Twin = twin.own();
        let raw = ManuallyDrop::into_inner(twin).into_raw().map_addr(|address| address | TWIN);
        // The old pointer's reference went with `twin`; nothing is dropped here.
        self.0 = raw;
        // SAFETY: it is the own twin of `self`, borrowed exclusively as long as `self` is.
        ViewMut::Two(unsafe { &mut *own })
    }

    /// The tree of the items; a twin has a second tree.
    #[inline]
    pub(crate) fn main(&self) -> &Tree {
        match self.view() {
            View::One(tree) => tree,
            View::Two(twin) => &twin.main,
        }
    }

    /// Number of items.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.main().len()
    }

    pub(crate) fn memory(&self) -> usize {
        match self.view() {
            View::One(tree) => tree.memory(),
            View::Two(twin) => size_of::<Twin>() + 8 + twin.main.memory() + twin.side.memory(),
        }
    }

    /// See [`Tree::shared_memory`].
    pub(crate) fn shared_memory(&self, owners: u32) -> usize {
        match self.view() {
            View::One(tree) => tree.shared_memory(owners),
            View::Two(twin) => {
                // A tree below a shared twin still has a single reference.
                let owners = if self.twin().refs() > owners { 0 } else { 1 };
                twin.main.shared_memory(owners) + twin.side.shared_memory(owners)
            }
        }
    }

    /// See [`Tree::relocate`]: the second tree's items follow those of the main tree.
    pub(crate) fn relocate(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.is_twin() && !self.twin().is_own() {
            return None;
        }
        match self.view_mut() {
            ViewMut::One(tree) => tree.relocate(from, mover),
            ViewMut::Two(twin) => {
                let len = twin.main.len();
                if from < len
                    && let Some(at) = twin.main.relocate(from, mover)
                {
                    return Some(at);
                }
                twin.side.relocate(from.saturating_sub(len), mover).map(|at| len + at)
            }
        }
    }

    /// See [`Tree::pages_up_to`]: the main tree's.
    pub(crate) fn pages_up_to(&self, max: usize) -> usize {
        self.main().pages_up_to(max)
    }

    /// See [`Tree::memory_up_to`].
    pub(crate) fn memory_up_to(&self, max: usize) -> usize {
        self.main().memory_up_to(max)
    }

    /// Returns true if no other root shares the whole value.
    pub(crate) fn is_own(&self) -> bool {
        if self.is_twin() { self.twin().is_own() } else { self.main().is_own() }
    }

    /// Approximate maximum number of nodes that dropping the root visits.
    pub(crate) fn weight(&self) -> usize {
        match self.view() {
            View::One(tree) => tree.weight(),
            View::Two(twin) => twin.main.weight().saturating_add(twin.side.weight()),
        }
    }

    /// Returns true if both share the whole value; see [`Tree::is_same`].
    pub(crate) fn is_same(&self, other: &Root) -> bool {
        self.0 == other.0
    }

    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` comes from `into_raw`, and stands for a reference.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Root {
        Root(raw, PhantomData)
    }
}

impl Clone for Root {
    fn clone(&self) -> Root {
        match self.view() {
            View::One(tree) => tree.clone().into(),
            View::Two(_) => {
                let raw = Shared::clone(&self.twin()).into_raw();
                Root(raw.map_addr(|address| address | TWIN), PhantomData)
            }
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.is_twin() {
            drop(ManuallyDrop::into_inner(self.twin()));
        } else {
            // SAFETY: `self` is dropped now, so the tree made of its pointer has the only claim to its
            // reference.
            drop(unsafe { Tree::from_raw(self.0) });
        }
    }
}
