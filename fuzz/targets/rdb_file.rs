//! RDB files: whether the length is known makes no difference, and a report counts no more than was read.

#![no_main]

use evenkeel_rdb::file::check;
use evenkeel_rdb::functions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let len = data.len() as u64;
    let known = check(data, Some(len));
    let unknown = check(data, None);
    assert_eq!(known.is_sound(), unknown.is_sound());
    assert!(known.readable <= len && unknown.readable <= len);
    // A key with its value takes three bytes at least.
    assert!(known.keys() + known.damaged <= len / 3);
    if known.is_sound() {
        assert_eq!((known.keys(), known.damaged, known.lost()), (unknown.keys(), 0, known.lost()));
    }
    if let Ok(codes) = functions::read(data) {
        let codes: Vec<&[u8]> = codes.iter().map(Vec::as_slice).collect();
        assert_eq!(functions::read(&functions::dump(&codes)).expect("it is whole"), codes);
    }
});
