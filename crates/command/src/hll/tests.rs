//! HyperLogLogs against plain registers, against values that Redis made, and broken in every way.

use evenkeel_testkit::Random;

use super::hash::{Place, SEED, murmur64, place};
use super::*;
use evenkeel_testkit::random::printed as random;

const SPARSE_MAX: usize = 3_000;

type Plain = [u8; REGISTERS];

fn plain(bytes: &[u8]) -> Plain {
    let mut registers = Registers::zeros();
    merge_into(&mut registers, bytes).expect("not corrupt");
    let unpacked: Vec<u8> = registers.iter().collect();
    unpacked.try_into().expect("all registers")
}

fn registers(plain: &Plain) -> Registers {
    let mut registers = Registers::zeros();
    plain.iter().enumerate().for_each(|(index, value)| registers.raise(index, *value));
    registers
}

/// The value of PFADD with the numbers from 0 on, each a decimal text.
fn of_numbers(count: usize, sparse_max: usize) -> Vec<u8> {
    let texts: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    made_of(texts.iter().map(|text| text.as_bytes()), sparse_max).0
}

/// Sparse or dense, of a random size; now and then with registers that are rare in nature.
fn random_value(random: &mut Random) -> Vec<u8> {
    let sparse_max = [0, 40, 200, SPARSE_MAX, 40_000][random.below(5)];
    let mut bytes = empty();
    let (count, spread) = (random.below(600), [5, 40, 300, REGISTERS][random.below(4)]);
    let places = (0..count).map(|_| {
        let rank = if random.chance(1) { random.between(1, 51) } else { random.between(1, 4) };
        Place { index: random.below(spread), rank: rank as u8 }
    });
    raise_all(&mut bytes, places.collect::<Vec<_>>().into_iter(), sparse_max).expect("not corrupt");
    bytes
}

/// Sparse, with runs that no server leaves: neighbours of the same value, zeros in pieces.
fn ragged_value(random: &mut Random) -> Vec<u8> {
    let (mut bytes, mut left) = (empty(), REGISTERS);
    bytes.truncate(HEADER);
    for _ in 0..random.below(400) {
        let len = random.below(4) + 1;
        if random.chance(20) {
            sparse::push_zeros(&mut bytes, len);
        } else {
            bytes.push(0x80 | (random.below(2) << 2 | (len - 1)) as u8);
        }
        left -= len;
    }
    sparse::push_zeros(&mut bytes, left);
    bytes
}

#[test]
fn random_elements_count_equally_in_both_encodings() {
    let mut random = random();
    for _ in 0..60 {
        let sparse_max = [0, 18, 60, 500, SPARSE_MAX, 40_000][random.below(6)];
        let (mut value, mut registers) = (empty(), [0; REGISTERS]);
        for _ in 0..random.below(40) {
            let elements: Vec<Vec<u8>> = (0..random.below(60)).map(|_| random.bytes(20)).collect();
            let mut expected = 0;
            for Place { index, rank } in elements.iter().map(|element| place(element)) {
                expected += u64::from(rank > registers[index]);
                registers[index] = rank.max(registers[index]);
            }
            let before = value.clone();
            let Edited { changes, instead } =
                add(&mut value, elements.iter().map(|element| &element[..]), sparse_max)
                    .expect("not corrupt");
            assert_eq!(changes, expected);
            assert!(changes > 0 || (value == before && instead.is_none()), "no change, no write");
            value = instead.unwrap_or(value);
            assert_eq!(plain(&value), registers);
            assert!(changes == 0 || cached_count(&value).is_none(), "a change puts the count out of date");
        }
        assert_eq!(count(&value), Ok(count_registers(&self::registers(&registers))));
        assert_eq!(plain(&to_dense(&value).expect("not corrupt")), registers);
    }
}

#[test]
fn merging_takes_the_maximum_of_each_register() {
    let mut random = random();
    for _ in 0..200 {
        let sources: Vec<Vec<u8>> = (0..random.between(1, 4)).map(|_| random_value(&mut random)).collect();
        let mut registers = [0; REGISTERS];
        for source in &sources {
            let values = plain(source);
            (0..REGISTERS).for_each(|index| registers[index] = registers[index].max(values[index]));
        }
        let mut merged_into = Registers::zeros();
        sources.iter().for_each(|source| merge_into(&mut merged_into, source).expect("not corrupt"));
        assert!(merged_into.iter().eq(registers));
        let mut target = sources[0].clone();
        let dense = random.chance(30);
        let edited = store(&mut target, &merged_into, dense, SPARSE_MAX).expect("not corrupt");
        let target = edited.instead.unwrap_or(target);
        assert_eq!((plain(&target), edited.changes), (registers, 1));
        assert!(!dense || encoding(&target) == Ok(Encoding::Dense));
        assert_eq!(plain(&merged(&merged_into, dense, SPARSE_MAX)), registers);
    }
}

/// Raising registers in order begins each search where the last ended; the bytes must not show it.
#[test]
fn merging_gives_the_bytes_of_single_updates() {
    let mut random = random();
    for _ in 0..100 {
        let ragged = random.chance(50);
        let target = if ragged { ragged_value(&mut random) } else { random_value(&mut random) };
        let source = if ragged { ragged_value(&mut random) } else { random_value(&mut random) };
        if encoding(&target) != Ok(Encoding::Sparse) {
            continue;
        }
        let mut registers = registers(&plain(&target));
        merge_into(&mut registers, &source).expect("not corrupt");
        let mut steps = target.clone();
        for (index, rank) in registers.iter().enumerate().filter(|(_, rank)| *rank > 0) {
            raise_all(&mut steps, std::iter::once(Place { index, rank }), SPARSE_MAX).expect("not corrupt");
        }
        let mut at_once = target.clone();
        let edited = store(&mut at_once, &registers, false, SPARSE_MAX).expect("not corrupt");
        let mut at_once = edited.instead.unwrap_or(at_once);
        // Merging marks the count as out of date even if no register was raised.
        set_stale(&mut steps);
        set_stale(&mut at_once);
        assert_eq!(steps, at_once);
    }
}

/// The second step joins the raised register with the run where the third step begins to search. (Redis joins
/// the first two runs only when a register next to them is raised.)
#[test]
fn search_may_start_inside_a_joined_run() {
    let [one, zero] = [0x80, 0x00];
    let mut target = empty();
    target.truncate(HEADER);
    target.extend([zero, one, one, zero, one]);
    sparse::push_zeros(&mut target, REGISTERS - 5);
    let mut registers = Registers::zeros();
    [0, 1, 1, 1, 2].iter().enumerate().for_each(|(index, value)| registers.raise(index, *value));
    let edited = store(&mut target, &registers, false, SPARSE_MAX).expect("not corrupt");
    let runs = decode(&edited.instead.expect("it is shorter")).expect("not corrupt").expect("sparse");
    assert_eq!(runs, "z:1 v:1,3 v:2,1 Z:16379");
}

/// Bytes and counts of redis-server 7.0.15.
#[test]
fn values_match_redis() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(&of_numbers(40, SPARSE_MAX)),
        "48594c4c01000000000000000000008041ee84409a90437580441080443e8040e28040bc8c378840ab8041638042dc804106\
         8040588040948045719040db8042118441428042c184408e8c40e68c288045248040928041fd884199804048844124844170\
         84424e8c1b80405880068042f480425d8040788042128c40b880158441bb804165"
    );
    for (numbers, counted, len) in [
        (1, 1, 21),
        (10, 10, 48),
        (100, 100, 287),
        (1_000, 1_001, 1_923),
        (10_000, 9_987, DENSE_LEN),
        (100_000, 99_565, DENSE_LEN),
    ] {
        let value = of_numbers(numbers, SPARSE_MAX);
        assert_eq!((count(&value), value.len()), (Ok(counted), len), "{numbers} numbers");
    }
    // Long values, where runs are split and joined everywhere; by their hashes.
    for (numbers, len, hash) in [
        (1_000, 1_923, 0x0113_7918_0145_9b86),
        (5_000, 7_226, 0x5f27_2240_a14a_af0d),
        (20_000, 13_079, 0x0bb2_6276_fe12_b56d),
    ] {
        let value = of_numbers(numbers, 100_000);
        assert_eq!((value.len(), murmur64(&value, SEED)), (len, hash), "{numbers} numbers");
    }
    // Hashes of a whole word, of a rest, of both, of nothing.
    for (element, runs) in [
        (&b"a"[..], "Z:12711 v:2,1 Z:3672"),
        (b"", "Z:5938 v:2,1 Z:10445"),
        (b"12345678", "Z:10579 v:3,1 Z:5804"),
        (b"123456789abcdef", "Z:1977 v:3,1 Z:14406"),
        (b"0123456789abcdef", "Z:5949 v:1,1 Z:10434"),
    ] {
        let (value, changes) = made_of(std::iter::once(element), SPARSE_MAX);
        assert_eq!((decode(&value), changes), (Ok(Some(runs.to_owned())), 1));
    }
}

#[test]
fn sparse_values_convert_at_the_limit() {
    let texts: Vec<String> = (0..2_000).map(|number| number.to_string()).collect();
    let mut value = empty();
    for text in &texts {
        let edited = add(&mut value, std::iter::once(text.as_bytes()), 300).expect("not corrupt");
        let grown = edited.instead.unwrap_or_else(|| value.clone());
        match encoding(&grown).expect("not corrupt") {
            Encoding::Sparse => assert!(grown.len() <= 300),
            Encoding::Dense => {
                let had_room = encoding(&value) == Ok(Encoding::Dense) || value.len() > 300 - 3;
                assert!(had_room, "dense already at {} bytes", value.len());
            }
        }
        value = grown;
    }
    assert_eq!(encoding(&value), Ok(Encoding::Dense));
    // The rank 33 has no sparse code.
    let mut value = empty();
    raise_all(&mut value, [Place { index: 7, rank: 32 }].into_iter(), SPARSE_MAX).expect("not corrupt");
    assert_eq!(encoding(&value), Ok(Encoding::Sparse));
    raise_all(&mut value, [Place { index: 7, rank: 33 }].into_iter(), SPARSE_MAX).expect("not corrupt");
    assert_eq!((encoding(&value), plain(&value)[7]), (Ok(Encoding::Dense), 33));
}

/// Whatever a client writes into the string: an answer or an error, and after an error the same bytes as
/// before.
#[test]
fn corrupt_values_are_refused_and_left_unchanged() {
    let mut random = random();
    let mut refused = 0;
    for _ in 0..1_500 {
        let mut value = random_value(&mut random);
        for _ in 0..random.between(1, 4) {
            match random.below(4) {
                0 => value.truncate(random.below(value.len() + 1)),
                1 => value.extend(random.bytes(4)),
                _ if value.is_empty() => {}
                _ => {
                    let at = random.below(value.len().min(60));
                    value[at] = random.draw() as u8;
                }
            }
        }
        let before = value.clone();
        let registers = registers(&[random.below(40) as u8; REGISTERS]);
        let (element, dense) = (random.bytes(9), random.chance(50));
        let elements = [&element[..], b"1", b"2"];
        let outcomes = [
            count(&value).is_err(),
            decode(&value).is_err(),
            to_dense(&value).is_err(),
            merge_into(&mut Registers::zeros(), &value).is_err(),
            add(&mut value.clone(), elements.into_iter(), SPARSE_MAX).is_err(),
            store(&mut value.clone(), &registers, dense, SPARSE_MAX).is_err(),
        ];
        refused += outcomes.iter().filter(|is_error| **is_error).count();
        if add(&mut value, elements.into_iter(), SPARSE_MAX).is_err() {
            assert_eq!(value, before);
        }
    }
    assert!(refused > 500, "{refused} refusals: most breaks should matter");
}

#[test]
fn headers_of_corrupt_values_are_refused() {
    let value = of_numbers(10, SPARSE_MAX);
    let changed = |at: usize, byte: u8| {
        let mut value = value.clone();
        value[at] = byte;
        encoding(&value)
    };
    assert_eq!(encoding(&value), Ok(Encoding::Sparse));
    assert_eq!(changed(0, b'h'), Err(Fault::Foreign));
    assert_eq!(changed(ENCODING_AT, 2), Err(Fault::Foreign));
    assert_eq!(changed(ENCODING_AT, 0), Err(Fault::Foreign), "too short to be dense");
    assert_eq!(changed(ENCODING_AT + 1, 9), Ok(Encoding::Sparse), "unused bytes are not looked at");
    assert_eq!(encoding(&value[..HEADER - 1]), Err(Fault::Foreign));
    assert_eq!(count(&value[..HEADER]), Err(Fault::Corrupt));
    let mut long = value.clone();
    long.resize(SPARSE_LEN_MAX + 1, 0);
    assert_eq!(encoding(&long), Err(Fault::Corrupt));
}

/// Registers that no element produces make estimates beyond every bound.
#[test]
fn impossible_registers_still_give_a_count() {
    let count_of = |register: u8| count_registers(&registers(&[register; REGISTERS]));
    assert_eq!([63, 52, 51, 50].map(count_of), [1 << 63; 4]);
    assert_eq!([0, 1, 2, 49].map(count_of), [0, 23_637, 47_274, 6_653_256_548_922_161_152]);
}

#[test]
fn the_self_test_passes() {
    assert_eq!(self_test(), Ok(()));
}
