//! The server binaries: the binary under test, and the reference servers that serve as oracles.
//!
//! A reference server may be missing on a developer's machine; then its tests report that loudly and pass. On
//! CI they fail: a comparison that silently did not happen is worse than none.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::seccomp;

/// Chooses another binary than the freshly built binary: a release build, or a reference server to test the
/// tests with.
const UNDER_TEST_VARIABLE: &str = "EVENKEEL_BIN";
const VALKEY_VARIABLE: &str = "VALKEY_SERVER";
const REDIS_8_VARIABLE: &str = "REDIS_8_SERVER";

/// The places where `scripts/setup peers` puts the binaries, under the workspace's root.
const VALKEY_UNPACKED: &str = "build/peers/valkey-server";
const REDIS_8_UNPACKED: &str = "build/peers/redis-8-server";

/// Reference servers, with which answers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// redis-server 7.0, as Debian 12 has it
    Redis,
    /// Redis 8.2
    Redis8,
    /// Valkey 9.1
    Valkey,
}

#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    /// A command that starts the program, with its arguments; empty: none.
    prefix: Vec<String>,
    /// The reference server that this binary is; `None`: Evenkeel.
    reference: Option<Reference>,
    /// System calls that end its process.
    forbidden: &'static [libc::c_long],
}

impl Program {
    /// Returns the server under test: `EVENKEEL_BIN`, else `built`, the binary that cargo has just built for
    /// the test.
    pub fn under_test(built: &str) -> Program {
        let path = std::env::var_os(UNDER_TEST_VARIABLE).map_or_else(|| PathBuf::from(built), PathBuf::from);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let reference = match name {
            _ if name.starts_with("redis-8") => Some(Reference::Redis8),
            _ if name.starts_with("redis") => Some(Reference::Redis),
            _ if name.starts_with("valkey") => Some(Reference::Valkey),
            _ => None,
        };
        Program { path, prefix: Vec::new(), reference, forbidden: &[] }
    }

    /// Returns the reference server's binary, if it is installed.
    pub fn find(reference: Reference) -> Option<Program> {
        let path = match reference {
            Reference::Redis => on_path("redis-server"),
            Reference::Redis8 => named_or_unpacked(REDIS_8_VARIABLE, REDIS_8_UNPACKED),
            Reference::Valkey => named_or_unpacked(VALKEY_VARIABLE, VALKEY_UNPACKED),
        }?;
        Some(Program { path, prefix: Vec::new(), reference: Some(reference), forbidden: &[] })
    }

    /// Returns the reference server's binary. If it is missing, prints a line in the test's output, or panics
    /// on CI.
    pub fn oracle(reference: Reference) -> Option<Program> {
        let found = Program::find(reference);
        if found.is_none() {
            let line = format!("SKIPPED: no {reference:?} server on this machine to compare with");
            assert!(std::env::var_os("CI").is_none(), "{line}; CI must have one");
            // Past the test harness' capture, which would swallow the line of a test that passes.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
        }
        found
    }

    /// Returns the same program, started by a command that becomes it in the end: `nsenter`, `taskset`,
    /// `prlimit`.
    pub fn started_by(self, prefix: &[&str]) -> Program {
        Program { prefix: prefix.iter().map(|word| (*word).to_owned()).collect(), ..self }
    }

    /// Returns the same program under a seccomp filter that ends its process for these system calls, as
    /// systemd's SystemCallFilter= does.
    pub fn forbidden(self, forbidden: &'static [libc::c_long]) -> Program {
        Program { forbidden, ..self }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = self.unfiltered();
        if !self.forbidden.is_empty() {
            seccomp::install(&mut command, self.forbidden);
        }
        command
    }

    fn unfiltered(&self) -> Command {
        match self.prefix.split_first() {
            None => Command::new(&self.path),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.path);
                command
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the reference server that this program is, or `None` for Evenkeel: for tests of promises that
    /// only one server makes.
    pub fn reference(&self) -> Option<Reference> {
        self.reference
    }
}

fn named_or_unpacked(variable: &str, unpacked: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).or_else(|| existing(workspace_root().join(unpacked)))
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).find_map(|folder| existing(folder.join(name)))
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.is_file().then_some(path)
}
