use super::*;
use evenkeel_store::rope::{CHUNK, Rope};

/// Counts and finds bit by bit.
fn check(value: Str<'_>, plain: &[u8], first: usize, last: usize) {
    let is_set = |at: usize| plain[at / 8] >> (7 - at % 8) & 1 == 1;
    let ones = (first..=last).filter(|at| is_set(*at)).count();
    assert_eq!(count_ones_between(value, first, last), ones, "{first} to {last}");
    for bit in [false, true] {
        let found = (first..=last).find(|at| is_set(*at) == bit);
        assert_eq!(find(value, bit, first, last), found, "{bit} from {first} to {last}");
    }
}

#[test]
fn counts_and_searches_in_every_range_of_a_short_string() {
    for plain in [&[0x00, 0xff, 0x10, 0xff][..], &[0xff; 10], &[0; 11], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]]
    {
        let len = plain.len() * 8;
        for first in 0..len {
            (first..len).for_each(|last| check(Str::Flat(plain), plain, first, last));
        }
    }
}

#[test]
fn ranges_across_rope_pieces() {
    let mut rope = Rope::new(&[0xff; 100]);
    rope.write(3 * CHUNK - 1, &[0x01, 0x80]);
    rope.write(4 * CHUNK, &vec![0xff; CHUNK]);
    rope.write(6 * CHUNK, &[0x10]);
    let value = Str::Rope(&rope);
    let plain = value.bytes();
    let edges: Vec<usize> = (0..=5)
        .flat_map(|chunk| [-9, -1, 0, 1, 9].map(|by| chunk * CHUNK as i64 * 8 + by))
        .filter_map(|at| usize::try_from(at).ok())
        .filter(|at| *at < plain.len() * 8)
        .collect();
    for first in &edges {
        edges.iter().filter(|last| *last >= first).for_each(|last| check(value, &plain, *first, *last));
    }
}
