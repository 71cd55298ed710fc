//! A working directory for tests.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed at the end of the test.
pub(crate) struct Root(pub(crate) PathBuf);

impl Root {
    pub(crate) fn with<C: AsRef<[u8]>>(files: &[(&str, C)]) -> Root {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("evenkeel-aof-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = Root(std::env::temp_dir().join(name));
        fs::create_dir_all(&root.0).expect("the temporary folder can be written");
        for (name, content) in files {
            let path = root.0.join(name);
            fs::create_dir_all(path.parent().expect("it is in the root")).expect("the root can be written");
            fs::write(path, content).expect("the root can be written");
        }
        root
    }

    /// Returns every file with its content.
    pub(crate) fn listing(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("it is there") {
                let path = entry.expect("it can be read").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => {
                        let name = path.strip_prefix(&self.0).expect("it is in the root");
                        let content = fs::read_to_string(&path).expect("it is text");
                        found.push((name.display().to_string(), content));
                    }
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a folder left behind is no failure of the test
    }
}
