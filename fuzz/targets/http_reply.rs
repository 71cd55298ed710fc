//! Replies as JSON and as server-sent events. The checks are in crate `http`, beside the writers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|reply: &[u8]| {
    evenkeel_http::fuzzing::reply_of_rest(reply);
    evenkeel_http::fuzzing::reply_to_page(reply);
    evenkeel_http::fuzzing::event_of_message(reply);
});
