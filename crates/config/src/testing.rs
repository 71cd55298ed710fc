//! Helpers of the tests of this crate.

use super::{Settings, UserLines};

/// Accepts every `user` line unchanged.
pub(crate) const USER_LINES: UserLines = UserLines { check: |_| Ok(()), at_start: |_| Some(Vec::new()) };

/// Returns the value of a directive, as CONFIG GET shows it.
#[track_caller]
pub(crate) fn shown(settings: &Settings, name: &str) -> String {
    let mut found = settings.get(&[name.as_bytes()]);
    assert_eq!(found.len(), 1, "{name}");
    String::from_utf8(found.remove(0).1).expect("the values of these tests are text")
}
