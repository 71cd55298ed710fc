//! Files of the flight recorder: as bytes, as frames with right checksums, and with a changed bit. The checks
//! are in crate `history`, beside the reader.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else { return };
    match mode % 3 {
        0 => evenkeel_history::fuzzing::bytes(rest),
        1 => evenkeel_history::fuzzing::frames(rest),
        _ => evenkeel_history::fuzzing::rows(rest),
    }
});
