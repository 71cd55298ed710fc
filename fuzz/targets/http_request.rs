//! Requests over HTTP: path, query, body and headers. The checks are in crate `http`, beside the parsers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (first, second, third) = (part(), part(), part());
    if let (Ok(path), Ok(query)) = (std::str::from_utf8(first), std::str::from_utf8(second)) {
        evenkeel_http::fuzzing::rest_request(path, query, third);
        evenkeel_http::fuzzing::query_of_page(query);
    }
    evenkeel_http::fuzzing::body_of_page(third);
    evenkeel_http::fuzzing::authorization(first);
    evenkeel_http::fuzzing::host_names(first, second);
    evenkeel_http::fuzzing::origin_and_cookies(first, second, third);
});
