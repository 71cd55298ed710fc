//! A file system that can hang. A mount needs root; without it the tests are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file system in a file; it is thawed, unmounted and removed at the end.
pub(crate) struct Disk {
    image: PathBuf,
    folder: PathBuf,
}

impl Disk {
    /// `None` if this process may not mount.
    pub(crate) fn mount(name: &str, megabytes: u64) -> Option<Disk> {
        let mounted = is_root().then(|| Disk::try_mount(name, megabytes)).flatten();
        if mounted.is_none() {
            let line = "SKIPPED: no file system in a file can be mounted\n";
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        }
        mounted
    }

    fn try_mount(name: &str, megabytes: u64) -> Option<Disk> {
        let folder = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        let disk = Disk { image: folder.with_extension("img"), folder };
        fs::create_dir(&disk.folder).expect("a folder");
        fs::File::create(&disk.image).and_then(|file| file.set_len(megabytes << 20)).expect("an image");
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).args([&disk.image, &disk.folder]);
        let made = run("mkfs.ext4", &["-q", "-F"], &disk.image)
            && mount.status().is_ok_and(|status| status.success());
        made.then_some(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn freeze(&self) -> Frozen<'_> {
        assert!(run("fsfreeze", &["--freeze"], &self.folder));
        Frozen(&self.folder)
    }
}

/// Thaws on drop, also in a failing test: until then not even SIGKILL ends a process that writes there.
pub(crate) struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = run("fsfreeze", &["--unfreeze"], self.0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Undoes only completed steps; errors are ignored.
        let _ = run("umount", &["--lazy"], &self.folder);
        let _ = fs::remove_dir(&self.folder);
        let _ = fs::remove_file(&self.image);
    }
}

/// Runs a program on this path; returns whether it succeeded.
pub(crate) fn run(program: &str, options: &[&str], path: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(options).arg(path).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
