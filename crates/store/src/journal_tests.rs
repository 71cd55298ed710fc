//! Tests of [`crate::journal`], whose file is also compiled elsewhere: see `tests/it/journal.rs`.

use crate::journal::{Draft, Journal, Reader, Record};

fn log(draft: &mut Draft, db: u32, command: &str) {
    draft.push(db, command.split(' ').map(str::as_bytes).collect::<Vec<_>>().into_iter());
}

fn text(record: &Record<'_>) -> String {
    String::from_utf8_lossy(record.bytes).replace("\r\n", " ").trim_end().to_owned()
}

fn read(reader: &mut Reader, journal: &Journal) -> Vec<String> {
    let mut all = Vec::new();
    reader.read(journal, |record| {
        all.push(format!("{} {}>{} {}", record.number, record.first_db, record.last_db, text(&record)));
        true
    });
    all
}

#[test]
fn records_come_by_their_numbers() {
    let journal = Journal::new(3);
    let mut reader = Reader::after(&journal, 0);
    let mut drafts: Vec<Draft> = (0..3).map(|_| Draft::default()).collect();
    for seat in [0, 1, 1, 0, 2] {
        log(&mut drafts[seat], 0, &format!("DEL {seat}"));
        drafts[seat].commit(&journal);
    }
    journal.lay_down(1, &mut drafts[1]);
    assert_eq!(read(&mut reader, &journal), Vec::<String>::new(), "number 1 is still in a draft");
    journal.lay_down(0, &mut drafts[0]);
    let one = |number: u64, seat: u64| format!("{number} 0>0 *2 $3 DEL $1 {seat}");
    assert_eq!(read(&mut reader, &journal), [one(1, 0), one(2, 1), one(3, 1), one(4, 0)]);
    journal.lay_down(2, &mut drafts[2]);
    assert_eq!(read(&mut reader, &journal), [one(5, 2)]);
    assert_eq!((journal.unread(), reader.last()), (0, 5));
}

#[test]
fn several_commands_are_a_transaction() {
    let journal = Journal::new(1);
    let (mut reader, mut draft) = (Reader::after(&journal, 0), Draft::default());
    log(&mut draft, 2, "SET a 1");
    log(&mut draft, 12, "DEL b");
    draft.commit(&journal);
    log(&mut draft, 1, "DEL c");
    draft.commit(&journal);
    draft.commit(&journal); // nothing was written
    journal.lay_down(0, &mut draft);
    let first = "1 2>12 *1 $5 MULTI *3 $3 SET $1 a $1 1 *2 $6 SELECT $2 12 *2 $3 DEL $1 b *1 $4 EXEC";
    assert_eq!(read(&mut reader, &journal), [first, "2 1>1 *2 $3 DEL $1 c"]);
}

#[test]
fn a_reader_may_stop_and_go_on() {
    let journal = Journal::new(2);
    let (mut reader, mut drafts) = (Reader::after(&journal, 0), [Draft::default(), Draft::default()]);
    for number in 0..100 {
        let draft = &mut drafts[number % 2];
        log(draft, 0, &format!("DEL {number}"));
        draft.commit(&journal);
        if number % 7 == 0 {
            journal.lay_down(number % 2, &mut drafts[number % 2]);
        }
    }
    (0..2).for_each(|seat| journal.lay_down(seat, &mut drafts[seat]));
    let mut numbers = Vec::new();
    for stop in [1, 2, 50, 100] {
        reader.read(&journal, |record| {
            numbers.push(record.number);
            record.number < stop
        });
        assert_eq!(reader.last(), stop);
    }
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
}

/// Who begins a new file says so after the reader has come to the last record of the old one, and before the next is written.
#[test]
fn what_is_not_wanted_any_more_waits() {
    use std::sync::atomic::{AtomicU64, Ordering::*};
    let journal = Journal::new(1);
    let (mut reader, mut draft) = (Reader::after(&journal, 0), Draft::default());
    let mut write = |command: &str| {
        log(&mut draft, 0, command);
        draft.commit(&journal);
        journal.lay_down(0, &mut draft);
    };
    let (until, mut numbers) = (AtomicU64::new(u64::MAX), Vec::new());
    write("DEL a");
    reader.read_while(
        &journal,
        |number| number <= until.load(Relaxed),
        |record| {
            numbers.push(record.number);
            if record.number == 1 {
                until.store(1, Relaxed);
                write("DEL b");
            }
            true
        },
    );
    assert_eq!((numbers, reader.last()), (vec![1], 1));
    assert_eq!(read(&mut reader, &journal), ["2 0>0 *2 $3 DEL $1 b"]);
}
