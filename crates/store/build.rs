//! Computes the hash of the layout of data in memory: see `LAYOUT_HASH` in `src/transfer.rs`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates whose types lie in blocks, or decide about them.
const CRATES: [&str; 5] = ["arrayvec", "lock_api", "parking_lot", "parking_lot_core", "siphasher"];

fn main() {
    let mut hash = DefaultHasher::new();
    for folder in ["src", "../slab/src"] {
        println!("cargo::rerun-if-changed={folder}");
        for file in sources(Path::new(folder)) {
            file.hash(&mut hash);
            std::fs::read(&file).expect("a source can be read").hash(&mut hash);
        }
    }
    versions().hash(&mut hash);
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("-vV").output().map(|output| output.stdout);
    version.unwrap_or_default().hash(&mut hash);
    for name in ["TARGET", "PROFILE", "CARGO_ENCODED_RUSTFLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
        std::env::var(name).unwrap_or_default().hash(&mut hash);
    }
    println!("cargo::rustc-env=EVENKEEL_LAYOUT_HASH={:016x}", hash.finish());
}

/// All sources below a folder, in order.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    paths.into_iter().flat_map(below).collect()
}

/// The versions of these crates in the lock file, or no text.
fn versions() -> String {
    const LOCK: &str = "../../Cargo.lock";
    println!("cargo::rerun-if-changed={LOCK}");
    let lock = std::fs::read_to_string(LOCK).unwrap_or_default();
    let is_one = |package: &&str| CRATES.iter().any(|name| package.contains(&format!("name = \"{name}\"\n")));
    lock.split("[[package]]").filter(is_one).collect()
}
