//! Puts elements in order, and selects the values for the reply.
//!
//! Elements that compare equal keep their order, as with the C library's sort that Redis uses. With LIMIT,
//! the elements outside are set aside first, in linear time. All but the look-ups runs outside the gate, if
//! no locks are held.

use std::borrow::Cow;
use std::cmp::Ordering;

use evenkeel_resp::float::parse_weight;
use evenkeel_store::collection::{Collection, List};
use evenkeel_store::{SlotGuard, Str};

use super::column::{Column, look_up};
use super::plan::{Pattern, Plan};
use super::source::Source;
use crate::error::Error;
use crate::list::check_element;
use crate::reply::Reply;

const NO_NUMBER: &str = "ERR One or more scores can't be converted into double";

/// The values to reply with or to store.
pub(super) struct Outcome<'s> {
    plan: &'s Plan,
    /// The selected elements, in order.
    elements: Vec<&'s [u8]>,
    /// The values of each GET.
    columns: Vec<Column>,
}

impl<'s> Outcome<'s> {
    pub(super) fn of(
        plan: &'s Plan,
        source: &'s Source,
        guard: &mut SlotGuard<'_>,
        db: u32,
    ) -> Result<Outcome<'s>, Error> {
        let elements = match plan.sorts {
            true => sorted(plan, source, guard, db)?,
            false => guard.outside_gate(|| plan.unsorted(source)),
        };
        let columns = plan.gets.iter().map(|pattern| Column::of(pattern, &elements, guard, db)).collect();
        Ok(Outcome { plan, elements, columns })
    }

    /// Returns the number of values in the reply.
    fn len(&self) -> usize {
        self.elements.len().saturating_mul(self.columns.len().max(1))
    }

    /// Calls `f` with each value until it returns false.
    fn for_each(&self, mut f: impl FnMut(Option<Str<'_>>) -> bool) {
        for (index, element) in self.elements.iter().enumerate() {
            if self.columns.is_empty() && !f(Some(Str::Flat(element))) {
                return;
            }
            for (pattern, column) in self.plan.gets.iter().zip(&self.columns) {
                let is_element = *pattern == Pattern::Element;
                if !f(if is_element { Some(Str::Flat(element)) } else { column.get(index) }) {
                    return;
                }
            }
        }
    }

    pub(super) fn reply(&self, reply: &mut Reply) {
        reply.array(self.len());
        self.for_each(|value| {
            match value {
                Some(value) => reply.string(value),
                None => reply.null(),
            }
            !reply.cut_beyond(self.plan.reply_len_max)
        });
    }

    /// Returns the list to store. A missing value becomes an empty element; a string may be too long for an
    /// element.
    pub(super) fn list(&self) -> Result<List, Error> {
        let (mut list, mut fits) = (List::new(), Ok(()));
        self.for_each(|value| {
            let value = value.map_or(Cow::Borrowed(&b""[..]), |value| value.bytes());
            fits = check_element(&value);
            if fits.is_ok() {
                list.push_back(&value);
            }
            fits.is_ok()
        });
        fits.map(|()| list)
    }
}

/// Returns the selected elements, ordered by their weights.
fn sorted<'s>(
    plan: &Plan,
    source: &'s Source,
    guard: &mut SlotGuard<'_>,
    db: u32,
) -> Result<Vec<&'s [u8]>, Error> {
    let elements = guard.outside_gate(|| source.elements(0..source.len()));
    let weights = match (&plan.by, plan.alpha) {
        (None, true) => Weights::Elements,
        (Some(by), true) => Weights::Texts(Column::of(by, &elements, guard, db)),
        (Some(by), false) => Weights::Numbers(weights_by(by, &elements, guard, db)),
        (None, false) => Weights::Numbers(
            guard.outside_gate(|| elements.iter().map(|element| parse_weight(element)).collect()),
        ),
    };
    guard.outside_gate(|| {
        let order = match weights {
            Weights::Elements => arrange(plan, &elements, |at| elements[at], |a, b| collate(plan, a, b)),
            Weights::Texts(column) => {
                arrange(plan, &elements, |at| column.get(at), |a, b| collate_all(plan, *a, *b))
            }
            Weights::Numbers(numbers) => {
                let numbers = numbers.ok_or(Error::text(NO_NUMBER))?;
                // Zero and its negative are the same number.
                let weight = |at: usize| (numbers[at] + 0.0, elements[at]);
                arrange(plan, &elements, weight, |a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)))
            }
        };
        Ok(order.into_iter().map(|at| elements[at]).collect())
    })
}

/// The values by which elements are compared.
enum Weights {
    /// The elements themselves.
    Elements,
    /// The values of a pattern.
    Texts(Column),
    /// `None`: a value is not a number.
    Numbers(Option<Vec<f64>>),
}

/// Returns the numbers of a pattern, zero for a missing value; `None` if a value is not a number.
fn weights_by(by: &Pattern, elements: &[&[u8]], guard: &mut SlotGuard<'_>, db: u32) -> Option<Vec<f64>> {
    let (mut weights, mut good) = (vec![0.0; elements.len()], true);
    look_up(by, elements, guard, db, |index, value| {
        if !good {
            return;
        }
        let weight = value.map_or(Some(0.0), |value| parse_weight(&beginning(value)));
        good &= weight.is_some();
        weights[index] = weight.unwrap_or(0.0);
    });
    good.then_some(weights)
}

/// Returns the indices of the selected elements, in order. Elements are compared by `weight`.
fn arrange<W>(
    plan: &Plan,
    elements: &[&[u8]],
    weight: impl Fn(usize) -> W,
    compare: impl Fn(&W, &W) -> Ordering,
) -> Vec<usize> {
    let range = plan.range(elements.len());
    let mut all: Vec<(W, usize)> = (0..elements.len()).map(|at| (weight(at), at)).collect();
    let order = |one: &(W, usize), other: &(W, usize)| {
        let order = compare(&one.0, &other.0);
        let order = if plan.descending { order.reverse() } else { order };
        order.then_with(|| one.1.cmp(&other.1))
    };
    if 0 < range.end && range.end < all.len() {
        all.select_nth_unstable_by(range.end - 1, order);
    }
    all.truncate(range.end);
    all.sort_unstable_by(order);
    all.drain(range.start..).map(|(_, at)| at).collect()
}

/// Compares texts: like C, up to a zero byte; in full if the result is stored.
fn collate(plan: &Plan, one: &[u8], other: &[u8]) -> Ordering {
    if plan.stores {
        return one.cmp(other);
    }
    let until_zero = |text: &[u8]| text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    one[..until_zero(one)].cmp(&other[..until_zero(other)])
}

/// [`collate`] with missing values, which come first. Long texts are compared where they lie.
fn collate_all(plan: &Plan, one: Option<Str<'_>>, other: Option<Str<'_>>) -> Ordering {
    match (one, other) {
        (Some(Str::Flat(one)), Some(Str::Flat(other))) => collate(plan, one, other),
        (Some(one), Some(other)) => collate_pieces(plan, one, other),
        (one, other) => one.is_some().cmp(&other.is_some()),
    }
}

/// Compares piece by piece, as far as the texts are equal.
fn collate_pieces(plan: &Plan, one: Str<'_>, other: Str<'_>) -> Ordering {
    let (mut ones, mut others) = (pieces(one), pieces(other));
    let (mut one, mut other): (&[u8], &[u8]) = (&[], &[]);
    loop {
        for (rest, more) in
            [(&mut one, &mut ones as &mut dyn Iterator<Item = &[u8]>), (&mut other, &mut others)]
        {
            while rest.is_empty()
                && let Some(next) = more.next()
            {
                *rest = next;
            }
        }
        let len = one.len().min(other.len());
        if len == 0 {
            return collate(plan, one, other); // either text has ended
        }
        if one[..len] != other[..len] || !plan.stores && one[..len].contains(&0) {
            return collate(plan, &one[..len], &other[..len]);
        }
        (one, other) = (&one[len..], &other[len..]);
    }
}

/// Returns the pieces of a text.
fn pieces<'t>(text: Str<'t>) -> impl Iterator<Item = &'t [u8]> {
    let (flat, rope) = match text {
        Str::Flat(bytes) => (Some(bytes), None),
        Str::Rope(rope) => (None, Some(rope.pieces(0..rope.len()).map(|piece| piece.as_slice()))),
    };
    flat.into_iter().chain(rope.into_iter().flatten())
}

/// Returns the part of a text that may be a number: C reads up to a zero byte, and a longer text than a chunk
/// is no number.
fn beginning<'t>(text: Str<'t>) -> Cow<'t, [u8]> {
    let first = match text {
        Str::Flat(bytes) => return Cow::Borrowed(bytes),
        Str::Rope(_) => pieces(text).next().unwrap_or_default(),
    };
    match first.iter().position(|byte| *byte == 0) {
        Some(len) => Cow::Borrowed(&first[..len]),
        None if first.len() == text.len() => Cow::Borrowed(first),
        None => Cow::Owned([first, b"?"].concat()),
    }
}
