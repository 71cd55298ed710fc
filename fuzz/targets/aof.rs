//! Append-only files and their manifests.

#![no_main]

use evenkeel_rdb::aof::{Commands, Flaw, Manifest, Record};
use evenkeel_resp::value::encode_command;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(manifest) = Manifest::parse(data) {
        let bytes = manifest.to_bytes();
        match Manifest::parse(&bytes) {
            Ok(again) => assert_eq!(again, manifest),
            // Escapes have made a line too long: a directory refuses to write it.
            Err(error) => assert_eq!(error.flaw, Flaw::TooLong),
        }
    }
    let len = data.len() as u64;
    let mut commands = Commands::new(data, 0, Some(len));
    let mut before = 0;
    while let Ok(Some(record)) = commands.next() {
        let Record::Command(command) = record else { continue };
        assert!(before <= command.at() && command.at() < command.end() && command.end() <= len);
        before = command.end();
        assert_eq!(command.bytes(), &data[command.at() as usize..command.end() as usize]);
        let args: Vec<&[u8]> = command.args().collect();
        assert_eq!((args.len(), args[0]), (command.count(), command.name()));
        if command.in_transaction() {
            continue; // EXEC stands behind MULTI alone
        }
        let encoded = encode_command(&args);
        let mut again = Commands::new(&encoded[..], 0, Some(encoded.len() as u64));
        match again.next() {
            Ok(Some(Record::Command(command))) => assert!(command.args().eq(args.iter().copied())),
            other => panic!("{other:?}"),
        }
    }
    assert!(commands.whole() <= len);
});
