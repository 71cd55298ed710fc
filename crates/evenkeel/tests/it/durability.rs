//! The data on disk after kills, full disks, cut or changed files, and moves to other servers. Acknowledged
//! writes are there, and no write is there that did not happen.

mod at_once;
mod backup;
mod broken;
mod exchange;
mod failing;
mod flow;
pub(crate) mod full;
mod held_back;
mod kill;
mod loading;
mod lock;
mod moment;
mod passed_over;
mod pipelines;
mod plain;
mod reload;
mod settings;
mod stuck;
mod tail;
mod throttled;

use std::fs;
use std::path::Path;

/// The files of a folder with their content, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).expect("a folder").flatten().filter(|entry| entry.path().is_file());
    let name = |path: &Path| path.file_name().expect("a file").to_string_lossy().into_owned();
    let mut files: Vec<_> =
        entries.map(|entry| (name(&entry.path()), fs::read(entry.path()).expect("it can be read"))).collect();
    files.sort();
    files
}
