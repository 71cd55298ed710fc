//! Threads of a HotSpot JVM, JDK 8 to 25, by the thread dumps that the JVM makes on request.
//!
//! The states of threads, the monitors and the names of compiled functions are in tables of the JVM that
//! differ in every version; the attach protocol has been the same since JDK 6. A dump stops the program for
//! some 10 us a thread. Large JVMs are therefore sampled once. The list of owned synchronizers, for which the
//! JVM walks its heap (0.15 ms a MB), is asked for rarely, and of small heaps only.
//!
//! From JDK 24 on the JVM writes the dump to the socket while the program stands, unless asked not to.

mod attach;
mod clients;
mod dump;
mod options;
mod perfdata;
mod states;

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Opened, Reader, unreadable};
use crate::collect::procfs;
use crate::recording::Task;
use attach::Jvm;
use clients::Clients;
use perfdata::PerfData;

/// Threads of the largest JVM that is sampled again and again, and of the largest that is sampled once.
const THREADS_MAX: usize = 2_000;
const THREADS_MAX_ONCE: usize = 5_000;
/// The program stands for most of a dump. Some dumps that take longer than the first time, or a single dump
/// that takes longer than the second, are the last: a single late dump may be due to a busy machine.
const DUMP_TIME: Duration = Duration::from_millis(60);
const DUMPS_SLOW_MAX: u32 = 3;
const DUMP_TIME_MAX: Duration = Duration::from_millis(400);
/// One of these many samples lists the owned synchronizers, if some thread waits for one.
const LOCKS_EVERY: u32 = 8;
/// Memory of the largest JVM that is asked for them, and time after which that is given up.
const LOCKS_MEMORY_MAX_KIB: u64 = 256 << 10;
const LOCKS_TIME_MAX: Duration = Duration::from_millis(30);

/// Length of the largest file of counters that is read: by default it has 32 KiB.
const PERFDATA_LEN_MAX: u64 = 1 << 20;
const RELEASE_LEN_MAX: u64 = 64 << 10;

pub(super) fn open(pid: i32) -> Opened {
    let maps = procfs::read(procfs::path(pid, "maps"))?;
    let mut files = maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| path));
    let library = files.find(|path| path.ends_with("/libjvm.so"))?;
    if maps.contains("/libj9vm") {
        return Some(Err(unreadable("Java (OpenJ9)", "only threads of HotSpot can be read")));
    }
    let perfdata_file = perfdata_file(pid, &maps);
    let begin = perfdata_file.as_deref().and_then(read_perfdata);
    let version = begin.as_ref().and_then(|data| data.text("java.property.java.version").map(str::to_string));
    let version = version.or_else(|| release_version(pid, Path::new(library)));
    let name = version.map_or_else(|| "Java".to_string(), |version| format!("Java {version}"));
    Some(match Jvm::open(pid) {
        Ok(jvm) => Ok(Box::new(Java {
            pid,
            name,
            jvm,
            protocol: None,
            perfdata_file,
            begin,
            clients: Clients::new(pid),
            owners: Owners::default(),
            cost: Cost::default(),
            has_virtual: false,
        })),
        Err(error) => Err(unreadable(name, format!("its threads could not be read: {error:#}"))),
    })
}

struct Java {
    pid: i32,
    name: String,
    jvm: Jvm,
    /// Known after the first request.
    protocol: Option<Protocol>,
    perfdata_file: Option<PathBuf>,
    /// The counters at the begin of the window.
    begin: Option<PerfData>,
    clients: Clients,
    owners: Owners,
    cost: Cost,
    has_virtual: bool,
}

/// What the samples so far cost the program.
#[derive(Debug, Default)]
struct Cost {
    dumps: u32,
    slow: u32,
    longest: Duration,
}

impl Cost {
    fn add(&mut self, time: Duration) {
        self.dumps += 1;
        self.slow += u32::from(time > DUMP_TIME);
        self.longest = self.longest.max(time);
    }

    /// An error if the next dump would cost too much.
    fn permit(&self, threads: usize) -> Result<()> {
        ensure!(threads <= THREADS_MAX_ONCE, "it has {threads} threads, and stands while they are listed");
        ensure!(
            threads <= THREADS_MAX || self.dumps == 0,
            "sampling ended after the first time, since it has {threads} threads, and stands while they are \
             listed"
        );
        ensure!(
            self.slow < DUMPS_SLOW_MAX && self.longest <= DUMP_TIME_MAX,
            "sampling ended, since a list of its threads took {} ms, in which it stands",
            self.longest.as_millis()
        );
        Ok(())
    }
}

/// Whether and when to ask for the owners of synchronizers.
#[derive(Debug, Default)]
struct Owners {
    /// The latest sample had a thread that waits for one.
    wanted: bool,
    /// Samples since the latest that listed them.
    since: Option<u32>,
    /// They cost too much.
    refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Up to JDK 23.
    One,
    /// Of JDK 24: its requests can ask for a reply that is collected first.
    Two,
}

impl Protocol {
    fn request(self, command: &str, argument: &str) -> Vec<u8> {
        match self {
            Protocol::One => format!("1\0{command}\0{argument}\0\0\0").into_bytes(),
            Protocol::Two => {
                let data = format!("{command} streaming=0\0{argument}\0\0\0");
                format!("2\0{}\0{data}", data.len()).into_bytes()
            }
        }
    }
}

impl Owners {
    /// Whether this sample is to list them.
    fn is_due(&mut self, memory_kib: impl Fn() -> Option<u64>) -> bool {
        if !self.wanted || self.refused {
            return false;
        }
        self.refused = memory_kib().is_none_or(|kib| kib > LOCKS_MEMORY_MAX_KIB);
        let is_due = !self.refused && self.since.is_none_or(|since| since >= LOCKS_EVERY);
        self.since = Some(if is_due { 1 } else { self.since.map_or(1, |since| since.saturating_add(1)) });
        is_due
    }
}

impl Java {
    fn protocol(&mut self) -> Result<Protocol> {
        if let Some(protocol) = self.protocol {
            return Ok(protocol);
        }
        let version = self.jvm.ask_optional(&Protocol::One.request("getversion", ""))?;
        let protocol = if is_version_two(version.as_deref()) { Protocol::Two } else { Protocol::One };
        self.protocol = Some(protocol);
        Ok(protocol)
    }

    fn memory_kib(&self) -> Option<u64> {
        let status = procfs::read(procfs::path(self.pid, "status"))?;
        procfs::status_field(&status, "RssAnon")?.split(' ').next()?.parse().ok()
    }
}

/// Versions before 24 do not know the question.
fn is_version_two(reply: Option<&str>) -> bool {
    let number = reply.and_then(|text| text.split_ascii_whitespace().next()?.parse::<u32>().ok());
    number.is_some_and(|number| number >= 2)
}

impl Reader for Java {
    fn stops_program(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn sample(&mut self) -> Result<Vec<Task>> {
        self.cost.permit(procfs::threads(self.pid).len())?;
        let protocol = self.protocol()?;
        let mut owners = std::mem::take(&mut self.owners);
        let with_owners = owners.is_due(|| self.memory_kib());
        let start = Instant::now();
        let text = self.jvm.ask(&protocol.request("threaddump", if with_owners { "-l" } else { "" }))?;
        self.cost.add(start.elapsed());
        owners.refused |= with_owners && start.elapsed() > LOCKS_TIME_MAX;
        let threads = dump::parse(&text);
        self.has_virtual |= threads.iter().any(|thread| thread.is_virtual);
        self.clients.begin_sample();
        let tasks = states::tasks(&threads, |thread, place| self.clients.is_awaited_by(thread, place));
        owners.wanted = states::has_unknown_owner(&tasks);
        self.owners = owners;
        Ok(tasks)
    }

    fn pauses(&mut self) -> Vec<(String, u64)> {
        let end = self.perfdata_file.as_deref().and_then(read_perfdata);
        let both = self.begin.as_ref().zip(end);
        both.map(|(begin, end)| end.collections_since(begin)).unwrap_or_default()
    }

    fn notes(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.has_virtual {
            notes.push("virtual threads are seen while they run only: a dump lacks the others".to_string());
        }
        if self.owners.refused {
            notes.push(
                "who holds a ReentrantLock is unknown: the JVM would search a large heap for it".to_string(),
            );
        }
        notes
    }
}

/// The file of counters that the process maps, as this process reaches it.
fn perfdata_file(pid: i32, maps: &str) -> Option<PathBuf> {
    let mut files = maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| path));
    let file = files.find(|path| path.starts_with("tmp/hsperfdata_"))?;
    Some(procfs::path(pid, "root").join(file))
}

fn read_perfdata(file: &Path) -> Option<PerfData> {
    perfdata::parse(&read_file(file, PERFDATA_LEN_MAX)?)
}

/// Reads a file of another process's making: nothing but a file, and not more than `length_max` of it.
fn read_file(path: &Path, length_max: u64) -> Option<Vec<u8>> {
    let options = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(options).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(length_max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The version by the file `release` of the JDK, some folders above the library.
fn release_version(pid: i32, library: &Path) -> Option<String> {
    let root = procfs::path(pid, "root");
    let folders = library.ancestors().skip(1).take(6);
    let mut texts =
        folders.filter_map(|folder| read_file(&root.join(folder).join("release"), RELEASE_LEN_MAX));
    texts.find_map(|text| parse_release(&String::from_utf8_lossy(&text)))
}

fn parse_release(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    let version = line.trim().trim_matches('"');
    let is_version = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    (!version.is_empty() && version.chars().all(is_version)).then(|| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_form_of_their_protocol() {
        assert_eq!(Protocol::One.request("threaddump", "-l"), b"1\0threaddump\0-l\0\0\0");
        let request = Protocol::Two.request("threaddump", "");
        assert_eq!(request, b"2\x0026\0threaddump streaming=0\0\0\0\0");
        assert!(is_version_two(Some("2 getversion")) && is_version_two(Some("3\n")));
        assert!(!is_version_two(Some("1")) && !is_version_two(Some("odd")) && !is_version_two(None));
    }

    #[test]
    fn a_program_that_stands_for_long_is_sampled_no_more() {
        let after = |times: &[u64]| {
            let mut cost = Cost::default();
            times.iter().for_each(|ms| cost.add(Duration::from_millis(*ms)));
            cost
        };
        assert!(after(&[]).permit(THREADS_MAX_ONCE).is_ok());
        assert!(after(&[]).permit(THREADS_MAX_ONCE + 1).is_err());
        assert!(after(&[1]).permit(THREADS_MAX).is_ok());
        assert!(after(&[1]).permit(THREADS_MAX + 1).is_err(), "once only");
        assert!(after(&[61, 61, 60, 60]).permit(10).is_ok());
        let ended = after(&[61, 70, 62]).permit(10).expect_err("three slow dumps").to_string();
        assert_eq!(ended, "sampling ended, since a list of its threads took 70 ms, in which it stands");
        assert!(after(&[401]).permit(10).is_err());
    }

    #[test]
    fn owners_are_listed_rarely_and_of_small_heaps_only() {
        let mut owners = Owners::default();
        assert!(!owners.is_due(|| Some(1)), "no thread waits");
        owners.wanted = true;
        let due: Vec<bool> = (0..17).map(|_| owners.is_due(|| Some(1))).collect();
        let at: Vec<usize> = (0..17).filter(|&index| due[index]).collect();
        assert_eq!(at, [0, 8, 16]);
        let mut large = Owners { wanted: true, ..Owners::default() };
        assert!(!large.is_due(|| Some(LOCKS_MEMORY_MAX_KIB + 1)) && large.refused);
        assert!(!large.is_due(|| Some(1)), "it stays refused");
    }

    #[test]
    fn the_release_file_tells_the_version() {
        let text = "IMPLEMENTOR=\"X\"\nJAVA_VERSION=\"17.0.15\"\n";
        assert_eq!(parse_release(text).as_deref(), Some("17.0.15"));
        assert_eq!(parse_release("JAVA_VERSION=\"<b>\"\n"), None);
        assert_eq!(parse_release(""), None);
    }

    #[test]
    fn counters_are_found_by_the_map_of_their_file() {
        let maps = "7f00-7f01 rw-s 00000000 08:01 77   /tmp/hsperfdata_app/12\n";
        assert_eq!(perfdata_file(40, maps), Some(PathBuf::from("/proc/40/root/tmp/hsperfdata_app/12")));
        assert_eq!(perfdata_file(40, "7f00-7f01 rw-s 00000000 00:00 0 \n"), None);
    }
}
