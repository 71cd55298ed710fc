use super::*;

/// Reads a file: returns its records as text, and the result at its end.
fn read(file: &[u8]) -> (Vec<String>, std::result::Result<(), Fault>) {
    read_from(Commands::new(file, 0, Some(file.len() as u64)))
}

fn read_from<R: Read>(mut commands: Commands<R>) -> (Vec<String>, std::result::Result<(), Fault>) {
    let mut records = Vec::new();
    loop {
        match commands.next() {
            Ok(Some(record)) => records.push(shown(&record)),
            Ok(None) => return (records, Ok(())),
            Err(fault) => return (records, Err(fault)),
        }
    }
}

fn shown(record: &Record<'_>) -> String {
    match record {
        Record::Command(command) => {
            let args: Vec<_> = command.args().map(String::from_utf8_lossy).collect();
            let queued = if command.in_transaction() { "| " } else { "" };
            format!("{}-{} {queued}{}", command.at(), command.end(), args.join(" "))
        }
        Record::Timestamp { at, seconds } => format!("{at} at {seconds}"),
        Record::Comment { at, text } => format!("{at} {}", String::from_utf8_lossy(text)),
    }
}

fn file(lines: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        match line.strip_prefix('#') {
            Some(_) => out.extend_from_slice(format!("{line}\r\n").as_bytes()),
            None => push_command(&mut out, &line.split(' ').collect::<Vec<_>>()),
        }
    }
    out
}

#[test]
fn commands_come_with_their_places() {
    let mut bytes = file(&["SELECT 0", "#TS:1700000000", "SET k v", "#a comment", "multi", "DEL k", "Exec"]);
    push_timestamp(&mut bytes, 5);
    let (records, end) = read(&bytes);
    assert_eq!(end, Ok(()));
    let expected = [
        "0-23 SELECT 0",
        "23 at 1700000000",
        "39-66 SET k v",
        "66 #a comment",
        "78-93 | multi",
        "93-113 | DEL k",
        "113-127 | Exec",
        "127 at 5",
    ];
    assert_eq!(records, expected);
}

#[test]
fn binary_arguments_of_any_length_are_read_whole() {
    let large = vec![b'*'; 3 * READ_MIN + 17];
    let args: [&[u8]; 4] = [b"SET", b"\r\n\0\xff", b"", &large];
    let mut bytes = Vec::new();
    for _ in 0..3 {
        push_command(&mut bytes, &args);
    }
    let mut commands = Commands::new(&bytes[..], 0, None);
    for _ in 0..3 {
        let Ok(Some(Record::Command(command))) = commands.next() else { panic!("a command is there") };
        assert!(command.args().eq(args.iter().copied()));
        assert_eq!((command.count(), command.arg(1), command.name()), (4, Some(args[1]), args[0]));
        assert_eq!(command.bytes(), &bytes[command.at() as usize..command.end() as usize]);
    }
    assert!(matches!(commands.next(), Ok(None)));
    assert_eq!(commands.whole(), bytes.len() as u64);
}

#[test]
fn a_file_that_is_cut_anywhere_is_torn_where_its_last_whole_command_ends() {
    let lines = ["SELECT 0", "#TS:1700000000", "SET k v", "MULTI", "DEL k", "#TS:1700000001", "EXEC", "PING"];
    let bytes = file(&lines);
    // A file may end behind any line, but not within the transaction.
    let ends: Vec<usize> = [0, 1, 2, 3, 7, 8].iter().map(|count| file(&lines[..*count]).len()).collect();
    for cut in 0..=bytes.len() {
        let (_, end) = read(&bytes[..cut]);
        let whole = ends.iter().rev().find(|end| **end <= cut).copied().expect("0 is one");
        match end {
            Ok(()) => assert!(ends.contains(&cut), "cut at {cut}"),
            Err(fault) => {
                assert!(!ends.contains(&cut) && fault.is_torn(), "cut at {cut}: {fault}");
                assert_eq!(fault.whole, whole as u64, "cut at {cut}: {fault}");
            }
        }
    }
}

#[test]
fn corruption_is_named_and_never_taken_for_a_torn_end() {
    let good = file(&["SET k v"]);
    let at = good.len() as u64;
    let broken = |bytes: &[u8]| {
        let (records, end) = read(&[&good, bytes].concat());
        assert_eq!(records.len(), 1);
        let fault = end.expect_err("it is broken");
        assert!(!fault.is_torn(), "{fault}");
        assert_eq!(fault.whole, at);
        (fault.at - at, fault.reason)
    };
    assert_eq!(broken(b"hello"), (0, Reason::Start(b'h')));
    assert_eq!(broken(b"\0\0\0"), (0, Reason::Start(0)));
    assert_eq!(broken(b"*0\r\n"), (0, Reason::Number));
    assert_eq!(broken(b"*-1\r\n"), (0, Reason::Number));
    assert_eq!(broken(b"*2147483648\r\n"), (0, Reason::Number));
    assert_eq!(broken(b"*x\r\n"), (0, Reason::Number));
    assert_eq!(broken(b"*1\n$4\r\nPING\r\n"), (0, Reason::Number));
    assert_eq!(broken(b"*1\r\n:4\r\n"), (4, Reason::Argument(b':')));
    assert_eq!(broken(b"*1\r\n$\r\n"), (4, Reason::Number));
    assert_eq!(broken(b"*1\r\n$9223372036854775808\r\n"), (4, Reason::Number));
    assert_eq!(broken(b"*1\r\n$4\r\nPINGxx"), (12, Reason::LineEnd));
    assert_eq!(broken(&file(&["EXEC"])), (0, Reason::ExecAlone));
    assert_eq!(broken(&[b"#".repeat(2_000), b"\n".to_vec()].concat()), (0, Reason::Annotation));
    let (_, end) = read(&file(&["MULTI", "MULTI"]));
    assert_eq!(end, Err(Fault { at: 15, whole: 0, reason: Reason::NestedMulti }));
}

#[test]
fn a_length_that_swallows_commands_is_corrupt_and_not_torn() {
    let (before, behind) = (file(&["SET a 1"]), file(&["SET b 2", "SET c 3"]));
    for length in ["4000", "9223372036854775807"] {
        let wrong = format!("*2\r\n$3\r\nGET\r\n${length}\r\nk\r\n");
        let bytes = [&before[..], wrong.as_bytes(), &behind].concat();
        let (_, end) = read(&bytes);
        let at = before.len() as u64 + 13;
        let reason = Reason::Swallowed((bytes.len() - behind.len()) as u64);
        assert_eq!(end, Err(Fault { at, whole: before.len() as u64, reason }), "{length}");
        let torn = [&before[..], wrong.as_bytes()].concat();
        let (_, end) = read(&torn);
        assert_eq!(end, Err(Fault { at, whole: before.len() as u64, reason: Reason::Torn }), "{length}");
    }
}

/// Commands are found at any distance, across the borders of the searched pieces.
#[test]
fn commands_behind_a_long_value_are_found_as_well() {
    let behind = file(&["SET b 2"]);
    for len in [20 << 20, RESYNC_BYTES_MAX as usize - 10, 3 * RESYNC_BYTES_MAX as usize / 2 + 3] {
        let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9{len}\r\n");
        let bytes = [head.as_bytes(), &vec![b'x'; len], b"\r\n", &behind].concat();
        let (_, end) = read(&bytes);
        let reason = Reason::Swallowed((bytes.len() - behind.len()) as u64);
        assert_eq!(end.expect_err("it ends").reason, reason, "{len}");
    }
}

#[test]
fn an_argument_over_the_maximum_is_refused_at_once() {
    let bytes = format!("*1\r\n${}\r\n", 1_u64 << 32);
    for (len, reason) in [(Some(u64::MAX), Reason::Number), (None, Reason::Torn)] {
        let fault = Commands::new(bytes.as_bytes(), 0, len).next().expect_err("it is too long");
        assert_eq!((fault.at, fault.reason), (4, reason));
    }
}

#[test]
fn announced_but_missing_bytes_cost_no_memory() {
    for length in [1 << 30, u64::MAX >> 1] {
        for len in [None, Some(100_000_000_000)] {
            let bytes = format!("*2000000000\r\n${length}\r\nabc");
            let mut commands = Commands::new(bytes.as_bytes(), 0, len);
            assert!(commands.next().expect_err("it ends").is_torn());
            assert!(commands.buffer.capacity() < 100_000);
            assert!(commands.args.capacity() < 100);
        }
    }
}

#[test]
fn a_growing_file_is_read_to_its_given_end() {
    let bytes = file(&["SET a 1", "SET b 2"]);
    let (records, end) = read_from(Commands::new(&bytes[..], 0, Some(bytes.len() as u64 / 2)));
    assert_eq!((records.len(), end), (1, Ok(())));
}

#[test]
fn offsets_behind_a_snapshot_count_from_the_start_of_the_file() {
    let bytes = file(&["SET a 1"]);
    let (records, end) = read_from(Commands::new(&bytes[..], 100, Some(100 + bytes.len() as u64)));
    assert_eq!((records, end), (vec!["100-127 SET a 1".to_owned()], Ok(())));
    let (_, end) = read_from(Commands::new(&bytes[..5], 100, Some(105)));
    assert_eq!(end, Err(Fault { at: 104, whole: 100, reason: Reason::Torn }));
}

#[test]
fn a_read_error_is_not_a_torn_file() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
    let bytes = file(&["SET a 1"]);
    let (records, end) = read_from(Commands::new(bytes[..30.min(bytes.len())].chain(Broken), 0, None));
    // The reader asks for several commands at a time, so it meets the failure before it has parsed the
    // second.
    assert!(records.len() <= 1);
    let fault = end.expect_err("it fails");
    assert_eq!((fault.reason, fault.is_torn()), (Reason::Io(io::ErrorKind::TimedOut), false));
}

#[test]
fn commands_are_found_again() {
    let noise: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk*1\r\n$1\r\nx\r\n xx\r\n";
    let bytes = [noise, &file(&["SET a 1"]), b"\0\0", &file(&["SET b"]), b"\n", &file(&["PING"])].concat();
    let found: Vec<String> =
        whole_commands(&bytes).map(|at| String::from_utf8_lossy(&bytes[at]).replace("\r\n", " ")).collect();
    assert_eq!(found, ["*3 $3 SET $1 a $1 1 ", "*1 $4 PING "]);
}

#[test]
fn a_length_beyond_the_end_of_a_large_file_does_not_bring_it_into_memory() {
    let (head, data) = (b"*1\r\n$999999999999\r\n", 200 << 20);
    let mut commands =
        Commands::new(head.chain(io::repeat(b'x').take(data)), 0, Some(head.len() as u64 + data));
    let fault = commands.next().expect_err("it ends before");
    assert_eq!(fault, Fault { at: 4, whole: 0, reason: Reason::Torn });
    assert!(commands.buffer.capacity() < 4 * RESYNC_BYTES_MAX as usize);
}
