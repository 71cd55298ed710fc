//! An entry: header, deadline, key and value in one allocation.
//!
//! ```text
//!  0        4        6        8          16             16+8            ..
//!  | meta   | keylen | vallen | deadline | long key len | key bytes ... | value bytes or 8-byte pointer |
//!    u32      u16      u16      if TTL     if LONG_KEY
//!  meta: kind 3 bits | HEAP | TTL | LONG_KEY | form 2 bits | access 24 bits
//!  vallen: 15 bits | epoch 1 bit
//!  HEAP: vallen encodes the bytes that the value shares with other values; see [`crate::apart`]
//! ```
//!
//! The epoch tells whether a snapshot that is being taken has the entry already; see [`crate::snapshot`]. The
//! form of a string is RAW or TEXT; that of a collection is its encoding for OBJECT ENCODING.
//!
//! A key of 16 bytes with a value of 16 bytes takes 40 bytes, which the allocator serves without rounding. A
//! second allocation per entry would cost 16 bytes more and, worse, another cache miss.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

pub use crate::value::Kind;

use crate::Millis;
use crate::memory::blocks;
use crate::memory::prefetch::{LINE, prefetch};
use crate::table::apart::{self, Apart};
use crate::value::collection::{self, Collection, Hash};
use crate::value::heap_value::HeapValue;
use crate::value::rope::{FLAT_MAX, Rope, Spine, Str};

const _: () = assert!(FLAT_MAX < EPOCH as usize, "a flat value's length fits the header");

/// The deadlines of an entry and of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// The key's own deadline.
    pub(crate) own: Option<Millis>,
    /// The earliest deadline of a hash's fields.
    pub(crate) fields: Option<Millis>,
}

impl Times {
    /// The earlier of the two.
    #[inline]
    pub(crate) fn first(self) -> Option<Millis> {
        match (self.own, self.fields) {
            (Some(own), Some(fields)) => Some(own.min(fields)),
            (own, fields) => own.or(fields),
        }
    }
}

const KIND: u32 = 7;
const HEAP: u32 = 1 << 3;
const TTL: u32 = 1 << 4;
const LONG_KEY: u32 = 1 << 5;
const RAW: u32 = 1 << 6;
/// OBJECT ENCODING reports a text even if the string reads like an integer.
const TEXT: u32 = 1 << 7;
/// The bits of a value's form.
const FORM: u32 = RAW | TEXT;
const FORM_SHIFT: u32 = 6;
const _: () = assert!(FORM == 3 << FORM_SHIFT);
const ACCESS_SHIFT: u32 = 8;
const FLAGS: u32 = (1 << ACCESS_SHIFT) - 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    meta: u32,
    key_len: u16,
    /// The length of a flat value, or the encoded bytes that a heap value shares; and the epoch.
    value_len: u16,
}

/// Offset of the header's last field.
const VALUE_LEN_AT: usize = 6;
const EPOCH: u16 = 1 << 15;
const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 8 && std::mem::offset_of!(Header, value_len) == VALUE_LEN_AT);

/// Bytes of an entry that are prefetched.
const PREFETCHED_MAX: usize = 1024;

/// A value on its way into or out of an entry.
pub(crate) enum Value<'a> {
    /// At most `FLAT_MAX` bytes. `raw`: the string was edited in place, and OBJECT ENCODING reports `raw`.
    Flat { bytes: &'a [u8], raw: bool },
    /// A rope, or a collection of this form.
    HeapValue(HeapValue, u8),
}

impl<'a> Value<'a> {
    /// A string as given by a client.
    #[inline]
    pub(crate) fn string(bytes: &'a [u8]) -> Value<'a> {
        if bytes.len() <= FLAT_MAX {
            Value::Flat { bytes, raw: false }
        } else {
            Value::rope(Rope::new(bytes))
        }
    }
}

impl Value<'_> {
    pub(crate) fn rope(rope: Rope) -> Value<'static> {
        Value::HeapValue(HeapValue::Rope(rope), (RAW >> FORM_SHIFT) as u8)
    }

    fn kind(&self) -> Kind {
        match self {
            Value::Flat { .. } => Kind::String,
            Value::HeapValue(heap_value, _) => heap_value.kind(),
        }
    }
}

/// The address of an entry. The table owns the entry; the holder of the slot may read and change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPtr(NonNull<u8>);

// All methods that read through the pointer are sound only while the slot that owns the entry is held and the
// entry has not been freed. The crate keeps that promise in a single place: `SlotGuard` returns views that
// borrow the guard.
impl EntryPtr {
    /// # Safety
    /// `address` is that of an entry.
    #[inline]
    pub(crate) unsafe fn from_address(address: usize) -> EntryPtr {
        // SAFETY: entries are allocated, so their address is not null.
        EntryPtr(unsafe { NonNull::new_unchecked(address as *mut u8) })
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Allocates an entry.
    pub(crate) fn new(key: &[u8], value: Value<'_>, deadline: Option<Millis>, access: u32) -> EntryPtr {
        let long = key.len() >= u16::MAX as usize;
        let (value_len, value_flags) = match &value {
            Value::Flat { bytes, raw } => (bytes.len(), if *raw { RAW } else { 0 }),
            Value::HeapValue(_, form) => (0, HEAP | u32::from(*form) << FORM_SHIFT),
        };
        debug_assert!(value_len <= FLAT_MAX);
        let flags = value_flags | if deadline.is_some() { TTL } else { 0 } | if long { LONG_KEY } else { 0 };
        let header = Header {
            meta: flags | value.kind() as u32 | access << ACCESS_SHIFT,
            key_len: if long { u16::MAX } else { key.len() as u16 },
            value_len: value_len as u16,
        };
        let address = if flags & HEAP != 0 { size_of::<usize>() } else { 0 };
        let size = header.key_offset() + key.len() + value_len + address;
        let block = blocks::take(blocks::Kind::Entry, size);
        let entry = EntryPtr(block);
        // SAFETY: all writes lie inside the `size` bytes just allocated: header, deadline, length, key, value
        // follow each other as `key_offset` says.
        unsafe {
            block.cast::<Header>().write(header);
            if let Some(deadline) = deadline {
                block.add(HEADER).cast::<u64>().write(deadline);
            }
            if long {
                block.add(header.key_offset() - 8).cast::<u64>().write(key.len() as u64);
            }
            let at = block.add(header.key_offset());
            at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            let at = at.add(key.len());
            match value {
                Value::Flat { bytes, .. } => {
                    at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
                }
                Value::HeapValue(heap_value, _) => {
                    at.cast::<*const u8>().write_unaligned(heap_value.into_raw())
                }
            }
        }
        entry
    }

    #[inline]
    fn header(self) -> Header {
        // SAFETY: see the note above the `impl`.
        unsafe { self.0.cast::<Header>().read() }
    }

    #[inline]
    fn set_meta(self, meta: u32) {
        // SAFETY: see the note above the `impl`; `meta` is the first field.
        unsafe { self.0.cast::<u32>().write(meta) }
    }

    #[inline]
    fn slice<'a>(self, offset: usize, len: usize) -> &'a [u8] {
        // SAFETY: see the note above the `impl`; callers pass a range inside the entry.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(offset), len) }
    }

    #[inline]
    fn key_range(self, header: Header) -> (usize, usize) {
        let offset = header.key_offset();
        if header.meta & LONG_KEY == 0 {
            (offset, header.key_len as usize)
        } else {
            // SAFETY: LONG_KEY says that the eight bytes before the key hold its length.
            (offset, unsafe { self.0.add(offset - 8).cast::<u64>().read() } as usize)
        }
    }

    #[inline]
    pub(crate) fn key<'a>(self) -> &'a [u8] {
        let (offset, len) = self.key_range(self.header());
        self.slice(offset, len)
    }

    #[inline]
    pub(crate) fn has_key(self, key: &[u8]) -> bool {
        let header = self.header();
        let (offset, len) = self.key_range(header);
        len == key.len() && self.slice(offset, len) == key
    }

    #[inline]
    pub(crate) fn deadline(self) -> Option<Millis> {
        // SAFETY: TTL says that a deadline follows the header.
        (self.header().meta & TTL != 0).then(|| unsafe { self.0.add(HEADER).cast::<u64>().read() })
    }

    /// The deadline, and the earliest deadline of a hash's fields.
    #[inline]
    pub(crate) fn times(self) -> Times {
        let fields = if self.kind() == Kind::Hash { self.collection::<Hash>().earliest() } else { None };
        Times { own: self.deadline(), fields }
    }

    /// Changes the deadline of an entry that has one.
    pub(crate) fn set_deadline(self, deadline: Millis) {
        assert!(self.header().meta & TTL != 0, "the entry has room for a deadline");
        // SAFETY: as checked, eight bytes after the header hold the deadline.
        unsafe { self.0.add(HEADER).cast::<u64>().write(deadline) }
    }

    #[inline]
    pub(crate) fn string<'a>(self) -> Str<'a> {
        let header = self.header();
        let (key, len) = self.key_range(header);
        if header.meta & HEAP == 0 {
            Str::Flat(self.slice(key + len, header.value_len()))
        } else {
            // SAFETY: HEAP says that the address of a rope, since this is a string, follows the key; the
            // entry owns a reference to it.
            Str::Rope(unsafe { &*self.heap_address().cast::<Spine>() })
        }
    }

    /// The eight bytes after the key, which hold an address. The caller has seen HEAP.
    fn heap_address_at(self) -> *mut *const u8 {
        let (key, len) = self.key_range(self.header());
        // SAFETY: this is inside the entry.
        unsafe { self.0.add(key + len).as_ptr().cast() }
    }

    fn heap_address(self) -> *const u8 {
        // SAFETY: the entry has HEAP, so these eight bytes are an address.
        unsafe { self.heap_address_at().read_unaligned() }
    }

    pub(crate) fn has_heap_value(self) -> bool {
        self.header().meta & HEAP != 0
    }

    /// Returns true if the string is flat and has this length.
    #[inline]
    pub(crate) fn has_room_of(self, len: usize) -> bool {
        let header = self.header();
        header.meta & HEAP == 0 && header.value_len() == len
    }

    /// Overwrites a flat value by a value of the same length.
    #[inline]
    pub(crate) fn overwrite(self, bytes: &[u8]) {
        assert!(self.has_room_of(bytes.len()), "the caller has looked");
        let header = self.header();
        let (key, len) = self.key_range(header);
        self.set_meta(header.meta & !(RAW | TEXT));
        // SAFETY: the flat value's bytes follow the key and are as many as `bytes`.
        unsafe { self.0.add(key + len).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    /// Records that a flat value has been edited.
    pub(crate) fn set_raw(self) {
        self.set_meta(self.header().meta | RAW);
    }

    /// Writes into a flat value in place. The range lies inside the value.
    pub(crate) fn patch(self, offset: usize, bytes: &[u8]) {
        let header = self.header();
        assert!(header.meta & HEAP == 0 && offset + bytes.len() <= header.value_len(), "inside a flat value");
        let (key, len) = self.key_range(header);
        self.set_meta(header.meta | RAW);
        // SAFETY: the range lies inside the value, as just checked.
        unsafe {
            self.0.add(key + len + offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        }
    }

    /// The bytes of a flat value, for editing in place; `None` for a rope.
    ///
    /// The caller holds the slot and keeps no other view of the value meanwhile.
    pub(crate) fn flat_mut<'a>(self) -> Option<&'a mut [u8]> {
        let header = self.header();
        if header.meta & HEAP != 0 {
            return None;
        }
        let (key, len) = self.key_range(header);
        // SAFETY: the flat value's bytes follow the key; by the caller's promise no other view of them
        // exists.
        Some(unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().add(key + len), header.value_len()) })
    }

    /// Takes the heap value out; `None` for a flat value. The entry must then be freed or get a heap value
    /// back.
    fn take_heap_value(self) -> Option<HeapValue> {
        // SAFETY: the entry owns a reference to a value of its kind, which moves to the caller.
        self.has_heap_value().then(|| unsafe { HeapValue::from_raw(self.kind(), self.heap_address()) })
    }

    /// The address of the page of a collection that is a single page.
    pub(crate) fn single_page(self) -> Option<usize> {
        let is_tree = matches!(self.kind(), Kind::List | Kind::Set | Kind::ZSet | Kind::Hash);
        if is_tree { collection::single_page(self.heap_address()) } else { None }
    }

    /// Calls `f` with the heap value, which may change in place; `None` for a flat value.
    pub(crate) fn change_heap_value<R>(self, f: impl FnOnce(&mut HeapValue) -> R) -> Option<R> {
        struct Back(EntryPtr, ManuallyDrop<HeapValue>);
        impl Drop for Back {
            fn drop(&mut self) {
                // SAFETY: the value is taken out once, here. The entry has HEAP, since the value came from
                // there, and its reference moves back.
                unsafe {
                    self.0.heap_address_at().write_unaligned(ManuallyDrop::take(&mut self.1).into_raw())
                }
            }
        }
        let mut back = Back(self, ManuallyDrop::new(self.take_heap_value()?));
        Some(f(&mut back.1))
    }

    /// Returns a further reference to the heap value.
    pub(crate) fn share_heap_value(self) -> Option<HeapValue> {
        let heap_value = ManuallyDrop::new(self.take_heap_value()?);
        Some(HeapValue::clone(&heap_value))
    }

    /// The rope of a string, for writing; `None` for a flat value.
    pub(crate) fn rope_mut(self) -> Option<HeapValueMut<Rope>> {
        assert!(self.kind() == Kind::String, "a rope is a string's");
        // SAFETY: a string on the heap is a rope, and the entry owns a reference to it.
        self.has_heap_value().then(|| unsafe {
            let address = NonNull::new(self.heap_address().cast_mut()).expect("a value has an address");
            HeapValueMut { entry: self, value: ManuallyDrop::new(Rope::from_raw(address)) }
        })
    }

    /// The collection, for writing. The entry is of this kind.
    pub(crate) fn collection_mut<T: Collection>(self) -> HeapValueMut<T> {
        HeapValueMut { entry: self, value: self.collection_copy() }
    }

    /// The collection. The entry is of this kind.
    #[inline]
    pub(crate) fn collection<'a, T: Collection>(self) -> Ref<'a, T> {
        Ref { value: self.collection_copy(), guard: PhantomData }
    }

    #[inline]
    fn collection_copy<T: Collection>(self) -> ManuallyDrop<T> {
        assert!(self.kind() == T::KIND, "a collection of the kind that the caller has seen");
        let raw =
            NonNull::new(self.heap_address().cast_mut()).expect("the address of a collection is not null");
        // SAFETY: collections are always heap values, so the address is that of a collection of this kind.
        // The copy is not dropped.
        ManuallyDrop::new(unsafe { T::from_raw(raw) })
    }

    /// The form of the value; see [`View::form`].
    pub(crate) fn form(self) -> u8 {
        ((self.header().meta & FORM) >> FORM_SHIFT) as u8
    }

    pub(crate) fn set_form(self, form: u8) {
        assert!(form < 4, "a form is two bits");
        self.set_meta(self.header().meta & !FORM | u32::from(form) << FORM_SHIFT);
    }

    #[inline]
    pub(crate) fn access(self) -> u32 {
        self.header().meta >> ACCESS_SHIFT
    }

    #[inline]
    pub(crate) fn set_access(self, access: u32) {
        self.set_meta(self.header().meta & FLAGS | access << ACCESS_SHIFT);
    }

    /// The epoch in which the entry was made, or handed to a snapshot.
    #[inline]
    pub(crate) fn epoch(self) -> bool {
        self.header().value_len & EPOCH != 0
    }

    #[inline]
    pub(crate) fn set_epoch(self, epoch: bool) {
        let value_len = self.header().value_len & !EPOCH | if epoch { EPOCH } else { 0 };
        // SAFETY: see the note above the `impl`; this is the header's last field.
        unsafe { self.0.add(VALUE_LEN_AT).cast::<u16>().write(value_len) }
    }

    /// Bytes that the value, stored apart from all others, would take beyond the bytes it takes now.
    #[inline]
    pub(crate) fn apart(self) -> Apart {
        let header = self.header();
        if header.meta & HEAP == 0 { Apart::default() } else { self.apart_of_heap_value(header) }
    }

    fn apart_of_heap_value(self, header: Header) -> Apart {
        let shared = apart::decoded(header.value_len & !EPOCH);
        let holes = match header.meta & KIND {
            kind if kind != Kind::String as u32 => 0,
            // SAFETY: a string on the heap is a rope, and the entry owns a reference to it.
            _ => unsafe { &*self.heap_address().cast::<Spine>() }.holes(),
        };
        Apart { shared, holes: holes as u64 }
    }

    /// Returns true if the entry's heap value is `value`.
    pub(crate) fn is_sharing(self, value: &HeapValue) -> bool {
        // SAFETY: the copy is made to an address, which drops nothing.
        let address = unsafe { std::ptr::read(value) }.into_raw();
        self.has_heap_value() && self.kind() == value.kind() && address == self.heap_address()
    }

    /// Sets the number of bytes that a heap value shares with other values.
    pub(crate) fn set_shared(self, bytes: u64) {
        assert!(self.has_heap_value(), "the caller has seen that it is not flat");
        let value_len = self.header().value_len & EPOCH | apart::encoded(bytes);
        // SAFETY: see the note above the `impl`; this is the header's last field.
        unsafe { self.0.add(VALUE_LEN_AT).cast::<u16>().write(value_len) }
    }

    pub(crate) fn is_raw(self) -> bool {
        self.header().meta & RAW != 0
    }

    pub(crate) fn is_text(self) -> bool {
        self.header().meta & TEXT != 0
    }

    pub(crate) fn set_text(self) {
        self.set_meta(self.header().meta | TEXT);
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        Kind::of_bits(self.header().meta & KIND)
    }

    pub(crate) fn size(self) -> usize {
        let header = self.header();
        let (key, len) = self.key_range(header);
        key + len + if header.meta & HEAP != 0 { size_of::<usize>() } else { header.value_len() }
    }

    /// Frees the entry and returns its heap value, whose freeing may take long.
    #[inline]
    pub(crate) fn free(self) -> Option<HeapValue> {
        let heap_value = self.take_heap_value();
        self.free_block();
        heap_value
    }

    /// Frees the block, and not the heap value.
    #[inline]
    pub(crate) fn free_block(self) {
        // SAFETY: `size` is the size that `new` computed; the table no longer has the address.
        unsafe { blocks::put_back(self.0, self.size()) };
    }

    /// A copy of the entry in another block, if there is memory: the caller puts it in the place of this one,
    /// and frees this one's block alone. The entry lies in a block of the slab allocator.
    pub(crate) fn duplicate(self) -> Option<EntryPtr> {
        // SAFETY: the entry is this long, and the holder of its slot neither frees nor changes it now.
        unsafe { blocks::duplicate(blocks::Kind::Entry, self.0, self.size()) }.map(EntryPtr)
    }

    /// Moves the value to a new entry, with another deadline or key; the old entry is freed.
    pub(crate) fn rebuild(self, key: &[u8], deadline: Option<Millis>) -> EntryPtr {
        let new = self.with_value(self.take_heap_value(), key, deadline, self.access());
        self.free_block();
        new
    }

    /// Copies the value to an entry with another key; a heap value is shared.
    pub(crate) fn copy(self, key: &[u8], deadline: Option<Millis>, access: u32) -> EntryPtr {
        self.with_value(self.share_heap_value(), key, deadline, access)
    }

    /// An entry like this, with the heap value given.
    fn with_value(
        self,
        heap_value: Option<HeapValue>,
        key: &[u8],
        deadline: Option<Millis>,
        access: u32,
    ) -> EntryPtr {
        let value = match heap_value {
            Some(heap_value) => Value::HeapValue(heap_value, self.form()),
            None => self.flat_value(),
        };
        let new = EntryPtr::new(key, value, deadline, access);
        new.set_form(self.form());
        if self.has_heap_value() {
            new.set_shared(apart::decoded(self.header().value_len & !EPOCH));
        }
        new
    }

    fn flat_value<'a>(self) -> Value<'a> {
        match self.string() {
            Str::Flat(bytes) => Value::Flat { bytes, raw: self.is_raw() },
            Str::Rope(_) => unreachable!("the caller has seen a heap value"),
        }
    }

    /// Prefetches the part of the entry behind the first cache line, up to [`PREFETCHED_MAX`]: the processor
    /// itself foresees the rest.
    pub(crate) fn prefetch_rest(self) {
        let start = self.address() as *const u8;
        (LINE..self.size().min(PREFETCHED_MAX)).step_by(LINE).for_each(|at| prefetch(start.wrapping_add(at)));
    }

    /// Like [`EntryPtr::memory`], without the parts that take long to count.
    pub(crate) fn memory_about(self) -> usize {
        let heap_value = self.take_heap_value().map(ManuallyDrop::new);
        self.size() + heap_value.map_or(0, |heap_value| heap_value.memory_about())
    }

    /// Bytes of memory: the block, and the heap value.
    pub(crate) fn memory(self) -> usize {
        let heap_value = self.take_heap_value().map(ManuallyDrop::new);
        self.size() + heap_value.map_or(0, |heap_value| heap_value.memory())
    }
}

/// A value that is taken out of its entry while it is written to. Dropping this puts it back, also after a
/// panic.
pub(crate) struct HeapValueMut<T: IntoHeapAddress> {
    entry: EntryPtr,
    value: ManuallyDrop<T>,
}

/// Values that an entry refers to by address.
pub(crate) trait IntoHeapAddress {
    fn into_heap_address(self) -> *const u8;
}

impl IntoHeapAddress for Rope {
    fn into_heap_address(self) -> *const u8 {
        self.into_raw().as_ptr()
    }
}

impl<T: Collection> IntoHeapAddress for T {
    fn into_heap_address(self) -> *const u8 {
        self.into_raw().as_ptr()
    }
}

impl<T: IntoHeapAddress> Deref for HeapValueMut<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: IntoHeapAddress> DerefMut for HeapValueMut<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: IntoHeapAddress> Drop for HeapValueMut<T> {
    fn drop(&mut self) {
        // SAFETY: the value is taken out once, here, and not used again. The entry has HEAP, since the
        // value came from there, and its reference moves back.
        unsafe {
            let raw = ManuallyDrop::take(&mut self.value).into_heap_address();
            self.entry.heap_address_at().write_unaligned(raw);
        }
    }
}

/// A collection in its entry.
pub struct Ref<'a, T> {
    value: ManuallyDrop<T>,
    guard: PhantomData<&'a T>,
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl Kind {
    fn of_bits(bits: u32) -> Kind {
        match bits {
            0 => Kind::String,
            1 => Kind::List,
            2 => Kind::Set,
            3 => Kind::ZSet,
            4 => Kind::Hash,
            5 => Kind::Stream,
            6 => Kind::Array,
            _ => unreachable!("the header holds a kind"),
        }
    }
}

impl Header {
    #[inline]
    fn value_len(self) -> usize {
        (self.value_len & !EPOCH) as usize
    }

    #[inline]
    fn key_offset(self) -> usize {
        HEADER + if self.meta & TTL != 0 { 8 } else { 0 } + if self.meta & LONG_KEY != 0 { 8 } else { 0 }
    }
}

/// An entry as a command sees it, while the command holds the slot.
#[derive(Clone, Copy)]
pub struct View<'a> {
    entry: EntryPtr,
    guard: std::marker::PhantomData<&'a ()>,
}

impl<'a> View<'a> {
    pub(crate) fn new(entry: EntryPtr) -> View<'a> {
        View { entry, guard: std::marker::PhantomData }
    }

    pub fn kind(&self) -> Kind {
        self.entry.kind()
    }

    pub fn key(&self) -> &'a [u8] {
        self.entry.key()
    }

    /// The value of a string; panics for other kinds.
    pub fn string(&self) -> Str<'a> {
        assert!(self.kind() == Kind::String, "the caller has looked at the kind");
        self.entry.string()
    }

    /// Returns true if the value lies in the entry.
    pub fn is_flat(&self) -> bool {
        !self.entry.has_heap_value()
    }

    /// A string that lies in the entry.
    pub fn flat(&self) -> Option<&'a [u8]> {
        match self.kind() {
            Kind::String => match self.string() {
                Str::Flat(bytes) => Some(bytes),
                Str::Rope(_) => None,
            },
            _ => None,
        }
    }

    /// A share of a long string's rope, made in constant time; `None` if the string lies in the entry. Panics
    /// for other kinds.
    pub fn rope(&self) -> Option<Rope> {
        assert!(self.kind() == Kind::String, "the caller has looked at the kind");
        match self.entry.share_heap_value()? {
            HeapValue::Rope(rope) => Some(rope),
            _ => unreachable!("a string on the heap is a rope"),
        }
    }

    /// The value of a collection; panics for other kinds.
    pub fn collection<T: Collection>(&self) -> Ref<'a, T> {
        self.entry.collection()
    }

    /// The form that the last change of a collection has set, for OBJECT ENCODING: zero is the most compact.
    pub fn form(&self) -> u8 {
        self.entry.form()
    }

    /// The deadline of the key, if any.
    pub fn deadline(&self) -> Option<Millis> {
        self.entry.deadline()
    }

    /// The 24 access bits; their meaning depends on the policy, see [`crate::evict`].
    pub fn access(&self) -> u32 {
        self.entry.access()
    }

    /// Bytes of memory that the entry takes.
    pub fn memory(&self) -> usize {
        self.entry.memory()
    }

    /// Returns true if the string has been edited in place (APPEND, SETRANGE, SETBIT).
    pub fn is_raw(&self) -> bool {
        self.entry.is_raw()
    }

    /// Returns true if the string was computed as a text (INCRBYFLOAT), and is no integer even if it reads
    /// like an integer.
    pub fn is_text(&self) -> bool {
        self.entry.is_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_reads_back() {
        let long = vec![b'k'; 70_000];
        for key in [&b""[..], b"k", b"sixteen bytes..", &long] {
            for value in [&b""[..], b"v", &vec![b'x'; FLAT_MAX], &vec![b'y'; FLAT_MAX + 1]] {
                for deadline in [None, Some(1), Some(u64::MAX)] {
                    let entry = EntryPtr::new(key, Value::string(value), deadline, 0xab_cdef);
                    assert!(entry.has_key(key) && entry.key() == key);
                    assert!(!entry.has_key(b"another"));
                    assert_eq!(&*entry.string().bytes(), value);
                    assert_eq!(entry.deadline(), deadline);
                    entry.set_access(7);
                    assert_eq!(entry.access(), 7);
                    assert!(!entry.epoch());
                    entry.set_epoch(true);
                    assert!(entry.epoch() && entry.access() == 7);
                    assert_eq!(&*entry.string().bytes(), value);
                    drop(entry.free());
                }
            }
        }
    }

    #[test]
    fn a_small_pair_takes_forty_bytes() {
        let entry = EntryPtr::new(&[b'k'; 16], Value::string(&[b'v'; 16]), None, 0);
        assert_eq!(entry.memory(), 40);
        entry.free();
    }
}
