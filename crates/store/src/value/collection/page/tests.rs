//! Tests of pages, most of them against a plain vector.

use super::*;
use evenkeel_testkit::random::{Random, fresh_seed};

type Plain = Vec<(Vec<u8>, u16)>;

fn check(page: &Page, plain: &Plain) {
    assert_eq!(page.len(), plain.len());
    for (at, (item, tag)) in plain.iter().enumerate() {
        assert_eq!(page.get(at), item);
        if page.is_tagged() {
            assert_eq!(page.tag(at), *tag);
            let first = plain.iter().position(|(_, other)| other == tag);
            assert_eq!(page.find_tag(*tag, 0), first);
            assert_eq!(page.find_tag(*tag, at), Some(at));
        }
    }
}

#[test]
fn random_operations_against_a_plain_vector() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    for round in 0..if cfg!(miri) { 4 } else { 60 } {
        let head = vec![b'h'; random.below(400)];
        let is_headed = round % 3 == 2;
        let mut page = if is_headed { Page::with_head(&head, 0, 0) } else { Page::new(round % 2 == 0, 0) };
        let mut plain = Plain::new();
        // In some rounds, nearly all items have the same length.
        let (usual, others) = [(0, 100), (16, 1), (1, 1), (16, 20), (5, 0)][random.below(5)];
        let mut clones: Vec<(Page, Plain)> = Vec::new();
        for _ in 0..if cfg!(miri) { 60 } else { 500 } {
            let long = if random.below(20) == 0 { 300 } else { 30 };
            let len = if random.chance(others) { random.below(long) } else { usual };
            let item = vec![random.below(256) as u8; len];
            let tag = random.below(300) as u16;
            let at = random.below(plain.len() + 1);
            match random.below(8) {
                0..=2 if page.has_room(&[&item]) => {
                    let (a, b) = item.split_at(item.len() / 2);
                    page.insert(at, &[a, b], tag);
                    plain.insert(at, (item, tag));
                }
                3 if at < plain.len() && page.has_room_instead(at, &[&item]) => {
                    page.replace(at, &[&item]);
                    plain[at].0 = item;
                }
                3 if at < plain.len() => {
                    let from = random.below(plain[at].0.len() + 1);
                    let to = from + random.below(plain[at].0.len() - from + 1);
                    page.patch(at, from, &vec![b'p'; to - from]);
                    plain[at].0[from..to].fill(b'p');
                }
                4 => {
                    let to = (at + random.below(4)).min(plain.len());
                    page.remove(at, to);
                    plain.drain(at..to);
                }
                5 if random.below(8) == 0 && !is_headed => {
                    let right = page.split_off(at);
                    check(&right, &plain.split_off(at));
                    page.append(&right);
                    plain.extend((0..right.len()).map(|at| {
                        (right.get(at).to_vec(), if right.is_tagged() { right.tag(at) } else { 0 })
                    }));
                }
                6 if random.below(8) == 0 && !is_headed => {
                    let goes: Vec<bool> = plain.iter().map(|_| random.below(4) == 0).collect();
                    let gone = page.take_out(&goes);
                    let mut which = goes.iter();
                    let left: Plain = plain.extract_if(.., |_| *which.next().expect("as many")).collect();
                    check(&gone, &left);
                }
                _ if random.below(10) == 0 => clones.push((page.clone(), plain.clone())),
                _ => {}
            }
            check(&page, &plain);
            assert_eq!(page.head(), if is_headed { &head[..] } else { b"" });
            assert!(page.bytes() <= page.memory());
            assert!(page.bytes() <= PAGE_MAX || page.len() == 1, "{} bytes", page.bytes());
        }
        clones.iter().for_each(|(page, plain)| check(page, plain));
    }
}

#[test]
fn items_as_long_as_each_other_have_no_offsets() {
    let item = |at: usize| [at as u8; 16];
    let mut page = Page::new(false, 0);
    while page.has_room(&[&item(0)]) {
        page.insert(page.len(), &[&item(page.len())], 0);
    }
    assert_eq!((page.len(), page.bytes()), ((PAGE_MAX - HEADER) / 16, HEADER + page.len() * 16));
    let mut half = page.split_off(100);
    assert_eq!(page.bytes(), HEADER + 100 * 16);
    assert!(half.has_room_instead(7, &[&item(0)]) && half.has_room(&[b"longer than the others"]));
    half.replace(7, &[b"short"]);
    assert_eq!(half.bytes(), HEADER + half.len() * 18 - 11);
    assert_eq!((half.get(6), half.get(7), half.get(8)), (&item(106)[..], &b"short"[..], &item(108)[..]));
    assert!(page.bytes_with_all_of(&half) > PAGE_MAX, "with offsets for all");
    half.remove(7, 8);
    let even = half.split_off(0);
    page.append(&even);
    assert_eq!(page.bytes(), HEADER + page.len() * 16);
    assert!(!page.has_room_instead(7, &[b"short"]), "all the others would need offsets");
}

#[test]
fn a_page_that_was_emptied_is_even_again() {
    let mut page = Page::new(true, 0);
    [&b"one"[..], b"another", b"third"].iter().for_each(|item| page.insert(0, &[item], 1));
    page.remove(0, 2);
    assert_eq!(page.bytes(), HEADER + 3 + 3, "one byte of an offset, two of a tag");
    page.remove(0, 1);
    (0..9).for_each(|at| page.insert(at, &[b"sixteen bytes..."], at as u16));
    assert_eq!((page.bytes(), page.tag(8)), (HEADER + 9 * 18, 8));
}

#[test]
fn empty_items_have_offsets_if_they_are_several() {
    let mut page = Page::new(false, 0);
    let room = (0..).take_while(|_| {
        let has_room = page.has_room(&[b""]);
        page.insert(page.len(), &[b""], 0);
        has_room
    });
    assert!(room.count() <= PAGE_MAX / 2);
    assert!((0..page.len()).all(|at| page.get(at).is_empty()));
}

#[test]
fn bytes_of_an_item_that_a_panic_left_out_are_zeros() {
    let mut page = Page::new(false, 0);
    let fill = |space: &mut Space<'_>| {
        space.put(b"half");
        panic!("as a test wants it");
    };
    let filled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| page.insert_by(0, 8, 0, fill)));
    assert!(filled.is_err());
    assert_eq!(page.get(0), b"half\0\0\0\0");
}

#[test]
fn classes_hold_what_they_are_for() {
    for bytes in (0..10_000).chain([1 << 20, (1 << 20) + 1, ITEM_MAX + 100]) {
        let size = size_of_class(class_of_size(bytes));
        assert!(size >= bytes && size <= (bytes + bytes / 4 + 8).max(16), "{bytes} in {size}");
        assert!(size.is_multiple_of(4));
    }
}

#[test]
fn parts_of_a_packed_item_are_replaced() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut page = Page::packed(b"");
    let mut plain = Vec::new();
    let mut clones: Vec<(Page, Vec<u8>)> = Vec::new();
    for step in 0..if cfg!(miri) { 100 } else { 5000 } {
        let long = if step / 500 % 2 == 0 { 30 } else { 3 };
        let bytes = vec![step as u8; random.below(long)];
        let start = random.below(plain.len() + 1);
        let end = (start + random.below(12)).min(plain.len());
        page.splice(start..end, &bytes);
        plain.splice(start..end, bytes);
        assert_eq!((page.get(0), page.len(), page.is_packed()), (&plain[..], 1, true));
        assert!(page.memory() < 2 * plain.len() + 40, "{} bytes for {}", page.memory(), plain.len());
        if random.below(200) == 0 {
            clones.push((page.clone(), plain.clone()));
        }
    }
    clones.iter().for_each(|(page, plain)| assert_eq!(page.get(0), plain));
}

#[test]
fn an_item_of_its_own_page_may_be_long() {
    let mut page = Page::new(true, 0);
    let long = vec![b'x'; 3_000_000];
    page.insert(0, &[&long, b"end"], 7);
    assert_eq!(page.get(0).len(), long.len() + 3);
    let clone = page.clone();
    page.replace(0, &[b"short"]);
    assert_eq!((page.get(0), page.tag(0)), (&b"short"[..], 7));
    assert!(page.memory() < 100, "{}", page.memory());
    assert!(clone.get(0).ends_with(b"xend"));
    page.replace(0, &[&long]);
    assert_eq!(page.get(0), long);
}
