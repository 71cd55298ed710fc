//! Reports data on disk that a start does not load because it loads other data.
//!
//! With `appendonly yes` the append-only file is loaded and the snapshot is not, a surprise for an operator
//! after a restore of `dump.rdb` from a backup. With `appendonly no` it is the other way round. The
//! report is a warning if the ignored file is the newer. An orderly end touches the append-only file after
//! the last snapshot (`LogFile::touch`), so a snapshot of the same server is older.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use evenkeel_rdb::aof::{Directory, Part, StoredData};

use super::rewrite;
use evenkeel_config::Settings;
use log::Level;

/// Seconds and nanoseconds of a file's last status change, which covers its name and owner: a copy keeps the
/// modification time.
type Changed = (i64, i64);

/// Logs which data are ignored, if any. Called before the files are loaded, which may change them.
pub fn report(settings: &Settings) {
    let Ok(directory) = rewrite::open(settings) else { return }; // a load of it reports the error
    let snapshot = settings.dir.join(&settings.dbfilename);
    let (StoredData::Parts | StoredData::OldFile, Ok(found)) = (directory.stored_data(), snapshot.metadata())
    else {
        return report_unused_aof(settings, &directory);
    };
    let parts = directory.parts().unwrap_or_default();
    let is_newer = Some(changed(&found)) > changed_last(&parts);
    let files = place(&directory, &parts).display();
    let snapshot = snapshot.display();
    match settings.appendonly {
        true if is_newer => log::warn!(
            "{snapshot} is newer than the append-only file in {files} but is not loaded, because \
             'appendonly' is yes. To load the snapshot, stop the server (SHUTDOWN NOSAVE), move {files} \
             away, and start the server again."
        ),
        true => log::info!("{snapshot} is not loaded: the append-only file in {files} is newer"),
        false => log::log!(
            if is_newer { Level::Info } else { Level::Warn },
            "The append-only file in {files} is not loaded, because 'appendonly' is no. {snapshot} is {} \
                 and is loaded",
            if is_newer { "newer" } else { "older" }
        ),
    }
}

/// Warns when there is no snapshot: without `appendonly yes` the server begins empty.
fn report_unused_aof(settings: &Settings, directory: &Directory) {
    if !settings.appendonly && directory.stored_data() != StoredData::Nothing {
        let parts = directory.parts().unwrap_or_default();
        log::warn!(
            "The append-only file in {} is not loaded, because 'appendonly' is no. There is no snapshot, so \
             the server starts without data",
            place(directory, &parts).display()
        );
    }
}

fn changed(file: &Metadata) -> Changed {
    (file.ctime(), file.ctime_nsec())
}

fn changed_last(parts: &[Part]) -> Option<Changed> {
    parts.iter().filter_map(|part| part.path.metadata().ok().as_ref().map(changed)).max()
}

/// The folder, or the single file of a server before Redis 7.
fn place<'d>(directory: &'d Directory, parts: &'d [Part]) -> &'d Path {
    match (directory.stored_data(), parts) {
        (StoredData::OldFile, [file, ..]) => &file.path,
        _ => directory.folder(),
    }
}
