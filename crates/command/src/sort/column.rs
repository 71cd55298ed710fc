//! Looks up the keys that elements name.
//!
//! Keys are visited in the order of their slots. A slot is locked once for all its keys, or for [`VISIT_MAX`]
//! at a time where a hash tag puts them all into a single slot, so that no other thread waits for long.

use evenkeel_store::collection::Hash;
use evenkeel_store::rope::Spine;
use evenkeel_store::{Key, Kind, Place, SlotGuard, Str};

use super::plan::Pattern;

/// Keys that are looked up under a single lock: at 0.2 us each, 50 us.
const VISIT_MAX: usize = 256;

/// Calls `found` for each element with its index and the string at the key of the pattern, which has a star.
pub(super) fn look_up(
    pattern: &Pattern,
    elements: &[&[u8]],
    guard: &mut SlotGuard<'_>,
    db: u32,
    mut found: impl FnMut(usize, Option<Str<'_>>),
) {
    let (keyspace, mut name) = (guard.keyspace(), Vec::new());
    let visits = guard.outside_gate(|| {
        let place = |(index, element): (usize, &&[u8])| {
            pattern.name(element, &mut name);
            (keyspace.key(db, &name).place, index)
        };
        let mut visits: Vec<(Place, usize)> = elements.iter().enumerate().map(place).collect();
        visits.sort_unstable();
        visits
    });
    for slot in visits.chunk_by(|one, next| one.0 == next.0) {
        for some in slot.chunks(VISIT_MAX) {
            guard.visit(some[0].0, |guard| {
                for (_, index) in some {
                    pattern.name(elements[*index], &mut name);
                    with_value(guard, &keyspace.key(db, &name), pattern.field(), |value| {
                        found(*index, value)
                    });
                }
            });
            let is_inside = guard.give_way();
            assert!(
                is_inside,
                "threads for long commands wait for the gate, and others hold what they visit"
            );
        }
    }
}

/// Calls `f` with the string at the key, or with a field of the hash at the key.
fn with_value(
    guard: &mut SlotGuard<'_>,
    key: &Key<'_>,
    field: Option<&[u8]>,
    f: impl FnOnce(Option<Str<'_>>),
) {
    let (hasher, now) = (&guard.keyspace().hasher, guard.ctx.now_ms);
    match (guard.read(key), field) {
        (Some(view), None) if view.kind() == Kind::String => f(Some(view.string())),
        (Some(view), Some(field)) if view.kind() == Kind::Hash => {
            f(view.collection::<Hash>().get(hasher, now, field).map(Str::Flat));
        }
        _ => f(None),
    }
}

/// The values of a pattern for many elements.
#[derive(Default)]
pub(super) struct Column {
    text: Vec<u8>,
    cells: Vec<Cell>,
}

#[derive(Clone)]
enum Cell {
    Nothing,
    /// A range of the text.
    Text(usize, usize),
    /// A large string, which is shared.
    Rope(Spine),
}

impl Column {
    pub(super) fn of(pattern: &Pattern, elements: &[&[u8]], guard: &mut SlotGuard<'_>, db: u32) -> Column {
        let mut column = Column::default();
        if let Pattern::Keys { .. } = pattern {
            column.cells = vec![Cell::Nothing; elements.len()];
            look_up(pattern, elements, guard, db, |index, value| column.set(index, value));
        }
        column
    }

    fn set(&mut self, index: usize, value: Option<Str<'_>>) {
        self.cells[index] = match value {
            None => Cell::Nothing,
            Some(Str::Rope(rope)) => Cell::Rope(rope.clone()),
            Some(Str::Flat(bytes)) => {
                self.text.extend_from_slice(bytes);
                Cell::Text(self.text.len() - bytes.len(), bytes.len())
            }
        };
    }

    pub(super) fn get(&self, index: usize) -> Option<Str<'_>> {
        match self.cells.get(index) {
            None | Some(Cell::Nothing) => None,
            Some(Cell::Text(start, len)) => Some(Str::Flat(&self.text[*start..start + len])),
            Some(Cell::Rope(rope)) => Some(Str::Rope(rope)),
        }
    }
}
