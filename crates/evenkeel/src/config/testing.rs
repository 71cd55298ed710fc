//! What the tests of this module share, and a folder for others.

use super::{Settings, UserLines};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Takes every `user` line as it is.
pub(super) const USER_LINES: UserLines = UserLines { check: |_| Ok(()), at_start: |_| Some(Vec::new()) };

/// An own directory, gone with the value.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-config-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary directory takes a new one");
        Scratch { path: path.canonicalize().expect("just made") }
    }

    /// Writes a file, and the directory that it is in.
    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().expect("inside the scratch directory")).expect("writable");
        std::fs::write(&path, text).expect("writable");
        path
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path.join(name)).expect("a file of this test")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path); // left behind at worst
    }
}

/// The value of one directive, as CONFIG GET shows it.
#[track_caller]
pub(super) fn shown(settings: &Settings, name: &str) -> String {
    let mut found = settings.get(&[name.as_bytes()]);
    assert_eq!(found.len(), 1, "{name}");
    String::from_utf8(found.remove(0).1).expect("the values of these tests are text")
}
