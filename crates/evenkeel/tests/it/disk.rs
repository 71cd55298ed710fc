//! A file system that can hang. Needs root, as everything does that mounts; without, there is nothing to see.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// A file system in a file, thawed, unmounted and removed in the end.
pub(crate) struct Disk {
    image: PathBuf,
    folder: PathBuf,
}

impl Disk {
    /// `None` where this process may not have one.
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

/// Thaws when it is dropped, also by a test that fails: until then, a process that writes there cannot even be killed.
pub(crate) struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = run("fsfreeze", &["--unfreeze"], self.0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whichever of these has not been done cannot be undone.
        let _ = run("umount", &["--lazy"], &self.folder);
        let _ = fs::remove_dir(&self.folder);
        let _ = fs::remove_file(&self.image);
    }
}

/// Whether the program could be run on this path, and said that all went well.
pub(crate) fn run(program: &str, options: &[&str], path: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(options).arg(path).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
