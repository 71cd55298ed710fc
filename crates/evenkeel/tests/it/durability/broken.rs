//! Files that are cut or changed. A torn end of the append-only file is cut off and reported. All other
//! damage is refused, with file, offset and reason, and the file stays as it is.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Random, Reference, Server};

use crate::{program, start};

const CUTS: usize = 60;
const CHANGES: usize = 60;

/// For nightly runs: changes every byte.
const ALL_VARIABLE: &str = "EVENKEEL_EVERY_BYTE";
const WRITES: i64 = 12;
const LAST: &str = "appendonlydir/appendonly.aof.1.incr.aof";

/// A folder with an append-only file that ends with a transaction, and a snapshot.
fn sample() -> Server {
    let mut server = start(&["--threads", "1", "--appendonly", "yes"]);
    let mut client = server.connect();
    client.run("SET base x");
    for n in 1..=WRITES {
        let reply = client.run(&format!("RPUSH list {n}"));
        assert_eq!(reply.as_int(), Some(n));
    }
    client.run("MULTI");
    client.run("SET first 1");
    client.run("SET second 1");
    client.run("EXEC");
    assert!(!client.run("SAVE").is_error());
    assert!(server.stop().success());
    server
}

/// Starts a server on a copy of the folder in which a single file is changed.
struct Attempt {
    folder: PathBuf,
    file: PathBuf,
}

impl Attempt {
    fn new(sample: &Server, file: &str, bytes: &[u8]) -> Attempt {
        let folder = sample.folder().join("copy");
        let _ = fs::remove_dir_all(&folder); // of the previous attempt
        copy(sample.folder(), &folder);
        let file = folder.join(file);
        fs::write(&file, bytes).expect("the folder is ours");
        Attempt { folder, file }
    }

    /// Returns the server, or the reason of the failed start; checks that the log has it and the file is
    /// unchanged.
    fn start(&self, appendonly: &str) -> Result<Server, String> {
        self.start_with(&["--appendonly", appendonly])
    }

    fn start_with(&self, args: &[&str]) -> Result<Server, String> {
        let dir = self.folder.display().to_string();
        let before = fs::read(&self.file).expect("it was written");
        match Server::try_start(&program(), &[&["--threads", "1", "--dir", &dir], args].concat()) {
            Ok(mut server) => {
                server.assert_healthy();
                Ok(server)
            }
            Err(said) => {
                assert!(!said.contains("panicked"), "{said}");
                assert!(said.contains("it ended with exit status: 1"), "{said}");
                let name = self.file.file_name().expect("a file").to_string_lossy();
                assert!(said.contains(&*name), "which file? {said}");
                let tells_where = said.lines().any(|line| line.contains("byte ") || line.contains("offset"));
                assert!(tells_where, "where? {said}");
                assert!(fs::read(&self.file).is_ok_and(|after| after == before), "changed, and refused");
                Err(said)
            }
        }
    }
}

/// The commands of an append-only file were admitted once. Settings that change while it is loaded do not
/// matter.
#[test]
fn a_memory_limit_does_not_stop_a_load() {
    let sample = sample();
    let mut bytes = fs::read(sample.folder().join(LAST)).expect("it is there");
    bytes.extend(b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$9\r\nmaxmemory\r\n$1\r\n1\r\n");
    bytes.extend(b"*3\r\n$3\r\nSET\r\n$4\r\nlate\r\n$1\r\nx\r\n");
    let server = Attempt::new(&sample, LAST, &bytes).start("yes").expect("it is whole");
    assert_eq!(server.connect().run("GET late").to_string(), "\"x\"");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the folder is ours");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_file() {
            fs::copy(&path, &target).expect("a copy");
        } else if entry.file_name() == "appendonlydir" {
            copy(&path, &target);
        }
    }
}

/// Positions in a file of this length, both ends included.
fn some(len: usize, count: usize, random: &mut Random) -> Vec<usize> {
    if std::env::var_os(ALL_VARIABLE).is_some() {
        return (0..len).collect();
    }
    let mut positions: Vec<usize> = (0..count.min(len)).map(|_| random.below(len)).collect();
    positions.extend([0, 1, len - 1]);
    positions.sort_unstable();
    positions.dedup();
    positions
}

fn seeded() -> Random {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    Random::new(seed)
}

fn bytes_of(sample: &Server, file: &str) -> Vec<u8> {
    let bytes = fs::read(sample.folder().join(file)).expect("the server wrote it");
    assert!(bytes.len() > 100, "{file} has {} bytes", bytes.len());
    bytes
}

#[test]
fn a_truncated_aof_loads_up_to_its_last_command() {
    let (sample, mut random) = (sample(), seeded());
    let whole = bytes_of(&sample, LAST);
    let mut before = 0;
    for at in some(whole.len(), CUTS, &mut random) {
        let attempt = Attempt::new(&sample, LAST, &whole[..at]);
        let server = attempt.start("yes").unwrap_or_else(|said| panic!("cut at {at}: {said}"));
        let mut client = server.connect();
        let len = client.run("LLEN list").as_int().expect("a number");
        let list = client.run("LRANGE list 0 -1").to_string();
        let expected: Vec<String> = (1..=len).map(|n| n.to_string()).collect();
        assert!(len >= before, "cut at {at} has less than a cut before");
        let shown = list.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        assert_eq!(shown.collect::<Vec<_>>(), expected, "cut at {at}: {list}");
        assert_eq!(client.run("EXISTS first second").as_int(), Some(0), "half a transaction, cut at {at}");
        // New writes are found behind the kept data.
        assert_eq!(client.run("RPUSH list new").as_int(), Some(len + 1));
        drop(client);
        let mut server = server;
        assert!(server.stop().success());
        let server = attempt.start("yes").unwrap_or_else(|said| panic!("second start, cut at {at}: {said}"));
        assert_eq!(server.connect().run("LLEN list").as_int(), Some(len + 1), "cut at {at}");
        before = len;
    }
}

/// A damaged end is removed if it is not longer than the operator has said.
#[test]
fn a_corrupt_end_of_an_aof_is_removed_up_to_its_permitted_size() {
    const END: &[u8] = b"*1\r\n$4\r\nPI\r\n\0\0\0\0\0\0\0\0garbage of a crash";
    let sample = sample();
    let whole = bytes_of(&sample, LAST);
    let damaged = [&whole, END].concat();
    let max = |bytes: usize| bytes.to_string();
    let start = |max: &str| {
        let args = ["--appendonly", "yes", "--aof-load-corrupt-tail-max-size", max];
        let attempt = Attempt::new(&sample, LAST, &damaged);
        attempt.start_with(&args).map(|server| (server, attempt))
    };
    assert!(start("0").is_err() && start(&max(END.len() - 1)).is_err());
    let (server, attempt) = start(&max(END.len())).expect("the end is short enough");
    assert_eq!(server.connect().run("GET second").to_string(), "\"1\"");
    assert!(server.log().contains("(aof-load-corrupt-tail-max-size)"), "{}", server.log());
    assert_eq!(fs::read(&attempt.file).expect("it is there"), whole);
}

#[test]
fn an_aof_with_a_changed_byte_is_refused_or_loaded() {
    let (sample, mut random) = (sample(), seeded());
    let whole = bytes_of(&sample, LAST);
    let mut refused = 0;
    for at in some(whole.len(), CHANGES, &mut random) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << random.below(8);
        println!("byte {at} is {}", bytes[at].escape_ascii());
        refused += usize::from(Attempt::new(&sample, LAST, &bytes).start("yes").is_err());
    }
    assert!(refused > CHANGES / 4, "{refused} refused: were the files loaded at all?");
}

#[test]
fn truncated_or_changed_snapshots_are_refused() {
    let (sample, mut random) = (sample(), seeded());
    for (file, appendonly) in [("dump.rdb", "no"), ("appendonlydir/appendonly.aof.1.base.rdb", "yes")] {
        let whole = fs::read(sample.folder().join(file)).expect("the server wrote it");
        for at in some(whole.len(), CUTS / 3, &mut random) {
            println!("{file}, byte {at}");
            let cut = Attempt::new(&sample, file, &whole[..at]).start(appendonly);
            assert!(cut.is_err(), "{file} cut at {at} was loaded");
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << random.below(8);
            let changed = Attempt::new(&sample, file, &bytes).start(appendonly);
            assert!(changed.is_err(), "{file} with byte {at} changed was loaded");
        }
    }
}

/// Without a checksum the bytes' meaning decides: form and values are checked. A changed byte of a value is
/// another value.
#[test]
fn changed_snapshots_without_a_checksum_are_refused_or_loaded() {
    let (sample, mut random) = (sample(), seeded());
    let whole = bytes_of(&sample, "dump.rdb");
    let (mut refused, mut loaded) = (0, 0);
    for at in some(whole.len(), CHANGES, &mut random) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << random.below(8);
        println!("byte {at} is {}", bytes[at].escape_ascii());
        match Attempt::new(&sample, "dump.rdb", &bytes).start_with(&["--rdbchecksum", "no"]) {
            Err(_) => refused += 1,
            Ok(server) => {
                loaded += 1;
                let mut client = server.connect();
                for key in client.run("KEYS *").as_items().expect("keys") {
                    let key = key.as_bytes().expect("a name").to_vec();
                    let reply = client.call(&[b"DUMP".to_vec(), key]);
                    assert!(!reply.is_error(), "{reply}");
                }
            }
        }
    }
    assert!(refused > CHANGES / 8 && loaded > CHANGES / 8, "{refused} refused, {loaded} loaded");
}

/// A crash during the removal of history: some files are gone, but all are still listed.
#[test]
fn partly_removed_history_is_removed_at_the_start() {
    let mut server = start(&["--threads", "1", "--appendonly", "yes"]);
    let mut client = server.connect();
    assert!(!client.run("SET k v").is_error());
    assert!(!client.run("SAVE").is_error());
    assert!(server.stop().success());
    let folder = server.folder().join("appendonlydir");
    let file = |name: &str| folder.join(format!("appendonly.aof.{name}"));
    let manifest = "file appendonly.aof.2.base.rdb seq 2 type b\n\
                    file appendonly.aof.1.base.rdb seq 1 type h\n\
                    file appendonly.aof.1.incr.aof seq 1 type h\n";
    fs::copy(server.folder().join("dump.rdb"), file("2.base.rdb")).expect("the folder is ours");
    fs::write(file("manifest"), manifest).expect("the folder is ours");
    fs::remove_file(file("1.incr.aof")).expect("it was there");
    server.start_again();
    let mut client = server.connect();
    assert_eq!(client.run("GET k").to_string(), "\"v\"");
    assert!(!client.run("SET k w").is_error());
    assert!(!file("1.base.rdb").exists());
    assert!(!fs::read_to_string(file("manifest")).expect("it is there").contains("type h"));
    assert!(server.stop().success());
    server.start_again();
    assert_eq!(server.connect().run("GET k").to_string(), "\"w\"");
}

/// More than any reader's buffer.
const MANY: usize = 80_000;

/// A folder with an append-only file of 43 MB, or a base of that size. All writing commands have the same
/// length.
fn large_sample(has_base: bool) -> Server {
    let mut server = start(&["--threads", "1", "--appendonly", "yes", "--rdbcompression", "no"]);
    let value = |n: usize| format!("{n:08}").repeat(60);
    let sets = (0..MANY).map(|n| vec!["SET".to_owned(), format!("key:{n:08}"), value(n)]);
    server.connect().pipeline(&sets.collect::<Vec<_>>());
    if has_base {
        super::exchange::rewrite(&server);
    }
    assert!(server.stop().success());
    server
}

/// Positions at ends of buffers, and random positions.
fn places(len: usize, random: &mut Random) -> Vec<usize> {
    let ends = [1 << 20, 8 << 20, 16 << 20, 32 << 20].map(|end| [end - 1, end, end + 1]);
    let mut places = ends.concat();
    places.extend((0..8).map(|_| random.below(len)));
    places.push(len - 1);
    places
}

/// The process's peak of resident memory, in bytes.
fn peak(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it is alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it says so");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn a_truncated_large_aof_loads_up_to_its_last_command() {
    let (sample, mut random) = (large_sample(false), seeded());
    let whole = bytes_of(&sample, LAST);
    let head = whole.windows(4).position(|some| some == b"*3\r\n").expect("there are SETs");
    let one = (whole.len() - head) / MANY;
    assert_eq!(head + one * MANY, whole.len(), "all are of one length");
    assert!(whole.len() > 40_000_000);
    for at in places(whole.len(), &mut random) {
        let attempt = Attempt::new(&sample, LAST, &whole[..at]);
        let server = attempt.start("yes").unwrap_or_else(|said| panic!("cut at {at}: {said}"));
        let mut client = server.connect();
        let keys = (at - head) / one;
        assert_eq!(client.run("DBSIZE").as_int(), Some(keys as i64), "cut at {at}");
        let last = keys - 1;
        let value = client.run(&format!("GET key:{last:08}")).to_string();
        assert_eq!(value, format!("\"{}\"", format!("{last:08}").repeat(60)), "cut at {at}");
        assert!(peak(&server) < 5 * whole.len(), "{} bytes of memory, cut at {at}", peak(&server));
    }
}

#[test]
fn a_large_file_with_a_changed_byte_is_refused_or_loaded() {
    for has_base in [false, true] {
        let (sample, mut random) = (large_sample(has_base), seeded());
        let file = if has_base { "appendonlydir/appendonly.aof.2.base.rdb" } else { LAST };
        let whole = bytes_of(&sample, file);
        assert!(whole.len() > 39_000_000, "{} bytes", whole.len());
        for at in places(whole.len(), &mut random) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << random.below(8);
            println!("{file}, byte {at} is {}", bytes[at].escape_ascii());
            match Attempt::new(&sample, file, &bytes).start("yes") {
                Ok(server) => {
                    assert!(!has_base, "{file} with byte {at} changed was loaded");
                    assert!(peak(&server) < 5 * whole.len(), "{} bytes of memory", peak(&server));
                }
                Err(said) => assert!(!said.contains("allocation"), "{said}"),
            }
        }
        if has_base {
            for at in places(whole.len(), &mut random) {
                let cut = Attempt::new(&sample, file, &whole[..at]).start("yes");
                assert!(cut.is_err(), "{file} cut at {at} was loaded");
            }
        }
    }
}

/// Redis 7.0 loads such a file and shows the stored length. RDB parsers' samples contain some.
#[test]
fn a_stream_whose_stored_length_is_wrong_is_loaded_and_counted() {
    let mut sample = start(&["--save", "3600 1"]);
    let mut client = sample.connect();
    for id in 1..=5 {
        client.run(&format!("XADD stream {id}-1 field value"));
    }
    client.run("XADD whole 1-1 field value");
    assert_eq!(client.run("SAVE").to_string(), "OK");
    sample.kill();
    let mut bytes = bytes_of(&sample, "dump.rdb");
    // Length, last id, first id, highest deleted id, entries added.
    let counters = [5, 5, 1, 1, 1, 0, 0, 5];
    let at = bytes.windows(counters.len()).position(|window| window == counters).expect("it is there");
    bytes[at] = 9;
    let checksum_at = bytes.len() - 8;
    bytes[checksum_at..].fill(0); // no checksum
    let attempt = Attempt::new(&sample, "dump.rdb", &bytes);
    let server = attempt.start("no").expect("it is loaded");
    let mut client = server.connect();
    assert_eq!(client.run("XLEN stream").as_int(), Some(5));
    assert_eq!(client.run("XLEN whole").as_int(), Some(1));
    assert_eq!(client.run("XADD stream 6-1 field value").to_string(), "\"6-1\"");
    let log = server.log();
    assert_eq!(log.matches("did not match its entries").count(), 1, "{log}");
    assert!(log.contains("counters of stream *redacted* (length"), "{log}");
    let checked = std::process::Command::new(program().path()).arg("check").arg(&attempt.file).output();
    let checked = checked.expect("it can be run");
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && said.contains("1 stream with wrong counters"), "{said}");
    // A replica accepts it from a primary that has loaded it.
    let Some(redis) = Program::oracle(Reference::Redis) else { return };
    let dir = attempt.folder.display().to_string();
    let primary = Server::start(&redis, &["--dir", &dir, "--repl-diskless-sync-delay", "0"]);
    assert_eq!(primary.connect().run("XLEN stream").as_int(), Some(9));
    client.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    crate::wait_until("it follows", || server.info("master_link_status") == "up");
    assert_eq!(client.run("XLEN stream").as_int(), Some(5));
}
