//! Tests of [`crate::journal`], whose file a model also compiles: see `tests/it/journal.rs`.

use crate::journal::{
    CONTEXT_BITS, Journal, JournalBuffer, LentRegion, OPEN_LEN_MAX, READERS_MAX, Reader, Record,
    RequestBytes, SMALL_LEN_MAX, SentCommand,
};

fn log(buffer: &mut JournalBuffer, db: u32, command: &str) {
    buffer.push(db, command.split(' ').map(str::as_bytes).collect::<Vec<_>>().into_iter());
}

/// Without a clock, successive records have the times 1, 2, 3 and so on, whatever the thread.
fn time(number: u64) -> u64 {
    number >> CONTEXT_BITS
}

fn text(record: &Record<'_>) -> String {
    String::from_utf8_lossy(record.bytes).replace("\r\n", " ").trim_end().to_owned()
}

fn read(reader: &mut Reader, journal: &Journal) -> Vec<String> {
    let mut all = Vec::new();
    reader.read(journal, |record| {
        all.push(format!("{} {}>{} {}", time(record.number), record.first_db, record.last_db, text(&record)));
        true
    });
    all
}

#[test]
fn records_come_by_their_numbers() {
    let journal = Journal::new(3);
    let mut reader = journal.join();
    let mut buffers: Vec<JournalBuffer> = (0..3).map(|_| JournalBuffer::default()).collect();
    let mut last = 0;
    for ctx in [0, 1, 1, 0, 2] {
        log(&mut buffers[ctx], 0, &format!("DEL {ctx}"));
        last = buffers[ctx].commit(&journal, ctx, last);
    }
    journal.publish(1, &mut buffers[1]);
    assert_eq!(read(&mut reader, &journal), Vec::<String>::new(), "number 1 is still in a buffer");
    journal.publish(0, &mut buffers[0]);
    let one = |number: u64, ctx: u64| format!("{number} 0>0 *2 $3 DEL $1 {ctx}");
    assert_eq!(read(&mut reader, &journal), [one(1, 0), one(2, 1), one(3, 1), one(4, 0)]);
    journal.publish(2, &mut buffers[2]);
    assert_eq!(read(&mut reader, &journal), [one(5, 2)]);
    assert_eq!((journal.unread(), time(reader.last())), (0, 5));
}

#[test]
fn several_commands_are_a_transaction() {
    let journal = Journal::new(1);
    let (mut reader, mut buffer) = (journal.join(), JournalBuffer::default());
    log(&mut buffer, 2, "SET a 1");
    log(&mut buffer, 12, "DEL b");
    buffer.commit(&journal, 0, 0);
    log(&mut buffer, 1, "DEL c");
    buffer.commit(&journal, 0, 0);
    buffer.commit(&journal, 0, 0); // nothing was written
    journal.publish(0, &mut buffer);
    let first = "1 2>12 *1 $5 MULTI *3 $3 SET $1 a $1 1 *2 $6 SELECT $2 12 *2 $3 DEL $1 b *1 $4 EXEC";
    assert_eq!(read(&mut reader, &journal), [first, "2 1>1 *2 $3 DEL $1 c"]);
}

#[test]
fn a_transaction_selects_its_database_itself() {
    let preceded = |bytes: &'static [u8], selected| {
        let record = Record { number: 1, bytes, first_db: 7, last_db: 7, is_data: true };
        let mut stream = b"..".to_vec();
        let rest = record.preceded(selected, &mut stream);
        stream.extend_from_slice(rest);
        String::from_utf8(stream).expect("texts").replace("\r\n", " ")
    };
    const ONE: &[u8] = b"*2\r\n$3\r\nDEL\r\n$1\r\nc\r\n";
    const TWO: &[u8] = b"*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nDEL\r\n$1\r\nc\r\n*1\r\n$4\r\nEXEC\r\n";
    assert_eq!(preceded(ONE, Some(7)), "..*2 $3 DEL $1 c ");
    assert_eq!(preceded(ONE, None), "..*2 $6 SELECT $1 7 *2 $3 DEL $1 c ");
    assert_eq!(preceded(TWO, Some(7)), "..*1 $5 MULTI *2 $3 DEL $1 c *1 $4 EXEC ");
    assert_eq!(preceded(TWO, Some(1)), "..*1 $5 MULTI *2 $6 SELECT $1 7 *2 $3 DEL $1 c *1 $4 EXEC ");
}

#[test]
fn a_reader_may_stop_and_go_on() {
    let journal = Journal::new(2);
    let (mut reader, mut buffers) = (journal.join(), [JournalBuffer::default(), JournalBuffer::default()]);
    let mut last = 0;
    for number in 0..100 {
        let buffer = &mut buffers[number % 2];
        log(buffer, 0, &format!("DEL {number}"));
        last = buffer.commit(&journal, number % 2, last);
        if number % 7 == 0 {
            journal.publish(number % 2, &mut buffers[number % 2]);
        }
    }
    (0..2).for_each(|ctx| journal.publish(ctx, &mut buffers[ctx]));
    let mut numbers = Vec::new();
    for stop in [1, 2, 50, 100] {
        reader.read(&journal, |record| {
            numbers.push(time(record.number));
            time(record.number) < stop
        });
        assert_eq!(time(reader.last()), stop);
    }
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
}

/// A writer that begins a new file says so after the reader has reached the old file's last record, and
/// before the next record is written.
#[test]
fn what_is_not_wanted_any_more_waits() {
    use std::sync::atomic::{AtomicU64, Ordering::*};
    let journal = Journal::new(1);
    let (mut reader, mut buffer) = (journal.join(), JournalBuffer::default());
    let mut write = |command: &str| {
        log(&mut buffer, 0, command);
        buffer.commit(&journal, 0, 0);
        journal.publish(0, &mut buffer);
    };
    let (until, mut numbers) = (AtomicU64::new(u64::MAX), Vec::new());
    write("DEL a");
    reader.read_while(
        &journal,
        |number| time(number) <= until.load(Relaxed),
        |record| {
            numbers.push(time(record.number));
            if time(record.number) == 1 {
                until.store(1, Relaxed);
                write("DEL b");
            }
            true
        },
    );
    assert_eq!((numbers, time(reader.last())), (vec![1], 1));
    assert_eq!(read(&mut reader, &journal), ["2 0>0 *2 $3 DEL $1 b"]);
}

/// Bytes of memory that a DEL of a letter takes: its text and its span.
const RECORD: usize = 20 + 40;

fn write(journal: &Journal, buffer: &mut JournalBuffer, command: &str) {
    log(buffer, 0, command);
    buffer.commit(journal, 0, 0);
    journal.publish(0, buffer);
}

#[test]
fn each_reader_reads_at_its_own_pace() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut first = journal.join();
    write(&journal, &mut buffer, "DEL a");
    let mut second = journal.join();
    write(&journal, &mut buffer, "DEL b");
    let (a, b) = ("1 0>0 *2 $3 DEL $1 a", "2 0>0 *2 $3 DEL $1 b");
    assert_eq!(read(&mut second, &journal), [b], "it came after the first");
    assert_eq!((first.unread(&journal), second.unread(&journal)), (2 * RECORD, 0));
    assert_eq!(journal.unread(), 2 * RECORD, "what the slowest has not read");
    assert_eq!(read(&mut first, &journal), [a, b]);
    assert_eq!(journal.unread(), 0);
}

#[test]
fn one_that_goes_leaves_nothing_behind() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let (mut stays, mut goes) = (journal.join(), journal.join());
    write(&journal, &mut buffer, "DEL a");
    write(&journal, &mut buffer, "DEL b");
    journal.dismiss(goes.place());
    write(&journal, &mut buffer, "DEL c");
    assert_eq!(goes.unread(&journal), 2 * RECORD, "what came before is still to be read");
    assert_eq!(read(&mut goes, &journal).len(), 2);
    assert_eq!((goes.unread(&journal), journal.unread()), (0, 3 * RECORD));
    let place = goes.place();
    goes.end(&journal);
    assert_eq!(read(&mut stays, &journal).len(), 3);
    let mut next = journal.join();
    assert_eq!((next.place(), next.unread(&journal)), (place, 0), "the place is free again");
    write(&journal, &mut buffer, "DEL d");
    assert_eq!((read(&mut next, &journal).len(), read(&mut stays, &journal).len()), (1, 1));
    // A reader that is given up with pages unread.
    write(&journal, &mut buffer, "DEL e");
    journal.dismiss(next.place());
    next.end(&journal);
    let mut last = journal.join();
    assert_eq!(read(&mut last, &journal), Vec::<String>::new());
    write(&journal, &mut buffer, "DEL f");
    assert_eq!(read(&mut last, &journal), ["6 0>0 *2 $3 DEL $1 f"], "nothing of before is in its way");
    journal.dismiss(stays.place());
    journal.dismiss(last.place());
    assert!(!journal.is_on());
}

#[test]
fn pages_come_back_when_all_have_read_them() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut readers: Vec<Reader> = (0..READERS_MAX).map(|_| journal.join()).collect();
    write(&journal, &mut buffer, "SET k 0123456789");
    for reader in &mut readers {
        assert_eq!(journal.spares(0), 0);
        read(reader, &journal);
    }
    assert_eq!(journal.spares(0), 1);
    write(&journal, &mut buffer, "SET k 0123456789");
    assert_eq!(read(&mut readers[0], &journal).len(), 1);
    assert_eq!(journal.spares(0), 0, "and are used again");
}

/// Small buffers share pages, large buffers become pages; only a count of pages shows the difference.
#[test]
fn small_buffers_share_pages() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut readers = [journal.join(), journal.join()];
    let (small, large) = ("v".repeat(1_000), "v".repeat(SMALL_LEN_MAX));
    let set = |n: usize| format!("SET k:{n} {}", if n % 20 == 19 { &large } else { &small });
    let expected = |n: usize| {
        let (number, value) = (n + 1, set(n));
        let words: Vec<&str> = value.split(' ').collect();
        let text: Vec<String> = words.iter().map(|word| format!("${} {word}", word.len())).collect();
        format!("{number} 0>0 *3 {}", text.join(" "))
    };
    let mut seen = [0, 0];
    for n in 0..200 {
        write(&journal, &mut buffer, &set(n));
        if n == 100 {
            journal.dismiss(readers[1].place());
            let rest = read(&mut readers[1], &journal);
            assert_eq!((rest.first(), rest.last()), (Some(&expected(seen[1])), Some(&expected(n))));
            seen[1] = n + 1;
            std::mem::replace(&mut readers[1], journal.join()).end(&journal);
        }
        for (reader, seen) in readers.iter_mut().zip(&mut seen).filter(|_| n % 45 == 44 || n == 199) {
            let got = read(reader, &journal);
            assert_eq!(got, (*seen..=n).map(expected).collect::<Vec<_>>());
            *seen = n + 1;
        }
    }
    assert_eq!(journal.unread(), 0);
    let all = 45 * 1_030 / OPEN_LEN_MAX + 2 * 3 + 2;
    assert!(journal.spares(0) <= all, "{} pages for 45 records", journal.spares(0));
}

/// The spans of few records are copied to the page, those of many move there.
#[test]
fn large_buffers_of_few_and_of_many_records() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut reader = journal.join();
    let mut number = 0;
    for count in [1, 64, 65, 300, 64, 1, 300].repeat(3) {
        let value = "v".repeat(1 + SMALL_LEN_MAX / count);
        let expected = (0..count).map(|n| {
            log(&mut buffer, 0, &format!("SET {} {value}", n % 10));
            buffer.commit(&journal, 0, 0);
            number += 1;
            format!("{number} 0>0 *3 $3 SET $1 {} ${} {value}", n % 10, value.len())
        });
        let expected: Vec<String> = expected.collect();
        journal.publish(0, &mut buffer);
        assert_eq!(read(&mut reader, &journal), expected);
        assert_eq!((journal.unread(), journal.spares(0)), (0, 1), "what came back is used again");
    }
}

#[test]
fn what_only_replicas_hear_says_so() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut reader = journal.join();
    journal.set_replica(reader.place());
    let message = [&b"PUBLISH"[..], b"c", b"m"];
    buffer.push_for_replicas(0, message.into_iter());
    buffer.commit(&journal, 0, 0);
    buffer.push_for_replicas(0, message.into_iter());
    log(&mut buffer, 0, "DEL a");
    buffer.commit(&journal, 0, 0);
    journal.publish(0, &mut buffer);
    let mut read_records = Vec::new();
    reader.read(&journal, |record| {
        read_records.push((time(record.number), record.is_data));
        true
    });
    assert_eq!(read_records, [(1, false), (2, true)]);
    assert!(journal.has_replicas());
    journal.dismiss(reader.place());
    assert!(!journal.has_replicas());
}

/// Encodes commands in sequence, as a client sends them; returns the position of each.
fn received(commands: &[&str]) -> (LentRegion, Vec<std::ops::Range<usize>>) {
    let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
    for command in commands {
        let (start, words) = (bytes.len(), command.split(' ').collect::<Vec<_>>());
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        ranges.push(start..bytes.len());
    }
    (LentRegion::new(bytes.into()), ranges)
}

/// The command at this range of a lent region.
fn sent<'a>(memory: &'a LentRegion, range: &std::ops::Range<usize>) -> SentCommand<'a> {
    SentCommand::new(RequestBytes::lent(memory, memory.len()), range.clone())
}

/// A page that has copied a command after all does not keep the region.
#[test]
fn a_region_without_records_is_released() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut reader = journal.join();
    let (mut memory, at) = received(&["DEL a", "DEL b"]);
    buffer.push_sent(0, sent(&memory, &at[0]));
    log(&mut buffer, 0, "DEL c");
    buffer.commit(&journal, 0, 0);
    assert!(LentRegion::get_mut(&mut memory).is_some(), "a second command followed");
    buffer.push_sent(0, sent(&memory, &at[1]));
    buffer.forget();
    assert!(LentRegion::get_mut(&mut memory).is_some(), "the record was dropped");
    // Another region's command is copied as long as the page has a record in the first region.
    let (mut other, there) = received(&["DEL d"]);
    for (memory, range) in [(&memory, &at[1]), (&other, &there[0]), (&memory, &at[0])] {
        buffer.push_sent(0, sent(memory, range));
        buffer.commit(&journal, 0, 0);
    }
    assert!(LentRegion::get_mut(&mut other).is_some(), "its command was copied");
    assert!(LentRegion::get_mut(&mut memory).is_none(), "the page refers to it");
    journal.publish(0, &mut buffer);
    let expected = [
        "1 0>0 *1 $5 MULTI *2 $3 DEL $1 a *2 $3 DEL $1 c *1 $4 EXEC",
        "2 0>0 *2 $3 DEL $1 b",
        "3 0>0 *2 $3 DEL $1 d",
        "4 0>0 *2 $3 DEL $1 a",
    ];
    assert_eq!(read(&mut reader, &journal), expected);
}

/// A batch knows its own last record, and none of an earlier batch.
#[test]
fn a_batch_knows_its_last_record() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    assert_eq!(buffer.last_of_batch(), None);
    log(&mut buffer, 0, "DEL a");
    let number = buffer.commit(&journal, 0, 0);
    assert_eq!(buffer.last_of_batch(), Some(number));
    buffer.begin_batch();
    assert_eq!(buffer.last_of_batch(), None);
}

/// A large part of the lent region is kept as it is; the region is free again when all readers have read
/// it.
#[test]
fn what_was_received_is_not_copied() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut readers = [journal.join(), journal.join()];
    let long = "x".repeat(SMALL_LEN_MAX);
    let (mut memory, at) = received(&["DEL a", &format!("SET b {long}"), "DEL c", "DEL d"]);
    buffer.push_sent(0, sent(&memory, &at[0]));
    buffer.commit(&journal, 0, 0);
    buffer.push_sent(3, sent(&memory, &at[1]));
    buffer.commit(&journal, 0, 0);
    // A record of several commands is made of copies, even if the first was a range of the region.
    buffer.push_sent(0, sent(&memory, &at[2]));
    log(&mut buffer, 1, "DEL e");
    buffer.push_sent(1, sent(&memory, &at[3]));
    buffer.commit(&journal, 0, 0);
    buffer.push_sent(0, sent(&memory, &at[3]));
    buffer.forget();
    // A command in other memory is copied.
    let unlent = b"*2\r\n$3\r\nDEL\r\n$1\r\nf\r\n";
    buffer.push_sent(0, SentCommand::new(RequestBytes::unlent(unlent), 0..unlent.len()));
    buffer.commit(&journal, 0, 0);
    journal.publish(0, &mut buffer);
    let several =
        "3 0>1 *1 $5 MULTI *2 $3 DEL $1 c *2 $6 SELECT $1 1 *2 $3 DEL $1 e *2 $3 DEL $1 d *1 $4 EXEC";
    let expected = [
        "1 0>0 *2 $3 DEL $1 a".to_owned(),
        format!("2 3>3 *3 $3 SET $1 b ${SMALL_LEN_MAX} {long}"),
        several.to_owned(),
        "4 0>0 *2 $3 DEL $1 f".to_owned(),
    ];
    assert!(journal.unread() >= memory.len());
    for reader in &mut readers {
        assert!(LentRegion::get_mut(&mut memory).is_none(), "somebody has yet to read it");
        assert_eq!(read(reader, &journal), expected);
    }
    assert!(LentRegion::get_mut(&mut memory).is_some());
    assert_eq!(journal.unread(), 0);
}

#[test]
fn little_of_what_was_received_is_copied_in_the_end() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut reader = journal.join();
    for _ in 0..2 {
        let (mut memory, at) = received(&["DEL a", "DEL b"]);
        for range in at {
            buffer.push_sent(0, sent(&memory, &range));
            buffer.commit(&journal, 0, 0);
        }
        journal.publish(0, &mut buffer);
        assert!(LentRegion::get_mut(&mut memory).is_some(), "it may be read into again");
    }
    assert_eq!(journal.unread(), 4 * RECORD);
    let line = |number, key| format!("{number} 0>0 *2 $3 DEL $1 {key}");
    assert_eq!(read(&mut reader, &journal), [line(1, "a"), line(2, "b"), line(3, "a"), line(4, "b")]);
}

#[test]
fn what_is_a_small_part_of_what_was_received_is_copied() {
    let (journal, mut buffer) = (Journal::new(1), JournalBuffer::default());
    let mut reader = journal.join();
    let [long, longer] = [SMALL_LEN_MAX, 5 * SMALL_LEN_MAX].map(|len| "x".repeat(len));
    let (mut memory, at) = received(&["DEL a", &format!("SET b {long}"), &format!("GET {longer}")]);
    for range in &at[..2] {
        buffer.push_sent(0, sent(&memory, range));
        buffer.commit(&journal, 0, 0);
    }
    journal.publish(0, &mut buffer);
    assert!(LentRegion::get_mut(&mut memory).is_some(), "it may be read into again");
    let expected =
        ["1 0>0 *2 $3 DEL $1 a".to_owned(), format!("2 0>0 *3 $3 SET $1 b ${SMALL_LEN_MAX} {long}")];
    assert_eq!(read(&mut reader, &journal), expected);
    assert_eq!(journal.unread(), 0);
}
