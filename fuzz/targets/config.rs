//! Configuration files: words come back as they were quoted, and a rewritten file gives the same settings.
//! The checks of files are in crate `config`, beside the loader.

#![no_main]

use evenkeel_config::{plain_or_quoted, quoted, split_words};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(words) = split_words(data) {
        assert!(words.iter().map(Vec::len).sum::<usize>() <= data.len());
        for quote in [quoted, plain_or_quoted] {
            let line = words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(&b' ');
            assert_eq!(split_words(&line), Some(words.clone()));
        }
    }
    assert_eq!(split_words(&quoted(data)), Some(vec![data.to_vec()]));
    evenkeel_config::fuzzing::file(data);
});
