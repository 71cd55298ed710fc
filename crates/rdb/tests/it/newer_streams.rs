//! The forms of streams since Redis 8.6, which hold producers and released entries.

use evenkeel_rdb::{
    Consumer, Decoder, Encoder, Error, Group, Id, Idmp, Info, Item, NOBODY, NodeLimits, Object, Pending,
    Producer, Reason, Slice, StreamForm,
};

const LIMITS: NodeLimits = NodeLimits { bytes_max: 4096, entries_max: 100 };

const fn id(ms: u64) -> Id {
    Id { ms, seq: 0 }
}

fn idmp() -> Idmp {
    let entries = vec![(b"late".to_vec(), id(9)), (b"early".to_vec(), id(8))];
    let producers = vec![
        Producer { name: b"p".to_vec(), entries },
        Producer { name: b"q".to_vec(), entries: vec![(b"late".to_vec(), id(9))] },
    ];
    Idmp { duration_s: 70_000, entries_max: 3, producers, added: 300, duplicates: 7 }
}

fn group(released: Vec<Id>) -> Group {
    let pending = |id: Id| {
        let consumer = if released.contains(&id) { NOBODY } else { 0 };
        Pending { id, delivered: u64::from(consumer == 0) * 5, deliveries: 2, consumer }
    };
    Group {
        name: b"g".to_vec(),
        last_id: id(9),
        entries_read: Some(2),
        pending: [7, 8, 9].map(|ms| pending(id(ms))).to_vec(),
        consumers: vec![Consumer { name: b"c".to_vec(), seen: 6, active: None }],
        released,
    }
}

fn write(form: StreamForm, groups: &[Group]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), form.version());
    let mut writer = encoder.stream_of(form, LIMITS, None);
    writer.entry(id(8), &[(Item::Bytes(b"a"), Item::Int(1))]);
    writer.entry(id(9), &[(Item::Bytes(b"a"), Item::Int(2))]);
    let info =
        Info { length: 2, first_id: id(8), last_id: id(9), max_deleted_id: Id::ZERO, entries_added: 2 };
    writer.finish_with(&info, groups.iter(), &idmp());
    encoder.into_out()
}

fn read(bytes: &[u8]) -> Result<(Vec<Group>, Option<Idmp>), Error> {
    let mut decoder = Decoder::new(Slice::new(bytes), 14);
    let Object::Stream(stream) = decoder.object()? else { panic!("not a stream") };
    let (_, mut groups) = stream.finish()?;
    let mut all = Vec::new();
    while let Some(group) = groups.next()? {
        all.push(group);
    }
    let idmp = groups.take_idmp();
    decoder.finish()?;
    Ok((all, idmp))
}

#[test]
fn newer_forms_of_streams_are_read_back() {
    let released = [group(vec![id(9), id(7)]), Group { name: b"h".to_vec(), ..group(vec![]) }];
    for (form, kind, groups) in [
        (StreamForm::Released, 27, &released[..]),
        (StreamForm::Released, 27, &[]),
        (StreamForm::Idmp, 26, &released[1..]),
        (StreamForm::Idmp, 26, &[]),
    ] {
        let bytes = write(form, groups);
        assert_eq!(bytes[0], kind);
        assert_eq!(read(&bytes), Ok((groups.to_vec(), Some(idmp()))), "{form:?}");
        let mut decoder = Decoder::new(Slice::new(&bytes[1..]), 14);
        decoder.pass_object_of(kind).expect("it is passed like it is read");
        decoder.finish().expect("nothing is left");
    }
}

#[test]
fn broken_newer_forms_are_refused() {
    let bytes = write(StreamForm::Released, &[group(vec![id(9), id(7)])]);
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "cut to {len}");
    }
    for at in 1..bytes.len() {
        for change in [1, 0x40, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            drop(read(&changed));
        }
    }
    for released in [vec![id(9)], vec![id(9), id(9)], vec![id(9), id(6)]] {
        let group = Group { released, ..group(vec![id(9), id(7)]) };
        let error = read(&write(StreamForm::Released, &[group])).expect_err("not what is pending");
        assert_eq!(error.reason, Reason::Pending);
    }
}
