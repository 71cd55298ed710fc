//! Schedules the checks whether files of certificates and keys have changed (`tls-auto-reload-interval`).

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_config::Settings;

/// State of a file when it was read: inode, size, and modification time in seconds and nanoseconds.
type Print = Option<(u64, u64, i64, i64)>;

/// When the files were last checked, and their state then.
#[derive(Default)]
pub struct Pace {
    looked: Option<Instant>,
    prints: Vec<Print>,
}

impl Pace {
    /// Records that the files have just been read.
    pub(super) fn note(&mut self, settings: &Settings) {
        (self.looked, self.prints) = (Some(Instant::now()), prints(settings));
    }

    /// Forgets the recorded state, since its content was not used.
    pub(super) fn forget(&mut self) {
        *self = Pace::default();
    }

    /// Whether a check is due and a file has changed. After a failure, the next attempt follows the next
    /// change.
    pub(super) fn is_due(&mut self, settings: &Settings) -> bool {
        let every = Duration::from_secs(settings.tls_auto_reload_interval.into());
        if every.is_zero() || self.looked.is_some_and(|looked| looked.elapsed() < every) {
            return false;
        }
        let now = prints(settings);
        self.looked = Some(Instant::now());
        std::mem::replace(&mut self.prints, now) != self.prints
    }
}

fn prints(settings: &Settings) -> Vec<Print> {
    let files = [
        &settings.tls_cert_file,
        &settings.tls_key_file,
        &settings.tls_client_cert_file,
        &settings.tls_client_key_file,
        &settings.tls_ca_cert_file,
        &settings.tls_ca_cert_dir,
    ];
    let mut prints: Vec<Print> = files.into_iter().map(|path| path.as_deref().and_then(print)).collect();
    // A file of the directory may be written in place, which the directory does not show.
    let folder = settings.tls_ca_cert_dir.as_deref().and_then(|path| std::fs::read_dir(path).ok());
    let mut paths: Vec<_> = folder.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    prints.extend(paths.iter().map(|path| print(path)));
    prints
}

fn print(path: &Path) -> Print {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}
