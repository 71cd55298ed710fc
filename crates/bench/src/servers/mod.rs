//! The servers under comparison: the places of their programs, and the equivalent arguments of each.

mod cluster;
mod nginx;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::load::endpoint::Protocol;

pub(crate) use cluster::{Cluster, Etcd};
pub(crate) use nginx::Nginx;
pub(crate) use server::{Launch, Server, ask, ask_within, resolve};

/// Connections that each server must accept, and the length of its accept queue.
const CLIENTS_MAX: &str = "10000";
const BACKLOG: &str = "511";
/// Beyond this limit memcached evicts; the other servers have no limit.
const MEMCACHED_MB: &str = "4096";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Evenkeel,
    Valkey,
    Redis,
    Floor,
    /// Speaks its own protocol, so it takes part only where GET and SET suffice.
    Memcached,
}

impl ServerKind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Evenkeel, Self::Valkey, Self::Redis, Self::Floor, Self::Memcached];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Evenkeel => "evenkeel",
            Self::Valkey => "valkey",
            Self::Redis => "redis",
            Self::Floor => "floor",
            Self::Memcached => "memcached",
        }
    }

    pub(crate) fn protocol(self) -> Protocol {
        if self == Self::Memcached { Protocol::Memcached } else { Protocol::Resp2 }
    }

    fn arguments(self, port: u16, threads: usize) -> Vec<String> {
        let port = port.to_string();
        let threads = threads.to_string();
        let mut words = match self {
            Self::Floor => vec!["floor", "--port", &port, "--tcp-backlog", BACKLOG],
            // As root, memcached needs to be told its user; other users cannot choose.
            Self::Memcached => {
                let listens = ["-p", &port, "-l", "127.0.0.1", "-U", "0", "-c", CLIENTS_MAX, "-b", BACKLOG];
                [&listens[..], &["-t", &threads, "-m", MEMCACHED_MB, "-u", "root"]].concat()
            }
            _ => vec![
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--maxclients",
                CLIENTS_MAX,
                "--tcp-backlog",
                BACKLOG,
                "--protected-mode",
                "no", // Redis 7.0 counts 127.0.0.2, the source of short connections, as not local
            ],
        };
        match self {
            Self::Evenkeel => words.extend(["--threads", &threads]),
            Self::Valkey if threads != "1" => words.extend(["--io-threads", &threads]),
            _ => {}
        }
        words.into_iter().map(str::to_owned).collect()
    }
}

/// A server that can be started.
#[derive(Clone, Debug)]
pub(crate) struct ServerProgram {
    pub(crate) kind: ServerKind,
    path: PathBuf,
    /// The output of `--version`, and its allocator unless that is its own.
    pub(crate) version: String,
    /// A library to preload, for [`Allocator::Lent`].
    preload: Option<PathBuf>,
    /// Checksum of the program, in hexadecimal digits: versions do not distinguish two builds.
    pub(crate) sha256: String,
}

/// The places of the servers' programs.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ProgramPaths {
    /// Evenkeel's program [default: target/measured/evenkeel, else target/release/evenkeel]
    #[arg(long, value_name = "PATH", help_heading = "Servers")]
    evenkeel: Option<PathBuf>,
    /// Valkey's program [default: $VALKEY_SERVER, else build/peers/valkey-server, else valkey-server of the
    /// PATH]
    #[arg(long, value_name = "PATH", help_heading = "Servers")]
    valkey: Option<PathBuf>,
    /// Redis' program [default: $REDIS_SERVER, else build/peers/redis-8-server, else redis-server of the
    /// PATH]
    #[arg(long, value_name = "PATH", help_heading = "Servers")]
    redis: Option<PathBuf>,
    /// Memcached's program [default: memcached of the PATH]
    #[arg(long, value_name = "PATH", help_heading = "Servers")]
    memcached: Option<PathBuf>,
    /// Leave these servers out, such as redis,floor
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Servers")]
    without: Vec<String>,
}

impl ProgramPaths {
    /// Finds the installed servers; reports missing servers on stderr.
    pub(crate) fn find(&self) -> Result<Vec<ServerProgram>> {
        let names = ServerKind::ALL.map(ServerKind::name);
        if let Some(odd) = self.without.iter().find(|name| !names.contains(&name.as_str())) {
            bail!("--without {odd}: the servers are {}", names.join(", "));
        }
        let mut programs = Vec::new();
        for kind in
            ServerKind::ALL.into_iter().filter(|kind| !self.without.iter().any(|name| name == kind.name()))
        {
            match self.find_one(kind)? {
                Some(program) => programs.push(program),
                None => eprintln!("{}: skipped, {}", kind.name(), how_to_get(kind)),
            }
        }
        Ok(programs)
    }

    fn find_one(&self, kind: ServerKind) -> Result<Option<ServerProgram>> {
        let (asked, tried) = match kind {
            ServerKind::Evenkeel => {
                (&self.evenkeel, built(&["target/measured/evenkeel", "target/release/evenkeel"]))
            }
            ServerKind::Valkey => {
                let unpacked = built(&["build/peers/valkey-server"]);
                (&self.valkey, from_env("VALKEY_SERVER").or(unpacked).or_else(|| on_path("valkey-server")))
            }
            ServerKind::Redis => {
                let unpacked = built(&["build/peers/redis-8-server"]);
                (&self.redis, from_env("REDIS_SERVER").or(unpacked).or_else(|| on_path("redis-server")))
            }
            ServerKind::Memcached => (&self.memcached, on_path("memcached")),
            ServerKind::Floor => (&None, Some(env::current_exe().context("cannot find own program")?)),
        };
        if let Some(path) = asked
            && !path.is_file()
        {
            bail!("{}: there is no program {}", kind.name(), path.display());
        }
        let Some(path) = asked.clone().or(tried) else { return Ok(None) };
        // Absolute, but not resolved: redis-server is a link to a program that depends on the name of the
        // call.
        let path = std::path::absolute(&path).with_context(|| path.display().to_string())?;
        let line = version_line(kind, &path)?;
        let allocator = Allocator::of(kind, &line, || jemalloc(Path::new("/usr")));
        let version = format!("{}{}", version(kind, &line), allocator.note());
        let preload = if let Allocator::Lent(library) = allocator { Some(library) } else { None };
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Some(ServerProgram { kind, path, version, preload, sha256 }))
    }
}

fn how_to_get(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Evenkeel => {
            "no target/measured/evenkeel or target/release/evenkeel: cargo build --release -p evenkeel"
        }
        ServerKind::Valkey => {
            "no --valkey, $VALKEY_SERVER, build/peers/valkey-server, or valkey-server on the PATH"
        }
        ServerKind::Redis => {
            "no --redis, $REDIS_SERVER, build/peers/redis-8-server, or redis-server on the PATH"
        }
        ServerKind::Memcached => "no --memcached, or memcached on the PATH: apt-get install memcached",
        ServerKind::Floor => "it is built in",
    }
}

/// Returns a file that `make` or `cargo` has put below the workspace's root.
fn built(candidates: &[&str]) -> Option<PathBuf> {
    let root = workspace_root()?;
    candidates.iter().map(|candidate| root.join(candidate)).find(|path| path.is_file())
}

/// Returns the directory above this program or the current directory that holds the workspace.
fn workspace_root() -> Option<PathBuf> {
    let starts = [env::current_exe().ok(), env::current_dir().ok()];
    let is_root =
        |directory: &&Path| directory.join("Cargo.lock").is_file() && directory.join("crates").is_dir();
    starts.iter().flatten().find_map(|start| start.ancestors().find(is_root)).map(Path::to_owned)
}

fn from_env(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// The allocator of a server. Redis and Valkey are made for jemalloc, and packages have it. A build with the
/// C library's malloc (5% more CPU for a SET at pipeline 16, and a fifth more memory for short values) would
/// flatter the servers compared with it. So if a jemalloc library is installed, as with Debian's
/// redis-server, such a build gets that library.
#[derive(Debug, PartialEq, Eq)]
enum Allocator {
    Own,
    Lent(PathBuf),
    /// The C library's, with no jemalloc installed.
    Libc,
}

impl Allocator {
    /// Chooses the allocator from the output of `--version`.
    fn of(kind: ServerKind, line: &str, library: impl FnOnce() -> Option<PathBuf>) -> Allocator {
        if !matches!(kind, ServerKind::Redis | ServerKind::Valkey) || !line.contains("malloc=libc") {
            return Allocator::Own;
        }
        library().map_or(Allocator::Libc, Allocator::Lent)
    }

    fn note(&self) -> &'static str {
        match self {
            Allocator::Own => "",
            Allocator::Lent(_) => ", built with libc's malloc, run with jemalloc",
            Allocator::Libc => ", with libc's malloc: it would be faster and smaller with jemalloc",
        }
    }
}

/// Returns jemalloc's shared library below a directory that has `lib`.
fn jemalloc(usr: &Path) -> Option<PathBuf> {
    let of_architecture = format!("lib/{}-linux-gnu", env::consts::ARCH);
    let folders = [of_architecture.as_str(), "lib64", "lib", "local/lib"];
    folders.iter().map(|folder| usr.join(folder).join("libjemalloc.so.2")).find(|path| path.is_file())
}

/// Returns the first line of a program's `--version`.
fn version_line(kind: ServerKind, program: &Path) -> Result<String> {
    if kind == ServerKind::Floor {
        return Ok("built in".to_owned());
    }
    let run = Command::new(program).arg("--version").output();
    let run = run.with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&run.stdout);
    Ok(text.lines().next().unwrap_or("unknown").trim().to_owned())
}

/// Returns `7.0.15` of `Redis server v=7.0.15 sha=00000000:0 malloc=...`, `1.6.18` of `memcached 1.6.18`, or
/// else the whole line.
fn version(kind: ServerKind, line: &str) -> &str {
    let short = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("v="));
    let short = short.or_else(|| line.strip_prefix(kind.name()).map(str::trim_start));
    short.unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_gets_equivalent_arguments() {
        for kind in [ServerKind::Evenkeel, ServerKind::Valkey, ServerKind::Redis] {
            let words = kind.arguments(7000, 2).join(" ");
            assert!(words.starts_with("--port 7000 --bind 127.0.0.1 --save  --appendonly no"), "{words}");
        }
        assert!(ServerKind::Evenkeel.arguments(1, 2).join(" ").ends_with("--threads 2"));
        assert!(ServerKind::Valkey.arguments(1, 2).join(" ").ends_with("--io-threads 2"));
        assert!(!ServerKind::Valkey.arguments(1, 1).join(" ").contains("threads"));
    }

    #[test]
    fn a_build_without_jemalloc_gets_it() {
        let libc = "Valkey server v=9.1.2 sha=00000000:0 malloc=libc bits=64 build=1";
        let lent = Allocator::Lent("/usr/lib/libjemalloc.so.2".into());
        let library = || Some(PathBuf::from("/usr/lib/libjemalloc.so.2"));
        assert_eq!(Allocator::of(ServerKind::Valkey, libc, library), lent);
        assert_eq!(Allocator::of(ServerKind::Valkey, libc, || None), Allocator::Libc);
        assert_eq!(Allocator::of(ServerKind::Evenkeel, libc, library), Allocator::Own);
        let jemalloc = libc.replace("malloc=libc", "malloc=jemalloc-5.3.0");
        assert_eq!(Allocator::of(ServerKind::Redis, &jemalloc, library), Allocator::Own);
        assert_eq!(version(ServerKind::Valkey, libc), "9.1.2");
    }

    #[test]
    fn unknown_names_are_refused() {
        let places = ProgramPaths { without: vec!["mongod".into()], ..ProgramPaths::default() };
        assert!(places.find().is_err());
    }

    #[test]
    fn the_floor_is_always_there() {
        let without = ["redis", "valkey", "evenkeel", "memcached"].map(str::to_owned).to_vec();
        let programs = ProgramPaths { without, ..ProgramPaths::default() }.find().expect("the floor");
        assert_eq!(programs.iter().map(|program| program.kind).collect::<Vec<_>>(), [ServerKind::Floor]);
    }
}
