//! Finds the target process: by number, by listening port, by name, or by starting a command.

use std::process::{Child, Command};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::sockets::{Table, read_table};
use super::{descriptors, procfs};
use crate::recording::{Target, redacted};

#[derive(Debug, Clone, Default, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TargetArgs {
    /// Number of the process
    #[arg(long)]
    pub(crate) pid: Option<i32>,
    /// The process that listens on this TCP port
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// The process of this name; the busiest if there are several
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Start this command and look at it
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// A process that was found, and the child to end if it was started here.
#[derive(Debug)]
pub(crate) struct FoundProcess {
    pub(crate) pid: i32,
    started: u64,
    child: Option<Child>,
}

impl FoundProcess {
    /// Whether the same process still runs: numbers are reused.
    pub(crate) fn is_alive(&self) -> bool {
        procfs::stat(self.pid).is_some_and(|stat| stat.started == self.started && !"ZX".contains(stat.state))
    }
}

impl Drop for FoundProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The child may have ended by itself, and nothing could handle the error.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn find(target_args: &TargetArgs) -> Result<FoundProcess> {
    let mut child = None;
    let pid = if let Some(pid) = target_args.pid {
        pid
    } else if let Some(port) = target_args.port {
        by_port(port)?
    } else if let Some(name) = &target_args.name {
        by_name(name)?
    } else {
        let (program, arguments) =
            target_args.command.split_first().context("there is no command to start")?;
        let started = Command::new(program).args(arguments).spawn();
        let started = started.with_context(|| format!("cannot start {program}"))?;
        let pid = i32::try_from(started.id()).context("the number of the process is too large")?;
        child = Some(started);
        pid
    };
    let stat = procfs::stat(pid).with_context(|| format!("there is no process {pid}"))?;
    if stat.state == 'Z' {
        bail!("process {pid} ({}) has ended already and waits for its parent", stat.name);
    }
    if stat.is_of_kernel {
        bail!("process {pid} ({}) is a thread of the kernel", stat.name);
    }
    Ok(FoundProcess { pid, started: stat.started, child })
}

fn by_name(name: &str) -> Result<i32> {
    let own = std::process::id().cast_signed();
    let matches = |stat: &procfs::Stat| stat.name == name || stat.name == name.get(..15).unwrap_or(name);
    let mut found: Vec<(u64, i32)> = procfs::processes()
        .into_iter()
        .filter(|&pid| pid != own)
        .filter_map(|pid| Some((pid, procfs::stat(pid)?)))
        .filter(|(_, stat)| matches(stat))
        .map(|(pid, stat)| (stat.user_ns + stat.system_ns, pid))
        .collect();
    found.sort_unstable();
    match found.last() {
        Some(&(_, pid)) => Ok(pid),
        None => bail!("there is no process named {name}"),
    }
}

fn by_port(port: u16) -> Result<i32> {
    let own = std::process::id().cast_signed();
    let table: Table = read_table(own);
    let inodes: Vec<u64> =
        table.entries.iter().filter(|e| e.listens && e.local.port() == port).map(|e| e.inode).collect();
    if inodes.is_empty() {
        bail!("no process listens on TCP port {port} here (in a container, use --pid)");
    }
    // Of several processes that share the socket, the lowest number is the parent.
    let owner = procfs::processes().into_iter().find(|&pid| {
        procfs::numbers_in(procfs::path(pid, "fd"))
            .into_iter()
            .any(|fd| descriptors::socket_inode(pid, fd).is_some_and(|inode| inodes.contains(&inode)))
    });
    owner.with_context(|| format!("a process listens on port {port}, but only root may see which"))
}

/// The process that listens on a port of this machine, as "name pid".
pub(super) fn listening_on(port: u16) -> Option<String> {
    let pid = by_port(port).ok()?;
    Some(format!("{} {pid}", procfs::stat(pid)?.name))
}

pub(crate) fn describe(pid: i32) -> Target {
    let status = procfs::read(procfs::path(pid, "status")).unwrap_or_default();
    let cpus_allowed = procfs::status_field(&status, "Cpus_allowed_list").unwrap_or("").to_string();
    let arguments = procfs::read(procfs::path(pid, "cmdline")).unwrap_or_default();
    let limits = procfs::read(procfs::path(pid, "limits")).unwrap_or_default();
    let open_files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    Target {
        pid,
        name: procfs::stat(pid).map(|stat| stat.name).unwrap_or_default(),
        executable: std::fs::read_link(procfs::path(pid, "exe"))
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default(),
        arguments: redacted(arguments.trim_end_matches('\0').split_terminator('\0')),
        cpus_allowed_count: procfs::count_cpus(&cpus_allowed),
        cpus_allowed,
        descriptors_limit: open_files.and_then(|line| line.split_whitespace().next()?.parse().ok()),
    }
}
