//! Directories for the files of a test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A new directory below the temporary one. Dropping the value removes it.
pub struct Scratch {
    pub path: PathBuf,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Scratch {
    /// Creates the directory.
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-scratch-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary directory takes a new one");
        Scratch { path: path.canonicalize().expect("just made") }
    }

    /// Writes a file, and creates its directory.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().expect("inside the scratch directory")).expect("writable");
        std::fs::write(&path, text).expect("writable");
        path
    }

    /// Reads a file of text.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path.join(name)).expect("a file of this test")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path); // left behind at worst
    }
}
