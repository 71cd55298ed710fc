//! Sessions of the console and counts of failed logins, beside a model.

#![no_main]

use std::sync::Arc;

use evenkeel_acl::User;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: evenkeel_command::spec::table::install(Vec::new),
    |steps: &[u8]| {
        let user = Arc::new(User::new(b"ann", 1, false));
        evenkeel_http::fuzzing::session_steps(steps, &user);
    }
);
