//! Inserting an item into a page, or replacing one: a full page is divided, and its new neighbours are
//! returned for the nodes above it.

use super::{Bound, Siblings};
use crate::value::collection::page::{Page, len_of};

/// Inserts an item into a page, at a position that keeps its order; if there is no room, pages are added to
/// its right. `bound` returns the bound of an item.
pub(crate) fn insert(
    page: &mut Page,
    at: usize,
    parts: &[&[u8]],
    bound: impl Fn(&[u8]) -> Bound + Copy,
) -> Siblings<Page> {
    if page.len() == 0 || page.has_room(parts) {
        page.insert(at, parts, 0);
        return Vec::new();
    }
    let alone = || {
        let mut page = Page::new(false, len_of(parts));
        page.insert(0, parts, 0);
        page
    };
    // At the ends, a page is filled before the next begins: appending leaves full pages behind.
    if at == page.len() {
        let right = alone();
        return vec![(bound(right.get(0)), right)];
    }
    if at == 0 {
        let right = std::mem::replace(page, alone());
        return vec![(bound(right.get(0)), right)];
    }
    let middle = page_middle(page);
    let half = if at <= middle { 0..middle } else { middle..page.len() };
    // If a half has no room either, the page is divided at the position, not into ever smaller halves.
    let middle = if page.has_room_in(half, parts) { middle } else { at };
    let mut right = page.split_off(middle);
    let mut siblings = Vec::new();
    if at <= middle {
        siblings.extend(insert(page, at, parts, bound));
        siblings.push((bound(right.get(0)), right));
    } else {
        let more = insert(&mut right, at - middle, parts, bound);
        siblings.push((bound(right.get(0)), right));
        siblings.extend(more);
    }
    siblings
}

/// Replaces an item by another with the same place in the order.
pub(crate) fn replace(
    page: &mut Page,
    at: usize,
    parts: &[&[u8]],
    bound: impl Fn(&[u8]) -> Bound + Copy,
) -> Siblings<Page> {
    if page.has_room_instead(at, parts) {
        page.replace(at, parts);
        return Vec::new();
    }
    page.remove(at, at + 1);
    insert(page, at, parts, bound)
}

/// The position that leaves about half of the bytes on either side, and at least one item of two or more.
///
/// It lies before the middle by `EXTRA` bytes an item, or less if items are small. A million scores in steps
/// of 7,919 then take 2% less memory, and a tenth less of the process', than with halves.
fn page_middle(page: &Page) -> usize {
    const EXTRA: usize = 2;
    let half = page.bytes() / 2;
    let mut bytes = 0;
    for at in 0..page.len() - 1 {
        let len = page.get(at).len();
        bytes += len + page.stride() + EXTRA.min(len / 8);
        if bytes >= half {
            return (at + 1).max(1);
        }
    }
    page.len() - 1
}
